//! Pages that direct writes leave behind in the kernel, and their end.
//!
//! Linux drops the pages of a range before it sends a direct write, and after one that its
//! caller waits for; not after an asynchronous one. A page that was filled in between (by a
//! READ that came here before the write, or by a buffered write that overtook it) stays old
//! for good. So the server has the kernel drop them before it replies.
//!
//! * Most files that are written directly have no pages: what was READ, or written through
//!   the page cache, is noted by chunk, and only chunks that were noted since they were
//!   dropped last are dropped again. Counters are shared by chunks with the same hash, so a
//!   chunk may be dropped for nothing, never kept for nothing.
//! * Dropping a page waits for who has it locked: a reader whose READ, or a writer whose WRITE,
//!   somebody here has yet to serve. So only a thread of the notifier does it, and so few serving
//!   threads wait for that (`Waiters`) that each queue always has one that serves. Who may
//!   not wait replies at once: the pages then go a moment later. And nobody waits for long:
//!   Linux 6.18 was seen to keep READs of a ring queue back, with most of its entries idle,
//!   until one of five WRITEs that waited here was answered.
//!
//! Does not know what is in the files.

use crate::notify::{Notifier, Ticket};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vfs::Ino;

/// Chunks are 128 KiB: the longest READ of a kernel's readahead as it is by default.
const CHUNK_BITS: u32 = 17;
/// Chunks that share a slot cost a message too many now and then: 128 KiB of memory for 2 GiB of
/// pages that are all noted.
const SLOTS: usize = 1 << 14;
/// Chunks whose last end is remembered; forgetting one costs a message.
const REMEMBERED: usize = 1 << 14;

pub(super) struct Pages {
    /// How often chunks were noted, by hash.
    noted: Box<[AtomicU64]>,
    /// What was noted when a chunk was dropped last, and that message.
    dropped: Mutex<HashMap<(Ino, u64), (u64, Ticket)>>,
}

fn chunks(offset: u64, len: u64) -> Range<u64> {
    let end = offset.saturating_add(len);
    offset >> CHUNK_BITS..end.div_ceil(1 << CHUNK_BITS)
}

impl Pages {
    pub(super) fn new() -> Pages {
        let noted = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Pages { noted, dropped: Mutex::default() }
    }

    fn slot(&self, ino: Ino, chunk: u64) -> &AtomicU64 {
        let mixed = (ino.0 ^ chunk.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.noted[(mixed >> 50) as usize % SLOTS]
    }

    /// The kernel has locked pages in this range; to be called before the file is read or
    /// written for them.
    pub(super) fn note(&self, ino: Ino, offset: u64, len: u64) {
        for chunk in chunks(offset, len) {
            self.slot(ino, chunk).fetch_add(1, Ordering::AcqRel);
        }
    }

    /// False: the kernel has no page there.
    pub(super) fn may_have(&self, ino: Ino, offset: u64) -> bool {
        self.slot(ino, offset >> CHUNK_BITS).load(Ordering::Acquire) != 0
    }

    /// The range was written directly, and is so for whoever reads from now on: drops what
    /// may have been cached before. The message to wait for, if there is any.
    pub(super) fn end(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        notifier: &Notifier,
    ) -> Option<Ticket> {
        let range = chunks(offset, len);
        if range.end - range.start > LOOKED_AT {
            return Some(notifier.drop_pages(ino, offset, len));
        }
        let noted = |chunk: &u64| self.slot(ino, *chunk).load(Ordering::Acquire);
        let all: Vec<(u64, u64)> = range.map(|chunk| (chunk, noted(&chunk))).collect();
        if all.iter().all(|(_, noted)| *noted == 0) {
            return None;
        }
        // Held over the push: who finds a chunk dropped here finds the message queued.
        let mut dropped = self.dropped.lock();
        let before = |(chunk, noted): &(u64, u64)| match dropped.get(&(ino, *chunk)) {
            Some((then, ticket)) if then == noted => Some(*ticket),
            _ => None,
        };
        let tickets: Option<Vec<Ticket>> =
            all.iter().filter(|(_, noted)| *noted != 0).map(before).collect();
        if let Some(tickets) = tickets {
            return tickets.into_iter().max();
        }
        if dropped.len() + all.len() > REMEMBERED {
            dropped.clear();
        }
        let (first, last) = (all[0].0, all[all.len() - 1].0);
        let ticket =
            notifier.drop_pages(ino, first << CHUNK_BITS, (last - first + 1) << CHUNK_BITS);
        dropped.extend(all.iter().map(|(chunk, noted)| ((ino, *chunk), (*noted, ticket))));
        Some(ticket)
    }
}

/// The longest range, in chunks, whose notes are looked at; of a longer one all is dropped.
/// Chosen, not measured.
const LOOKED_AT: u64 = 1 << 10;

/// Where a request came from: those that wait there hold others up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A reader of `/dev/fuse`.
    Device,
    /// The ring queue of this processor.
    Ring(u16),
}

/// How many serving threads wait for pages to go, and how many may. Some wait for something else, for
/// long: they count as well, and are half of a queue's at most.
pub(super) struct Waiters {
    all: AtomicU32,
    device: Queue,
    /// Threads that read the device. They may become more.
    readers: AtomicU32,
    rings: Box<[Queue]>,
    limits: OnceLock<Limits>,
}

#[derive(Default)]
struct Queue {
    waiting: AtomicU32,
    for_long: AtomicU32,
}

/// Threads that may wait at once.
#[derive(Clone, Copy, Debug)]
struct Limits {
    ring: u32,
    all: u32,
}

impl Waiters {
    pub(super) fn new(cpus: usize) -> Waiters {
        Waiters {
            all: AtomicU32::new(0),
            device: Queue::default(),
            readers: AtomicU32::new(0),
            rings: (0..cpus).map(|_| Queue::default()).collect(),
            limits: OnceLock::new(),
        }
    }

    /// `device`: threads that read the device; `ring`: entries of each queue. `background`:
    /// asynchronous requests that the kernel has under way at once: a write that waits is one
    /// of them, the READ that it waits for may be another.
    pub(super) fn limit(&self, device: usize, ring: usize, background: u16) {
        self.readers.store(device as u32, Ordering::Release);
        let ring = ring.saturating_sub(1) as u32;
        let _ = self.limits.set(Limits { ring, all: u32::from(background / 2) });
    }

    pub(super) fn one_more_reads_the_device(&self) {
        self.readers.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits for the message, if the queue can spare the thread. Whether the kernel has acted upon it.
    pub(super) fn wait(&self, origin: Origin, ticket: Ticket, notifier: &Notifier) -> bool {
        let Some((own, limit)) = self.queue(origin) else { return false };
        let Some(_one) = Waiting::enter(&own.waiting, limit) else { return false };
        let all = self.limits.get().map_or(0, |limits| limits.all);
        let Some(_of_all) = Waiting::enter(&self.all, all) else { return false };
        notifier.wait(ticket)
    }

    /// A place for who waits for long; `None`: too few threads would be left. Who waits for pages at this
    /// moment does not count: he does so for a moment.
    pub(super) fn enter_for_long(&self, origin: Origin) -> Option<ForLong<'_>> {
        let (own, limit) = self.queue(origin)?;
        let long = Waiting::enter(&own.for_long, limit.div_ceil(2))?;
        let waiting = Waiting::enter(&own.waiting, u32::MAX)?;
        Some(ForLong { _counted: [long, waiting] })
    }

    /// The queue, and one less than the threads that serve it.
    fn queue(&self, origin: Origin) -> Option<(&Queue, u32)> {
        let limits = self.limits.get()?;
        match origin {
            Origin::Device => {
                let readers = self.readers.load(Ordering::Acquire);
                Some((&self.device, readers.saturating_sub(1)))
            }
            Origin::Ring(queue) => Some((self.rings.get(usize::from(queue))?, limits.ring)),
        }
    }
}

/// Held by a thread that waits for long.
pub(super) struct ForLong<'a> {
    _counted: [Waiting<'a>; 2],
}

struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn enter(count: &'a AtomicU32, limit: u32) -> Option<Waiting<'a>> {
        let below = |n: u32| (n < limit).then(|| n + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, below).ok()?;
        Some(Waiting(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_chunks() {
        assert_eq!(chunks(0, 1), 0..1);
        assert_eq!(chunks((1 << 17) - 1, 2), 0..2);
        assert_eq!(chunks(1 << 17, 1 << 20), 1..9);
        assert!(chunks(u64::MAX, 5).count() <= 1);
    }

    #[test]
    fn half_wait_for_long_at_most() {
        let waiters = Waiters::new(2);
        let enter = |origin| waiters.enter_for_long(origin);
        assert!(enter(Origin::Device).is_none(), "nobody serves yet");
        waiters.limit(2, 4, 64);
        let _one = enter(Origin::Device).unwrap();
        assert!(enter(Origin::Device).is_none());
        let _two = [(); 2].map(|()| enter(Origin::Ring(1)).unwrap());
        assert!(enter(Origin::Ring(1)).is_none() && enter(Origin::Ring(2)).is_none());
        assert!(enter(Origin::Ring(0)).is_some());
        let (own, limit) = waiters.queue(Origin::Ring(1)).unwrap();
        let third = Waiting::enter(&own.waiting, limit);
        assert!(third.is_some() && Waiting::enter(&own.waiting, limit).is_none());
    }

    #[test]
    fn one_always_serves() {
        let count = AtomicU32::new(0);
        let first = Waiting::enter(&count, 2);
        let second = Waiting::enter(&count, 2);
        assert!(first.is_some() && second.is_some() && Waiting::enter(&count, 2).is_none());
        drop(first);
        assert!(Waiting::enter(&count, 2).is_some());
        assert!(Waiting::enter(&AtomicU32::new(0), 0).is_none());
    }
}
