//! Where mutations take their decisions from: a seed, or a fuzzer's bytes.

use testkit::ops::Rng;

pub enum Choices<'a> {
    Seed(Rng),
    /// Zeros when they are used up.
    Bytes(&'a [u8]),
}

impl Choices<'_> {
    pub fn seed(seed: u64) -> Choices<'static> {
        Choices::Seed(Rng::new(seed))
    }

    pub fn next_u64(&mut self) -> u64 {
        match self {
            Choices::Seed(rng) => rng.next_u64(),
            Choices::Bytes(bytes) => take(bytes, 8),
        }
    }

    /// A number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        match self {
            Choices::Seed(rng) => rng.below(limit),
            Choices::Bytes(_) if limit <= 1 => 0,
            Choices::Bytes(bytes) => {
                let width = (8 - (limit - 1).leading_zeros() as usize / 8).max(1);
                take(bytes, width) % limit
            }
        }
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True once a fuzzer's bytes are used up.
    pub fn is_done(&self) -> bool {
        matches!(self, Choices::Bytes(bytes) if bytes.is_empty())
    }

    /// Numbers at which arithmetic breaks, and near misses.
    pub fn odd_number(&mut self, near: u64) -> u64 {
        const ODD: [u64; 20] = [
            0,
            1,
            2,
            255,
            256,
            4095,
            4096,
            4097,
            1 << 20,
            1 << 31,
            u32::MAX as u64,
            1 << 32,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 4095,
            u64::MAX - 4096,
            u64::MAX - 1,
            u64::MAX,
            i64::MAX as u64 - 4095,
            1 << 40,
        ];
        match self.below(8) {
            0..=3 => ODD[self.index(ODD.len())],
            4 => near.wrapping_add(1 + self.below(4)),
            5 => near.wrapping_sub(1 + self.below(4)),
            6 => near.wrapping_add(4096 * self.below(64)),
            _ => near.wrapping_sub(4096 * self.below(64)),
        }
    }
}

fn take(bytes: &mut &[u8], count: usize) -> u64 {
    let (head, rest) = bytes.split_at(count.min(bytes.len()));
    *bytes = rest;
    head.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
