//! What is being deleted or truncated, so that a crash can finish it: numbers in slots, a slot
//! claimed and released by one exchange each.
//!
//! * Threads begin their search in blocks of their own, so they write no line in common.
//! * A full table grows by as much as it has; nobody waits for that.
//! * Epochs: what came and went within one is told to nobody. The commit of an epoch is told what
//!   is still there ([`Change::Put`]), a later one what went since ([`Change::Remove`]), each once
//!   ([`Orphans::hand_over`]).
//!
//! What it does not know: formats, inodes, and what a commit does.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]

mod slot;
mod sync;
mod table;

pub use table::{Change, NoMemory, Orphans, Release, Slot};
