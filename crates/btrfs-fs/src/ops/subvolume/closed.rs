//! A subvolume closed to writers, for as long as what is done needs it.

use crate::engine::Engine;
use crate::subvol::Subvolume;
use btrfs_disk::TreeId;
use vfs::Result;

/// Nobody changes anything in a subvolume; again they may once this is dropped, unless the volume
/// says from now on that it is read-only.
#[must_use = "who is dropped lets writers in again"]
pub(super) struct Closed<'s>(Option<&'s Subvolume>);

impl Closed<'_> {
    /// The change to read-only is in the epoch.
    pub(super) fn stays(mut self) {
        self.0 = None;
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        if let Some(subvolume) = self.0 {
            subvolume.set_read_only(false);
        }
    }
}

/// Nobody changes anything in it from now on, and what was written before has landed.
pub(super) fn close_to_writers<'s>(
    engine: &Engine,
    subvolume: &'s Subvolume,
    tree: TreeId,
) -> Result<Closed<'s>> {
    engine.subvols.close(subvolume);
    let closed = Closed(Some(subvolume));
    for inode in engine.inodes.table().of_tree(tree) {
        engine.writeback.flush_unasked(&inode)?;
    }
    Ok(closed)
}
