//! The descriptor: what a tree was made with, how long the content is, the root hash.

use crate::Bad;
use crate::hash::{Hash, HashAlgorithm, MAX_SALT};
use crate::merkle::{Merkle, Params};

/// Bytes of a descriptor without a signature.
pub const DESCRIPTOR_SIZE: usize = 256;
/// Bytes of one with its signature, at most.
pub const MAX_DESCRIPTOR: usize = 16384;
/// Bytes of a signature, at most.
pub const MAX_SIGNATURE: usize = MAX_DESCRIPTOR - DESCRIPTOR_SIZE;

const VERSION: u8 = 1;
// Version, algorithm, logarithm of the block size, length of the salt: a byte each. Then:
const SIGNATURE_LEN: usize = 4;
const DATA_SIZE: usize = 8;
const ROOT_HASH: usize = 16;
const SALT: usize = 80;
const RESERVED: usize = 112;

/// What binds a file to a digest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// What the tree was made with.
    pub params: Params,
    /// Bytes of content.
    pub data_size: u64,
    /// Of the tree.
    pub root_hash: Hash,
    /// Whose it is nobody asks here.
    pub signature: Vec<u8>,
}

impl Descriptor {
    /// All that can be said without the file is checked.
    pub fn parse(bytes: &[u8]) -> Result<Descriptor, Bad> {
        if !(DESCRIPTOR_SIZE..=MAX_DESCRIPTOR).contains(&bytes.len()) {
            return Err(Bad(format!("verity descriptor of {} bytes", bytes.len())));
        }
        let [version, number, log_block, salt_len] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if version != VERSION {
            return Err(Bad(format!("verity descriptor of version {version}")));
        }
        let algorithm = HashAlgorithm::from_number(number.into())
            .ok_or_else(|| Bad(format!("verity hash algorithm {number}")))?;
        if usize::from(salt_len) > MAX_SALT {
            return Err(Bad(format!("verity salt of {salt_len} bytes")));
        }
        if bytes[RESERVED..DESCRIPTOR_SIZE].iter().any(|byte| *byte != 0) {
            return Err(Bad("verity descriptor with reserved bytes".into()));
        }
        let salt = &bytes[SALT..][..usize::from(salt_len)];
        let params = Params::with_log(algorithm, log_block, salt)?;
        let signature_len = u32::from_le_bytes(array(bytes, SIGNATURE_LEN));
        let signature_len = usize::try_from(signature_len).unwrap_or(usize::MAX);
        let signature = bytes[DESCRIPTOR_SIZE..].get(..signature_len).ok_or_else(|| {
            Bad(format!("verity signature of {signature_len} bytes in {}", bytes.len()))
        })?;
        Ok(Descriptor {
            params,
            data_size: u64::from_le_bytes(array(bytes, DATA_SIZE)),
            root_hash: Hash::first(algorithm, &bytes[ROOT_HASH..]),
            signature: signature.to_vec(),
        })
    }

    /// As it is stored.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.bare().to_vec();
        let len = u32::try_from(self.signature.len()).expect("shorter than a descriptor");
        bytes[SIGNATURE_LEN..DATA_SIZE].copy_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// What a file is measured by: the hash of the descriptor without its signature.
    pub fn digest(&self) -> Hash {
        self.params.algorithm.hash(&self.bare())
    }

    /// The tree that it speaks of.
    pub fn merkle(&self) -> Result<Merkle, Bad> {
        Merkle::new(&self.params, self.data_size)
    }

    fn bare(&self) -> [u8; DESCRIPTOR_SIZE] {
        let Params { algorithm, log_block, salt } = &self.params;
        let mut bytes = [0; DESCRIPTOR_SIZE];
        let salt_len = u8::try_from(salt.len()).expect("32 bytes at most");
        bytes[..4].copy_from_slice(&[VERSION, algorithm.number(), *log_block, salt_len]);
        bytes[DATA_SIZE..ROOT_HASH].copy_from_slice(&self.data_size.to_le_bytes());
        let root = self.root_hash.as_bytes();
        bytes[ROOT_HASH..][..root.len()].copy_from_slice(root);
        bytes[SALT..][..salt.len()].copy_from_slice(salt);
        bytes
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("so many were asked for")
}
