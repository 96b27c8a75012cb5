//! Inodes in memory: the table of those in use, and the state of each.

mod attr;
mod queue;
mod state;
mod table;

pub use attr::{Told, attr_of, from_linux_dev, kind_of, now, stamp, time_of};
pub use queue::DirtyQueue;
pub use state::{Inode, LOCK_WAITS, State};
pub use table::InodeTable;
