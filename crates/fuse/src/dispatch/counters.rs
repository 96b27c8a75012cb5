//! How many requests of each kind came, for `spinney.stats`.
//!
//! Counted in shards, one per thread as far as they go, so that counting does not make
//! processors share a cache line.

use crate::abi::Opcode;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// More than the largest operation number.
const KINDS: usize = 64;
const SHARDS: usize = 64;

#[repr(align(128))]
struct Shard([AtomicU64; KINDS]);

pub(super) struct Counters {
    shards: Box<[Shard]>,
}

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

impl Counters {
    pub(super) fn new() -> Counters {
        let shard = || Shard(std::array::from_fn(|_| AtomicU64::new(0)));
        Counters { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    pub(super) fn count(&self, opcode: u32) {
        let shard = SHARD.with(|shard| *shard);
        if let Some(counter) = self.shards[shard].0.get(opcode as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn total(&self, opcode: Opcode) -> u64 {
        let number = opcode.number() as usize;
        self.shards.iter().map(|shard| shard.0[number].load(Ordering::Relaxed)).sum()
    }

    /// Appends `,"fuse.requests.lookup":7` for each kind that came.
    pub(super) fn write_json(&self, out: &mut String) {
        for &opcode in Opcode::ALL {
            let total = self.total(opcode);
            if total != 0 {
                let name = format!("{opcode:?}").to_lowercase();
                let _ = write!(out, ",\"fuse.requests.{name}\":{total}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_counter() {
        let counters = Counters::new();
        for &opcode in Opcode::ALL {
            counters.count(opcode.number());
            assert_eq!(counters.total(opcode), 1);
        }
        counters.count(u32::MAX);
        let mut out = String::new();
        counters.write_json(&mut out);
        assert!(out.contains(",\"fuse.requests.copyfilerange64\":1"), "{out}");
    }
}
