//! One device, its chunk map and its mirrors: logical addresses become verified bytes.
//!
//! Opening picks the newest valid superblock, judges the feature bits and learns the
//! chunk map. Afterwards reads are verified and answered from any good mirror, bad
//! copies are rewritten where that is allowed, writes go to all mirrors.
//!
//! What it does not know: trees other than the chunk tree's shape, transactions, which
//! ranges are free.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]
#![forbid(unsafe_code)]

mod ahead;
mod chunk_map;
mod counters;
mod features;
mod load;
mod older;
mod read;
mod recover;
mod rival;
mod scrub;
mod start;
mod superblock;
mod volume;
mod write;

pub use ahead::Ahead;
pub use chunk_map::ChunkInfo;
pub use counters::VolumeCounters;
pub use features::{ADDRESSES_END, COMPAT_RO_SUPPORTED, INCOMPAT_SUPPORTED, sizes_agree};
/// Bytes that are written before the medium is asked to begin with them: what has to wait for the
/// next flush, which may be that of an fsync, is this much from each writer and a window that is
/// under way. Shorter ones cost calls, longer ones made fsyncs beside a commit wait.
pub const WRITE_WINDOW: u64 = 4 << 20;

pub use older::chunk_trees;
pub use recover::SuperCopies;
pub use scrub::Scrubbed;
pub use start::{Start, backups};
pub use superblock::{SUPER_EXCLUDED, super_copies};
pub use volume::{OpenOptions, Volume};
