//! Names that the kernel is to forget, by directory.
//!
//! It takes the lock of the directory for that, also where a name shall only be looked up again
//! (`FUSE_EXPIRE_ONLY`; seen with Linux 6.18), and waits for pages of its listing. Who lists a
//! directory has that lock for as long as the kernel waits for the memory that he lists into,
//! which may be for ever: a map of a file on a server that does not answer. So who sends
//! may never return (`lines`).
//!
//! Invariants: a name is queued once, and goes behind those that were there before.

use super::lines::{self, Lines};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::Ino;

/// Of a directory that was waited for as long nobody hopes any more, nor of names that wait as long.
/// Chosen, not measured.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// Names of a directory that wait for long before more of them are refused, where that is possible.
/// Chosen, not measured.
const MANY: usize = 1024;

#[derive(Default)]
pub(super) struct Directory {
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

impl lines::Line for Directory {
    type Item = Arc<[u8]>;
    /// Chosen, not measured.
    const MOMENT: Duration = Duration::from_millis(20);

    fn begin(&mut self) -> Option<Arc<[u8]>> {
        let name = self.pop()?;
        self.sending = Some(Instant::now());
        Some(name)
    }

    fn sent(&mut self) {
        self.sending = None;
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

pub(super) type Names = Lines<Directory>;

impl Lines<Directory> {
    pub(super) fn forget(&self, dir: Ino, name: &[u8]) {
        self.push(dir, |directory, _| directory.push(name));
    }

    /// Returns when nothing is to be sent of these directories, nobody sends any more, or after `patience`.
    pub(super) fn wait_for(&self, dirs: &[Ino], patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        while state.is_served() && dirs.iter().any(|dir| state.lines.contains_key(dir)) {
            if self.sent.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// The same of all, but for those that are held for long. False: not all was sent.
    pub(super) fn catch_up(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        while state.is_served() && Instant::now() < until {
            let hoped_for = || state.lines.values().filter(|dir| !dir.is_held());
            if hoped_for().next().is_none() {
                break;
            }
            // Nobody tells when one becomes held.
            let next = hoped_for().filter_map(Directory::held_from).fold(until, Instant::min);
            self.sent.wait_until(&mut state, next);
        }
        !state.is_served() || state.lines.is_empty()
    }

    /// Many of the directory's names wait to be heard of, for long.
    pub(super) fn are_too_many(&self, dir: Ino) -> bool {
        self.lock().lines.get(&dir).is_some_and(Directory::is_behind)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::Taken;
    use super::*;

    fn of(taken: &Taken<'_, Directory>) -> (u64, Vec<u8>) {
        (taken.ino.0, taken.item.to_vec())
    }

    #[test]
    fn a_name_is_queued_once_and_a_directory_is_sent_by_one() {
        let names = Names::new();
        assert!(names.one_more());
        for name in [b"a", b"a", b"b"] {
            names.forget(Ino(1), name);
        }
        names.forget(Ino(2), b"c");
        let first = names.take().expect("a name");
        let second = names.take().expect("a name");
        assert_eq!((first.ino, of(&second)), (Ino(1), (2, b"c".to_vec())));
        names.forget(Ino(1), &first.item);
        drop((first, second));
        let rest: HashSet<_> =
            [(); 2].iter().map(|()| of(&names.take().expect("a name"))).collect();
        assert_eq!(rest, HashSet::from([(1, b"a".to_vec()), (1, b"b".to_vec())]));
        names.wait_for(&[Ino(1), Ino(2)], Duration::from_secs(60));
        assert!(names.lock().lines.is_empty());
    }

    #[test]
    fn of_a_held_directory_names_are_counted_and_nobody_waits_for_it() {
        let names = Names::new();
        assert!(names.one_more());
        names.forget(Ino(1), b"name");
        let _held = names.take().expect("a name");
        assert!(!names.catch_up(Duration::from_millis(1)));
        (0..MANY).for_each(|n| names.forget(Ino(1), n.to_string().as_bytes()));
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
        names.forget(Ino(1), b"name");
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
            (0..MANY + 200).for_each(|n| names.forget(Ino(dir), n.to_string().as_bytes()));
        }
        let begun = Instant::now();
        let mut sent = 0;
        while begun.elapsed() < GIVEN_UP + Duration::from_millis(20) {
            let taken = names.take().expect("a name");
            assert_eq!(*taken.item, *(sent / 2).to_string().as_bytes(), "the oldest first");
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
}
