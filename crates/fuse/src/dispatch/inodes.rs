//! Inodes of which something is known to the kernel, as long as it knows them.
//!
//! Invariants: who asks for what is nowhere noted takes no lock. At most `MOST` are noted; others are not, and what that
//! costs is for who notes them. The kernel forgets each inode that it knew, so none stays here for nothing.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use vfs::Ino;

/// The kernel needs a kilobyte for each of its own.
/// Chosen, not measured.
const MOST: usize = 1 << 20;

/// `T`: what is noted beside that something is.
#[derive(Default)]
pub(super) struct Inodes<T = ()> {
    count: AtomicUsize,
    noted: Mutex<HashMap<Ino, T>>,
}

impl Inodes {
    pub(super) fn note(&self, ino: Ino) {
        self.change(ino, |_| ());
    }
}

impl<T: Copy> Inodes<T> {
    /// Notes what `now` makes of the note before.
    pub(super) fn change(&self, ino: Ino, now: impl FnOnce(Option<T>) -> T) {
        let mut noted = self.noted.lock();
        let before = noted.get(&ino).copied();
        if before.is_some() || noted.len() < MOST {
            noted.insert(ino, now(before));
            self.count.store(noted.len(), Ordering::Release);
        }
    }

    pub(super) fn of(&self, ino: Ino) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        self.noted.lock().get(&ino).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn has(&self, ino: Ino) -> bool {
        self.of(ino).is_some()
    }

    /// It is noted no longer. Whether it was.
    pub(super) fn take(&self, ino: Ino) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut noted = self.noted.lock();
        let had = noted.remove(&ino).is_some();
        self.count.store(noted.len(), Ordering::Release);
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_noted_no_longer() {
        let inodes = Inodes::default();
        assert!(!inodes.take(Ino(1)));
        inodes.note(Ino(1));
        let has = |ino| inodes.has(Ino(ino));
        assert!(has(1) && !has(2) && !inodes.take(Ino(2)));
        assert!(inodes.take(Ino(1)) && !inodes.take(Ino(1)) && !has(1));
        (0..=MOST as u64).for_each(|ino| inodes.note(Ino(ino)));
        assert!(has(0) && !has(MOST as u64));
    }

    #[test]
    fn a_note_is_made_of_the_one_before() {
        let inodes = Inodes::<u64>::default();
        let more = |before: Option<u64>| before.unwrap_or(10) + 1;
        inodes.change(Ino(1), more);
        inodes.change(Ino(1), more);
        inodes.change(Ino(2), more);
        assert_eq!([1, 2, 3].map(|ino| inodes.of(Ino(ino))), [Some(12), Some(11), None]);
    }
}
