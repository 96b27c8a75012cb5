//! What the integration tests stand on: images made by mkfs.btrfs and the kernel, and a
//! small reader of their raw bytes that uses this crate alone.
#![allow(dead_code)] // each test binary uses its part

pub mod load;
pub mod mount;
pub mod raw;
