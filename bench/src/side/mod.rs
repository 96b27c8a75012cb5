//! Who is compared: something that provides a target and can make its caches cold.
//!
//! A target that a side gave out must be dropped before `reset`, `make_cold` or
//! `close`: it holds descriptors that keep a mount busy. All sides of one run get
//! the same image size, the same mkfs and the same treatment of caches.

mod command;
mod dir;
mod ext4;
mod image;
mod kernel;
mod library;
mod null;
mod spinney;

use crate::counters::Counters;
use crate::target::Target;
use std::io;

pub use dir::DirSide;
pub use ext4::Ext4Mounter;
pub use image::{ImageSide, ImageSpec, Mounter};
pub use kernel::KernelMounter;
pub use library::{Engine, LibrarySide};
pub use null::{NullSide, SERVE, serve};
pub use spinney::SpinneyMounter;

/// Turns a hang in a mount into errors.
pub type Abort = Box<dyn Fn() + Send>;

pub trait Side {
    fn label(&self) -> &str;
    /// The aims for the library apply, not those for a mount.
    fn is_library(&self) -> bool {
        false
    }
    /// Another baseline, held to no aim.
    fn is_reference(&self) -> bool {
        false
    }
    /// Makes a new, empty file system where this side owns one, and mounts it. Also the
    /// way back after a failure.
    fn reset(&mut self) -> io::Result<()>;
    fn target(&mut self) -> io::Result<Box<dyn Target>>;
    /// Nothing of it is at work, and nothing of it is left to be written: others are measured
    /// now. A kernel that discards what was deleted does that for minutes, and the file system
    /// below does what it was told only at its own next commit.
    fn pause(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Comes back from `pause`, if it was there.
    fn resume(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Everything written is on the medium, and nothing of it is cached anywhere.
    fn make_cold(&mut self) -> io::Result<()>;
    /// What it has counted since it was mounted or opened, if it counts.
    fn counters(&mut self) -> io::Result<Option<Counters>> {
        Ok(None)
    }
    /// What to call, from another thread, when a target of this side hangs.
    fn abort_switch(&self) -> Option<Abort> {
        None
    }
    /// Holds what this side wrote against `btrfs check`, where it owns an image; the side
    /// is closed after that, until the next `reset`.
    fn verify(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Unmounts and removes what this side made. Also done on drop.
    fn close(&mut self) -> io::Result<()>;
}

/// Makes the kernel forget clean pages, names and inodes of every mount: for a directory
/// whose mount is not ours to close.
fn drop_caches() -> io::Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| {
        io::Error::new(e.kind(), format!("cannot drop caches ({e}); cold workloads need root"))
    })
}

fn with_context<T>(result: io::Result<T>, what: impl std::fmt::Display) -> io::Result<T> {
    result.map_err(|e| io::Error::new(e.kind(), format!("{what}: {e}")))
}
