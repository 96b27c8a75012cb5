//! The volume's label, which lives in the superblock alone: a new one goes with the next
//! commit, and the one who set it waits for that, as in the kernel's btrfs.
//!
//! Invariant: a label that a commit did not write (it failed, or gave its epoch back) stays
//! pending until the setter takes it back with the error. Logs keep the label of the commit
//! that they stand on.
//!
//! What it does not know: who commits, and when.

use btrfs_disk::Superblock;
use locks::{Mutex, Rank};

/// As the superblock has it: with a NUL at the end.
pub(crate) type Label = [u8; 256];

/// The label from the next commit on, if that changes it.
pub(crate) struct PendingLabel(Mutex<Option<Box<Label>>>);

impl Default for PendingLabel {
    fn default() -> PendingLabel {
        PendingLabel(Mutex::new(Rank::Label, None))
    }
}

impl PendingLabel {
    pub(crate) fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(crate) fn get(&self) -> Option<Box<Label>> {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, label: &Label) {
        *self.0.lock() = Some(Box::new(*label));
    }

    /// Puts it into the superblock of a commit; answers it.
    pub(crate) fn stamp(&self, superblock: &mut Superblock) -> Option<Box<Label>> {
        let label = self.get();
        if let Some(label) = &label {
            superblock.fields.label = **label;
        }
        label
    }

    /// `label` is no longer to be written, one that was set since is; answers if it was.
    pub(crate) fn done(&self, label: Option<Box<Label>>) -> bool {
        let mut new = self.0.lock();
        let was = label.is_some() && *new == label;
        if was {
            *new = None;
        }
        was
    }
}
