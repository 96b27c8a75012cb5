//! What the kernel left when it was interrupted while it moved content: in the tree that it has for this, a file
//! without a name, whose extents are the copies, up to a block group of them. Nothing else frees them.
//!
//! Invariants: the tree's own references go, and nothing else does: copies that files have already stay
//! theirs. Extents before their inode, in steps, each of which leaves what a kernel would go on with. How
//! the references are stored, by the tree or by a leaf (kernels before about 5.16 let the tree share nodes with
//! those of a relocation), the commit finds out, as it does for subvolumes.
//!
//! What it does not know: the balance that was interrupted.

use super::next::next;
use crate::erasures::Steps;
use crate::error::IntoFs;
use crate::extents::MappedKind;
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
const STEP: usize = 512;

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
                let mut steps = Steps::of(objectid, STEP);
                while !step(core, reserver, id, &mut steps)? {}
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
pub(super) fn step(
    core: &Core,
    reserver: &Reserver,
    id: InodeId,
    steps: &mut Steps,
) -> Result<bool> {
    let (_room, most) = reserver.reserve_removal_step(steps.most as u64)?;
    let _still = core.addresses.hold_still();
    let op = core.begin();
    let next = next(&op.view, id, (steps.from, most as usize), core.sector())?;
    op.run(|| op.edit(id, |o| next.keys.iter().for_each(|key| o.delete(key.kind, key.offset))));
    for extent in &next.extents {
        let MappedKind::Extent { fields, .. } = &extent.kind else { continue };
        if fields.disk_bytenr.0 != 0 {
            let who = (TREE, id.objectid, extent.start.wrapping_sub(fields.offset));
            op.reference(fields.disk_bytenr, fields.disk_num_bytes, who, -1).fs()?;
        }
    }
    if let Some(from) = next.from {
        steps.from = from;
        return Ok(false);
    }
    op.delete(id, kind::INODE_ITEM, 0);
    delete_orphan_item(&op, id);
    Ok(true)
}
