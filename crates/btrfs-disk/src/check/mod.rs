//! The gate: every member of every node and item is judged here, once, on read and
//! before write. Behind it code asserts invariants and never disk contents.
//!
//! Two rules pull against each other: nothing passes that later code would trip over,
//! and nothing is refused that the kernel or mkfs.btrfs ever wrote. Where the kernel
//! leaves a member alone because real volumes carry wrong values, so does this.
//!
//! Does not know other nodes, the chunk map or the superblock: what needs two nodes
//! (references that add up, directory entries with an inode) is fsck's work.

mod chunk;
mod csum;
mod dir;
mod extent;
mod file_extent;
mod free_space;
mod home;
mod inode;
mod item;
mod judge;
mod root;
mod small;
#[cfg(test)]
mod tests;

use crate::checksum::CSUM_FIELD;
use crate::error::{Corrupt, DamageKind};
use crate::le::FixedSize;
use crate::le::index;
use crate::node::{
    ChildPtr, FLAG_RELOC, FLAG_WRITTEN, HEADER_SIZE, Header, ITEM_SIZE, KEY_PTR_SIZE, MAX_LEVEL,
    Node,
};
use crate::{Generation, Geometry, Key, Logical, TreeId};
pub use chunk::{chunk, chunk_type};
use item::Rules;

/// `Err(Corrupt)` with a formatted reason unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::error::Corrupt::new(format!($($reason)+)));
        }
    };
}
pub(crate) use ensure;

/// What the pointer to a node promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expect {
    /// Where the node has to lie: its header repeats it.
    pub logical: Logical,
    /// One less than the level of the node that points to it.
    pub level: u8,
    /// `None` where no pointer says it (rescue walks).
    pub generation: Option<Generation>,
    /// The tree through which the node was reached; a shared node may carry another
    /// subvolume's id, never one of another kind.
    pub owner: Option<TreeId>,
    /// The key beside the pointer, which is the node's first; `None` for a root.
    pub first_key: Option<Key>,
}

impl Expect {
    /// Of a node of `level` that `pointer`, in a node of `tree`, leads to.
    pub fn of_child(pointer: &ChildPtr, level: u8, tree: TreeId) -> Expect {
        Expect {
            logical: pointer.logical,
            level,
            generation: Some(pointer.generation),
            owner: Some(tree),
            first_key: Some(pointer.key),
        }
    }
}

/// What the volume, rather than a pointer, says of all its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Nothing is younger: the superblock's generation + 1 (a log tree is one ahead).
    pub max_generation: Option<Generation>,
    /// Accept inode flags that are harmless to those who only read.
    pub read_only: bool,
}

/// Verifies checksum, header, promises, layout and every item of `bytes`.
pub fn node(bytes: Box<[u8]>, geometry: &Geometry, expect: &Expect) -> Result<Node, Corrupt> {
    node_within(bytes, geometry, expect, &Limits::default())
}

/// As [`node`], and holds generations and flags against `limits`.
pub fn node_within(
    bytes: Box<[u8]>,
    geometry: &Geometry,
    expect: &Expect,
    limits: &Limits,
) -> Result<Node, Corrupt> {
    read(bytes, geometry, expect, limits).map_err(|c| c.at(expect.logical))
}

/// Judges a node of this transaction as [`node`] would: everything but the checksum, which `seal` makes.
/// No more than that: items that came in by the one gate go out by the other, or who changes anything beside
/// one would lose what everybody did since the last commit.
pub fn before_write(node: &Node, geometry: &Geometry) -> Result<(), Corrupt> {
    judge_whole(node, geometry, &Limits::default()).map_err(|c| c.at(node.logical()))
}

fn judge_whole(node: &Node, geometry: &Geometry, limits: &Limits) -> Result<(), Corrupt> {
    ensure!(node.bytes().len() == index(geometry.node_size), "node of another size");
    header(node.header(), geometry, limits)?;
    layout(node.bytes(), node.header())?;
    contents(node, geometry, limits)
}

fn read(
    bytes: Box<[u8]>,
    geometry: &Geometry,
    expect: &Expect,
    limits: &Limits,
) -> Result<Node, Corrupt> {
    ensure!(bytes.len() == index(geometry.node_size), "node is cut short");
    let found = Header::read(&bytes)?;
    let size = geometry.csum.size();
    if geometry.csum.digest(&bytes[CSUM_FIELD..])[..size] != bytes[..size] {
        return Err(Corrupt::new("node fails its checksum").kind(DamageKind::Checksum));
    }
    promises(&found, expect)?;
    header(&found, geometry, limits)?;
    layout(&bytes, &found)?;
    let node = Node::trusted(bytes);
    first_key(&node, expect)?;
    contents(&node, geometry, limits)?;
    Ok(node)
}

/// The header against what the pointer said.
fn promises(header: &Header, expect: &Expect) -> Result<(), Corrupt> {
    ensure!(header.bytenr == expect.logical, "node says that it belongs at {}", header.bytenr);
    ensure!(
        header.level == expect.level,
        "node of level {}, its pointer says {}",
        header.level,
        expect.level
    );
    if let Some(generation) = expect.generation.filter(|promised| header.generation != *promised) {
        let found = header.generation;
        let what = format!("node of generation {found}, its pointer says {generation}");
        return Err(Corrupt::new(what).kind(DamageKind::Generation));
    }
    expect.owner.map_or(Ok(()), |through| owner(header.owner, through))
}

/// Whether a node of `found` may hang in the tree `through`.
fn owner(found: TreeId, through: TreeId) -> Result<(), Corrupt> {
    let subvolume = home::is_fs_tree(through) || through == TreeId::RELOC;
    let fits = if subvolume { home::is_fs_tree(found) } else { found == through };
    ensure!(fits, "node of tree {found}, reached through tree {through}");
    Ok(())
}

/// The header by itself.
fn header(header: &Header, geometry: &Geometry, limits: &Limits) -> Result<(), Corrupt> {
    ensure!(header.fsid == geometry.metadata_uuid, "node belongs to another volume");
    ensure!(header.level < MAX_LEVEL, "node of level {}", header.level);
    ensure!(header.flags & FLAG_WRITTEN != 0, "node that was never written");
    ensure!(
        header.bytenr.0 != 0 && header.bytenr.0.is_multiple_of(u64::from(geometry.sector_size)),
        "node at an unaligned address"
    );
    if let Some(max) = limits.max_generation {
        ensure!(
            header.generation <= max,
            "node of generation {}, the volume is at {max}",
            header.generation
        );
    }
    let empty_leaf = header.level == 0 && header.nritems == 0 && header.flags & FLAG_RELOC == 0;
    ensure!(!empty_leaf || home::may_be_empty(header.owner), "tree {} is empty", header.owner);
    Ok(())
}

/// Entries ascend and lie inside the node, without gaps or overlaps of a leaf's data.
fn layout(bytes: &[u8], header: &Header) -> Result<(), Corrupt> {
    let space = bytes.len() - HEADER_SIZE;
    let stride = if header.level == 0 { ITEM_SIZE } else { KEY_PTR_SIZE };
    let count = index(header.nritems);
    ensure!(count <= space / stride, "{count} entries do not fit a node");
    ensure!(header.level == 0 || count > 0, "interior node without children");
    let mut previous: Option<Key> = None;
    let mut end = space;
    for slot in 0..count {
        let at = HEADER_SIZE + slot * stride;
        let key = Key::read(bytes[at..at + 17].try_into().expect("sized"));
        if previous.is_some_and(|p| p >= key) {
            return Err(Corrupt::new(format!("slot {slot} is out of order")).key(key));
        }
        previous = Some(key);
        if header.level == 0 {
            let word =
                |o: usize| u32::from_le_bytes(bytes[at + o..at + o + 4].try_into().expect("4"));
            let (offset, size) = (index(word(17)), index(word(21)));
            if offset.checked_add(size) != Some(end) || offset < count * ITEM_SIZE {
                return Err(Corrupt::new(format!("slot {slot} lies outside its leaf")).key(key));
            }
            end = offset;
        }
    }
    Ok(())
}

fn first_key(node: &Node, expect: &Expect) -> Result<(), Corrupt> {
    let Some(promised) = expect.first_key else { return Ok(()) };
    ensure!(!node.is_empty(), "empty node, its pointer says that it begins with {promised}");
    let found = node.key(0);
    ensure!(found == promised, "node begins with {found}, its pointer says {promised}");
    Ok(())
}

/// What the entries say; the layout is known to be good.
fn contents(node: &Node, geometry: &Geometry, limits: &Limits) -> Result<(), Corrupt> {
    let rules = Rules::new(geometry, limits, node.owner());
    if !node.is_leaf() {
        return children(node, &rules);
    }
    let mut previous = None;
    for (key, data) in node.items() {
        let item = item::Item { key, data, previous };
        judge::judge(&rules, &item).map_err(|c| c.key(key))?;
        previous = Some((key, data));
    }
    Ok(())
}

/// A parent is rewritten whenever a child is, so no child is younger.
fn children(node: &Node, rules: &Rules<'_>) -> Result<(), Corrupt> {
    for child in node.children() {
        let reason = if child.logical.0 == 0 {
            "pointer to nowhere".to_string()
        } else if !rules.is_aligned(child.logical.0) {
            format!("pointer to the unaligned address {}", child.logical)
        } else if child.logical == node.logical() {
            "pointer to its own node".to_string()
        } else if child.generation > node.generation() {
            format!("pointer to generation {} in a node of {}", child.generation, node.generation())
        } else {
            continue;
        };
        return Err(Corrupt::new(reason).key(child.key));
    }
    Ok(())
}
