//! File content between memory and extents.
//!
//! Content lands before the metadata that names it: an extent is written, then its file
//! extent item, checksums and references enter the delta. All of it happens under the
//! inode's own lock.

mod covered;
mod dirty;
pub mod flush;
pub mod read;
pub mod store;
pub mod sums;

pub use dirty::{Dirty, Pieces};
pub use flush::BATCH;
