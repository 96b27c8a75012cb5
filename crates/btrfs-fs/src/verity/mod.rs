//! Files with fs-verity: what is read of them is verified against the tree of hashes that the volume
//! has of each, and that tree against the root hash in the file's descriptor.
//!
//! Invariants:
//! * no byte of such a file is answered that does not match, and nothing that cannot be verified;
//! * what was verified is remembered as bytes in memory, never as a place on the volume;
//! * memory is bounded, whatever descriptors say: the file's size, which they must agree with, is all
//!   that makes a tree large, and of a tree one block at a time is read.
//!
//! What it does not know: how files become such (`ops/verity.rs`), and names, but for messages.

mod cache;
mod items;
mod read;

pub(crate) use items::{drop_some, put_bytes, put_descriptor};
pub(crate) use read::Verity;
