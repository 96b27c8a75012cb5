//! One device, its chunk map and its mirrors: logical addresses become verified bytes.
//!
//! Opening picks the newest valid superblock, judges the feature bits and learns the
//! chunk map. Afterwards reads are verified and answered from any good mirror, bad
//! copies are rewritten where that is allowed, writes go to all mirrors.
//!
//! What it does not know: trees other than the chunk tree's shape, transactions, which
//! ranges are free.
#![forbid(unsafe_code)]

mod chunk_map;
mod counters;
mod features;
mod load;
mod read;
mod superblock;
mod volume;
mod write;

pub use chunk_map::ChunkInfo;
pub use counters::VolumeCounters;
pub use superblock::{SUPER_EXCLUDED, super_copies};
pub use volume::{OpenOptions, Volume};
