//! From a sealed delta to trees on the volume: merged, settled and written, but for the
//! superblock.
//!
//! What it does not know: what is written back before the seal, what the tree log takes along,
//! and when the superblock is written.

mod merge;
mod stretch;
mod sums;
mod trees;

pub use merge::{Merged, run as merge};
pub use sums::max_item as max_sum_item;
