//! What a commit gets for its nodes: the reservation that operations made for it, and what is
//! kept for commits alone; and whether that was enough.
//!
//! What it does not know: how a commit uses it.

use super::bound::{Cost, accounts, accounts_after, bound};
use super::{Reservations, cost_of};
use crate::error::IntoFs;
use btrfs_space::{Kind, MetadataReservation, Priority};
use btrfs_txn::delta::Delta;
use std::sync::atomic::Ordering;
use vfs::{Errno, FsError};

/// What is reserved for one commit.
pub(crate) struct CommitReservation {
    /// To take nodes from; less than the bounds where a volume has less.
    pub reservation: Option<MetadataReservation>,
    /// Bytes that the trees of files and checksums can need, with what grows elsewhere.
    files: u64,
    /// Bytes that the trees that keep account of space can need.
    accounts: u64,
}

impl CommitReservation {
    /// What the bounds are, to be held against what the commit took.
    pub(crate) fn bound(&self) -> CommitBound {
        CommitBound { files: self.files, accounts: self.accounts }
    }

    /// Whether all that the commit can need is there.
    pub(crate) fn is_kept(&self) -> bool {
        let bytes = self.reservation.as_ref().map_or(0, MetadataReservation::bytes);
        bytes >= self.files + self.accounts
    }
}

/// The bounds of one commit, in bytes of new nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitBound {
    files: u64,
    accounts: u64,
}

impl CommitBound {
    /// Holds it against the bytes of new nodes that the commit took: by the time the trees of
    /// files and checksums had theirs, and in all. `false`: more than the bound allows, a
    /// mistake of ours, which the global reserve covers for now.
    #[must_use]
    pub(crate) fn holds(&self, (files, all): (u64, u64)) -> bool {
        let files = holds("files and checksums", files, self.files);
        holds("all trees", all, self.files + self.accounts) && files
    }
}

fn holds(what: &str, taken: u64, bound: u64) -> bool {
    if taken > bound {
        tracing::warn!(what, taken, bound, "a commit needed more than was reserved");
    }
    debug_assert!(taken <= bound, "a commit needed {taken} bytes for {what}, reserved {bound}");
    taken <= bound
}

impl Reservations {
    /// Before a commit: makes sure that it finds room for all of its nodes, also for those that
    /// writeback has just added, and takes what is kept for commits. Both may fail all the same
    /// on a volume that somebody else filled: then what is free must do.
    pub(crate) fn hold_for_commit(&self) -> Option<MetadataReservation> {
        // What is missing of it `complete` asks for once more.
        let _covered = self.with_empty_chunks(|| self.cover_delta());
        self.reserve_for_commit(accounts(&self.trees()))
    }

    /// Whether what is kept for commits is there. What the commit before freed comes back when nobody reads
    /// older roots any more, and may have been that.
    pub(crate) fn commit_has_room(&self) -> bool {
        accounts(&self.trees()) <= self.core.space.room_for_commits()
    }

    fn reserve_for_commit(&self, bytes: u64) -> Option<MetadataReservation> {
        let reserve = || self.core.space.reserve_metadata(bytes, Priority::Commit).fs();
        self.with_empty_chunks(reserve).ok()
    }

    /// As long as it finds no room an empty chunk of data is given up for it.
    fn with_empty_chunks<T>(&self, mut reserve: impl FnMut() -> vfs::Result<T>) -> vfs::Result<T> {
        loop {
            let seen = self.core.space.chunk_changes();
            match reserve() {
                Err(FsError::Posix(Errno::ENOSPC))
                    if matches!(self.core.space.reclaim_for(Kind::Metadata, seen), Ok(true)) => {}
                reserved => return reserved,
            }
        }
    }

    /// Grows what is held to what the delta needs, and no operation that has only begun to ask: what
    /// is kept for commits is not for those.
    fn cover_delta(&self) -> vfs::Result<()> {
        let cost = cost_of(&self.core.layers().current);
        self.cover(bound(&self.trees(), &cost), Priority::Commit)
    }

    /// An epoch is about to be sealed: until `take_metadata` its part of what is held is
    /// nobody else's.
    pub(crate) fn before_seal(&self) {
        self.untaken.store(true, Ordering::SeqCst);
    }

    /// What is held for the epoch that was just sealed goes to its commit. What the next
    /// one needs already, for operations and for content that is still unwritten, stays; the
    /// rest goes back.
    ///
    /// Operations go on meanwhile, and look at what is held without a lock: so it is made less
    /// first, and then seen who had counted on more.
    pub(crate) fn take_metadata(
        &self,
        sealed: &Delta,
        kept: Option<MetadataReservation>,
    ) -> CommitReservation {
        let trees = self.trees();
        let cost = cost_of(sealed);
        let files = bound(&trees, &cost);
        self.trees_grow(files);
        // What is promised from now on is for the commit after this one.
        self.core.space.keep_for_commits(accounts_after(&trees, &cost, files));
        let mut held = self.metadata.lock();
        self.complete(&mut held, files);
        let mut taken = held.as_mut().map(|held| held.split(files));
        let rest = held.as_ref().map_or(0, MetadataReservation::bytes);
        self.metadata_bytes.store(0, Ordering::SeqCst);
        let ordinary = self.ordinary_bytes.swap(0, Ordering::SeqCst);
        let in_place = self.in_place_bytes.swap(0, Ordering::SeqCst);
        self.untaken.store(false, Ordering::SeqCst);
        let next = self.next_need();
        let stays = rest.min(next);
        if let Some(held) = held.as_mut() {
            held.shrink(rest - stays);
        }
        self.metadata_bytes.store(stays, Ordering::SeqCst);
        self.ordinary_bytes.store(ordinary.min(stays), Ordering::SeqCst);
        self.in_place_bytes.store(in_place.min(stays), Ordering::SeqCst);
        self.make_up(&mut held, next - stays);
        drop(held);
        let accounts = accounts(&trees);
        // Where there was none: nobody who entered the epoch reads older roots any more.
        match (taken.as_mut(), kept.or_else(|| self.reserve_for_commit(accounts))) {
            (Some(taken), Some(kept)) => taken.absorb(kept),
            (None, kept) => taken = kept,
            (Some(_), None) => {}
        }
        CommitReservation { reservation: taken, files, accounts }
    }

    /// What writeback has added since `hold_for_commit`: nothing comes to a sealed epoch any more.
    fn complete(&self, held: &mut Option<MetadataReservation>, files: u64) {
        let have = held.as_ref().map_or(0, MetadataReservation::bytes);
        let missing = files.saturating_sub(have);
        if missing > 0
            && let Some(more) = self.reserve_for_commit(missing)
        {
            self.absorb(held, more, Priority::Commit);
        }
    }

    /// What operations of the next epoch were promised out of this one's, as far as there is any.
    fn make_up(&self, held: &mut Option<MetadataReservation>, missing: u64) {
        let missing = missing.min(self.core.space.unreserved(Kind::Metadata));
        if missing > 0
            && let Ok(more) = self.core.space.reserve_metadata(missing, Priority::Normal)
        {
            self.absorb(held, more, Priority::Normal);
        }
    }

    /// Whether a commit now could leave the trees so large that what stays in memory of content
    /// needs more, beside all else, than there is then: what it has was promised for the trees
    /// as they are, which bound it, too. With this commit it needs no more than that.
    pub(crate) fn content_would_outgrow(&self) -> bool {
        let unwritten = self.unwritten();
        if unwritten == Cost::default() {
            return false;
        }
        let trees = self.trees();
        let cost = cost_of(&self.core.layers().current);
        let files = bound(&trees, &cost);
        let after = trees.larger_by(files);
        let need = bound(&after, &unwritten) + self.in_flight.room().bytes(&after);
        let kept = accounts_after(&trees, &cost, files).saturating_sub(accounts(&trees));
        let rest = self.held_for(Priority::Normal).saturating_sub(files);
        need + kept > rest + self.core.space.unreserved(Kind::Metadata)
    }

    /// Whether content in memory holds more of metadata than others could still have.
    pub(crate) fn content_holds_most(&self) -> bool {
        let held = bound(&self.trees(), &self.unwritten());
        held > self.core.space.unreserved(Kind::Metadata)
    }

    /// What the epoch after a commit needs already.
    fn next_need(&self) -> u64 {
        self.need(Priority::Normal)
    }

    /// After a commit: what it did not use is promised again to content that is unwritten
    /// still, as far as it goes.
    pub(crate) fn hold_for_unwritten(&self) {
        let need = self.next_need();
        let mut held = self.metadata.lock();
        let have = self.held_for(Priority::Normal);
        self.make_up(&mut held, need.saturating_sub(have));
    }
}
