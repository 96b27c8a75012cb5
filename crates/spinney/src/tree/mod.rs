//! Working on whole trees, as the `spinney` command does: nodes, walks, copies with rules.
//!
//! [`Node`] is a reference to an inode, [`path`] finds nodes, [`walk`], [`remove`] and
//! [`TreeCopy`] treat trees, [`Draft`] is what takes the place of something when it is whole,
//! [`Transfer`] carries them between a volume and this machine, [`fill`] carries content, [`usage`] and [`search`] judge what a walk comes by. What paths and
//! names here are made of are bytes. Trees may be as deep as a volume allows: nothing recurses
//! by depth of a volume's tree.
//!
//! These functions know nothing of a terminal: what they have to say they tell to whoever asked
//! to be told ([`Volume::on_loss`], [`Transfer::on_event`]).

mod beside;
mod copy;
mod copy_rules;
mod draft;
pub mod fill;
mod host;
mod node;
pub mod path;
mod refused;
pub mod remove;
pub mod search;
mod target;
mod transfer;
pub mod usage;
pub mod walk;

pub use crate::sys::matches;
pub use crate::volume::Loss;
pub use copy::TreeCopy;
pub use copy_rules::CopyRules;
pub use draft::Draft;
pub use fill::Reflink;
pub use node::{Listed, Node};
pub use refused::Refused;
pub use transfer::{Transfer, TransferEvent};

use crate::volume::Volume;
use vfs::Entry;

/// Paths become nodes.
impl Volume {
    /// The directory that paths start at.
    pub fn root(&self) -> vfs::Result<Node> {
        Node::root(self.fs())
    }

    /// What `path` stands for; a symbolic link at its end is followed if `follow`.
    pub fn find(&self, path: &[u8], follow: bool) -> vfs::Result<Node> {
        path::find(self.fs(), path, follow)
    }

    /// The directory that the last name of `path` is or would be in, and that name.
    pub fn find_parent(&self, path: &[u8]) -> vfs::Result<(Node, Vec<u8>)> {
        path::find_parent(self.fs(), path)
    }

    /// The same for what is no directory: ENOTDIR where `path` ends with `/`.
    pub fn find_parent_of_file(&self, path: &[u8]) -> vfs::Result<(Node, Vec<u8>)> {
        path::find_parent_of_file(self.fs(), path)
    }

    /// Takes over the reference that came with `entry`.
    pub fn hold(&self, entry: Entry) -> Node {
        Node::held(self.fs(), entry)
    }
}
