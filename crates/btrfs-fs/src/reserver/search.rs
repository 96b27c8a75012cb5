//! Where there is no room for a reservation: what may make some, in which order, and when to stop.
//!
//! What it does not know: how much an operation needs, and why.

use super::Reserver;
use crate::error::IntoFs;
use btrfs_space::{Kind, Priority};
use locks::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vfs::{Errno, FsError, Result};

/// What must come back at least for a commit to be worth its while, in nodes.
/// Chosen, not measured.
const WORTH: u64 = 64;
/// The same as a part of all metadata, where each step changes leaves that lie apart and so is held far more
/// for than it takes: ever more commits would each bring ever less.
/// Chosen, not measured.
const WORTH_PART: u64 = 16;
/// Commits that a removal asks for before it gives up, and who writes in place: others may take what comes back.
/// Chosen, not measured.
const PATIENCE: u32 = 8;
/// How long they wait for others who are under way, each time, and how often it looks. Some wait
/// for what takes longer, and are not to be waited for.
/// Chosen, not measured.
const LONGEST: Duration = Duration::from_millis(50);
/// Chosen, not measured.
const LOOK: Duration = Duration::from_millis(1);

/// How long erasing in the background is waited for: where some of it was done, which a commit gives back;
/// and for a step, in front of which it may look for room itself.
/// Chosen, not measured.
const SOME_STEPS: Duration = Duration::from_secs(1);
/// Chosen, not measured.
const ONE_STEP: Duration = Duration::from_secs(10);

/// How often one search waits for that. Others may remove without an end, and what is erased may give nothing
/// back (somebody else has it, too): who waits keeps a server's thread.
/// Chosen, not measured.
pub(super) const ERASURES: u32 = 20;

/// What one search for room has done so far.
pub(super) struct Search<'r> {
    /// No other removal or write in place looks for room.
    pub(super) turn: Option<MutexGuard<'r, ()>>,
    commits: u32,
    waited: bool,
    /// Times that others have ended for it.
    ends: u32,
    /// Steps of erasing in the background of which it knows, and times that it waited for more.
    erased: u64,
    erasures: u32,
    /// Chunks that had come and gone when it last looked.
    chunks: u64,
}

impl Reserver {
    /// One that begins.
    pub(super) fn search(&self) -> Search<'_> {
        let (erased, chunks) = (self.erasures.steps(), self.core.space.chunk_changes());
        Search { turn: None, commits: 0, waited: false, ends: 0, erased, erasures: 0, chunks }
    }

    /// It looks whether there is room: chunks that come or go from now on are a reason to look again.
    pub(super) fn looks(&self, search: &mut Search<'_>) {
        search.chunks = self.core.space.chunk_changes();
    }

    /// Does the next thing that may make room for `wanted` bytes; false: nothing is left.
    pub(super) fn find_room(
        &self,
        search: &mut Search<'_>,
        kind: Kind,
        wanted: u64,
        priority: Priority,
    ) -> Result<bool> {
        let most = if priority == Priority::Normal { 1 } else { PATIENCE };
        // Where much is held a commit comes first; chunks of the other kind come before
        // many commits that bring little.
        if !self.much_is_held()
            && priority != Priority::Delete
            && self.core.space.reclaim_for(kind, search.chunks).fs()?
        {
            return Ok(true);
        }
        if search.commits < most
            && !self.committer.is_held()
            && (search.commits == 0 && priority != Priority::Normal && self.core.memory.dirty() > 0
                || self.commit_may_help(kind, wanted, priority))
        {
            (search.commits, search.waited) = (search.commits + 1, false);
            // One that found no room itself has told why there is none.
            return match self.commit_for_space() {
                Err(_) if self.reservations.is_short() => Ok(priority == Priority::Delete),
                // What was before they are held has given back what it had; or another found room since then.
                Err(FsError::Posix(Errno::ENOSPC)) => Ok(true),
                done => done.map(|()| true),
            };
        }
        if !search.waited && self.core.space.pinned(kind) > 0 {
            search.waited = true;
            self.committer.wait_for_readers(kind);
            return Ok(true);
        }
        if self.core.space.reclaim_for(kind, search.chunks).fs()? {
            return Ok(true);
        }
        Ok(self.erased_meanwhile(search, priority))
    }

    /// Waits for what is being erased in the background, which may be a removal itself, and allows commits anew that
    /// give it back. False: nothing comes.
    fn erased_meanwhile(&self, search: &mut Search<'_>, priority: Priority) -> bool {
        if priority == Priority::Delete || search.erasures == ERASURES {
            return false;
        }
        // A step may have to look for the last room.
        search.turn = None;
        let comes = self.erasures_came_on(&mut search.erased);
        if comes {
            (search.commits, search.erasures) = (0, search.erasures + 1);
        }
        comes
    }

    /// Waits until erasing in the background has come to where a commit gives back what it brought.
    /// False: nothing has come since it had taken `seen` steps, and nothing comes.
    pub(super) fn erasures_came_on(&self, seen: &mut u64) -> bool {
        let start = Instant::now();
        while !self.committer.is_held() {
            let now = self.erasures.progress();
            let came = now.steps != *seen;
            let patience = if came || now.rests { SOME_STEPS } else { ONE_STEP };
            if !now.goes_on || came && now.rests || start.elapsed() > patience {
                *seen = now.steps;
                return came;
            }
            std::thread::sleep(LOOK);
        }
        false
    }

    /// Waits for those who hold room for what they do, and allows one commit more, which gives back
    /// what it was. False: nobody is under way, or it was enough.
    pub(super) fn others_end(&self, search: &mut Search<'_>) -> bool {
        if search.ends == PATIENCE || !self.reservations.are_under_way() {
            return false;
        }
        let start = Instant::now();
        while self.reservations.are_under_way() && start.elapsed() < LONGEST {
            std::thread::sleep(LOOK);
        }
        search.ends += 1;
        search.commits = search.commits.min(PATIENCE - 1);
        true
    }

    /// Bytes that must come back at least.
    pub(super) fn worth_a_commit(&self) -> u64 {
        let least = WORTH * u64::from(self.core.geometry.node_size);
        match self.reservations.leaves_lie_apart() {
            true => least.max(self.core.space.totals().metadata.total / WORTH_PART),
            false => least,
        }
    }

    /// Whether most of what is reserved of metadata is for one large commit.
    fn much_is_held(&self) -> bool {
        let total = self.core.space.totals().metadata.total;
        self.reservations.held() > total / 8
    }

    /// Whether a commit can make room for `wanted` bytes. It is expensive, and near the end
    /// every operation would ask for one: so not without a reason.
    fn commit_may_help(&self, kind: Kind, wanted: u64, priority: Priority) -> bool {
        let layers = self.core.layers();
        if layers.sealed.is_some() {
            return true;
        }
        let removals = self.removals.load(Ordering::Relaxed);
        if priority != Priority::Normal || removals != self.seen.load(Ordering::Relaxed) {
            return !layers.current.is_empty();
        }
        let (mut comes, mut may) = (self.core.space.pinned(kind), 0);
        let held = self.reservations.held();
        if self.core.space.mixed() || kind == Kind::Data {
            comes += layers.current.extents.dropped();
            // Of content that becomes inline items the reservation comes back.
            may += self.writeback.pieces().first() * self.core.sector();
        }
        if self.core.space.mixed() || kind != Kind::Data {
            may += held;
        }
        if may >= self.worth_a_commit() {
            comes += may;
        }
        let enough = comes > 0 && self.core.space.unreserved(kind) + comes >= wanted;
        enough || kind == Kind::Data && self.core.space.reservations_block_data(held)
    }

    /// A commit that shall free space; that some content found no room is known then. ENOSPC: commits
    /// are held, so none comes.
    pub(crate) fn commit_for_space(&self) -> Result<()> {
        let removals = self.removals.load(Ordering::Relaxed);
        self.seen.store(removals, Ordering::Relaxed);
        self.stats.commits_for_space.add(1);
        match self.commit_unless_held()? {
            true => Ok(()),
            false => Err(Errno::ENOSPC.into()),
        }
    }
}
