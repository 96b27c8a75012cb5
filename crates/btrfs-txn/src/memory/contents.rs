//! Decompressed content of extents of which a reader wanted a part: the rest is for the next one.
//!
//! Invariants: what is kept takes no more memory than it may; an entry is what the bytes with its
//! checksums become when they are decompressed, so who has looked up the checksums of an extent
//! never takes another's content for its own, whatever became of the place meanwhile.
//!
//! What it does not know: how content is read and decompressed.

use locks::{Mutex, Rank};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Chosen, not measured.
const SHARDS: usize = 16;
/// Longest content of one extent.
const LARGEST: u64 = 128 << 10;

/// Content by the address of its extent; what was not asked for the longest goes first.
pub struct Contents {
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes of each shard.
    most: usize,
}

#[derive(Default)]
struct Shard {
    entries: BTreeMap<u64, Entry>,
    /// Each entry once: the next to go in front, unless it was asked for.
    order: VecDeque<u64>,
    bytes: usize,
}

struct Entry {
    sums: Box<[u8]>,
    content: Arc<[u8]>,
    wanted: bool,
}

impl Contents {
    /// May take `most` bytes.
    pub fn new(most: u64) -> Contents {
        let shard = |_| Mutex::new(Rank::Leaf, Shard::default());
        let most = usize::try_from((most / SHARDS as u64).max(LARGEST)).unwrap_or(usize::MAX);
        Contents { shards: std::array::from_fn(shard), most }
    }

    /// Bytes of what is kept.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes as u64).sum()
    }

    fn shard(&self, address: u64) -> &Mutex<Shard> {
        // Extents begin at sectors; most are short.
        &self.shards[(address >> 12) as usize % SHARDS]
    }

    /// The content of the extent at `address`, whose stored bytes have these checksums, from its
    /// beginning on: all of it, or a part.
    pub fn get(&self, address: u64, sums: &[u8]) -> Option<Arc<[u8]>> {
        let mut shard = self.shard(address).lock();
        let entry = shard.entries.get_mut(&address).filter(|entry| *entry.sums == *sums)?;
        entry.wanted = true;
        Some(entry.content.clone())
    }

    /// Keeps it, in place of what was kept of the same address.
    pub fn keep(&self, address: u64, sums: Box<[u8]>, content: Arc<[u8]>) {
        let mut shard = self.shard(address).lock();
        let shard = &mut *shard;
        shard.bytes += content.len();
        match shard.entries.insert(address, Entry { sums, content, wanted: false }) {
            Some(old) => shard.bytes -= old.content.len(),
            None => shard.order.push_back(address),
        }
        while shard.bytes > self.most {
            let Some(next) = shard.order.pop_front() else { return };
            match shard.entries.get_mut(&next) {
                Some(entry) if entry.wanted => {
                    entry.wanted = false;
                    shard.order.push_back(next);
                }
                _ => {
                    let gone = shard.entries.remove(&next).map_or(0, |entry| entry.content.len());
                    shard.bytes -= gone;
                }
            }
        }
    }

    /// The extent at `address` is gone, or elsewhere: its content is not worth its memory.
    pub fn forget(&self, address: u64) {
        let mut shard = self.shard(address).lock();
        if let Some(gone) = shard.entries.remove(&address) {
            shard.bytes -= gone.content.len();
            shard.order.retain(|other| *other != address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(contents: &Contents, address: u64, sum: u8, len: usize) {
        contents.keep(address, Box::new([sum]), vec![sum; len].into());
    }

    #[test]
    fn content_is_found_by_place_and_checksums() {
        let contents = Contents::new(32 << 20);
        keep(&contents, 4096, 1, 100);
        assert_eq!(contents.get(4096, &[1]).as_deref(), Some(&[1; 100][..]));
        assert!(contents.get(4096, &[2]).is_none() && contents.get(8192, &[1]).is_none());
        keep(&contents, 4096, 2, 50);
        assert!(contents.get(4096, &[1]).is_none() && contents.get(4096, &[2]).is_some());
        contents.forget(4096);
        assert!(contents.get(4096, &[2]).is_none());
        assert!(contents.shards.iter().all(|shard| shard.lock().bytes == 0));
    }

    #[test]
    fn memory_is_bounded_and_what_is_wanted_stays() {
        let contents = Contents::new(16 << 20);
        let address = |i: u64| i * 16 * 4096;
        for i in 0..100 {
            keep(&contents, address(i), 1, 128 << 10);
            assert!(contents.get(address(0), &[1]).is_some(), "wanted, and gone after {i}");
            assert!(contents.shard(0).lock().bytes <= 1 << 20);
        }
        assert!(contents.get(address(50), &[1]).is_none());
        assert!(contents.get(address(99), &[1]).is_some());
    }
}
