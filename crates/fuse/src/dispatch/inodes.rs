//! Inodes of which something is known to the kernel, as long as it knows them.
//!
//! Invariants: who asks for what is nowhere noted takes no lock. At most `MOST` are noted; others are not, and what that
//! costs is for who notes them. The kernel forgets each inode that it knew, so none stays here for nothing.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use vfs::Ino;

/// The kernel needs a kilobyte for each of its own.
/// Chosen, not measured.
const MOST: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Inodes {
    count: AtomicUsize,
    noted: Mutex<HashSet<Ino>>,
}

impl Inodes {
    pub(super) fn note(&self, ino: Ino) {
        let mut noted = self.noted.lock();
        if noted.len() < MOST {
            noted.insert(ino);
            self.count.store(noted.len(), Ordering::Release);
        }
    }

    pub(super) fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) != 0 && self.noted.lock().contains(&ino)
    }

    /// It is noted no longer. Whether it was.
    pub(super) fn take(&self, ino: Ino) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut noted = self.noted.lock();
        let had = noted.remove(&ino);
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
        assert!(inodes.has(Ino(1)) && !inodes.has(Ino(2)) && !inodes.take(Ino(2)));
        assert!(inodes.take(Ino(1)) && !inodes.take(Ino(1)) && !inodes.has(Ino(1)));
        (0..=MOST as u64).for_each(|ino| inodes.note(Ino(ino)));
        assert!(inodes.has(Ino(0)) && !inodes.has(Ino(MOST as u64)));
    }
}
