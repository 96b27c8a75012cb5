//! The superblock copies of a device as who repairs them sees it: which are good, and the newest written over the others.
//!
//! Invariant: good ones are not touched, so there is one at any time.
//!
//! What it does not know: which one counts.

use crate::rival;
use crate::superblock::{is_valid, super_copies};
use blockdev::BlockDevice;
use btrfs_disk::{Error, Result, Superblock};

/// The copies of a superblock that a device has, and should have.
pub struct SuperCopies {
    newest: Superblock,
    /// Offsets of those that are valid, and of the newest commit.
    pub good: Vec<u64>,
    /// Offsets of the others that the volume has a place for.
    pub bad: Vec<u64>,
}

impl SuperCopies {
    /// Looks at them; an error if none is valid.
    pub fn survey(dev: &dyn BlockDevice) -> Result<SuperCopies> {
        let newest = rival::choose(dev)?.superblock;
        let end = newest.fields.dev_item.total_bytes.min(dev.len());
        let (good, bad) = super_copies(end).partition(|at| is_valid(dev, *at, &newest));
        Ok(SuperCopies { newest, good, bad })
    }

    /// The number of the device that they are on.
    pub fn devid(&self) -> u64 {
        self.newest.fields.dev_item.devid
    }

    /// Writes the newest one over those that are bad; durable when this returns. Good ones are not
    /// touched, so there is one at any time.
    pub fn recover(&self, dev: &dyn BlockDevice) -> Result<()> {
        let failed =
            |at, source| Error::io(format!("{}: superblock copy at {at}", dev.name()), source);
        for at in &self.bad {
            dev.write_at(*at, &self.newest.to_bytes(*at)?).map_err(|e| failed(*at, e))?;
        }
        dev.flush().map_err(|source| Error::io(format!("{}: flush", dev.name()), source))
    }
}
