//! The four checksum types, and the hashes that keys are made of.
//!
//! Invariant: a digest is `size()` bytes; in nodes and superblocks the rest of the
//! 32-byte field is zero.

use crate::error::{Error, Result};
use std::hash::Hasher;

/// Bytes that nodes and superblocks have in front for a digest, whatever its type.
pub const CSUM_FIELD: usize = 32;

/// The superblock's `csum_type`: one for nodes, superblocks and content alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: the format has these; code that hashes or sizes a field must know each.
pub enum ChecksumType {
    /// 0: CRC-32C, 4 bytes.
    Crc32c,
    /// 1: XXH64 of seed 0, 8 bytes.
    Xxhash64,
    /// 2: SHA-256, 32 bytes.
    Sha256,
    /// 3: BLAKE2b of 256 bits, 32 bytes.
    Blake2b,
}

impl ChecksumType {
    /// The type that a superblock's number means; `Unsupported` if the format has no such number.
    pub fn from_disk(value: u16) -> Result<ChecksumType> {
        Ok(match value {
            0 => ChecksumType::Crc32c,
            1 => ChecksumType::Xxhash64,
            2 => ChecksumType::Sha256,
            3 => ChecksumType::Blake2b,
            other => return Err(Error::Unsupported(format!("checksum type {other}"))),
        })
    }

    /// The number in the superblock.
    pub fn to_disk(self) -> u16 {
        match self {
            ChecksumType::Crc32c => 0,
            ChecksumType::Xxhash64 => 1,
            ChecksumType::Sha256 => 2,
            ChecksumType::Blake2b => 3,
        }
    }

    /// The name that `mkfs.btrfs --csum` has for it.
    pub fn name(self) -> &'static str {
        match self {
            ChecksumType::Crc32c => "crc32c",
            ChecksumType::Xxhash64 => "xxhash64",
            ChecksumType::Sha256 => "sha256",
            ChecksumType::Blake2b => "blake2b",
        }
    }

    /// Bytes of a digest.
    pub fn size(self) -> usize {
        match self {
            ChecksumType::Crc32c => 4,
            ChecksumType::Xxhash64 => 8,
            ChecksumType::Sha256 | ChecksumType::Blake2b => 32,
        }
    }

    /// The digest of `data` in the first `size()` bytes, zeros behind.
    pub fn digest(self, data: &[u8]) -> [u8; CSUM_FIELD] {
        let mut out = [0; CSUM_FIELD];
        match self {
            ChecksumType::Crc32c => {
                out[..4].copy_from_slice(&crc32c::crc32c(data).to_le_bytes());
            }
            ChecksumType::Xxhash64 => {
                let mut hasher = twox_hash::XxHash64::with_seed(0);
                hasher.write(data);
                out[..8].copy_from_slice(&hasher.finish().to_le_bytes());
            }
            ChecksumType::Sha256 => {
                use sha2::Digest;
                out.copy_from_slice(&sha2::Sha256::digest(data));
            }
            ChecksumType::Blake2b => {
                use blake2::Digest;
                out.copy_from_slice(&blake2::Blake2b::<blake2::digest::consts::U32>::digest(data));
            }
        }
        out
    }

    /// Makes the checksum of a node or superblock, its first bytes, that of what is behind.
    pub fn seal(self, block: &mut [u8]) {
        let digest = self.digest(&block[CSUM_FIELD..]);
        block[..CSUM_FIELD].copy_from_slice(&digest);
    }
}

/// CRC-32C from `seed` without the usual inversions, as the kernel's `crc32c(seed, data)`.
fn raw_crc32c(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// Key offset of a directory entry or xattr by name.
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(raw_crc32c(!1, name))
}

/// Key offset of an INODE_EXTREF.
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    // The hash begins with the lower half.
    let [.., a, b, c, d] = parent.to_be_bytes();
    u64::from(raw_crc32c(u32::from_be_bytes([a, b, c, d]), name))
}

/// Key offset of a separate EXTENT_DATA_REF.
pub fn data_ref_hash(root: u64, objectid: u64, offset: u64) -> u64 {
    let high = raw_crc32c(!0, &root.to_le_bytes());
    let low = raw_crc32c(raw_crc32c(!0, &objectid.to_le_bytes()), &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_hash_of_default_is_the_one_mkfs_writes() {
        assert_eq!(name_hash(b"default"), 2378154706);
    }

    #[test]
    fn digests_of_known_input() {
        assert_eq!(ChecksumType::Crc32c.digest(b"123456789")[..4], 0xE306_9283u32.to_le_bytes());
        assert_eq!(ChecksumType::Xxhash64.digest(b"")[..8], 0xEF46_DB37_51D8_E999u64.to_le_bytes());
        assert_eq!(ChecksumType::Sha256.digest(b"")[..4], [0xe3, 0xb0, 0xc4, 0x42]);
        assert_eq!(ChecksumType::Blake2b.digest(b"")[..4], [0x0e, 0x57, 0x51, 0xc0]);
    }
}
