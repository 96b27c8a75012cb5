//! UUIDs of new subvolumes.
//!
//! Invariants: with a seed of the caller's the same numbers at the same times have the same UUIDs, so that
//! one seed is one world; without one nobody can tell them beforehand, and no two openings of any volumes
//! make the same ones.
//!
//! What it does not know: which numbers there are, and what time it is.

use btrfs_disk::items::Timespec;
use btrfs_disk::{ChecksumType, TreeId};
use std::hash::{BuildHasher, RandomState};

/// What is in each UUID besides the subvolume's number and the time.
pub(super) struct Uuids([u8; 16]);

impl Uuids {
    /// `None`: the machine's randomness, 128 bits of it.
    pub(super) fn new(seed: Option<u64>) -> Uuids {
        let halves = seed.map_or_else(random, |seed| [seed, 0]);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&halves[0].to_le_bytes());
        bytes[8..].copy_from_slice(&halves[1].to_le_bytes());
        Uuids(bytes)
    }

    /// Marked as a random UUID (RFC 9562, version 4).
    pub(super) fn of(&self, tree: TreeId, now: Timespec) -> [u8; 16] {
        let mut told = self.0.to_vec();
        told.extend(tree.0.to_le_bytes());
        told.extend(now.sec.to_le_bytes());
        told.extend(now.nsec.to_le_bytes());
        let digest = ChecksumType::Sha256.digest(&told);
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&digest[..16]);
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

/// The standard library asks the system for the keys of its hashes, and has others for each.
fn random() -> [u64; 2] {
    [0, 1].map(|half: u64| RandomState::new().hash_one(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timespec = Timespec { sec: 1_700_000_000, nsec: 5 };

    #[test]
    fn one_seed_has_the_same_ones() {
        let (one, same, other) = (Uuids::new(Some(7)), Uuids::new(Some(7)), Uuids::new(Some(8)));
        let first = one.of(TreeId(256), NOW);
        assert_eq!(first, same.of(TreeId(256), NOW));
        assert_eq!((first[6] >> 4, first[8] >> 6), (4, 2));
        let later = Timespec { nsec: 6, ..NOW };
        for uuid in
            [other.of(TreeId(256), NOW), one.of(TreeId(257), NOW), one.of(TreeId(256), later)]
        {
            assert_ne!(uuid, first);
        }
    }

    #[test]
    fn without_a_seed_no_two_are_the_same() {
        assert_ne!(Uuids::new(None).of(TreeId(256), NOW), Uuids::new(None).of(TreeId(256), NOW));
    }
}
