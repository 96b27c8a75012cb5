//! The tree log: what an fsync writes instead of a commit.
//!
//! A log holds, in the kernel's format, the items of the inodes that were synced since the
//! last commit; whoever mounts the volume after a crash replays it on top of that commit.
//! What a log says is the state of its inodes at one moment: the epoch is held still while
//! their changed items are copied out of the delta (`freeze`), which is memory alone.
//!
//! `group` lets any number of callers share one write; `closure` finds which inodes belong
//! together, so that a replay never loses or resurrects a name; `project` turns an inode
//! into log items; `write` puts them into the log's trees; `state` is what is remembered
//! until the next commit makes it all void.
//!
//! What the log cannot express is committed instead ([`Fallback`]).
//!
//! At mount, `recover` has a log that a crash left read (`read`) and put over the last
//! commit (`replay`), as delta of the first epoch.

#[cfg(feature = "ablation")]
mod ablation;
mod closure;
mod committed;
mod extents;
mod freeze;
mod group;
mod join;
mod project;
mod read;
mod recover;
mod replay;
mod state;
mod sums;
mod write;

pub use group::{Group, Request};
pub use recover::recover;
pub use state::LogState;

/// Why a commit takes the place of a log write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// A chunk that the last commit does not know: a log must not refer to it.
    NewChunk,
    /// A subvolume's name changed.
    Subvolume,
    /// A directory, or something out of it, went to another: the kernel commits.
    Moved,
    /// A directory that the last commit has is gone, its name matters, and something that the
    /// commit has in it is still there, under another name.
    GoneDirectory,
    /// More inodes belong together than a commit would cost.
    TooMany,
    /// More names in one item than the kernel's replay can put together with the old ones.
    LongNames,
    /// No room for the log's nodes.
    NoSpace,
    /// An earlier write of this log was given up.
    Stale,
}

impl Fallback {
    pub fn name(self) -> &'static str {
        match self {
            Fallback::NewChunk => "new chunk",
            Fallback::Subvolume => "subvolume",
            Fallback::Moved => "moved between directories",
            Fallback::GoneDirectory => "moved out of a removed directory",
            Fallback::TooMany => "too many inodes",
            Fallback::LongNames => "long names",
            Fallback::NoSpace => "no space",
            Fallback::Stale => "log given up",
        }
    }
}
