//! Plays a stream of `btrfs send`: one command after the other becomes a change of a [`Target`].
//!
//! A stream is a stranger's. Invariants: no path goes to the target that is absolute, has `..`,
//! or a name that none may have; nothing is asked of the target outside of the subvolume that the
//! stream began, but to read what clones are taken from; a subvolume is told to be complete only
//! behind its last command, and after an error never, also where the stream goes on behind that.
//!
//! It does not know what a target is: an image, or a mount; nor whether a path leads through
//! a symbolic link, which targets refuse.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]
#![forbid(unsafe_code)]

mod encoded;
mod error;
mod inherited;
mod path;
mod receiver;
mod target;

pub use error::{Error, Result};
pub use path::RelPath;
pub use receiver::{Event, Options, receive};
pub use target::{CloneFrom, Made, New, Received, Target, Times};
