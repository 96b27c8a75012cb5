//! Trees of this machine into a volume, and back.

use crate::error::Result;
use crate::tree::{CopyRules, Transfer, TransferEvent};
use crate::volume::{At, Volume, bytes};
use std::cell::Cell;
use std::path::Path;

/// A tree that goes into a volume or out of it is to be the same tree.
const SAME: CopyRules = CopyRules::SAME;

/// What came of [`Volume::import`] or [`Volume::export`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Copied {
    /// Extended attributes that the copy lacks, as the target does not know them or takes them of root alone. Which
    /// they are a [`tree::Transfer`](Transfer) tells ([`SkippedXattr`](TransferEvent::SkippedXattr)).
    pub skipped_xattrs: u64,
}

impl Volume {
    /// Copies what is in the directory `from` of this machine into the directory `to`: owners,
    /// permissions, times, extended attributes, hard links, holes, devices and all. Directories
    /// that are there are merged into, files replaced. The image that the volume is in is left out. For other
    /// rules see [`tree::Transfer`](Transfer).
    pub fn import(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Copied> {
        let to = bytes(&to);
        let node = self.find(to, true).at(self, to)?;
        self.copied(|transfer| transfer.import_into(from.as_ref(), &node, to))
    }

    /// Copies `from` to the path `to` of this machine, in the same way. Only root gives files
    /// away there: other callers own what they copy out. What the file system there does not take of extended
    /// attributes is left out, and counted; what should have an ACL and has none is its owner's alone.
    pub fn export(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Copied> {
        let from = bytes(&from);
        let node = self.find(from, true).at(self, from)?;
        self.copied(|transfer| transfer.export(&node, from, to.as_ref()))
    }

    fn copied(&self, copy: impl FnOnce(&Transfer<'_>) -> Result<()>) -> Result<Copied> {
        let skipped = Cell::new(0);
        let count = |event: &TransferEvent<'_>| {
            if let TransferEvent::SkippedXattr { .. } = event {
                skipped.set(skipped.get() + 1);
            }
        };
        copy(&Transfer::new(self, SAME).on_event(count))?;
        Ok(Copied { skipped_xattrs: skipped.get() })
    }
}
