//! A commit that is held at one of its accesses to the device while others work, or slowed down.
//!
//! Threads that do a workload's operations are workers; what any other thread does to the
//! device counts as a commit's. Invariants: a commit is held for at most `LIMIT`, since what
//! waits for it may be what would release it; workers are neither held nor slowed.
//!
//! What it does not know: what a commit writes in which order, but for the superblock.

use blocksim::{Access, Hook};
use btrfs_disk::superblock::COPIES;
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where a commit stops: before its n-th read, write or flush, counted from its beginning
/// (what it writes back before its seal counts too), or before its superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    Read(u64),
    Write(u64),
    Flush(u64),
    Superblock,
}

/// Before the seal or at the merge's start, before, amid and after the nodes, which arrive in one
/// write for each copy, before, amid and after the superblocks.
pub const HOLDS: &[Hold] = &[
    Hold::Read(0),
    Hold::Write(0),
    Hold::Write(1),
    Hold::Write(2),
    Hold::Flush(0),
    Hold::Superblock,
    Hold::Write(3),
    Hold::Flush(1),
];

/// Amid the merge, which reads nodes if little memory remembers them.
pub const HOLDS_OF_READS: &[Hold] =
    &[Hold::Read(0), Hold::Read(1), Hold::Read(2), Hold::Read(3), Hold::Read(5)];

const LIMIT: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// Nobody is to be held.
    #[default]
    Open,
    Armed(Hold),
    Held,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// The commit's accesses since it was armed.
    reads: u64,
    writes: u64,
    flushes: u64,
    /// Commits begun, and whether the last one runs.
    begun: u64,
    running: bool,
}

#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// What each access of a commit takes, and ten times as much a flush.
    slow: Duration,
}

thread_local! {
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// What this thread does from now on is not a commit's.
pub fn work_here() {
    WORKER.set(true);
}

impl State {
    fn hits(&mut self, access: Access, offset: u64) -> bool {
        let count = match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
            Access::Flush => &mut self.flushes,
        };
        let number = *count;
        *count += 1;
        match self.stage {
            Stage::Armed(Hold::Read(nth)) => access == Access::Read && number == nth,
            Stage::Armed(Hold::Write(nth)) => access == Access::Write && number == nth,
            Stage::Armed(Hold::Flush(nth)) => access == Access::Flush && number == nth,
            Stage::Armed(Hold::Superblock) => access == Access::Write && offset == COPIES[0],
            Stage::Open | Stage::Held => false,
        }
    }
}

impl Gate {
    pub fn new(slow: Duration) -> Arc<Gate> {
        Arc::new(Gate { slow, ..Gate::default() })
    }

    pub fn hook(self: &Arc<Gate>) -> Hook {
        let gate = self.clone();
        Arc::new(move |access, offset| gate.pass(access, offset))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, access: Access, offset: u64) {
        if WORKER.get() {
            return;
        }
        let times = if access == Access::Flush { 10 } else { 1 };
        if !self.slow.is_zero() {
            std::thread::sleep(self.slow * times);
        }
        let mut state = self.lock();
        if !state.hits(access, offset) {
            return;
        }
        state.stage = Stage::Held;
        self.changed.notify_all();
        let held = |state: &mut State| state.stage == Stage::Held;
        let waited = self.changed.wait_timeout_while(state, LIMIT, held);
        waited.unwrap_or_else(PoisonError::into_inner).0.stage = Stage::Open;
    }

    /// The next commit stops there.
    pub fn arm(&self, hold: Hold) {
        let mut state = self.lock();
        *state = State { stage: Stage::Armed(hold), begun: state.begun, ..State::default() };
    }

    /// Until the commit is held, or has ended without getting there; true if it is held.
    pub fn wait_held(&self) -> bool {
        let armed = |state: &mut State| matches!(state.stage, Stage::Armed(_));
        let state = self.changed.wait_while(self.lock(), armed);
        state.unwrap_or_else(PoisonError::into_inner).stage == Stage::Held
    }

    pub fn release(&self) {
        self.lock().stage = Stage::Open;
        self.changed.notify_all();
    }

    /// Runs a commit.
    pub fn commit<T>(&self, commit: impl FnOnce() -> T) -> T {
        let mut state = self.lock();
        (state.begun, state.running) = (state.begun + 1, true);
        drop(state);
        let result = commit();
        let mut state = self.lock();
        (state.stage, state.running) = (Stage::Open, false);
        drop(state);
        self.changed.notify_all();
        result
    }

    /// The commit that runs now, if one does (and is held, if it was to be).
    pub fn inside(&self) -> Option<u64> {
        let state = self.lock();
        let counts = state.running && (!self.slow.is_zero() || state.stage == Stage::Held);
        counts.then_some(state.begun)
    }
}
