//! Where a stream is played.

use crate::path::RelPath;
use btrfs_disk::compress::Encoded;
use btrfs_send::{Origin, Special, Verity};
use vfs::{Errno, FallocateMode, Result, Timestamp};

/// Something new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: a target makes each of them; one that it does not know would be missing in silence.
pub enum New<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Dir,
    /// A device (by mode, its type, and number), pipe or socket.
    Special {
        /// Which of them.
        kind: Special,
        /// Of a device: type bits.
        mode: u32,
        /// Of a device, as stat(2) has it.
        rdev: u64,
    },
    /// It leads to this.
    Symlink(&'a [u8]),
}

/// Where cloned content comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CloneFrom<'a> {
    /// Another subvolume; `None`: the one that is being received.
    pub origin: Option<Origin>,
    /// A file in it.
    pub path: RelPath<'a>,
    /// Where in that file.
    pub offset: u64,
}

impl CloneFrom<'_> {
    /// Where source and target are one file, of this `size`: a clone of `len` bytes to `at` that meets itself
    /// or goes beyond the end is refused (EINVAL), as `FICLONERANGE` does, for which streams are made. Step by
    /// step it would read what it has just written, or what it has just made the file long enough for, to no end.
    pub fn check_within(&self, size: u64, at: u64, len: u64) -> Result<()> {
        let within = self.offset.checked_add(len).is_some_and(|end| end <= size);
        match within && self.offset.abs_diff(at) >= len {
            true => Ok(()),
            false => Err(Errno::EINVAL.into()),
        }
    }
}

/// Times of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// When the source was made, where the stream says it; kept where that can be set.
    pub otime: Option<Timestamp>,
}

/// What a complete subvolume was sent as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// By which it will be known.
    pub origin: Origin,
}

/// What became of the wish for a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: what a target answers, and the receiver alone asks.
pub enum Made {
    /// It is there.
    Yes,
    /// No read-only subvolume is known by that.
    UnknownParent,
}

/// A place for subvolumes, and the one that is being received. Whatever a path leads
/// through, a symbolic link or another subvolume is not followed: ELOOP, ENOTDIR or EXDEV.
///
/// All paths are of the subvolume that was begun last.
pub trait Target {
    /// Begins an empty subvolume. EEXIST.
    fn begin(&mut self, name: &[u8]) -> Result<()>;
    /// Begins a writable snapshot of what was received as `parent`, or is it. EEXIST.
    fn begin_from(&mut self, name: &[u8], parent: &Origin) -> Result<Made>;
    /// The subvolume is complete: it becomes read-only, is known by its origin from now on, and
    /// is durable.
    fn complete(&mut self, received: &Received) -> Result<()>;

    /// Makes something with no more rights for others than it will have. EEXIST.
    fn make(&mut self, path: RelPath<'_>, new: &New<'_>) -> Result<()>;
    /// Gives something another name, and takes the place of what had it.
    fn rename(&mut self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()>;
    /// `path` becomes another name of `old`.
    fn link(&mut self, old: RelPath<'_>, path: RelPath<'_>) -> Result<()>;
    /// Takes away a name that is no directory's.
    fn unlink(&mut self, path: RelPath<'_>) -> Result<()>;
    /// Takes away an empty directory.
    fn rmdir(&mut self, path: RelPath<'_>) -> Result<()>;

    /// Writes all of it.
    fn write(&mut self, path: RelPath<'_>, offset: u64, data: &[u8]) -> Result<()>;
    /// Writes the content of what was compressed by others, as it is where that is possible.
    fn write_encoded(
        &mut self,
        path: RelPath<'_>,
        offset: u64,
        encoded: &Encoded<'_>,
    ) -> Result<()> {
        self.write(path, offset, encoded.content())
    }
    /// Takes `len` bytes over, sharing them where that is possible. ENOENT with an origin: no
    /// read-only subvolume is known by that, or it has no such file. Within one file
    /// behind a [check](CloneFrom::check_within).
    fn clone(&mut self, from: &CloneFrom<'_>, path: RelPath<'_>, at: u64, len: u64) -> Result<()>;
    /// Sets a file's size.
    fn truncate(&mut self, path: RelPath<'_>, size: u64) -> Result<()>;
    /// Room, or a hole.
    fn allocate(
        &mut self,
        path: RelPath<'_>,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()>;

    /// The file's content stays from now on, and reads of it are verified. EINVAL: nobody hashes so.
    fn enable_verity(&mut self, path: RelPath<'_>, verity: &Verity<'_>) -> Result<()>;

    /// Names of attributes.
    fn xattrs(&mut self, path: RelPath<'_>) -> Result<Vec<Vec<u8>>>;
    /// Sets one.
    fn set_xattr(&mut self, path: RelPath<'_>, name: &[u8], value: &[u8]) -> Result<()>;
    /// Takes one away. ENODATA.
    fn remove_xattr(&mut self, path: RelPath<'_>, name: &[u8]) -> Result<()>;
    /// Sets the lower twelve bits of the mode.
    fn chmod(&mut self, path: RelPath<'_>, mode: u16) -> Result<()>;
    /// Sets owner and group.
    fn chown(&mut self, path: RelPath<'_>, uid: u32, gid: u32) -> Result<()>;
    /// Sets times.
    fn set_times(&mut self, path: RelPath<'_>, times: &Times) -> Result<()>;
    /// Sets and clears `FS_IOC_SETFLAGS` bits among `which`.
    fn set_flags(&mut self, path: RelPath<'_>, which: u32, flags: u32) -> Result<()>;
}
