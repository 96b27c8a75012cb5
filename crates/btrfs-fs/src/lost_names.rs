//! Directories of which a listing passed over a leaf that cannot be read.
//!
//! A listing goes on behind such a leaf, and its end is an error, so that nobody takes it for
//! whole. It comes in pieces that know nothing of each other, hence this: the piece that comes
//! to the end asks here. Nothing is kept of directories that can be read.

use crate::ino::InodeId;
use locks::{Mutex, Rank};
use std::collections::BTreeMap;

/// Beyond this many damaged directories, listings end at what is lost.
/// Chosen, not measured.
const MOST: usize = 1 << 16;

pub(crate) struct LostNames(Mutex<BTreeMap<InodeId, u64>>);

impl LostNames {
    pub(crate) fn new() -> LostNames {
        LostNames(Mutex::new(Rank::Leaf, BTreeMap::new()))
    }

    /// Names of `dir` from the index `at` on were passed over. False: it cannot be remembered.
    pub(crate) fn passed(&self, dir: InodeId, at: u64) -> bool {
        let mut all = self.0.lock();
        if let Some(first) = all.get_mut(&dir) {
            *first = at.min(*first);
            return true;
        }
        let room = all.len() < MOST;
        if room {
            all.insert(dir, at);
        }
        room
    }

    /// The first index where names of `dir` were passed over.
    pub(crate) fn first(&self, dir: InodeId) -> Option<u64> {
        self.0.lock().get(&dir).copied()
    }

    /// All of `dir` could be read again.
    pub(crate) fn found(&self, dir: InodeId) {
        self.0.lock().remove(&dir);
    }
}
