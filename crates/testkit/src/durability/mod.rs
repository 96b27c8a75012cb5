//! What must be there after a crash: a history of everything that a file system was told,
//! and the judgement of a recovered tree by it.
//!
//! `Witness` applies operations to the system under test and to the model at once, and
//! writes the history down. `History::demands` says, for a crash at some place of the
//! device's record, what may and must be found; `Demands::judge` holds a tree against that.
//! What was recovered how (log replay, commit, by whom) does not matter here.
//!
//! # What is demanded
//!
//! Inodes are known by their numbers, names by (directory, name); each had values one after
//! the other. A recovered value must be one that was there at or after the last time that
//! made it durable, and before the crash. Durable is
//!
//! * by `sync`: everything;
//! * by `fsync` of a file: its content, attributes, xattrs, all its names (those that it has
//!   got and those that it has lost) and with them the way there;
//! * by `fdatasync`: its content, and its names if nothing had made the file durable before;
//! * by `fsync` of a directory: its attributes, its own name, and its entries with the inodes
//!   that they stand for, but not the content of these.
//!
//! Beyond single values: what a rename moved is not at both names, and not at none if it was
//! durable; an inode that was durable and had a name ever since is still there; link counts and
//! directory sizes agree with names.
//!
//! What is not demanded: an order between things that nobody made durable (blocks of a file
//! among them), times.

mod demands;
mod history;
mod judge;
mod witness;

pub use demands::Demands;
pub use history::History;
pub use judge::Rules;
pub use witness::{Applied, Witness};
