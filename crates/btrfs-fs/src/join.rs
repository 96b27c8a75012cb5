//! Callers with something to write, one of whom writes for all who wait.
//!
//! Invariants: one leads at a time, and while anybody waits one does. Each item is in one
//! batch, and its caller hears what became of that batch, also if its leader panics
//! (tests/lockfree).
//!
//! Everybody sleeps by himself and is woken by himself. Woken through one lock together they
//! came out one behind the other, each when its processor had time for it: with 32 callers on
//! two processors that took longer than the write.
//!
//! What it does not know: what is written.

use crate::sync::{Arc, AtomicU8, Mutex, Ordering, Rank, Thread, current_thread, park};

/// What a waiting caller is told.
const NOTHING: u8 = 0;
const LEAD: u8 = 1;
const DONE: u8 = 2;
const FAILED: u8 = 3;

struct Waiter {
    outcome: AtomicU8,
    thread: Thread,
}

impl Waiter {
    fn tell(&self, what: u8) {
        self.outcome.store(what, Ordering::Release);
        self.thread.unpark();
    }
}

struct State<T> {
    waiting: Vec<(T, Arc<Waiter>)>,
    led: bool,
}

pub(crate) struct Queue<T>(Mutex<State<T>>);

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue(Mutex::new(Rank::Leaf, State { waiting: Vec::new(), led: false }))
    }
}

/// What a caller has to do.
pub(crate) enum Turn<'q, T> {
    /// Write for all of these.
    Lead(Batch<'q, T>),
    /// Nothing: somebody did; false: he could not.
    Settled(bool),
}

/// Items to be written; settled when this goes, as failed unless `done` was called, or all
/// others would wait for ever.
pub(crate) struct Batch<'q, T> {
    queue: &'q Queue<T>,
    items: Vec<T>,
    others: Vec<Arc<Waiter>>,
    done: bool,
}

impl<T> Queue<T> {
    /// Returns when `item` is settled, or when it is the caller's turn to settle it.
    pub(crate) fn join(&self, item: T) -> Turn<'_, T> {
        let mut state = self.0.lock();
        if !state.led {
            state.led = true;
            return Turn::Lead(Batch {
                queue: self,
                items: vec![item],
                others: Vec::new(),
                done: false,
            });
        }
        let outcome = AtomicU8::new(NOTHING);
        let me = Arc::new(Waiter { outcome, thread: current_thread() });
        state.waiting.push((item, me.clone()));
        drop(state);
        loop {
            match me.outcome.load(Ordering::Acquire) {
                NOTHING => park(),
                LEAD => return Turn::Lead(self.take(&me)),
                what => return Turn::Settled(what == DONE),
            }
        }
    }

    /// All that wait now, among them the caller.
    fn take(&self, me: &Arc<Waiter>) -> Batch<'_, T> {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        let (items, mut others): (Vec<T>, Vec<_>) = waiting.into_iter().unzip();
        others.retain(|other| !Arc::ptr_eq(other, me));
        Batch { queue: self, items, others, done: false }
    }
}

impl<T> Batch<'_, T> {
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// All of it is written.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl<T> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        // The next one may begin while the others are being woken.
        let next = {
            let mut state = self.queue.0.lock();
            let next = state.waiting.first().map(|(_, next)| next.clone());
            state.led = next.is_some();
            next
        };
        if let Some(next) = next {
            next.tell(LEAD);
        }
        let what = if self.done { DONE } else { FAILED };
        self.others.iter().for_each(|other| other.tell(what));
    }
}
