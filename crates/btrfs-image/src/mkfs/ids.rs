//! The UUIDs of a volume: from the system's randomness, or from a test's seed.

use super::error::{MkfsError, Result};
use super::options::MkfsOptions;
use std::fs::File;
use std::io::Read;

pub(super) struct Identities {
    pub fsid: [u8; 16],
    pub device: [u8; 16],
    pub chunk_tree: [u8; 16],
    pub top_level: [u8; 16],
}

impl Identities {
    pub(super) fn choose(options: &MkfsOptions) -> Result<Identities> {
        let mut bytes = [0; 64];
        match options.seed {
            Some(seed) => fill_from_seed(seed, &mut bytes),
            None => File::open("/dev/urandom")
                .and_then(|mut f| f.read_exact(&mut bytes))
                .map_err(|e| MkfsError::io("/dev/urandom", e))?,
        }
        let uuid = |i: usize| version_4(bytes[i * 16..][..16].try_into().expect("16 bytes"));
        Ok(Identities {
            fsid: options.uuid.unwrap_or(uuid(0)),
            device: uuid(1),
            chunk_tree: uuid(2),
            top_level: uuid(3),
        })
    }
}

/// Marks random bytes as a random UUID (RFC 9562, version 4).
fn version_4(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

/// SplitMix64: distinct and repeatable is all that is asked for.
fn fill_from_seed(seed: u64, out: &mut [u8; 64]) {
    let mut state = seed;
    for part in out.chunks_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        part.copy_from_slice(&(z ^ z >> 31).to_le_bytes());
    }
}
