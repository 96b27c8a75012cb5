//! Working inside volumes that are not mounted: references, paths, whole trees.
//!
//! `volumes` opens what a command's words name, `node` is a reference to an inode, `path`
//! finds nodes, `walk`, `remove` and `copy` treat trees, `transfer` carries them between
//! volumes and this machine. Trees may be as deep as a volume allows: nothing here
//! recurses by depth of a volume's tree.

pub mod copy;
pub mod fill;
mod lost;
pub mod node;
pub mod path;
pub mod remove;
pub mod search;
pub mod target;
pub mod transfer;
pub mod usage;
pub mod volumes;
pub mod walk;

pub use lost::Losses;
pub use node::Node;
pub use path::{find, find_parent};
pub use volumes::{Failures, Scope, Volumes};

use crate::sys;
use vfs::Context;

/// New things in a volume belong to the caller, as they would in a mount.
pub fn context() -> Context {
    let (uid, gid) = sys::user_and_group();
    Context { uid, gid, pid: std::process::id(), umask: sys::umask() as u16 }
}
