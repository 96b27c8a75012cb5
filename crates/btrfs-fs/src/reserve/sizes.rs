//! How large trees are, by what the root tree says of them.
//!
//! Nothing judges what a root item says of that, as nothing of the kernel's or of `btrfs check` does, so it may be any
//! number: it is believed as far as the volume has so many bytes of nodes ([`all_nodes`]), and sums stay where they are
//! when they cannot grow.

use crate::error::IntoFs;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_space::Kind;
use btrfs_tree::Cursor;
use btrfs_txn::Core;
use vfs::Result;

const MIB: u64 = 1 << 20;

/// What the kernel keeps of metadata for itself: as much as the trees that grow with any
/// change have, but at least what deleting one file may need.
pub(crate) fn global_reserve(core: &Core) -> Result<u64> {
    const MOST_LEVELS: u64 = 8;
    const UNLINK: u64 = 6;
    let (used, trees) = accounts(core)?;
    let insert = u64::from(core.geometry.node_size) * MOST_LEVELS * 2;
    let delayed = 2 * insert * UNLINK;
    Ok(used.max(insert * (1 + trees + UNLINK) + delayed).min(512 * MIB))
}

/// Bytes and number of the trees that keep account of space, as told.
pub(crate) fn accounts(core: &Core) -> Result<(u64, u64)> {
    let view = core.view();
    let (mut used, mut trees) = (0u64, 0);
    for tree in [TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP] {
        if let Some(data) = view.get(TreeId::ROOT, &Key::new(tree.0, kind::ROOT_ITEM, 0)).fs()? {
            used = RootItem::parse(&data).fs()?.bytes_used.saturating_add(used);
            trees += 1;
        }
    }
    Ok((used, trees))
}

/// Bytes of nodes that the last commit left, of a volume that can be written; where content lies between them, with that.
/// No trees have more together.
pub(crate) fn all_nodes(core: &Core) -> u64 {
    match core.space.mixed() {
        true => core.space.used(),
        false => core.space.used_by(Kind::Metadata),
    }
}

/// Bytes of all trees that the root tree names.
pub(crate) fn tree_bytes(core: &Core) -> Result<u64> {
    let roots = core.roots();
    let Some(root) = roots.get(TreeId::ROOT) else { return Ok(0) };
    let mut cursor = Cursor::new(&core.store, &root.root);
    cursor.first().fs()?;
    let mut used = 0u64;
    while let Some((key, data)) = cursor.item() {
        if key.kind == kind::ROOT_ITEM {
            used = used.saturating_add(RootItem::parse(data).fs()?.bytes_used);
        }
        cursor.next().fs()?;
    }
    Ok(used.min(all_nodes(core)))
}
