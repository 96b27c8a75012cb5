//! The tree log: what an fsync writes instead of a commit.
//!
//! A log holds, in the kernel's format, the items of the inodes that were synced since the
//! last commit; whoever mounts the volume after a crash replays it on top of that commit.
//! What a log says is the state of its inodes at one moment: the epoch is held still while
//! their changed items are copied out of the delta (`freeze`), which is memory alone.
//!
//! `batch` writes for any number of callers at once (`crate::fsync` gathers them); `closure` finds which inodes belong
//! together, so that a replay never loses or resurrects a name; `project` turns an inode
//! into log items; `write` puts them into the log's trees; `state` is what is remembered
//! until the next commit makes it all void.
//!
//! What the log cannot express is committed instead ([`Fallback`]).
//!
//! At mount, a log that a crash left is read (`read`) and put over the last commit (`replay`),
//! as delta of the first epoch (`crate::recover`).

mod batch;
mod closure;
mod committed;
mod extents;
mod freeze;
mod holes;
mod project;
mod read;
mod replay;
mod state;
mod sums;
#[cfg(test)]
mod tests;
mod write;

#[cfg(feature = "fault-injection")]
pub use extents::compared_with_gaps;
pub(crate) use read::Forest;
pub(crate) use replay::{Replayed, replay};
pub(crate) use state::LogState;

use crate::ino::InodeId;
use crate::inode::Inodes;
use crate::stats::Stats;
use crate::writeback::Writeback;
use btrfs_disk::{Error, Generation};
use btrfs_txn::Core;
use btrfs_txn::delta::Level;
use locks::{Mutex, MutexGuard, Rank};
use std::sync::Arc;

/// What comes of a step of a log write, or why there is no log.
pub(crate) type Logged<T> = Result<T, NotLogged>;

/// Why there is no log of what was to be logged.
#[derive(Debug)]
pub(crate) enum NotLogged {
    /// A commit must do instead, which the caller makes: the log on the volume is as it was.
    Commit(Fallback),
    /// The volume's end.
    Failed(Error),
}

impl NotLogged {
    /// Why a commit must do instead; or the volume's end.
    pub(crate) fn fallback(self) -> Result<Fallback, Error> {
        match self {
            NotLogged::Commit(fallback) => Ok(fallback),
            NotLogged::Failed(error) => Err(error),
        }
    }
}

impl From<Fallback> for NotLogged {
    fn from(fallback: Fallback) -> NotLogged {
        NotLogged::Commit(fallback)
    }
}

impl From<Error> for NotLogged {
    fn from(error: Error) -> NotLogged {
        NotLogged::Failed(error)
    }
}

/// An inode to be made durable.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub id: InodeId,
    pub level: Level,
    /// The epoch in which its last change lies, or a later one.
    pub generation: Generation,
}

/// The log on top of the last commit.
///
/// Lock order: its state is held over a log write, and by a commit for its seal, and from its
/// publication until it is durable. Who writes a log never commits with it held.
pub(crate) struct TreeLog {
    core: Arc<Core>,
    inodes: Arc<Inodes>,
    writeback: Arc<Writeback>,
    stats: Arc<Stats>,
    state: Mutex<LogState>,
}

impl TreeLog {
    pub(crate) fn new(
        core: Arc<Core>,
        inodes: Arc<Inodes>,
        writeback: Arc<Writeback>,
        stats: Arc<Stats>,
    ) -> TreeLog {
        TreeLog {
            core,
            inodes,
            writeback,
            stats,
            state: Mutex::new(Rank::Log, LogState::default()),
        }
    }

    /// The log's state, and with it the right to write superblocks.
    pub(crate) fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock()
    }
}

/// Why a commit takes the place of a log write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fallback {
    /// A chunk that the last commit does not know: a log must not refer to it.
    NewChunk,
    /// A subvolume's name changed.
    Subvolume,
    /// What is synced lost its last name since the last commit: the kernel commits.
    Nameless,
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
    /// A file became one with fs-verity: neither we nor the kernel log its tree.
    Verity,
    /// What it would have to say of the last commit, or a node of the log before it, cannot be read;
    /// a commit need not know.
    Damage,
    /// An inline item of more than one sector: the kernel's replay puts nothing over a part of one.
    LongItem,
    /// An earlier write of this log was given up.
    Stale,
}

impl Fallback {
    /// Of an error that is damage, which is told.
    fn damaged(error: &Error) -> Fallback {
        tracing::warn!(%error, "what was synced is committed, not logged");
        Fallback::Damage
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fallback::NewChunk => "new chunk",
            Fallback::Subvolume => "subvolume",
            Fallback::Nameless => "without a name",
            Fallback::Moved => "moved between directories",
            Fallback::GoneDirectory => "moved out of a removed directory",
            Fallback::TooMany => "too many inodes",
            Fallback::LongNames => "long names",
            Fallback::NoSpace => "no space",
            Fallback::Verity => "fs-verity",
            Fallback::Damage => "damage",
            Fallback::LongItem => "long inline item",
            Fallback::Stale => "log given up",
        }
    }
}
