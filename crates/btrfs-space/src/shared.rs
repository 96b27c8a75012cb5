//! What replacing, copying or dropping a possibly shared node does to references.
//!
//! The format's rules. A node's pointers are references held either *keyed*, by the
//! tree that owns the node (header owner), or, once the node carries FULL_BACKREF,
//! *shared*, by the node's own address. A node is held by each tree or node that points
//! to it. Several trees may hold a node only in subvolumes, and only if the node was
//! there at the tree's last snapshot or relocation made it; and in the kernel's tree for moving content.
//!
//! Invariant: after [`detach`], the pointers of the copy (same pointers, owner `tree`)
//! are held keyed by `tree`; the old node's pointers are held as its flags say, or by
//! nobody if it is freed. Every caller passes nodes in pre-order, parents first: a
//! parent's detach may add the very reference that its child's detach drops.
//!
//! What it does not know: where the copies go, who reads extent items.

use crate::refs::{ExtentKind, RefDeltas, RefOwner};
use btrfs_disk::items::{FileExtent, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::node::FLAG_RELOC;
use btrfs_disk::{Corrupt, Generation, Logical, Node, Result, TreeId};

/// How a node's pointers are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: the two ways of the format to say who holds a node.
pub enum Holder {
    /// By a tree: its id is in the references.
    Keyed(TreeId),
    /// By the node itself: its address is in the references, whichever trees have it.
    Shared(Logical),
}

/// One reference that a node's pointer stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Where it leads: a child's address, or that of content.
    pub extent: Logical,
    /// Bytes there: a node's size, or what the content takes on disk.
    pub len: u64,
    /// What is there: content, or a node one level lower.
    pub kind: ExtentKind,
    /// Who holds it, as the extent tree would say it.
    pub owner: RefOwner,
}

/// What became of the old node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: a node is free or it is not.
pub enum Detached {
    /// The tree was the only holder: the node is free after the commit.
    Freed,
    /// Others still hold it.
    Kept,
}

/// References and flags of a node as of now, `pending` included; `None`: no such extent.
pub type Lookup<'a> = dyn FnMut(&RefDeltas, Logical) -> Result<Option<(u64, u64)>> + 'a;

/// Calls `each` for every reference that the pointers of `node` stand for.
pub fn pointers(node: &Node, holder: Holder, each: impl FnMut(Pointer)) -> Result<()> {
    pointers_from(node, 0, holder, each)
}

/// As `pointers`, without those in front of this slot of an interior node.
pub(crate) fn pointers_from(
    node: &Node,
    first: usize,
    holder: Holder,
    mut each: impl FnMut(Pointer),
) -> Result<()> {
    if !node.is_leaf() {
        let owner = match holder {
            Holder::Keyed(root) => RefOwner::Tree { root },
            Holder::Shared(parent) => RefOwner::SharedTree { parent },
        };
        let kind = ExtentKind::Node { level: node.level() - 1 };
        let len = node.bytes().len() as u64;
        for child in node.children().skip(first) {
            each(Pointer { extent: child.logical, len, kind, owner });
        }
        return Ok(());
    }
    for (key, data) in node.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
        let extent = FileExtent::parse(data).map_err(|c| c.at(node.logical()).key(key))?;
        let FileExtent::Extent { fields, .. } = extent else { continue };
        if fields.disk_bytenr.0 == 0 {
            continue;
        }
        let owner = match holder {
            Holder::Shared(parent) => RefOwner::SharedData { parent },
            Holder::Keyed(root) => RefOwner::Data {
                root,
                ino: key.objectid,
                offset: key.offset.wrapping_sub(fields.offset),
            },
        };
        let (extent, len) = (fields.disk_bytenr, fields.disk_num_bytes);
        each(Pointer { extent, len, kind: ExtentKind::Data, owner });
    }
    Ok(())
}

/// Adds (1) or drops (-1) all references of the pointers of `node`.
pub fn change_pointers(
    deltas: &mut RefDeltas,
    node: &Node,
    holder: Holder,
    count: i64,
) -> Result<()> {
    pointers(node, holder, |p| deltas.add(p.extent, p.len, p.kind, p.owner, count))
}

/// Whether another tree may hold `node` of `tree` too.
pub fn may_be_shared(tree: TreeId, node: &Node, last_snapshot: Generation) -> bool {
    let by_time = node.generation() <= last_snapshot || node.header().flags & FLAG_RELOC != 0;
    // Kernels before about 5.16 let relocations share nodes of that one; since then its references say so.
    tree == TreeId::DATA_RELOC || tree.is_subvolume() && by_time
}

/// `tree` replaces `old` by a copy, or does without it: the pointers' references change
/// owners as the format wants it, and the tree's own reference to `old` goes.
pub fn detach(
    deltas: &mut RefDeltas,
    lookup: &mut Lookup<'_>,
    tree: TreeId,
    old: &Node,
    last_snapshot: Generation,
) -> Result<Detached> {
    let (refs, flags) = if may_be_shared(tree, old, last_snapshot) {
        let found = lookup(deltas, old.logical())?;
        let found = found.filter(|(refs, _)| *refs > 0);
        found.ok_or_else(|| Corrupt::new("tree block without an extent item").at(old.logical()))?
    } else {
        (1, 0)
    };
    let full = flags & extent_flags::FULL_BACKREF != 0;
    let (keyed, shared) = (Holder::Keyed(tree), Holder::Shared(old.logical()));
    let len = old.bytes().len() as u64;
    match (refs > 1, full) {
        (true, false) if old.owner() == tree => {
            change_pointers(deltas, old, shared, 1)?;
            deltas.set_full_backref(old.logical(), len, old.level());
        }
        (true, _) => change_pointers(deltas, old, keyed, 1)?,
        (false, true) => {
            change_pointers(deltas, old, keyed, 1)?;
            change_pointers(deltas, old, shared, -1)?;
        }
        (false, false) => {}
    }
    let kind = ExtentKind::Node { level: old.level() };
    deltas.add(old.logical(), len, kind, RefOwner::Tree { root: tree }, -1);
    Ok(if refs > 1 { Detached::Kept } else { Detached::Freed })
}
