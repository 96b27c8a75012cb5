//! What the kernel is to hear, a line for each inode, and the threads that tell it.
//!
//! Who tells it may have to wait: for whoever lists a directory (`names`), for pages that are locked or have to be written
//! before they go (`inodes`). So he may be away for long or for ever, and holds up that inode alone: usually one
//! thread sends, and where it takes longer than a moment the next one does, which is there already.
//!
//! Invariants: of one inode one thread sends at a time, in the order of its line; inodes take turns; a thread
//! that waits for work is always there, as long as there may be more threads.
//!
//! Does not know what is sent.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use vfs::Ino;

/// Inodes that may be waited for before others have to wait for one of them.
/// Chosen, not measured.
const MOST_THREADS: usize = 128;

/// What is to be sent of an inode, and what is being sent.
pub(super) trait Line: Default {
    type Item;
    /// Who sends for longer waits for somebody.
    const MOMENT: Duration;

    /// Takes the next one, which is being sent until `sent`.
    fn begin(&mut self) -> Option<Self::Item>;
    fn sent(&mut self);
    /// There is nothing to begin with.
    fn is_empty(&self) -> bool;
}

pub(super) struct Lines<L: Line> {
    state: Mutex<State<L>>,
    /// There is something to send.
    wake: Condvar,
    /// Something was sent.
    pub(super) sent: Condvar,
}

pub(super) struct State<L> {
    /// Of which something is to be sent, or is being sent.
    pub(super) lines: HashMap<Ino, L>,
    /// Those of which nobody sends.
    ready: VecDeque<Ino>,
    /// What was ever put into a line.
    pushed: u64,
    /// Who sends, by his number, and since when; not who waits for somebody.
    turn: Option<(u64, Instant)>,
    turns: u64,
    threads: usize,
    idle: usize,
    /// Somebody waits for the end of that turn's moment.
    watched: bool,
    closed: bool,
}

/// Something to be sent; dropped, it was.
pub(super) struct Taken<'a, L: Line> {
    from: &'a Lines<L>,
    turn: u64,
    pub(super) ino: Ino,
    pub(super) item: L::Item,
}

impl<L: Line> Drop for Taken<'_, L> {
    fn drop(&mut self) {
        let is_more = self.from.state.lock().sent(self.ino, self.turn);
        if is_more {
            self.from.wake.notify_one();
        }
        self.from.sent.notify_all();
    }
}

impl<L> State<L> {
    pub(super) fn is_served(&self) -> bool {
        self.threads > 0 && !self.closed
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}

impl<L: Line> State<L> {
    fn new() -> State<L> {
        State {
            lines: HashMap::new(),
            ready: VecDeque::new(),
            pushed: 0,
            turn: None,
            turns: 0,
            threads: 0,
            idle: 0,
            watched: false,
            closed: false,
        }
    }

    /// Takes something of the inode that comes next.
    fn begin(&mut self) -> Option<(u64, Ino, L::Item)> {
        let ino = self.ready.pop_front()?;
        let item = self.lines.get_mut(&ino)?.begin()?;
        self.turns += 1;
        self.turn = Some((self.turns, Instant::now()));
        Some((self.turns, ino, item))
    }

    /// Whether somebody may go on.
    fn sent(&mut self, ino: Ino, turn: u64) -> bool {
        if self.turn.is_some_and(|(last, _)| last == turn) {
            self.turn = None;
        }
        if let Some(line) = self.lines.get_mut(&ino) {
            line.sent();
            match line.is_empty() {
                true => drop(self.lines.remove(&ino)),
                false => self.ready.push_back(ino),
            }
        }
        !self.ready.is_empty()
    }

    /// Until when somebody else sends, if nobody is in his way.
    fn others_turn(&self) -> Option<Instant> {
        let until = self.turn.map(|(_, since)| since + L::MOMENT);
        until.filter(|until| Instant::now() < *until)
    }
}

impl<L: Line> Lines<L> {
    pub(super) fn new() -> Lines<L> {
        Lines { state: Mutex::new(State::new()), wake: Condvar::new(), sent: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock()
    }

    /// `add` puts something into the inode's line, by a number that only grows. `None`: nobody sends any more.
    pub(super) fn push<R>(&self, ino: Ino, add: impl FnOnce(&mut L, u64) -> R) -> Option<R> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        let State { lines, ready, pushed, watched, .. } = &mut *state;
        *pushed += 1;
        let line = lines.entry(ino).or_insert_with(|| {
            ready.push_back(ino);
            L::default()
        });
        let added = add(line, *pushed);
        if !*watched {
            self.wake.notify_one();
        }
        Some(added)
    }

    /// A thread that sends is about to begin. False: there are enough.
    pub(super) fn one_more(&self) -> bool {
        let mut state = self.state.lock();
        let needed = state.idle == 0 && state.threads < MOST_THREADS && !state.closed;
        state.threads += usize::from(needed);
        needed
    }

    /// The one that was about to begin could not.
    pub(super) fn one_less(&self) {
        self.state.lock().threads -= 1;
    }

    /// Whether the calling thread, which has sent something, is to end: others wait for work. Two of them, so
    /// that none comes and goes with each message.
    fn is_enough(&self) -> bool {
        let mut state = self.state.lock();
        let enough = state.idle > 1;
        state.threads -= usize::from(enough);
        enough
    }

    /// Waits for something and for the turn to send it; `None` when there will be nothing.
    pub(super) fn take(&self) -> Option<Taken<'_, L>> {
        let mut state = self.state.lock();
        state.idle += 1;
        let begun = loop {
            if state.closed {
                break None;
            }
            match (state.ready.is_empty(), state.others_turn()) {
                (true, _) => self.wake.wait(&mut state),
                (false, Some(until)) => {
                    state.watched = true;
                    self.wake.wait_until(&mut state, until);
                    state.watched = false;
                }
                (false, None) => break state.begin(),
            }
        };
        state.idle -= 1;
        let (turn, ino, item) = begun?;
        Some(Taken { from: self, turn, ino, item })
    }

    /// The body of a thread that was about to begin: sends until `close`, or until there are enough beside it.
    /// `more` starts another one that was about to.
    pub(super) fn serve(&self, more: impl Fn(), send: impl Fn(Ino, &L::Item)) {
        while let Some(taken) = self.take() {
            if self.one_more() {
                more();
            }
            send(taken.ino, &taken.item);
            drop(taken);
            if self.is_enough() {
                return;
            }
        }
        self.one_less();
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.lines.clear();
        state.ready.clear();
        self.wake.notify_all();
        self.sent.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(usize);

    impl Line for Count {
        type Item = ();
        const MOMENT: Duration = Duration::from_millis(1);

        fn begin(&mut self) -> Option<()> {
            self.0 = self.0.checked_sub(1)?;
            Some(())
        }

        fn sent(&mut self) {}

        fn is_empty(&self) -> bool {
            self.0 == 0
        }
    }

    #[test]
    fn threads_come_as_they_are_needed() {
        let lines = Lines::<Count>::new();
        assert_eq!(
            [(); MOST_THREADS + 1].map(|()| lines.one_more()).iter().filter(|is| **is).count(),
            MOST_THREADS
        );
        lines.one_less();
        assert!(lines.one_more() && !lines.one_more() && !lines.is_enough());
        lines.close();
        assert_eq!(lines.push(Ino(1), |count, _| count.0 += 1), None);
        assert!(lines.take().is_none() && lines.lock().lines.is_empty());
    }

    #[test]
    fn inodes_take_turns() {
        let lines = Lines::<Count>::new();
        for ino in [1, 1, 1, 2] {
            lines.push(Ino(ino), |count, _| count.0 += 1);
        }
        let order = [(); 4].map(|()| lines.take().expect("one").ino.0);
        assert_eq!(order, [1, 2, 1, 1]);
        assert!(lines.lock().lines.is_empty());
    }
}
