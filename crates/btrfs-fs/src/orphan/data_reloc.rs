//! What the kernel left when it was interrupted while it moved content: in the tree that it has for this, a file
//! without a name, whose extents are the copies, up to a block group of them. Nothing else frees them.
//!
//! Invariants: the tree's own references go, and nothing else does: copies that files have already stay
//! theirs. Extents before their inode, in steps, each of which leaves what a kernel would go on with. How
//! the references are stored, by the tree or by a leaf (kernels before about 5.16 let the tree share nodes with
//! those of a relocation), the commit finds out, as it does for subvolumes.
//!
//! What it does not know: the balance that was interrupted.

use crate::error::IntoFs;
use crate::extents::{Mapped, MappedKind};
use crate::ino::InodeId;
use crate::inode::delete_orphan_item;
use crate::reserve::cost;
use crate::reserver::Reserver;
use btrfs_disk::items::InodeItem;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_txn::Core;
use vfs::Result;

const TREE: TreeId = TreeId::DATA_RELOC;
/// Items that one step removes at most.
/// Chosen, not measured.
const STEP: u64 = 512;

/// At mount, before anybody is served; answers of how many files something was freed.
pub(super) fn free(core: &Core, reserver: &Reserver) -> Result<u64> {
    if core.roots().get(TREE).is_none() {
        return Ok(0);
    }
    let mut freed = 0;
    for objectid in super::list(core, TREE)? {
        let id = InodeId::new(TREE, objectid);
        let item = core.view().get(TREE, &Key::new(objectid, kind::INODE_ITEM, 0)).fs()?;
        let item = item.map(|bytes| InodeItem::read(&bytes)).transpose().fs()?;
        match item {
            // Nobody puts names there: what it is is not known.
            Some(item) if item.nlink > 0 => continue,
            Some(_) => {
                while !step(core, reserver, id)? {}
                freed += 1;
            }
            None => {
                let _room = reserver.reserve_removal(cost::remove_orphan_item())?;
                delete_orphan_item(&core.begin(), id);
            }
        }
    }
    if freed > 0 {
        tracing::info!(
            freed,
            "freed content that an interrupted relocation of the kernel's had copied"
        );
    }
    Ok(freed)
}

/// One operation's worth; true when nothing is left.
fn step(core: &Core, reserver: &Reserver, id: InodeId) -> Result<bool> {
    let (_room, most) = reserver.reserve_removal_of_items(STEP)?;
    let _still = core.addresses.hold_still();
    let op = core.begin();
    let mut items = Vec::new();
    let mut scan = op.view.scan(TREE, Key::new(id.objectid, kind::INODE_ITEM + 1, 0));
    while (items.len() as u64) < most {
        let Some((key, data)) = scan.next().fs()? else { break };
        let extent = key.kind == kind::EXTENT_DATA;
        let extent = extent.then(|| Mapped::parse(&key, &data, core.sector()));
        items.push((key, extent.transpose().fs()?));
    }
    op.run(|| op.edit(id, |o| items.iter().for_each(|(key, _)| o.delete(key.kind, key.offset))));
    for (key, extent) in &items {
        let Some(MappedKind::Extent { fields, .. }) = extent.as_ref().map(|e| &e.kind) else {
            continue;
        };
        if fields.disk_bytenr.0 != 0 {
            let who = (TREE, id.objectid, key.offset.wrapping_sub(fields.offset));
            op.reference(fields.disk_bytenr, fields.disk_num_bytes, who, -1).fs()?;
        }
    }
    if items.len() as u64 == most {
        return Ok(false);
    }
    op.delete(id, kind::INODE_ITEM, 0);
    delete_orphan_item(&op, id);
    Ok(true)
}
