//! A small seeded generator (splitmix64): the same seed gives the same workload on
//! every side and in every run. Not for anything secret.
//!
//! The same generator as that of the tests (`blocksim`), once more: a program that measures
//! does not depend on a device that crashes.

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform enough below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// The numbers below `n` in a random order.
    pub fn permutation(&mut self, n: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..n).collect();
        for i in (1..all.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            all.swap(i, j);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_sequence() {
        let mut a = Rng::new(7);
        let mut b = Rng::new(7);
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_ne!(Rng::new(7).next(), Rng::new(8).next());
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut got = Rng::new(1).permutation(1000);
        assert_ne!(got, (0..1000).collect::<Vec<_>>());
        got.sort_unstable();
        assert_eq!(got, (0..1000).collect::<Vec<_>>());
    }
}
