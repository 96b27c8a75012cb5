//! Errors of writeback (Linux: `errseq_t`): content that the device refused, and who still has to
//! hear of it.
//!
//! Who writes to an extent at once (long and direct writes) hears it as his own error. What was
//! acknowledged before loses nothing by it: its extent is given back, the content stays in
//! memory, where it can be read, and every writeback tries again. So an fsync or a sync that
//! succeeds is one whose content is on the device. Beside that such a refusal is told once to the
//! fsync of each opening of its file (`inode/error_seen.rs`) and once to the next `sync`, even where a
//! later try went well: that is when Linux tells, and a device that refuses is one to be looked
//! after.

use crate::ino::InodeId;
use crate::rate_limit::RateLimit;
use btrfs_disk::Error;
use locks::{Mutex, Rank};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vfs::FsError;

/// Threads that are remembered to have heard of the volume's end.
/// Chosen, not measured.
const END_TOLD: usize = 256;

pub(crate) struct WritebackErrors {
    count: AtomicU64,
    /// The last one that no `sync` has told, and what the system said.
    unreported: Mutex<Option<(String, i32)>>,
    /// The last writeback left some of it in memory.
    left: AtomicBool,
    limit: RateLimit,
    /// The last threads whose `sync` has told why the volume was given up.
    end_told: Mutex<VecDeque<u32>>,
    /// Openings of files so far, of those that are told apart.
    opened: AtomicU64,
}

impl Default for WritebackErrors {
    fn default() -> WritebackErrors {
        WritebackErrors {
            count: AtomicU64::new(0),
            unreported: Mutex::new(Rank::Leaf, None),
            left: AtomicBool::new(false),
            limit: RateLimit::default(),
            end_told: Mutex::new(Rank::Leaf, VecDeque::new()),
            opened: AtomicU64::new(0),
        }
    }
}

impl WritebackErrors {
    /// The device refused content; whoever wrote it back is told.
    pub(crate) fn note(&self, id: InodeId, error: &Error) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.limit.may_say() {
            let (tree, inode) = (id.tree, id.objectid);
            tracing::error!(%tree, inode, %error, left_out, "content was not written");
        }
    }

    /// Content that was acknowledged could not be written back. It stays in memory.
    pub(crate) fn keep(&self, id: InodeId, error: &FsError) {
        let InodeId { tree, objectid } = id;
        let (said, errno) = match error {
            FsError::Io { context, source } => {
                (context.clone(), source.raw_os_error().unwrap_or(libc::EIO))
            }
            other => (other.to_string(), libc::EIO),
        };
        *self.unreported.lock() =
            Some((format!("content of inode {objectid} in tree {tree}: {said}"), errno));
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The number of a new opening of a file.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the last opening; 0: they are not told apart.
    pub(crate) fn last_opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// A writeback has ended, and `some` of what it was to write is in memory still.
    pub(crate) fn left(&self, some: bool) {
        if some || self.left.load(Ordering::Relaxed) {
            self.left.store(some, Ordering::Relaxed);
        }
    }

    pub(crate) fn are_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// What a `sync` has to tell beside its own errors.
    pub(crate) fn take_unreported(&self) -> Option<FsError> {
        let (context, errno) = self.unreported.lock().take()?;
        Some(FsError::Io { context, source: io::Error::from_raw_os_error(errno) })
    }

    /// True where this thread asks for the first time. One that asked long ago may hear it again.
    pub(crate) fn tells_end(&self, thread: u32) -> bool {
        let mut told = self.end_told.lock();
        if told.contains(&thread) {
            return false;
        }
        if told.len() == END_TOLD {
            told.pop_front();
        }
        told.push_back(thread);
        true
    }
}

/// EIO.
pub(crate) fn refused(context: String) -> FsError {
    FsError::Io { context, source: io::Error::from_raw_os_error(libc::EIO) }
}
