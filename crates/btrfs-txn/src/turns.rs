//! Whose turn it is to commit, and whether another's commit has served already.
//!
//! Invariants: one commit at a time. A caller is served by a commit that began after its
//! call and ended well, never by one that ran already: that one may have sealed its epoch
//! before what the caller did (tests/lockfree).
//!
//! What it does not know: what a commit does.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Rank};

/// What a commit is to bring, from less to more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
// Exhaustive: the wishes are ordered; a commit that brings one brings those below.
pub enum Wanted {
    /// What has landed: new chunks are to be on the volume before they are needed.
    WrittenBack,
    /// All that was done, content that is in memory among it.
    Everything,
}

/// One commit at a time, shared by all who wait for it.
pub struct Turns {
    /// Held by the running commit.
    running: Mutex<()>,
    /// Commits begun, ever, and the last that ended well, by what was wanted of it.
    begun: AtomicU64,
    ended: [AtomicU64; 2],
}

/// The right to commit.
pub struct Turn<'t> {
    turns: &'t Turns,
    wanted: Wanted,
    /// The first commit that begins after the call.
    enough: u64,
    _running: MutexGuard<'t, ()>,
}

impl Default for Turns {
    fn default() -> Turns {
        let (begun, ended) = Default::default();
        Turns { running: Mutex::new(Rank::Commit, ()), begun, ended }
    }
}

impl Turns {
    /// Returns when no commit runs that ran before the call.
    pub fn wait_for_running(&self) {
        drop(self.running.lock());
    }

    /// Waits for the right to run a commit.
    pub fn take(&self, wanted: Wanted) -> Turn<'_> {
        let enough = self.begun.load(Ordering::SeqCst) + 1;
        Turn { turns: self, wanted, enough, _running: self.running.lock() }
    }
}

impl Turn<'_> {
    /// Another's commit began after our call, and what we want of it is durable.
    pub fn is_served(&self) -> bool {
        self.turns.ended[self.wanted as usize].load(Ordering::SeqCst) >= self.enough
    }

    /// A commit begins; answers its number.
    pub fn begin(&self) -> u64 {
        self.turns.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Commit `number` is durable, `all` of the content with it if that was wanted: who wants
    /// less is served by it, too.
    pub fn ended(&self, number: u64, all: bool) {
        let ended = &self.turns.ended;
        ended[Wanted::WrittenBack as usize].fetch_max(number, Ordering::SeqCst);
        if self.wanted == Wanted::Everything && all {
            ended[Wanted::Everything as usize].fetch_max(number, Ordering::SeqCst);
        }
    }
}
