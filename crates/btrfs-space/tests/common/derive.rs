//! All references of a volume, derived from what its trees point to, and as its extent
//! tree says.

use super::Opened;
use btrfs_disk::items::extent_flags;
use btrfs_disk::key::kind;
use btrfs_disk::{Expect, Key, Node, TreeId};
use btrfs_space::refs::current_refs;
use btrfs_space::shared::{Holder, pointers};
use btrfs_space::{ExtentKind, RefOwner, TreeItems};
use btrfs_tree::{NodeReader, TreeRoot, scan};
use std::collections::{BTreeMap, HashSet};

/// Extent start -> (length, kind, holder -> count).
pub type AllRefs = BTreeMap<u64, (u64, bool, BTreeMap<RefOwner, u64>)>;

/// What the extent tree says, and the flags of every extent.
pub fn stored(opened: &Opened) -> (AllRefs, BTreeMap<u64, u64>) {
    let root = opened.tree(TreeId::EXTENT);
    let node_size = u64::from(opened.store.geometry().node_size);
    let (mut out, mut flags) = (AllRefs::new(), BTreeMap::new());
    for item in scan(&opened.store, &root, Key::MIN..=Key::MAX) {
        let key = item.expect("extent tree").key();
        if !matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
            continue;
        }
        let logical = btrfs_disk::Logical(key.objectid);
        let refs = current_refs(&mut TreeItems::new(&opened.store, &root), &[], logical)
            .expect("refs")
            .expect("an extent");
        let data = refs.flags & extent_flags::DATA != 0;
        let len = if key.kind == kind::EXTENT_ITEM { key.offset } else { node_size };
        flags.insert(key.objectid, refs.flags);
        assert_eq!(refs.refs, refs.owners.values().sum::<u64>());
        out.insert(key.objectid, (len, data, refs.owners));
    }
    (out, flags)
}

/// What the trees' pointers amount to; `flags` says which nodes hold theirs themselves.
pub fn derived(opened: &Opened, flags: &BTreeMap<u64, u64>) -> AllRefs {
    let mut walk = Walk { opened, flags, seen: HashSet::new(), out: AllRefs::new() };
    walk.root(&opened.root_tree());
    walk.root(&opened.chunk_tree());
    for (_, item, root) in opened.trees() {
        assert_eq!(item.refs, 1, "no tree is being dropped");
        walk.root(&root);
    }
    walk.out
}

struct Walk<'a> {
    opened: &'a Opened,
    flags: &'a BTreeMap<u64, u64>,
    seen: HashSet<u64>,
    out: AllRefs,
}

impl Walk<'_> {
    fn add(&mut self, extent: u64, len: u64, kind: ExtentKind, owner: RefOwner) {
        let data = kind == ExtentKind::Data;
        let entry = self.out.entry(extent).or_insert((len, data, BTreeMap::new()));
        assert_eq!((entry.0, entry.1), (len, data), "extent {extent}");
        *entry.2.entry(owner).or_default() += 1;
    }

    fn root(&mut self, root: &TreeRoot) {
        let node = self.opened.store.get(&root.expect()).expect("root node");
        let owner = RefOwner::Tree { root: root.id };
        let kind = ExtentKind::Node { level: root.level };
        self.add(root.logical.0, node.bytes().len() as u64, kind, owner);
        self.node(&node);
    }

    fn node(&mut self, node: &Node) {
        if !self.seen.insert(node.logical().0) {
            return;
        }
        let flags = self.flags.get(&node.logical().0).copied().unwrap_or(0);
        let holder = match flags & extent_flags::FULL_BACKREF != 0 {
            true => Holder::Shared(node.logical()),
            false => Holder::Keyed(node.owner()),
        };
        let mut all = Vec::new();
        pointers(node, holder, |p| all.push(p)).expect("pointers");
        all.iter().for_each(|p| self.add(p.extent.0, p.len, p.kind, p.owner));
        if !node.is_leaf() {
            for child in node.children() {
                let expect = Expect {
                    logical: child.logical,
                    level: node.level() - 1,
                    generation: Some(child.generation),
                    owner: None,
                    first_key: Some(child.key),
                };
                let child = self.opened.store.get(&expect).expect("child");
                self.node(&child);
            }
        }
    }
}

/// The volume's references are what its trees amount to; answers what kinds there were.
pub fn assert_true(opened: &Opened) -> Census {
    let (stored, flags) = stored(opened);
    let derived = derived(opened, &flags);
    for (extent, refs) in &stored {
        assert_eq!(derived.get(extent), Some(refs), "extent {extent}");
    }
    assert_eq!(stored.len(), derived.len(), "extents that the extent tree lacks");
    let mut trees: HashSet<TreeId> = opened.trees().iter().map(|(_, _, root)| root.id).collect();
    trees.extend([TreeId::ROOT, TreeId::CHUNK]);
    let full = flags.values().filter(|f| *f & extent_flags::FULL_BACKREF != 0);
    let mut census = Census { full_backref: full.count(), ..Census::default() };
    for (_, _, owners) in stored.values() {
        for (owner, count) in owners {
            if let RefOwner::Tree { root } | RefOwner::Data { root, .. } = owner {
                assert!(trees.contains(root), "a reference is keyed by tree {root}, which is gone");
            }
            match owner {
                RefOwner::Tree { .. } => census.tree += 1,
                RefOwner::SharedTree { .. } => census.shared_tree += 1,
                RefOwner::Data { .. } => census.data += 1,
                RefOwner::SharedData { .. } => census.shared_data += 1,
            }
            census.most = census.most.max(*count);
        }
        census.most_owners = census.most_owners.max(owners.len());
    }
    census
}

/// What kinds of references a volume has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Census {
    pub full_backref: usize,
    pub tree: usize,
    pub shared_tree: usize,
    pub data: usize,
    pub shared_data: usize,
    pub most: u64,
    pub most_owners: usize,
}

/// The free map of every block group is the complement of its extents, less superblock
/// copies; what it calls used is the sum of its extents.
pub fn assert_space_true(opened: &Opened) {
    let space = opened.space();
    let (stored, _) = stored(opened);
    let mut total = 0;
    for group in space.group_infos() {
        let end = group.logical.0 + group.len;
        let (mut used, mut at, mut free) = (0, group.logical.0, Vec::new());
        for (start, (len, _, _)) in stored.range(group.logical.0..end) {
            if *start > at {
                free.push((at, start - at));
            }
            (at, used) = (start + len, used + len);
        }
        if at < end {
            free.push((at, end - at));
        }
        assert_eq!(used, group.used, "block group {}", group.logical);
        let mut ranges = btrfs_space::free_space::Ranges::new();
        free.iter().for_each(|(start, len)| {
            ranges.insert(*start, *len).expect("disjoint");
        });
        group.excluded.iter().for_each(|(start, len)| ranges.subtract(*start, *len));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), group.free, "group {}", group.logical);
        total += used;
    }
    for chunk in opened.volume.chunks() {
        for (start, len) in chunk.super_ranges() {
            let below = stored.range(..start.0 + len).next_back();
            let free = below.is_none_or(|(extent, (size, _, _))| extent + size <= start.0);
            assert!(free, "{below:?} lies on a superblock copy");
        }
    }
    assert_eq!(total, opened.volume.superblock().fields.bytes_used);
    assert_eq!(total, space.used());
}
