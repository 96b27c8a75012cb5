//! What a commit gets for its nodes: the reservation that operations made for it, and what is
//! kept for commits alone; and whether that was enough.
//!
//! What it does not know: how a commit uses it.

use super::bound::{accounts, bound};
use super::load_of;
use crate::delta::Delta;
use crate::engine::Engine;
use btrfs_disk::Error;
use btrfs_space::{Kind, MetadataReservation, Priority};
use std::sync::atomic::Ordering;
use vfs::{Errno, FsError};

/// The promise of one commit.
pub struct Promise {
    /// To take nodes from; less than the bounds where a volume has less.
    pub reservation: Option<MetadataReservation>,
    /// Bytes that the trees of files and checksums can need, with what grows elsewhere.
    files: u64,
    /// Bytes that the trees that keep account of space can need.
    accounts: u64,
}

impl Promise {
    /// What the bounds are, to be held against what the commit took.
    pub fn proof(&self) -> Proof {
        Proof { files: self.files, accounts: self.accounts }
    }
}

/// The bounds of one commit, in bytes of new nodes.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    files: u64,
    accounts: u64,
}

impl Proof {
    /// The trees of files and checksums have what they get: `taken` bytes of nodes so far.
    pub fn check_files(&self, engine: &Engine, taken: u64) {
        check(engine, "files and checksums", taken, self.files);
    }

    /// The commit has all its nodes: `taken` bytes.
    pub fn check(&self, engine: &Engine, taken: u64) {
        check(engine, "all trees", taken, self.files + self.accounts);
    }
}

/// More than the proof allows: a mistake of ours, which the global reserve covers for now.
fn check(engine: &Engine, what: &str, taken: u64, bound: u64) {
    if taken <= bound {
        return;
    }
    engine.stats.commits_over_promise.add(1);
    tracing::warn!(what, taken, bound, "a commit needed more than was promised");
    debug_assert!(taken <= bound, "a commit needed {taken} bytes for {what}, promised {bound}");
}

impl Engine {
    /// Before a commit: makes sure that it finds room for all of its nodes, also for those that
    /// writeback has just added, and takes what is kept for commits. Both may fail all the same
    /// on a volume that somebody else filled: then what is free must do.
    pub fn hold_for_commit(&self) -> Option<MetadataReservation> {
        while let Err(FsError::Posix(Errno::ENOSPC)) = self.cover(Priority::Commit) {
            if !matches!(self.space.reclaim_for(Kind::Metadata), Ok(true)) {
                break;
            }
        }
        let bytes = accounts(&self.trees());
        loop {
            match self.space.reserve_metadata(bytes, Priority::Commit) {
                Ok(kept) => return Some(kept),
                Err(Error::NoSpace)
                    if matches!(self.space.reclaim_for(Kind::Metadata), Ok(true)) => {}
                Err(_) => return None,
            }
        }
    }

    /// What is held for the epoch that was just sealed goes to its commit. What the next
    /// one needs already, for content that is still unwritten, stays; the rest goes back.
    pub fn take_metadata(&self, sealed: &Delta, kept: Option<MetadataReservation>) -> Promise {
        let trees = self.trees();
        let files = bound(&trees, &load_of(sealed));
        let next = self.next_need();
        let mut held = self.promises.metadata.lock();
        let mut taken = held.as_mut().map(|held| held.split(files));
        let rest = held.as_ref().map_or(0, MetadataReservation::bytes);
        if let Some(held) = held.as_mut() {
            held.shrink(rest.saturating_sub(next));
        }
        let rest = rest.min(next);
        self.promises.metadata_bytes.store(rest, Ordering::Release);
        self.promises.ordinary_bytes.fetch_min(rest, Ordering::AcqRel);
        drop(held);
        match (taken.as_mut(), kept) {
            (Some(taken), Some(kept)) => taken.absorb(kept),
            (None, kept) => taken = kept,
            (Some(_), None) => {}
        }
        Promise { reservation: taken, files, accounts: accounts(&trees) }
    }

    /// What the epoch after a commit needs already.
    fn next_need(&self) -> u64 {
        self.need(&self.layers.load().current, Priority::Normal)
    }

    /// After a commit: what it did not use is promised again to content that is unwritten
    /// still, as far as it goes.
    pub fn hold_for_unwritten(&self) {
        let need = self.next_need();
        let mut held = self.promises.metadata.lock();
        let have = self.promises.held_for(Priority::Normal);
        let missing = need.saturating_sub(have).min(self.space.unpromised(Kind::Metadata));
        if missing > 0
            && let Ok(more) = self.space.reserve_metadata(missing, Priority::Normal)
        {
            self.promises.absorb(&mut held, more, Priority::Normal);
        }
    }
}
