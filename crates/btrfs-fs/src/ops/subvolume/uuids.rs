//! Entries of the UUID tree, which come and go with subvolumes one by one.
//!
//! Invariants: what can fail comes before an operation changes anything, for halfway through an error would end the
//! volume. Where the tree is damaged root items alone say what it would repeat, and the subvolume comes or goes all
//! the same: nobody here looks anything up in it. The superblock then does not call the tree up to date any more, and the
//! kernel makes it right.
//!
//! Volumes without the tree get one by the next mount (`uuid_tree.rs`). What it does not know: what subvolumes there are.

use crate::error::IntoFs;
use btrfs_disk::key::kind::{UUID_KEY_RECEIVED_SUBVOL, UUID_KEY_SUBVOL};
use btrfs_disk::{Key, TreeId};
use btrfs_txn::delta::{ActionCost, TreeAction};
use btrfs_txn::{ObjectId, Op};
use vfs::Result;

/// That a subvolume is among those that have a UUID, or no more.
#[derive(Clone, Copy)]
pub(super) struct Note {
    uuid: [u8; 16],
    kind: u8,
    tree: TreeId,
    there: bool,
}

impl Note {
    /// By its own UUID.
    pub(super) fn own(uuid: [u8; 16], tree: TreeId, there: bool) -> Note {
        Note { uuid, kind: UUID_KEY_SUBVOL, tree, there }
    }

    /// By that of what it was received as.
    pub(super) fn received(uuid: [u8; 16], tree: TreeId, there: bool) -> Note {
        Note { uuid, kind: UUID_KEY_RECEIVED_SUBVOL, tree, there }
    }

    /// `None`: there is nothing to note, or no UUID tree.
    fn key(&self, op: &Op<'_>) -> Option<Key> {
        let noted = self.uuid != [0; 16] && op.view.layers.roots.get(TreeId::UUID).is_some();
        noted.then(|| Key::of_uuid(&self.uuid, self.kind))
    }

    /// Of more that were received as the same than an item has room for the last are left out.
    fn put(&self, op: &Op<'_>, key: Key) -> Result<()> {
        let old = op.view.get(TreeId::UUID, &key).fs()?;
        let ids = old.as_deref().map_or(&[][..], |old| old);
        let own = self.tree.0.to_le_bytes();
        let mut ids = ids.chunks_exact(8).filter(|id| **id != own).collect::<Vec<_>>().concat();
        if self.there && ids.len() + 8 <= op.core.geometry.max_item_size() {
            ids.extend_from_slice(&own);
        }
        let at = ObjectId::new(TreeId::UUID, key.objectid);
        match ids.is_empty() {
            true => op.delete(at, key.kind, key.offset),
            false => op.put(at, key.kind, key.offset, ids.into()),
        }
        Ok(())
    }
}

/// Those that can be noted: the tree can be read there.
pub(super) struct Notable {
    notes: Vec<(Note, Key)>,
    /// Not all.
    lags: bool,
}

/// Before the operation changes anything.
pub(super) fn notable(op: &Op<'_>, notes: &[Note]) -> Result<Notable> {
    let mut notable = Notable { notes: Vec::with_capacity(notes.len()), lags: false };
    for note in notes {
        let Some(key) = note.key(op) else { continue };
        match op.view.get(TreeId::UUID, &key).fs() {
            Ok(_) => notable.notes.push((*note, key)),
            Err(error) if error.is_of_medium() => {
                tracing::warn!(tree = note.tree.0, %error, "not said in the UUID tree");
                notable.lags = true;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(notable)
}

impl Notable {
    pub(super) fn put(self, op: &Op<'_>) -> Result<()> {
        if self.lags {
            // The superblock alone changes, which a commit writes in any case.
            op.act(TreeAction::UuidTreeLags, ActionCost::default());
        }
        self.notes.into_iter().try_for_each(|(note, key)| note.put(op, key))
    }
}
