//! Names that the kernel is to forget, by directory.
//!
//! It takes the lock of the directory for that, also where a name shall only be looked up again
//! (`FUSE_EXPIRE_ONLY`; seen with Linux 6.18), and waits for pages of its listing. Who lists a
//! directory has that lock for as long as the kernel waits for the memory that he lists into,
//! which may be for ever: a map of a file on a server that does not answer. So who sends
//! may never return, and holds up that directory alone: usually one thread sends, and where it
//! takes longer than a moment the next one does, which is there already.
//!
//! Invariants: of one directory one thread sends at a time; a name is queued once, and goes behind those that were
//! there before; a thread that waits for work is always there, as long as there may be more threads.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::Ino;

/// Who sends for longer waits for somebody.
/// Chosen, not measured.
const MOMENT: Duration = Duration::from_millis(20);
/// Of a directory that was waited for as long nobody hopes any more, nor of names that wait as long.
/// Chosen, not measured.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// Directories that may be held by somebody before others have to wait for one of them.
/// Chosen, not measured.
const MOST_THREADS: usize = 128;
/// Names of a directory that wait for long before more of them are refused, where that is possible.
/// Chosen, not measured.
const MANY: usize = 1024;

pub(super) struct Names {
    state: Mutex<State>,
    /// There is something to send, or something was sent.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Of which something is to be sent, or is being sent.
    dirs: HashMap<Ino, Directory>,
    /// Those of which nobody sends.
    ready: VecDeque<Ino>,
    /// Who sends, by his number, and since when; not who waits for somebody.
    turn: Option<(u64, Instant)>,
    turns: u64,
    threads: usize,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Directory {
    waiting: HashSet<Arc<[u8]>>,
    /// The same, the oldest first, and since when they wait.
    order: VecDeque<(Arc<[u8]>, Instant)>,
    sending: Option<Instant>,
}

impl Directory {
    fn push(&mut self, name: &[u8]) {
        if !self.waiting.contains(name) {
            let name: Arc<[u8]> = name.into();
            self.waiting.insert(name.clone());
            self.order.push_back((name, Instant::now()));
        }
    }

    fn pop(&mut self) -> Option<Arc<[u8]>> {
        let (name, _) = self.order.pop_front()?;
        self.waiting.remove(&name);
        Some(name)
    }

    /// When somebody has been in the way of the name that is being sent for too long.
    fn held_from(&self) -> Option<Instant> {
        self.sending.map(|since| since + GIVEN_UP)
    }

    fn is_held(&self) -> bool {
        self.held_from().is_some_and(|from| from <= Instant::now())
    }

    /// Many names wait, and for long: it is held, or each of its names takes its time, or no thread is left for it.
    fn is_behind(&self) -> bool {
        self.order.len() >= MANY
            && self.order.front().is_some_and(|(_, since)| since.elapsed() >= GIVEN_UP)
    }
}

/// A name to be sent; dropped, it was.
pub(super) struct Taken<'a> {
    names: &'a Names,
    turn: u64,
    pub(super) dir: Ino,
    pub(super) name: Arc<[u8]>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.names.state.lock().sent(self.dir, self.turn);
        self.names.changed.notify_all();
    }
}

impl State {
    /// Takes a name of the directory that comes next.
    fn begin(&mut self) -> Option<(u64, Ino, Arc<[u8]>)> {
        let dir = self.ready.pop_front()?;
        let directory = self.dirs.get_mut(&dir)?;
        let name = directory.pop()?;
        let now = Instant::now();
        directory.sending = Some(now);
        self.turns += 1;
        self.turn = Some((self.turns, now));
        Some((self.turns, dir, name))
    }

    fn sent(&mut self, dir: Ino, turn: u64) {
        if self.turn.is_some_and(|(last, _)| last == turn) {
            self.turn = None;
        }
        let Some(directory) = self.dirs.get_mut(&dir) else { return };
        directory.sending = None;
        match directory.waiting.is_empty() {
            true => drop(self.dirs.remove(&dir)),
            false => self.ready.push_back(dir),
        }
    }

    /// Until when somebody else sends, if nobody is in his way.
    fn others_turn(&self) -> Option<Instant> {
        let until = self.turn.map(|(_, since)| since + MOMENT);
        until.filter(|until| Instant::now() < *until)
    }

    fn is_served(&self) -> bool {
        self.threads > 0 && !self.closed
    }
}

impl Names {
    pub(super) fn new() -> Names {
        Names { state: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn push(&self, dir: Ino, name: &[u8]) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        if !state.dirs.contains_key(&dir) {
            state.ready.push_back(dir);
        }
        state.dirs.entry(dir).or_default().push(name);
        self.changed.notify_all();
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
    /// that none comes and goes with each name.
    pub(super) fn is_enough(&self) -> bool {
        let mut state = self.state.lock();
        let enough = state.idle > 1;
        state.threads -= usize::from(enough);
        enough
    }

    /// Waits for a name and for the turn to send it; `None` when there will be none.
    pub(super) fn take(&self) -> Option<Taken<'_>> {
        let mut state = self.state.lock();
        state.idle += 1;
        let begun = loop {
            if state.closed {
                break None;
            }
            match (state.ready.is_empty(), state.others_turn()) {
                (true, _) => self.changed.wait(&mut state),
                (false, Some(until)) => drop(self.changed.wait_until(&mut state, until)),
                (false, None) => break state.begin(),
            }
        };
        state.idle -= 1;
        let (turn, dir, name) = begun?;
        Some(Taken { names: self, turn, dir, name })
    }

    /// Returns when nothing is to be sent of these directories, nobody sends any more, or after `patience`.
    pub(super) fn wait_for(&self, dirs: &[Ino], patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.is_served() && dirs.iter().any(|dir| state.dirs.contains_key(dir)) {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// The same of all, but for those that are held for long. False: not all was sent.
    pub(super) fn catch_up(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.is_served() && Instant::now() < until {
            let hoped_for = || state.dirs.values().filter(|dir| !dir.is_held());
            if hoped_for().next().is_none() {
                break;
            }
            // Nobody tells when one becomes held.
            let next = hoped_for().filter_map(Directory::held_from).fold(until, Instant::min);
            self.changed.wait_until(&mut state, next);
        }
        !state.is_served() || state.dirs.is_empty()
    }

    /// Many of the directory's names wait to be heard of, for long.
    pub(super) fn are_too_many(&self, dir: Ino) -> bool {
        self.state.lock().dirs.get(&dir).is_some_and(Directory::is_behind)
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.dirs.clear();
        state.ready.clear();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(taken: &Taken<'_>) -> (u64, Vec<u8>) {
        (taken.dir.0, taken.name.to_vec())
    }

    #[test]
    fn a_name_is_queued_once_and_a_directory_is_sent_by_one() {
        let names = Names::new();
        assert!(names.one_more());
        for name in [b"a", b"a", b"b"] {
            names.push(Ino(1), name);
        }
        names.push(Ino(2), b"c");
        let first = names.take().expect("a name");
        let second = names.take().expect("a name");
        assert_eq!((first.dir, of(&second)), (Ino(1), (2, b"c".to_vec())));
        names.push(Ino(1), &first.name);
        drop((first, second));
        let rest: HashSet<_> =
            [(); 2].iter().map(|()| of(&names.take().expect("a name"))).collect();
        assert_eq!(rest, HashSet::from([(1, b"a".to_vec()), (1, b"b".to_vec())]));
        names.wait_for(&[Ino(1), Ino(2)], Duration::from_secs(60));
        assert!(names.state.lock().dirs.is_empty());
    }

    #[test]
    fn of_a_held_directory_names_are_counted_and_nobody_waits_for_it() {
        let names = Names::new();
        assert!(names.one_more());
        names.push(Ino(1), b"name");
        let _held = names.take().expect("a name");
        assert!(!names.catch_up(Duration::from_millis(1)));
        (0..MANY).for_each(|n| names.push(Ino(1), n.to_string().as_bytes()));
        assert!(!names.are_too_many(Ino(1)), "it may come at any moment");
        std::thread::sleep(GIVEN_UP);
        assert!(names.are_too_many(Ino(1)) && !names.are_too_many(Ino(2)));
        let before = Instant::now();
        assert!(!names.catch_up(Duration::from_secs(60)), "of the held one not all is sent");
        assert!(before.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn one_that_becomes_held_is_waited_for_no_longer() {
        let names = Names::new();
        assert!(names.one_more());
        names.push(Ino(1), b"name");
        let _held = names.take().expect("a name");
        let before = Instant::now();
        assert!(!names.catch_up(Duration::from_secs(60)));
        assert!(before.elapsed() < Duration::from_secs(30));
    }

    /// Each name is sent before anybody gives its directory up; or none is, since no thread is left.
    #[test]
    fn of_a_slow_directory_and_one_without_a_thread_names_are_counted() {
        let names = Names::new();
        assert!(names.one_more());
        for dir in [1, 2] {
            (0..MANY + 200).for_each(|n| names.push(Ino(dir), n.to_string().as_bytes()));
        }
        let begun = Instant::now();
        let mut sent = 0;
        while begun.elapsed() < GIVEN_UP + MOMENT {
            let taken = names.take().expect("a name");
            assert_eq!(*taken.name, *(sent / 2).to_string().as_bytes(), "the oldest first");
            std::thread::sleep(Duration::from_millis(10));
            sent += 1;
        }
        assert!(names.are_too_many(Ino(1)) && names.are_too_many(Ino(2)));
        while sent < 2 * 300 {
            drop(names.take());
            sent += 1;
        }
        assert!(!names.are_too_many(Ino(1)) && !names.are_too_many(Ino(2)));
    }

    #[test]
    fn threads_come_as_they_are_needed() {
        let names = Names::new();
        assert_eq!(
            [(); MOST_THREADS + 1].map(|()| names.one_more()).iter().filter(|is| **is).count(),
            MOST_THREADS
        );
        names.one_less();
        assert!(names.one_more() && !names.one_more() && !names.is_enough());
        names.close();
        names.push(Ino(1), b"name");
        assert!(names.take().is_none() && names.state.lock().dirs.is_empty());
    }
}
