//! What the kernel was given of files and directories that change without a request: where answers do
//! not last (`vfs::FileSystem::lasts`) it forgets names and attributes by itself, content and listings
//! when it is told.
//!
//! Invariants: what was read is noted before it is read, so a change that the reader missed finds the note; whoever
//! tells of a change takes the note away, and the message goes out behind what was read: pages are
//! locked from the request on, and a name is dropped behind whoever lists its directory.
//!
//! Does not know what changes, nor why.

use super::Dispatcher;
use crate::notify::Notifier;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use vfs::{Ino, Observer};

/// Notes that are kept; with more of them every change is told.
/// Chosen, not measured.
const MOST: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Notes {
    count: AtomicUsize,
    all: AtomicBool,
    noted: Mutex<HashSet<Ino>>,
}

impl Notes {
    fn note(&self, ino: Ino) {
        let mut noted = self.noted.lock();
        if noted.len() >= MOST {
            self.all.store(true, Ordering::SeqCst);
        } else {
            noted.insert(ino);
        }
        self.count.store(noted.len(), Ordering::SeqCst);
    }

    fn forget(&self) {
        let mut noted = self.noted.lock();
        noted.clear();
        self.count.store(0, Ordering::SeqCst);
        self.all.store(false, Ordering::SeqCst);
    }

    /// Whether the kernel has something of it.
    fn take(&self, ino: Ino) -> bool {
        let all = self.all.load(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 && !all {
            return false;
        }
        let mut noted = self.noted.lock();
        let had = noted.remove(&ino);
        self.count.store(noted.len(), Ordering::SeqCst);
        had || all
    }
}

impl Dispatcher {
    /// Something of `ino` is about to be read. Answers the moment, for names and attributes.
    pub(super) fn about_to_read(&self, ino: Ino) -> u64 {
        let moment = self.fs.moment();
        if !self.fs.lasts(ino, moment) {
            self.notes.note(ino);
        }
        moment
    }
}

/// What the file system tells of changes that no request made.
pub(super) struct Telling {
    pub(super) notes: Arc<Notes>,
    pub(super) notifier: Notifier,
}

impl Observer for Telling {
    fn attributes_changed(&self, ino: Ino) {
        self.notifier.attributes_changed(ino);
    }

    fn content_changed(&self, ino: Ino) {
        if self.notes.take(ino) {
            self.notifier.data_changed(ino, 0, 0);
        }
    }

    fn listing_changed(&self, dir: Ino, name: &[u8]) {
        if self.notes.take(dir) {
            self.notifier.name_changed(dir, name);
        }
    }

    fn name_changed(&self, dir: Ino, name: &[u8]) {
        self.notifier.name_changed(dir, name);
    }

    fn all_settled(&self) {
        self.notes.forget();
    }

    fn caught_up(&self) {
        self.notifier.catch_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_taken_once() {
        let notes = Notes::default();
        assert!(!notes.take(Ino(5)));
        notes.note(Ino(5));
        assert!(!notes.take(Ino(6)) && notes.take(Ino(5)) && !notes.take(Ino(5)));
        (0..=MOST as u64).for_each(|ino| notes.note(Ino(ino)));
        assert!(notes.take(Ino(1 << 40)), "what is not known is told");
        (0..MOST as u64).for_each(|ino| assert!(notes.take(Ino(ino))));
        assert!(notes.take(Ino(MOST as u64)), "it is not forgotten when all others are told");
        notes.forget();
        assert!(!notes.take(Ino(1)) && !notes.take(Ino(1 << 40)));
    }
}
