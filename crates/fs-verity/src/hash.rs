//! The two hashes of the format, and one that has taken the salt already.

use sha2::{Digest, Sha256, Sha512};
use std::fmt;

/// Longest salt, in bytes.
pub const MAX_SALT: usize = 32;

/// How blocks are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HashAlgorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl HashAlgorithm {
    /// All of them.
    pub const ALL: [HashAlgorithm; 2] = [HashAlgorithm::Sha256, HashAlgorithm::Sha512];

    /// By its number in descriptors and control operations.
    pub fn from_number(number: u32) -> Option<HashAlgorithm> {
        HashAlgorithm::ALL.into_iter().find(|one| u32::from(one.number()) == number)
    }

    /// As the tool `fsverity` calls it.
    pub fn from_name(name: &str) -> Option<HashAlgorithm> {
        HashAlgorithm::ALL.into_iter().find(|one| one.name() == name)
    }

    /// See [`HashAlgorithm::from_number`].
    pub fn number(self) -> u8 {
        match self {
            HashAlgorithm::Sha256 => 1,
            HashAlgorithm::Sha512 => 2,
        }
    }

    /// See [`HashAlgorithm::from_name`].
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha512 => "sha512",
        }
    }

    /// Bytes of a hash.
    pub fn size(self) -> usize {
        match self {
            HashAlgorithm::Sha256 => 32,
            HashAlgorithm::Sha512 => 64,
        }
    }

    /// Bytes that the function takes in at a time: the salt is made as long as this.
    fn input_block(self) -> usize {
        2 * self.size()
    }

    /// Of bytes without a salt.
    pub fn hash(self, bytes: &[u8]) -> Hash {
        Salted::new(self, &[]).hash(bytes, 0)
    }
}

/// A hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash {
    len: usize,
    bytes: [u8; 64],
}

impl Hash {
    fn new(from: &[u8]) -> Hash {
        let mut bytes = [0; 64];
        bytes[..from.len()].copy_from_slice(from);
        Hash { len: from.len(), bytes }
    }

    /// That of an empty file's tree.
    pub(crate) fn zero(algorithm: HashAlgorithm) -> Hash {
        Hash { len: algorithm.size(), bytes: [0; 64] }
    }

    /// The first bytes of `from`, which has as many.
    pub(crate) fn first(algorithm: HashAlgorithm, from: &[u8]) -> Hash {
        Hash::new(&from[..algorithm.size()])
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A hash function behind the salt, which each block has in front.
#[derive(Clone, Debug)]
pub(crate) enum Salted {
    Sha256(Sha256),
    Sha512(Sha512),
}

const ZEROS: [u8; 4096] = [0; 4096];

impl Salted {
    pub(crate) fn new(algorithm: HashAlgorithm, salt: &[u8]) -> Salted {
        let mut padded = salt.to_vec();
        padded.resize(salt.len().next_multiple_of(algorithm.input_block()), 0);
        match algorithm {
            HashAlgorithm::Sha256 => Salted::Sha256(Sha256::new_with_prefix(padded)),
            HashAlgorithm::Sha512 => Salted::Sha512(Sha512::new_with_prefix(padded)),
        }
    }

    /// Of `bytes` with `zeros` behind them.
    pub(crate) fn hash(&self, bytes: &[u8], zeros: usize) -> Hash {
        match self {
            Salted::Sha256(salted) => finish(salted.clone(), bytes, zeros),
            Salted::Sha512(salted) => finish(salted.clone(), bytes, zeros),
        }
    }
}

fn finish<D: Digest>(mut state: D, bytes: &[u8], mut zeros: usize) -> Hash {
    state.update(bytes);
    while zeros > 0 {
        let some = zeros.min(ZEROS.len());
        state.update(&ZEROS[..some]);
        zeros -= some;
    }
    Hash::new(&state.finalize())
}
