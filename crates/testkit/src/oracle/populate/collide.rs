//! Names whose btrfs name hashes (crc32c with the seed ~1) are equal, so that they
//! share one directory item.

use std::collections::HashMap;

use crate::ops::Rng;

/// The hash that a btrfs directory files a name under.
pub fn name_hash(name: &[u8]) -> u32 {
    name.iter().fold(!1u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            let carry = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            crc >> 1 ^ carry
        })
    })
}

/// `count` pairs of different names with equal hashes.
pub fn colliding_names(seed: u64, count: usize) -> Vec<(String, String)> {
    let mut rng = Rng::new(seed);
    let mut seen: HashMap<u32, String> = HashMap::new();
    let mut pairs = Vec::new();
    while pairs.len() < count {
        let name = format!("{:010x}", rng.below(1 << 40));
        match seen.insert(name_hash(name.as_bytes()), name.clone()) {
            Some(other) if other != name => pairs.push((other, name)),
            _ => {}
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_collide_and_differ() {
        // As the kernel files "default" in the root tree's directory.
        assert_eq!(name_hash(b"default"), 0x8dbf_c2d2);
        for (a, b) in colliding_names(5, 3) {
            assert_ne!(a, b);
            assert_eq!(name_hash(a.as_bytes()), name_hash(b.as_bytes()));
        }
    }
}
