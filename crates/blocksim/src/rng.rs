//! A small seeded generator (splitmix64): one seed, one sequence, on every machine.

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        match limit {
            0 => 0,
            _ => ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64,
        }
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

/// The seed whose [`Rng::fill`] makes `bytes`, if there is one: then they need not be kept. Any eight
/// bytes have one.
pub fn seed_of(bytes: &[u8]) -> Option<u64> {
    let first = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let mut rng = Rng::new(before(first));
    let seed = rng.0;
    let same = bytes.chunks(8).all(|chunk| rng.next_u64().to_le_bytes()[..chunk.len()] == *chunk);
    same.then_some(seed)
}

/// What an `Rng` was before its next number was `z`.
fn before(z: u64) -> u64 {
    // The inverses of the two factors, and of the shifts.
    let mut z = z ^ z >> 31 ^ z >> 62;
    z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
    z = z ^ z >> 27 ^ z >> 54;
    z = z.wrapping_mul(0x96de_1b17_3f11_9089);
    z = z ^ z >> 30 ^ z >> 60;
    z.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::{Rng, seed_of};

    #[test]
    fn what_a_seed_has_filled_tells_the_seed() {
        for (seed, len) in [(0, 8), (7, 16), (u64::MAX, 4096), (1 << 40, 1001)] {
            let mut bytes = vec![0; len];
            Rng::new(seed).fill(&mut bytes);
            assert_eq!(seed_of(&bytes), Some(seed));
            if len > 8 {
                bytes[len - 1] ^= 1;
                assert_eq!(seed_of(&bytes), None);
            }
        }
        assert_eq!(seed_of(b"short"), None);
    }

    #[test]
    fn one_seed_one_sequence_and_all_values_below_the_limit_come() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[a.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
    }
}
