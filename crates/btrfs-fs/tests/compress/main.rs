//! Compression on write, and defragmentation, which may compress.

#[path = "../common/mod.rs"]
mod common;

mod compress;
mod defragmented;
mod early;
mod flags;
mod hostile;
mod waits;
