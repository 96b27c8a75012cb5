//! fs-verity as the kernel documents it (filesystems/fsverity): what the digest of a file is, the
//! Merkle tree over its content, and the descriptor that binds both.
//!
//! What it does not know: where a file system keeps them, and who reads a file.
//!
//! Invariant: whatever a descriptor says, nothing here takes more memory than one block for each
//! of [`MAX_LEVELS`] levels; sizes are checked before they are used.
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
// Where bytes become numbers a cut one is a wrong answer.
#![cfg_attr(not(test), deny(clippy::as_conversions))]
#![forbid(unsafe_code)]

mod builder;
mod descriptor;
mod hash;
mod merkle;

pub use builder::Builder;
pub use descriptor::{DESCRIPTOR_SIZE, Descriptor, MAX_DESCRIPTOR, MAX_SIGNATURE};
pub use hash::{Hash, HashAlgorithm, MAX_SALT};
pub use merkle::{HashLocation, MAX_LEVELS, Merkle, Params};

use std::fmt;

/// Why something is no descriptor, or no tree can be made with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bad(pub(crate) String);

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Bad {}
