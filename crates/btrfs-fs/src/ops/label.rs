//! The volume's label, which lives in the superblock alone: a new one goes with the next
//! commit, and the one who set it waits for that, as in the kernel's btrfs.
//!
//! Invariant: a label that a commit did not write (it failed, or gave its epoch back) stays
//! `new_label` until the setter takes it back with the error. Logs keep the label of the commit
//! that they stand on.

use crate::engine::Engine;
use btrfs_disk::Superblock;
use vfs::{Errno, Result};

/// As the superblock has it: with a NUL at the end.
pub type Label = [u8; 256];

pub fn get(engine: &Engine) -> Vec<u8> {
    match &*engine.new_label.lock() {
        Some(label) => label.iter().copied().take_while(|byte| *byte != 0).collect(),
        None => engine.volume.superblock().label().to_vec(),
    }
}

pub fn set(engine: &Engine, text: &[u8]) -> Result<()> {
    engine.changeable()?;
    let mut label: Label = [0; 256];
    if text.len() >= label.len() || text.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    label[..text.len()].copy_from_slice(text);
    *engine.new_label.lock() = Some(Box::new(label));
    // Content of others that the device refuses is not this one's error.
    let committed = engine.commit_what_lands();
    let left = engine.label_done(Some(Box::new(label)));
    committed?;
    if left { Err(Errno::ENOSPC.into()) } else { Ok(()) }
}

impl Engine {
    /// Puts the new label into the superblock of a commit; answers it.
    pub fn stamp_label(&self, superblock: &mut Superblock) -> Option<Box<Label>> {
        let label = self.new_label.lock().clone();
        if let Some(label) = &label {
            superblock.fields.label = **label;
        }
        label
    }

    /// `label` is no longer to be written, one that was set since is; answers if it was.
    pub fn label_done(&self, label: Option<Box<Label>>) -> bool {
        let mut new = self.new_label.lock();
        let was = label.is_some() && *new == label;
        if was {
            *new = None;
        }
        was
    }
}
