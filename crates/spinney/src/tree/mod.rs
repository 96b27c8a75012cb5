//! Working on whole trees, as the `spinney` command does: nodes, walks, copies with rules.
//!
//! [`Node`] is a reference to an inode, [`path`] finds nodes, [`walk`], [`remove`] and
//! [`TreeCopy`] treat trees, [`Transfer`] carries them between a volume and this machine,
//! [`fill`] carries content, [`usage`] and [`search`] judge what a walk comes by. What paths and
//! names here are made of are bytes. Trees may be as deep as a volume allows: nothing recurses
//! by depth of a volume's tree.
//!
//! These functions know nothing of a terminal: what they have to say they tell to whoever asked
//! to be told ([`Volume::on_loss`], [`Transfer::on_event`]).

mod copy;
pub mod fill;
mod node;
pub mod path;
pub mod remove;
pub mod search;
mod target;
mod transfer;
pub mod usage;
pub mod walk;

pub use crate::sys::matches;
pub use copy::{CopyRules, TreeCopy};
pub use fill::Reflink;
pub use node::Node;
pub use transfer::{Transfer, TransferEvent};

use crate::volume::Volume;
use vfs::FsError;

/// Something that a volume could not give while it was copied.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Loss<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// The path in it.
    pub path: &'a [u8],
    /// Offset and length of the content; `None` if it is the thing itself, or what is in it.
    pub range: Option<(u64, u64)>,
    /// What the file system said.
    pub why: &'a FsError,
}
