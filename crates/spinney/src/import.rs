//! Trees of this machine into a volume, and back.

use crate::error::Result;
use crate::tree::{CopyRules, Transfer};
use crate::volume::{At, Volume, bytes};
use std::path::Path;

/// A tree that goes into a volume or out of it is to be the same tree.
const SAME: CopyRules = CopyRules::SAME;

impl Volume {
    /// Copies what is in the directory `from` of this machine into the directory `to`: owners,
    /// permissions, times, extended attributes, hard links, holes, devices and all. Directories
    /// that are there are merged into, files replaced. The image that the volume is in is left out. For other
    /// rules see [`tree::Transfer`](Transfer).
    pub fn import(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let to = bytes(&to);
        let node = self.find(to, true).at(self, to)?;
        Transfer::new(self, SAME).import_into(from.as_ref(), &node, to)
    }

    /// Copies `from` to the path `to` of this machine, in the same way. Only root gives files
    /// away there: other callers own what they copy out.
    pub fn export(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = bytes(&from);
        let node = self.find(from, true).at(self, from)?;
        Transfer::new(self, SAME).export(&node, from, to.as_ref())
    }
}
