//! A commit that finds no room although it was reserved (a bound of ours that is
//! none, a volume that somebody else filled): it gives its epoch back, and poisons nothing.
//!
//! Invariants: what the sealed epoch and the current one changed is one epoch from then on, the
//! current one, as if nobody had sealed; memory shows what it showed before, and the volume has
//! the last commit and its log still. Who waited for the commit hears ENOSPC. Each later commit
//! tries the whole again: once something was removed, or somebody's reservation came back, there may
//! be room. Until one succeeds fsyncs commit, too: what a log would have to say is in an epoch
//! that it has partly seen.
//!
//! What it does not know: how much is missing.

use super::{Committer, Published};
use crate::error::to_fs;
use crate::log::LogState;
use btrfs_disk::Error;
use btrfs_txn::Snapshot;
use btrfs_txn::delta::Delta;
use locks::{Mutex, Rank};
use std::sync::Arc;
use vfs::{Damage, Errno, FsError, Result};

pub(super) type Attempt<T> = std::result::Result<T, Failed>;

/// Why a commit failed.
pub(super) enum Failed {
    /// There was no room: everything is in memory as before.
    Short,
    /// Memory is ahead of the volume for good.
    For(FsError),
}

impl From<FsError> for Failed {
    fn from(error: FsError) -> Failed {
        Failed::For(error)
    }
}

impl From<Failed> for FsError {
    fn from(failed: Failed) -> FsError {
        match failed {
            Failed::Short => Errno::ENOSPC.into(),
            Failed::For(error) => error,
        }
    }
}

pub(super) struct Owed {
    /// Commits that are published and flushed, and whose superblock waits for the next one's.
    commits: Mutex<Vec<Published>>,
}

impl Default for Owed {
    fn default() -> Owed {
        Owed { commits: Mutex::new(Rank::Owed, Vec::new()) }
    }
}

impl Owed {
    pub(crate) fn is_any(&self) -> bool {
        !self.commits.lock().is_empty()
    }

    /// No superblock may lead to these commits alone: what was synced is not in them.
    pub(crate) fn add(&self, published: Vec<Published>) {
        self.commits.lock().extend(published);
    }

    /// A commit is durable: with `new`, all that was owed, oldest first.
    pub(crate) fn settle(&self, new: Vec<Published>) -> Vec<Published> {
        let mut all = std::mem::take(&mut *self.commits.lock());
        all.extend(new);
        all
    }
}

impl Committer {
    /// What came of merging the sealed epoch. Where there was no room for it, it joins the
    /// current one.
    pub(super) fn unless_short<T>(
        &self,
        merged: btrfs_disk::Result<T>,
        log: &mut LogState,
    ) -> Attempt<T> {
        match merged {
            Err(Error::NoSpace) => {}
            other => return other.map_err(|error| Failed::For(to_fs(error))),
        }
        self.join_epochs()?;
        // The trees are those of the last commit still, and no commit is at work.
        self.reservations.trees_grow(0);
        log.give_up(&self.core);
        self.reservations.set_short(true);
        self.stats.commits_short.add(1);
        tracing::warn!("a commit found no room, and will be tried again; until then fsync fails");
        Err(Failed::Short)
    }

    fn join_epochs(&self) -> Result<()> {
        let layers = self.core.layers();
        let sealed = layers.sealed.as_ref().expect("a commit is at work");
        layers.current.gate.seal();
        let Some(joined) = Delta::joined(sealed, &layers.current) else {
            layers.current.gate.reopen();
            let what = "two epochs contradict each other".to_owned();
            return Err(Damage::new(what).into());
        };
        let (current, roots) = (Arc::new(joined), layers.roots.clone());
        self.core.replace_layers(Snapshot { current, sealed: None, roots });
        Ok(())
    }
}
