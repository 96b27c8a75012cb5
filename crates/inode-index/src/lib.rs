//! What is open, by its number: a radix tree over the number's bits, 64 ways a node.
//!
//! * A lookup takes no lock and writes no cache line that others write: a mark in its own
//!   thread's place ([`Epochs`]), one load a level, and the count of what it found.
//! * An insert and a removal write one leaf, so they meet their neighbours alone.
//! * A slot can be reserved before it is filled ([`Index::reserve`]): a lack of memory is
//!   known while nothing has happened yet.
//! * Whether something is still in use is one word of itself ([`Ref`]), so that eviction
//!   is one comparison, with no lock held.
//! * What was evicted while callers outside still hold claims on its number leaves their
//!   count in its slot: 8 bytes instead of an inode. A number can be claimed without more than that
//!   from the start ([`Index::claim`]).
//!
//! What it does not know: file systems, what it holds, and when to evict.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]

mod entry;
mod epochs;
mod grown;
mod index;
mod memory;
mod node;
mod sync;

pub use entry::{MAX_CLAIMS, Ref};
pub use epochs::{Epochs, Pin};
pub use grown::Grown;
pub use index::{Evicted, Index, NoMemory, Refused, Reservation, Reserve};
