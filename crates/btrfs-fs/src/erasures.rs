//! Inodes without a name that wait to be erased: for the thread that does it in the background, or, where
//! there was no room for it, for the end of the next commit.
//!
//! Invariants:
//! * who waits here is referred to, so it stays in memory and is loaded by nobody;
//! * an inode may wait twice: who comes second finds nothing left;
//! * what is left here when the thread has ended is for who closes the volume, or for the next mount.
//!
//! What it does not know: how an inode is erased, and what for somebody waits for it.

use crate::inode::Inode;
use btrfs_disk::Key;
use btrfs_disk::key::kind;
use inode_index::Ref;
use locks::{Condvar, Mutex, MutexGuard, Rank};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Who waits for something that nobody may tell him looks again after this.
/// Chosen, not measured.
const LOOK: Duration = Duration::from_secs(1);

/// How far the items of an inode have gone, which go in steps.
pub(crate) struct Steps {
    /// Of those in front of this none is left: in memory they are deleted still, so who passes over them
    /// in each step needs ever more time for one.
    pub(crate) from: Key,
    /// How many the next step removes at most.
    pub(crate) most: usize,
}

impl Steps {
    /// Nothing of the inode is erased yet, or nobody knows how much.
    pub(crate) fn of(objectid: u64, most: usize) -> Steps {
        Steps { from: Key::new(objectid, kind::INODE_ITEM + 1, 0), most }
    }
}

/// An inode that is being erased, and how far that is.
pub(crate) struct Erasure {
    pub(crate) inode: Ref<Inode>,
    pub(crate) steps: Steps,
    /// It may look for room, with commits. Where that found none it takes what there is.
    pub(crate) looks_for_room: bool,
    /// Also if somebody refers to it by its number: nobody can come any more.
    pub(crate) whoever_claims_it: bool,
}

impl Erasure {
    /// Of one that its last claimant has let go of.
    pub(crate) fn new(inode: Ref<Inode>, most: usize) -> Erasure {
        let steps = Steps::of(inode.id.objectid, most);
        Erasure { inode, steps, looks_for_room: true, whoever_claims_it: false }
    }

    /// Of one that nobody can come to any more.
    pub(crate) fn whoever_claims(inode: Ref<Inode>, most: usize) -> Erasure {
        Erasure { whoever_claims_it: true, ..Erasure::new(inode, most) }
    }
}

#[derive(Default)]
struct State {
    /// For the thread.
    waiting: VecDeque<Erasure>,
    /// For the end of a commit.
    without_room: Vec<Erasure>,
    /// The thread has one of them.
    is_at_work: bool,
    /// The thread waits for a commit, or for what keeps it from any step to end.
    rests: bool,
    /// Something has come that ends its rest.
    told: bool,
    stop: bool,
}

/// What becomes of erasing in the background, for who waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Something is left.
    pub(crate) goes_on: bool,
    /// It does not before a commit.
    pub(crate) rests: bool,
    pub(crate) steps: u64,
}

pub(crate) struct Erasures {
    state: Mutex<State>,
    changed: Condvar,
    /// There is a thread.
    served: AtomicBool,
    /// Steps that it has taken.
    steps: AtomicU64,
    /// Held by the thread over a step.
    at_step: Mutex<()>,
}

impl Default for Erasures {
    fn default() -> Erasures {
        Erasures {
            state: Mutex::new(Rank::Unerased, State::default()),
            changed: Condvar::default(),
            served: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            at_step: Mutex::new(Rank::Erasing, ()),
        }
    }
}

impl Erasures {
    /// Whether a thread erases what is added here.
    pub(crate) fn are_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// From here on, or from here on no more.
    pub(crate) fn serve(&self, served: bool) {
        self.served.store(served, Ordering::Relaxed);
    }

    /// For the thread.
    pub(crate) fn add(&self, erasure: Erasure) {
        let mut state = self.state.lock();
        state.waiting.push_back(erasure);
        // One that rests has work enough.
        if !state.rests {
            self.changed.notify_one();
        }
    }

    /// There was no room for it.
    pub(crate) fn set_aside(&self, erasure: Erasure) {
        let erasure = Erasure { looks_for_room: false, ..erasure };
        self.state.lock().without_room.push(erasure);
    }

    /// Those that were set aside.
    pub(crate) fn take_set_aside(&self) -> Vec<Erasure> {
        std::mem::take(&mut self.state.lock().without_room)
    }

    /// There may be `room` again, or what kept the thread from going on is over.
    pub(crate) fn go_on(&self, room: bool) {
        let mut state = self.state.lock();
        if room {
            let aside = std::mem::take(&mut state.without_room);
            state.waiting.extend(aside);
        }
        (state.told, state.rests) = (true, false);
        if !state.waiting.is_empty() {
            self.changed.notify_one();
        }
    }

    /// The thread is to end.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_one();
    }

    /// The next one, by the thread; `None`: it is time to stop.
    pub(crate) fn next(&self) -> Option<Erasure> {
        let mut state = self.state.lock();
        state.is_at_work = false;
        while state.waiting.is_empty() && !state.stop {
            self.changed.wait_until(&mut state, Instant::now() + LOOK);
        }
        if state.stop {
            return None;
        }
        state.is_at_work = true;
        state.waiting.pop_front()
    }

    /// By the thread, which ends.
    pub(crate) fn is_left(&self) {
        self.state.lock().is_at_work = false;
    }

    /// It goes on with this one behind a commit, by the thread.
    pub(crate) fn rest(&self, erasure: Erasure, is_over: impl Fn() -> bool) {
        let until = Instant::now() + LOOK;
        let mut state = self.state.lock();
        state.waiting.push_front(erasure);
        state.is_at_work = false;
        (state.rests, state.told) = (true, is_over());
        while !state.told && !state.stop && Instant::now() < until {
            self.changed.wait_until(&mut state, until);
        }
        state.rests = false;
    }

    /// The right to a step, by the thread.
    pub(crate) fn begin_step(&self) -> MutexGuard<'_, ()> {
        self.at_step.lock()
    }

    /// A step was taken.
    pub(crate) fn stepped(&self) {
        self.steps.fetch_add(1, Ordering::Release);
    }

    /// How many were taken: what they removed is in the delta, or in a commit.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Acquire)
    }

    /// Returns when no step is under way that began before the call.
    pub(crate) fn wait_for_step(&self) {
        drop(self.at_step.lock());
    }

    pub(crate) fn progress(&self) -> Progress {
        let state = self.state.lock();
        let left = state.is_at_work || !state.waiting.is_empty();
        let goes_on = left && self.are_served() && !state.stop;
        Progress { goes_on, rests: state.rests, steps: self.steps() }
    }

    /// How many wait or are at work.
    pub(crate) fn count(&self) -> u64 {
        let state = self.state.lock();
        let waiting = state.waiting.len() + state.without_room.len();
        waiting as u64 + u64::from(state.is_at_work)
    }
}
