//! A block device that remembers, and the devices that a crash would leave.
//!
//! `SimDevice` records every write, flush and discard in order. `Recording::epochs` cuts the
//! record at the flushes; each epoch has what is durable at its start and what is in flight,
//! and `Epoch::choices` says which of that arrives: all subsets where there are few, a seeded
//! sample where there are many, torn at 512-byte sectors. An `Image` is a sparse overlay over
//! others, so thousands of them cost little.
//!
//! `Hooked` puts somebody between a device and those who use it.
//!
//! `Cached` puts a cache in front of a medium, whose flushes may fail.
//!
//! What it does not know: what is written, and what should survive. Who judges decides that.
#![forbid(unsafe_code)]

mod cached;
mod crash;
mod device;
mod event;
mod faults;
mod hooked;
mod image;
mod rng;

pub use cached::{Cached, Uncaching};
pub use crash::{Choice, Epoch, Recording, WriteFate};
pub use device::{Hook, Lie, SimDevice};
pub use event::Event;
pub use faults::{Access, Counts, Fault, Span};
pub use hooked::{GoOn, Hooked, Request, RequestHook};
pub use image::{BLOCK, Image, SECTOR};
pub use rng::{Rng, seed_of};
