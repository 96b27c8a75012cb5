//! What the kernel is to hear, a line for each inode, and the threads that tell it.
//!
//! Who tells it may have to wait: for whoever lists a directory (`names`), for pages that are locked or have to be written
//! before they go (`inodes`). So he may be away for long or for ever, and holds up that inode alone: usually one
//! thread sends, and where it takes longer than a moment the next one does, which is there already.
//!
//! Invariants: of one inode one thread sends at a time, in the order of its line; inodes take turns; a thread
//! that waits for work is always there, or on its way, as long as there may be more threads. Where something is to be sent and
//! somebody waits for work, one watches for how long the one who sends does so, or was told to: who takes something
//! appoints him. Who has sent something tells nobody, unless he ends: he looks himself what is next.
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
    /// One is about to begin.
    comes: bool,
    /// One that was could not, and somebody was told.
    told: bool,
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
        self.from.state.lock().sent(self.ino, self.turn);
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
            comes: false,
            told: false,
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

    fn sent(&mut self, ino: Ino, turn: u64) {
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
    }

    /// Something is to be sent, and nobody looks when he may send it, of those who could.
    fn wants_a_watcher(&self) -> bool {
        !self.ready.is_empty() && self.idle > 0 && !self.watched
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
        let State { lines, ready, pushed, turn, watched, .. } = &mut *state;
        *pushed += 1;
        let line = lines.entry(ino).or_insert_with(|| {
            ready.push_back(ino);
            L::default()
        });
        let added = add(line, *pushed);
        // Who watches where nobody's turn is any more would sleep until its moment were over.
        if !*watched || turn.is_none() {
            self.wake.notify_one();
        }
        Some(added)
    }

    /// A thread that sends is about to begin. False: there are enough with the one that is on its way.
    pub(super) fn one_more(&self) -> bool {
        let mut state = self.state.lock();
        let waits = state.idle > 0 || state.comes;
        let needed = !waits && state.threads < MOST_THREADS && !state.closed;
        state.threads += usize::from(needed);
        state.comes |= needed;
        needed
    }

    /// The one that was about to begin could not. Whether that is to be told: it was not yet.
    pub(super) fn one_less(&self) -> bool {
        let mut state = self.state.lock();
        state.threads -= 1;
        state.comes = false;
        !std::mem::replace(&mut state.told, true)
    }

    /// Whether the calling thread, which has sent something, is to end: others wait for work. Two of them, so
    /// that none comes and goes with each message.
    fn is_enough(&self) -> bool {
        let mut state = self.state.lock();
        let enough = state.idle > 1;
        state.threads -= usize::from(enough);
        if enough && !state.ready.is_empty() {
            // He may have the turn now, also who waits for the end of its moment.
            self.wake.notify_one();
        }
        enough
    }

    /// Waits for something and for the turn to send it; `None` when there will be nothing.
    pub(super) fn take(&self) -> Option<Taken<'_, L>> {
        self.take_with(self.state.lock())
    }

    /// The same by one that was about to begin.
    fn take_first(&self) -> Option<Taken<'_, L>> {
        let mut state = self.state.lock();
        state.comes = false;
        self.take_with(state)
    }

    fn take_with<'a>(&'a self, mut state: MutexGuard<'a, State<L>>) -> Option<Taken<'a, L>> {
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
        if state.wants_a_watcher() {
            self.wake.notify_one();
        }
        let (turn, ino, item) = begun?;
        Some(Taken { from: self, turn, ino, item })
    }

    /// The body of a thread that was about to begin: sends until `close`, or until there are enough beside it.
    /// `more` starts another one that was about to.
    pub(super) fn serve(&self, more: impl Fn(), send: impl Fn(Ino, &L::Item)) {
        let mut next = self.take_first();
        while let Some(taken) = next {
            if self.one_more() {
                more();
            }
            send(taken.ino, &taken.item);
            drop(taken);
            if self.is_enough() {
                return;
            }
            next = self.take();
        }
        self.state.lock().threads -= 1;
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    /// A line with a moment of so many milliseconds.
    #[derive(Default)]
    struct Count<const MOMENT: u64>(usize);

    impl<const MOMENT: u64> Line for Count<MOMENT> {
        type Item = ();
        const MOMENT: Duration = Duration::from_millis(MOMENT);

        fn begin(&mut self) -> Option<()> {
            self.0 = self.0.checked_sub(1)?;
            Some(())
        }

        fn sent(&mut self) {}

        fn is_empty(&self) -> bool {
            self.0 == 0
        }
    }

    fn push<const MOMENT: u64>(lines: &Lines<Count<MOMENT>>, ino: u64) {
        assert_eq!(lines.push(Ino(ino), |count, _| count.0 += 1), Some(()));
    }

    /// Threads that each take one thing, say which inode's, and have it until the sender is dropped.
    fn takers<const MOMENT: u64>(
        lines: &Arc<Lines<Count<MOMENT>>>,
        number: usize,
    ) -> (Receiver<u64>, Vec<Sender<()>>) {
        let (say, said) = channel();
        let taker = |_| {
            let (lines, say, (until, wait)) = (lines.clone(), say.clone(), channel::<()>());
            thread::spawn(move || {
                let taken = lines.take();
                if let Some(taken) = &taken {
                    let _ = say.send(taken.ino.0);
                }
                let _ = wait.recv();
            });
            until
        };
        let until = (0..number).map(taker).collect();
        becomes(lines, |state| state.idle == number);
        (said, until)
    }

    fn becomes<L: Line>(lines: &Lines<L>, is: impl Fn(&State<L>) -> bool) {
        let begun = Instant::now();
        while !is(&lines.lock()) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn threads_come_as_they_are_needed() {
        let lines = Lines::<Count<1>>::new();
        for number in 0..MOST_THREADS as u64 {
            assert!(lines.one_more() && !lines.one_more(), "one is on its way");
            push(&lines, number);
            drop(lines.take_first());
        }
        assert!(!lines.one_more() && !lines.is_enough());
        lines.close();
        assert_eq!(lines.push(Ino(1), |count, _| count.0 += 1), None);
        assert!(lines.take().is_none() && lines.lock().lines.is_empty());
    }

    /// As where the machine lets nobody have more: each thing that is sent tries again.
    #[test]
    fn that_no_thread_can_be_had_is_told_once() {
        let lines = Lines::<Count<1>>::new();
        assert!(lines.one_more() && lines.one_less());
        assert!(lines.one_more() && !lines.one_less());
        assert!(lines.one_more(), "it can be had again");
    }

    /// While a thread that is needed is on its way, the others send much.
    #[test]
    fn a_burst_makes_one_thread_at_a_time() {
        let lines = Lines::<Count<1>>::new();
        assert!(lines.one_more());
        (1..100).for_each(|ino| push(&lines, ino));
        let (made, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let more = || _ = made.fetch_add(1, Ordering::Relaxed);
        lines.serve(more, |_, ()| {
            if sent.fetch_add(1, Ordering::Relaxed) == 98 {
                lines.close();
            }
        });
        assert_eq!((made.into_inner(), sent.into_inner()), (1, 99));
    }

    #[test]
    fn inodes_take_turns() {
        let lines = Lines::<Count<1>>::new();
        for ino in [1, 1, 1, 2] {
            push(&lines, ino);
        }
        let order = [(); 4].map(|()| lines.take().expect("one").ino.0);
        assert_eq!(order, [1, 2, 1, 1]);
        assert!(lines.lock().lines.is_empty());
    }

    /// Of those that came while one thread watched it takes the first alone, and that takes long as well.
    #[test]
    fn two_that_take_long_hold_up_no_third() {
        let lines = Arc::new(Lines::<Count<300>>::new());
        let (said, _until) = takers(&lines, 3);
        let hear = || said.recv_timeout(Duration::from_secs(10));
        push(&lines, 1);
        assert_eq!(hear(), Ok(1));
        push(&lines, 2);
        // The latter where this thread comes late.
        becomes(&lines, |state| state.watched || state.ready.is_empty());
        push(&lines, 3);
        assert_eq!((hear(), hear()), (Ok(2), Ok(3)), "one waits for work, and nobody tells it");
        lines.close();
    }

    /// Who goes on by himself wakes nobody with each thing that he sends; who ends does.
    #[test]
    fn who_has_sent_something_goes_on_himself() {
        let lines = Arc::new(Lines::<Count<60_000>>::new());
        assert!(lines.one_more());
        for ino in [1, 2, 3] {
            push(&lines, ino);
        }
        let first = lines.take().expect("one");
        let (said, _until) = takers(&lines, 2);
        becomes(&lines, |state| state.watched);
        drop(first);
        assert!(said.recv_timeout(Duration::from_millis(200)).is_err(), "the other was woken");
        assert_eq!(lines.take().expect("the next").ino, Ino(2));
        assert!(said.recv_timeout(Duration::from_millis(200)).is_err(), "the other was woken");
        assert!(lines.is_enough(), "this one ends");
        assert_eq!(said.recv_timeout(Duration::from_secs(10)), Ok(3));
        lines.close();
    }

    /// What he waited for was sent by another, who waits for work now as he does.
    #[test]
    fn who_watches_for_nothing_any_more_is_there_for_what_comes() {
        let lines = Arc::new(Lines::<Count<60_000>>::new());
        for ino in [1, 2] {
            push(&lines, ino);
        }
        let first = lines.take().expect("one");
        let (said, _until) = takers(&lines, 1);
        becomes(&lines, |state| state.watched);
        drop(first);
        drop(lines.take().expect("the next"));
        push(&lines, 3);
        assert_eq!(said.recv_timeout(Duration::from_secs(10)), Ok(3));
        lines.close();
    }
}
