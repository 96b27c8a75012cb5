//! Which leaves of the extent tree a commit cannot reach, but for what it is for.
//!
//! Each node that a commit writes or frees has its record where the addresses of nodes are: in the leaves of
//! block groups that may hold nodes, and those of the groups' own items. Records of content change for
//! two reasons alone:
//!
//! * a file gets or loses a reference, which the delta counts ([`super::bound::Cost::records`]);
//! * a leaf that several trees share is copied, which gives all extents in it a referrer more. Those
//!   may lie anywhere, and are not counted.
//!
//! Of an extent with very many references (a block that was shared to everywhere) most leaves have
//! those of that extent alone, and are reached by the second reason only if a shared leaf refers to
//! it. That none does is certain where each of its referrers is a file of a tree that was never
//! snapshotted: such leaves are `inner`. All others may be rewritten by any commit, as far as this says.
//!
//! Invariants: looked up behind a commit, and said to be otherwise once the next snapshot is announced. A leaf that could not be read, or
//! too many, make all leaves such as any commit may rewrite, which is what a bound takes without this.
//!
//! What it does not know: what commits change.

use btrfs_disk::items::{ExtentDataRef, ExtentItem, InlineRef};
use btrfs_disk::key::kind;
use btrfs_disk::{ChildPtr, Expect, FixedSize, Generation, Key, Logical, Node, Result, TreeId};
use btrfs_tree::NodeReader;
use btrfs_txn::Core;
use locks::{Mutex, Rank};
use rustc_hash::FxHashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Leaves of an extent tree that is looked at: beyond, a look behind each commit takes too long.
/// Chosen, not measured: 1 GiB of nodes of 16 KiB.
const MOST: u64 = 1 << 16;
/// Leaves between the references of one extent that are worth a look at all of them.
/// Chosen, not measured.
const MANY: usize = 8;

/// Leaves that not every commit may rewrite.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Inner {
    pub leaves: u64,
    /// A snapshot is announced, and what it shares is not known: copies of leaves may reach them.
    pub coming: bool,
}

/// Leaves that were looked at, which never change: whoever refers to the extent in them shares no nodes.
type Seen = FxHashSet<(Logical, Generation)>;

/// What is known of the last commit's.
pub(super) struct Leaves {
    inner: AtomicU64,
    /// Snapshots that had been announced by then.
    announced: AtomicU64,
    seen: Mutex<Seen>,
}

impl Default for Leaves {
    fn default() -> Leaves {
        let (inner, announced) = Default::default();
        Leaves { inner, announced, seen: Mutex::new(Rank::Leaf, Seen::default()) }
    }
}

impl Leaves {
    /// As what they are to be taken for when so many snapshots are announced.
    pub(super) fn now(&self, announced: u64) -> Inner {
        // In this order: where it is known what was announced, the leaves are of then.
        let coming = announced != self.announced.load(Ordering::Acquire);
        Inner { leaves: self.inner.load(Ordering::Acquire), coming }
    }

    pub(super) fn forget(&self) {
        self.inner.store(0, Ordering::Release);
        self.seen.lock().clear();
    }

    /// Of the last commit. `alone`: no snapshot is announced that it does not have.
    pub(super) fn look(&self, core: &Core, announced: u64, alone: bool) {
        let mut seen = std::mem::take(&mut *self.seen.lock());
        if announced != self.announced.load(Ordering::Acquire) {
            seen.clear();
        }
        let found = alone.then(|| inner(core, &mut seen)).transpose();
        self.inner.store(found.ok().flatten().unwrap_or_default(), Ordering::Release);
        self.announced.store(announced, Ordering::Release);
        *self.seen.lock() = seen;
    }
}

/// Of the last commit; 0 where it is not known.
fn inner(core: &Core, seen: &mut Seen) -> Result<u64> {
    let roots = core.roots();
    let Some(root) = roots.get(TreeId::EXTENT) else { return Ok(0) };
    let node_size = u64::from(core.geometry.node_size);
    if root.root.level == 0 || root.item.bytes_used / node_size > MOST || core.space.mixed() {
        return Ok(0);
    }
    let mut leaves = Vec::new();
    leaves_below(core, &*core.store.node(&root.root.expect())?, &mut leaves)?;
    let apart = not_of_nodes(core, &leaves);
    let mut now = Seen::default();
    let mut inner = 0;
    for (extent, run) in runs(&leaves) {
        let free = run.filter(|leaf| apart[*leaf]).count();
        if free >= MANY && is_alone(core, &leaves, extent, (seen, &mut now))? {
            inner += free as u64;
        }
    }
    *seen = now;
    Ok(inner)
}

/// Which of them have no records of nodes, nor items of block groups.
fn not_of_nodes(core: &Core, leaves: &[ChildPtr]) -> Vec<bool> {
    let mut apart = vec![true; leaves.len()];
    for (span, nodes) in core.space.groups() {
        // An extent may begin where a group does: its references are in front of the group's item.
        let item = |offset| Key::new(span.start, kind::BLOCK_GROUP_ITEM, offset);
        let (first, last) = match nodes {
            true => (Key::new(span.start, 0, 0), Key::new(span.end, 0, 0)),
            false => (item(0), item(u64::MAX)),
        };
        apart[at(leaves, &first)..=at(leaves, &last)].fill(false);
    }
    apart
}

fn leaves_below(core: &Core, node: &Node, leaves: &mut Vec<ChildPtr>) -> Result<()> {
    if node.level() == 1 {
        leaves.extend(node.children());
        return Ok(());
    }
    node.children().try_for_each(|child| {
        let expect = Expect::of_child(&child, node.level() - 1, TreeId::EXTENT);
        leaves_below(core, &*core.store.node(&expect)?, leaves)
    })
}

/// The leaf that `key` is in, or would be put into.
fn at(leaves: &[ChildPtr], key: &Key) -> usize {
    leaves.partition_point(|leaf| leaf.key <= *key).saturating_sub(1)
}

/// Leaves between references of one extent, with its address: what they begin with and what the
/// next one begins with are such.
fn runs(leaves: &[ChildPtr]) -> Vec<(u64, Range<usize>)> {
    let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
    for (number, pair) in leaves.windows(2).enumerate() {
        let [this, next] = [pair[0].key, pair[1].key];
        let references = [this, next].iter().all(|key| key.kind == kind::EXTENT_DATA_REF);
        if !references || this.objectid != next.objectid {
            continue;
        }
        match runs.last_mut() {
            Some((extent, run)) if *extent == this.objectid => run.end = number + 1,
            _ => runs.push((this.objectid, number..number + 1)),
        }
    }
    runs
}

/// Whoever refers to `extent` shares no nodes: it is a file of a tree that never was snapshotted.
fn is_alone(
    core: &Core,
    leaves: &[ChildPtr],
    extent: u64,
    (seen, now): (&Seen, &mut Seen),
) -> Result<bool> {
    let first = at(leaves, &Key::new(extent, 0, 0));
    let last = at(leaves, &Key::new(extent, u8::MAX, u64::MAX));
    for leaf in &leaves[first..=last] {
        // Others have an extent before it as well, for which they were looked at.
        let id = (leaf.key.objectid == extent).then_some((leaf.logical, leaf.generation));
        let known = id.is_some_and(|id| seen.contains(&id));
        if !known && !is_alone_in(core, leaf, extent)? {
            return Ok(false);
        }
        now.extend(id);
    }
    Ok(true)
}

/// As far as this leaf has it.
fn is_alone_in(core: &Core, leaf: &ChildPtr, extent: u64) -> Result<bool> {
    let roots = core.roots();
    if roots.get(TreeId::RELOC).is_some() {
        return Ok(false);
    }
    let alone = |root| roots.get(root).is_some_and(|root| root.item.last_snapshot.0 == 0);
    let node = core.store.node(&Expect::of_child(leaf, 0, TreeId::EXTENT))?;
    for (key, data) in node.items().filter(|(key, _)| key.objectid == extent) {
        let alone = match key.kind {
            kind::EXTENT_DATA_REF => alone(ExtentDataRef::read(data)?.root),
            kind::EXTENT_ITEM => {
                ExtentItem::parse(key.kind, data)?.inline.iter().all(|one| match one {
                    InlineRef::Data(who) => alone(who.root),
                    one => matches!(one, InlineRef::Owner { .. }),
                })
            }
            other => matches!(other, kind::BLOCK_GROUP_ITEM | kind::EXTENT_OWNER_REF),
        };
        if !alone {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::Caller;
    use vfs::{Context, FileKind, FileSystem, WriteFlags};

    const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
    const SECTOR: u64 = 4096;

    fn look(core: &Core) -> u64 {
        let leaves = Leaves::default();
        leaves.look(core, 3, true);
        let inner = leaves.now(3);
        assert!(!inner.coming && leaves.now(4) == Inner { coming: true, ..inner });
        leaves.look(core, 4, false);
        assert_eq!(leaves.now(4), Inner::default(), "one is announced");
        inner.leaves
    }

    /// Of one block that is shared to everywhere, until a snapshot has the file as well.
    #[test]
    fn copies_of_shared_leaves_reach_no_references_of_files_that_are_not_shared() {
        let fs = volume(128, 4096);
        let made = fs.create_subvolume(&Caller::root(), fs.root(), b"sub").expect("subvolume");
        let sub = made.1.attr.ino;
        let ino = fs.mknod(&CX, sub, b"file", FileKind::File, 0o644, 0).expect("mknod").attr.ino;
        fs.write(&CX, ino, 0, &[7; SECTOR as usize], WriteFlags::default()).expect("write");
        let share = |number: u64| {
            fs.clone_range(&CX, ino, 0, ino, 2 * number * SECTOR, SECTOR).expect("clone");
        };
        (1..3000).for_each(share);
        fs.sync().expect("sync");
        let core = &fs.engine.core;
        let before = look(core);
        assert!(before > 30, "{before}");
        (3000..3005).for_each(share);
        fs.snapshot(&Caller::root(), sub, fs.root(), b"snapshot", true).expect("snapshot");
        assert_eq!(look(core), 0);
    }

    #[test]
    fn leaves_between_references_of_one_extent_are_a_run() {
        let leaf = |objectid, kind| ChildPtr {
            key: Key::new(objectid, kind, 7),
            logical: Logical(0),
            generation: Generation(1),
        };
        let references = kind::EXTENT_DATA_REF;
        let leaves = [
            leaf(1, kind::EXTENT_ITEM),
            leaf(5, references),
            leaf(5, references),
            leaf(5, references),
            leaf(9, references),
            leaf(9, kind::SHARED_DATA_REF),
            leaf(12, kind::EXTENT_ITEM),
        ];
        assert_eq!(runs(&leaves), [(5, 1..3)]);
        assert_eq!(at(&leaves, &Key::new(8, 0, 0)), 3);
        assert_eq!(at(&leaves, &Key::new(0, 0, 0)), 0);
    }
}
