//! Reserving for operations: who may wait for room waits here, for a commit, for the readers of
//! old roots, or for writeback when memory is full.
//!
//! Commits lock inodes: reserve before locking any, and before taking a view.
//!
//! What it does not know: what operations do, and what a reservation is made of
//! (`crate::reserve`).

mod pace;
mod search;
#[cfg(test)]
mod tests;

use crate::commit::Committer;
use crate::erasures::Erasures;
use crate::error::IntoFs;
use crate::reserve::{
    Cost, DirtyReservation, QUOTA_PATIENCE, QuotaReservation, Reservation, Reservations, cost,
};
use crate::stats::Stats;
use crate::writeback::{Flushed, Writeback};
use crate::writeback_errors::refused;
use btrfs_disk::{Error, TreeId};
use btrfs_space::{DataReservation, Kind, Priority};
use btrfs_txn::Core;
use locks::{Mutex, Rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vfs::{Errno, FsError, Result};

/// Nobody adds to unwritten content that takes so many times the memory from where on it is written back.
/// Chosen, not measured.
const MOST_DIRTY: u64 = 2;
/// How often who waits for content to land looks. Chosen, not measured.
const LOOK: Duration = Duration::from_millis(1);

pub(crate) struct Reserver {
    core: Arc<Core>,
    reservations: Arc<Reservations>,
    writeback: Arc<Writeback>,
    committer: Arc<Committer>,
    stats: Arc<Stats>,
    erasures: Arc<Erasures>,
    /// Nobody else commits when memory is full.
    alone: bool,
    /// Removals so far, and as of the last commit that was to free space.
    removals: AtomicU64,
    seen: AtomicU64,
    /// One removal, or write in place, at a time looks for the last room, or each takes from the others what all of
    /// them need one after the other. Nobody who has it waits for what is erased: that may need it.
    last_room: Mutex<()>,
    /// The epoch whose commit somebody has asked for since room runs short.
    asked: AtomicU64,
}

/// What an operation on content reserves.
pub(crate) struct ContentReservation<'r> {
    /// Space and memory for what it leaves dirty.
    pub dirty: DirtyReservation<'r>,
    _operation: Reservation<'r>,
}

impl Reserver {
    pub(crate) fn new(
        core: Arc<Core>,
        reservations: Arc<Reservations>,
        writeback: Arc<Writeback>,
        committer: Arc<Committer>,
        stats: Arc<Stats>,
        erasures: Arc<Erasures>,
        background: bool,
    ) -> Reserver {
        let (removals, seen, asked) = Default::default();
        let alone = !background;
        let last_room = Mutex::new(Rank::LastRoom, ());
        Reserver {
            core,
            reservations,
            writeback,
            committer,
            stats,
            erasures,
            alone,
            removals,
            seen,
            last_room,
            asked,
        }
    }

    /// For an operation that makes something.
    pub(crate) fn reserve(&self, cost: Cost) -> Result<Reservation<'_>> {
        self.reserve_with(cost, Priority::Normal)
    }

    /// As `reserve`, for content that goes into space that its file has.
    pub(crate) fn reserve_in_place(&self, cost: Cost) -> Result<Reservation<'_>> {
        self.reserve_with(cost, Priority::InPlace)
    }

    /// As `reserve`, for what gives space back: it may use the reserve for removals.
    pub(crate) fn reserve_removal(&self, cost: Cost) -> Result<Reservation<'_>> {
        self.removals.fetch_add(1, Ordering::Relaxed);
        self.reserve_with(cost, Priority::Delete)
    }

    /// For removing up to `most` items of an inode; answers how many of them, a small step at
    /// least.
    pub(crate) fn reserve_removal_of_items(&self, most: u64) -> Result<(Reservation<'_>, u64)> {
        if let Ok(held) = self.hold_removal_of_items(most) {
            return Ok(held);
        }
        let step = most.min(cost::SMALL_STEP);
        self.reserve_removal(cost::removal_of_items(step)).map(|held| (held, step))
    }

    /// As `reserve_removal_of_items`, for one of many steps: it waits while the delta has more memory than it
    /// should.
    pub(crate) fn reserve_removal_step(&self, most: u64) -> Result<(Reservation<'_>, u64)> {
        self.wait_for_memory(Priority::Delete)?;
        self.reserve_removal_of_items(most)
    }

    /// Nothing that is removed comes back before who holds commits lets one come.
    pub(crate) fn commits_are_held(&self) -> bool {
        self.committer.is_held()
    }

    /// As `reserve_removal_of_items`, out of what there is now: for who may be called by one who looks
    /// for room.
    pub(crate) fn hold_removal_of_items(&self, most: u64) -> Result<(Reservation<'_>, u64)> {
        self.core.health.writable().fs()?;
        let hold = |items| {
            let held = self.reservations.hold(cost::removal_of_items(items), Priority::Delete)?;
            self.removals.fetch_add(1, Ordering::Relaxed);
            Ok((held, items))
        };
        hold(most).or_else(|_| hold(most.min(cost::SMALL_STEP)))
    }

    /// For `data` bytes of content, and for the operation that makes them dirty.
    pub(crate) fn reserve_content(&self, data: u64, cost: Cost) -> Result<ContentReservation<'_>> {
        // In this order: what the content will need in the trees counts for the operation.
        let dirty = self.reserve_dirty(data)?;
        let operation = self.reserve(cost)?;
        self.memory_for_content()?;
        Ok(ContentReservation { dirty, _operation: operation })
    }

    /// As `reserve_content`, for content that goes into space that its file has, out of what there is now: for who
    /// has the inode locked.
    pub(crate) fn hold_content_in_own(&self, data: u64) -> Result<ContentReservation<'_>> {
        self.memory_for_content()?;
        let dirty = self.reservations.hold_dirty_in_own(data);
        let cost = cost::write(&self.core.geometry, false);
        let operation = self.reservations.hold(cost, Priority::Normal)?;
        Ok(ContentReservation { dirty, _operation: operation })
    }

    /// EDQUOT where `bytes` more of a subvolume would be beyond a limit of a group. What this answers is
    /// for as long as the operation is under way.
    pub(crate) fn within_limits(&self, tree: TreeId, bytes: u64) -> Result<QuotaReservation<'_>> {
        self.within_limits_beside(tree, bytes, 0)
    }

    /// For a new name. The kernel asks for a node for each of the `items` that change, and so does this,
    /// though no more than one of them comes.
    pub(crate) fn name_within_limits(
        &self,
        tree: TreeId,
        items: u64,
    ) -> Result<QuotaReservation<'_>> {
        let node = u64::from(self.core.geometry.node_size);
        self.within_limits_beside(tree, node, (items - 1) * node)
    }

    fn within_limits_beside(
        &self,
        tree: TreeId,
        bytes: u64,
        spare: u64,
    ) -> Result<QuotaReservation<'_>> {
        let mut erased = self.erasures.steps();
        if let Some(promise) = self.promised_by_commits(tree, bytes, spare)? {
            return Ok(promise);
        }
        // What stays in memory is not what it will be on the volume.
        if let Some(_pressed) = self.reservations.limits.press(tree)
            && let Some(promise) = self.promised_by_commits(tree, bytes, spare)?
        {
            return Ok(promise);
        }
        for _ in 0..search::ERASURES {
            if !self.erasures_came_on(&mut erased) || !self.commit_unless_held()? {
                break;
            }
            if let Some(promise) = self.reservations.limits.reserve(tree, bytes, spare) {
                return Ok(promise);
            }
        }
        let promise = self.reservations.limits.reserve(tree, bytes, spare);
        promise.ok_or(Errno::EDQUOT.into())
    }

    /// By the numbers as they are, or as commits make them.
    fn promised_by_commits(
        &self,
        tree: TreeId,
        bytes: u64,
        spare: u64,
    ) -> Result<Option<QuotaReservation<'_>>> {
        for _ in 0..QUOTA_PATIENCE {
            let promise = self.reservations.limits.reserve(tree, bytes, spare);
            if promise.is_some() || !self.commit_unless_held()? {
                return Ok(promise);
            }
        }
        Ok(self.reservations.limits.reserve(tree, bytes, spare))
    }

    /// As `within_limits`, for `bytes` that another subvolume has already: with simple quotas they count
    /// for that one still.
    pub(crate) fn may_share_into(
        &self,
        tree: TreeId,
        bytes: u64,
    ) -> Result<Option<QuotaReservation<'_>>> {
        if self.reservations.limits.are_simple() {
            return Ok(None);
        }
        self.within_limits(tree, bytes).map(Some)
    }

    /// For `bytes` of content that an operation leaves in memory, which has nothing reserved for any yet.
    pub(crate) fn reserve_dirty(&self, bytes: u64) -> Result<DirtyReservation<'_>> {
        if bytes == 0 {
            return Ok(self.reservations.hold_dirty(0, None));
        }
        self.wait_for_content()?;
        let space = self.reserve_data(bytes)?;
        let dirty = self.reservations.hold_dirty(bytes, Some(space));
        if self.core.space.make_ahead() || self.much_comes_back() {
            // Before the old chunks are full, so that fsyncs need not commit.
            self.core.requests.wake_for_chunks();
        }
        Ok(dirty)
    }

    /// Space for `bytes` of data that the caller holds itself.
    pub(crate) fn reserve_data(&self, bytes: u64) -> Result<DataReservation> {
        let mut search = self.search();
        loop {
            self.looks(&mut search);
            match self.core.space.reserve_data(bytes) {
                Err(Error::NoSpace) => {}
                other => return other.fs(),
            }
            if !self.find_room(&mut search, Kind::Data, bytes, Priority::Normal)? {
                return Err(Errno::ENOSPC.into());
            }
        }
    }

    /// Whether so much content of a subvolume may have to wait for room, or be beyond a limit, as it looks now.
    pub(crate) fn may_lack_room(&self, tree: TreeId, bytes: u64) -> bool {
        let space = &self.core.space;
        !self.reservations.limits.have_room(tree, bytes)
            || space.low_on_data().is_some() && space.reserve_data(bytes).is_err()
    }

    /// Room for data runs short, and the next commit would free as much as is left or more.
    fn much_comes_back(&self) -> bool {
        let freed = || self.core.layers().current.extents.dropped();
        self.core.space.low_on_data().is_some_and(|mark| freed() >= mark)
    }

    /// EIO where all memory for unwritten content is taken by what the device refuses: nothing of
    /// it is dropped, so there is no more.
    fn memory_for_content(&self) -> Result<()> {
        let memory = &self.core.memory;
        if self.writeback.errors().are_left() && memory.dirty() > memory.most_dirty() / 2 * 3 {
            let why = "memory is full of content that the device refuses";
            return Err(refused(why.into()));
        }
        Ok(())
    }

    fn reserve_with(&self, cost: Cost, priority: Priority) -> Result<Reservation<'_>> {
        self.core.health.writable().fs()?;
        self.wait_for_memory(priority)?;
        let patient = priority != Priority::Normal;
        let mut search = self.search();
        loop {
            self.looks(&mut search);
            match self.reservations.hold(cost, priority) {
                Err(FsError::Posix(Errno::ENOSPC)) => {}
                other => return other,
            }
            if patient && search.turn.is_none() {
                search.turn = Some(self.last_room.lock());
                continue;
            }
            // Not for this one operation alone: that is what makes a commit worth its while.
            let wanted = self.reservations.nodes_for(&cost) + self.worth_a_commit();
            if self.find_room(&mut search, Kind::Metadata, wanted, priority)? {
                continue;
            }
            if patient && self.others_end(&mut search) {
                continue;
            }
            return match priority {
                Priority::Delete => self.last_resort(cost),
                _ => Err(Errno::ENOSPC.into()),
            };
        }
    }

    /// For a removal, where nothing makes room any more.
    fn last_resort(&self, cost: Cost) -> Result<Reservation<'_>> {
        // While commits are held, all that was done since, and content, is for the one that comes: what
        // is kept for that is not to be spent.
        if self.committer.is_held() {
            return Err(Errno::ENOSPC.into());
        }
        self.committer.wait_for_readers(Kind::Metadata);
        match self.reservations.hold_before_content(cost) {
            // Where more is used than should be (a volume that somebody else filled), what is
            // free must do, reserved or not.
            Err(FsError::Posix(Errno::ENOSPC)) if self.reservations.fits(cost) => {
                Ok(self.reservations.hold_anyway(cost))
            }
            held => held,
        }
    }

    /// A commit that gives back what it can. False: commits are held, and what there is must do.
    fn commit_unless_held(&self) -> Result<bool> {
        match self.committer.commit_what_lands() {
            Err(FsError::Posix(Errno::EBUSY)) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Waits while unwritten content takes more memory than it may, and takes part in landing it. Who is behind this
    /// is counted with what he may leave, so who waits here has nothing of the kind: all could wait for each other.
    /// Those who land are waited for, and nobody else: they wait for no reservation. Where none does, what is counted is
    /// in the hands of those who are under way, or finds no room: then memory is as it is.
    fn wait_for_content(&self) -> Result<()> {
        let memory = &self.core.memory;
        let is_over = || memory.dirty() > memory.most_dirty() * MOST_DIRTY;
        if !is_over() {
            return Ok(());
        }
        self.stats.throttled.add(1);
        self.core.requests.wake();
        while is_over() && !self.writeback.errors().are_left() {
            self.core.health.writable().fs()?;
            match self.writeback.flush_some()? {
                Some(Flushed::All) => {}
                None if self.writeback.is_landing() => std::thread::sleep(LOOK),
                _ => break,
            }
        }
        Ok(())
    }

    /// Starts a commit when the delta has used up its memory; slows down from there on, and waits
    /// when it is far over.
    fn wait_for_memory(&self, priority: Priority) -> Result<()> {
        if priority == Priority::Delete && self.reservations.is_short() {
            return Ok(());
        }
        let memory = &self.core.memory;
        let delta = self.keep_pace();
        let most = memory.most_delta();
        // While commits are held, whoever holds them sees to it that changes end.
        let waits = delta > most * 2 || delta > most && self.alone;
        if waits && !self.committer.is_held() {
            self.stats.throttled.add(1);
            self.commit_unless_held()?;
        }
        if memory.dirty() > memory.most_dirty() {
            self.core.requests.wake();
            if memory.dirty() > memory.most_dirty() * 3 / 2 || self.alone {
                self.stats.throttled.add(1);
                // What is not written is the business of those who wrote it.
                let _landed = self.writeback.flush_some()?;
            }
        }
        Ok(())
    }
}
