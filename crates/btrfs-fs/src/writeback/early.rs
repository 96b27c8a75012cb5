//! Content that is to be compressed is written back beside those who write: at a sync alone, one processor
//! would wait while they write, and they for the compressor afterwards.
//!
//! After each [`MOST`] bytes that were written the commit thread has a look at the files they went to. It writes back,
//! up to [`MOST`] bytes of each, those that are at rest (as much of them was unwritten at the last look, too),
//! so that what is still written is not cut into short extents, and what is soon removed is not
//! written; and the front of those that are long.
//!
//! Invariants: nothing relies on it. Who is in the list is in the queue of dirty inodes, too, so that a
//! commit writes back whatever was not looked at here, and empties the list of what no look has in hand; no commit
//! waits for a look for longer than what is compressed at a time takes. What it does not know: who waits for content.

use super::Writeback;
use super::flush::{Pass, unwritten};
use super::pack::{Ahead, MOST};
use super::store::WriteMode;
use crate::inode::{Inode, State};
use btrfs_txn::{Throttle, Urgency};
use inode_index::Ref;
use locks::{Mutex, Rank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Of a file that is still written its front is written back when this is unwritten.
const LONG: u64 = 2 * MOST;

pub(super) struct Early {
    files: Mutex<Vec<Seen>>,
    /// Bytes since the last look was asked for.
    written: AtomicU64,
}

struct Seen {
    inode: Ref<Inode>,
    /// Bytes at the last look.
    unwritten: u64,
}

impl Default for Early {
    fn default() -> Early {
        Early { files: Mutex::new(Rank::Leaf, Vec::new()), written: AtomicU64::new(0) }
    }
}

impl Early {
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.files.lock())
    }
}

impl Writeback {
    /// `bytes` were written to the file, whose lock the caller has.
    pub(crate) fn note_written(&self, inode: &Ref<Inode>, state: &State, bytes: u64) {
        if state.dirty.is_none() || !self.compresses(state) {
            return;
        }
        if !inode.is_looked_after.swap(true, Ordering::AcqRel) {
            self.early.files.lock().push(Seen { inode: inode.clone(), unwritten: 0 });
        }
        if self.early.written.fetch_add(bytes, Ordering::Relaxed) + bytes >= MOST {
            self.early.written.store(0, Ordering::Relaxed);
            self.core.requests.wake_for_content();
        }
    }

    /// A look, which ends where a commit is `due`: that takes all that is left. What cannot be written stays for a
    /// commit, too, which tells of it.
    pub(crate) fn flush_early(&self, due: Instant) {
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for mut seen in self.early.take() {
            let before = seen.unwritten;
            seen.unwritten = unwritten_of(&seen.inode);
            match seen.unwritten {
                0 => self.let_go(seen.inode),
                bytes if bytes == before || bytes >= LONG => now.push(seen.inode),
                _ => later.push(seen),
            }
        }
        let mut throttle = Throttle::new(&self.core, Urgency::Background);
        let (mut ahead, mut goes_on) = (Ahead::beside(self, now), true);
        while let Some((inode, packed)) = ahead.next(goes_on && self.may_write_early(due)) {
            throttle.pause();
            goes_on = goes_on && self.may_write_early(due);
            let how = (WriteMode::Buffered, packed.as_ref());
            let pass = &mut Pass::default();
            match goes_on.then(|| self.flush_batch_throttled(&inode, &mut throttle, how, pass)) {
                Some(Ok(true)) => self.let_go(inode),
                Some(Ok(false)) => {
                    let unwritten = unwritten_of(&inode);
                    later.push(Seen { inode, unwritten });
                }
                Some(Err(_)) | None => {
                    goes_on = false;
                    self.let_go(inode);
                }
            }
        }
        self.early.files.lock().extend(later);
    }

    /// No commit is due or asked for, and nobody wants that nothing is written any more.
    fn may_write_early(&self, due: Instant) -> bool {
        Instant::now() < due
            && !self.core.requests.is_asked()
            && self.core.health.may_go_on().is_ok()
    }

    /// All that was written is about to be written back.
    pub(super) fn forget_early(&self) {
        self.early.take().into_iter().for_each(|seen| self.let_go(seen.inode));
    }

    /// Who writes to it from now on adds it again.
    fn let_go(&self, inode: Ref<Inode>) {
        inode.is_looked_after.store(false, Ordering::Release);
        self.inodes.table().evict(inode);
    }
}

/// Bytes; 0 as well for what has no name, which mostly vanishes before it would be written.
fn unwritten_of(inode: &Inode) -> u64 {
    inode.read().map_or(0, |state| if state.item.nlink > 0 { unwritten(&state) } else { 0 })
}
