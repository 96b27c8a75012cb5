//! `RefFs`: the reference model, a whole file system in a few maps under one mutex.
//!
//! It is the oracle that engines are compared with, and is itself held against the
//! kernel's btrfs (tests/kernel.rs). Clarity goes before speed everywhere. It follows
//! btrfs where POSIX leaves a choice (see `Profile`) and a mount with `noatime`.
//!
//! Not known here: permissions (the caller's business, as for every `FileSystem`),
//! space limits, durability.

mod acl;
mod attrs;
mod bits;
mod content;
mod data;
mod dirs;
mod flags;
mod names;
mod rename;
mod state;
#[cfg(test)]
mod tests;
mod xattrs;

use std::sync::{Mutex, MutexGuard, PoisonError};

use vfs::{
    Attr, Context, DirEntry, Entry, Errno, FallocateMode, FileKind, FileSystem, Ino, RenameMode,
    Result, SeekWhence, SetAttr, StatFs, Timestamp, WriteFlags, XattrMode,
};

use data::Span;
use rename::NameIn;
use state::{Body, State};

/// Where the model gets its time from.
pub type Clock = Box<dyn Fn() -> Timestamp + Send>;

/// What differs between file systems without being wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Directories have one link, and a size of twice the bytes of their names. Else a
    /// link per subdirectory, and one block.
    pub btrfs_dirs: bool,
    pub link_max: u32,
    /// What `statfs` tells as the capacity; nothing is ever refused for lack of space.
    pub capacity: u64,
    /// Answers carry the `statx` attributes (compressed, immutable, ...). Through FUSE they
    /// do not reach the caller.
    pub statx_attributes: bool,
    /// Blocks that were written seek as data even if all is zeros, as in the kernel. Else
    /// only what has to be data does.
    pub zeros_are_data: bool,
}

impl Profile {
    pub const BTRFS: Profile = Profile {
        btrfs_dirs: true,
        link_max: 65535,
        capacity: 1 << 30,
        statx_attributes: true,
        zeros_are_data: true,
    };
    pub const CLASSIC: Profile = Profile { btrfs_dirs: false, ..Profile::BTRFS };
    /// What a mount through FUSE may show of a btrfs that stores no zeros needlessly.
    pub const FUSE: Profile =
        Profile { statx_attributes: false, zeros_are_data: false, ..Profile::BTRFS };
}

impl Default for Profile {
    fn default() -> Profile {
        Profile::BTRFS
    }
}

pub struct RefFs {
    state: Mutex<State>,
}

impl Default for RefFs {
    fn default() -> RefFs {
        RefFs::new()
    }
}

impl RefFs {
    pub fn new() -> RefFs {
        RefFs::like(Profile::default())
    }

    /// With the machine's clock.
    pub fn like(profile: Profile) -> RefFs {
        RefFs::with(profile, Box::new(Timestamp::now))
    }

    pub fn with(profile: Profile, clock: Clock) -> RefFs {
        RefFs { state: Mutex::new(State::new(profile, clock)) }
    }

    /// Inodes that exist, with or without a name.
    pub fn inode_count(&self) -> usize {
        self.state().inodes.len()
    }

    /// Lookup references that callers hold, over all inodes but the root.
    pub fn held_references(&self) -> u64 {
        let state = self.state();
        let others = state.inodes.iter().filter(|(ino, _)| **ino != state::ROOT);
        others.map(|(_, inode)| inode.lookups).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileSystem for RefFs {
    fn root(&self) -> Ino {
        state::ROOT
    }

    fn lookup(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry> {
        let mut state = self.state();
        let ino = state.find(parent, name)?;
        state.entry(ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.state().forget(ino, count);
    }

    fn is_held(&self, ino: Ino) -> bool {
        self.state().inodes.get(&ino).is_some_and(|inode| inode.lookups != 0)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.state().attr(ino)
    }

    fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.state().setattr(cx, ino, set)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.state().get(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn mknod(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let mut state = self.state();
        let ino = state.mknod(cx, parent, name, kind, perm, rdev)?;
        state.entry(ino)
    }

    fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let mut state = self.state();
        let ino = state.mkdir(cx, parent, name, perm)?;
        state.entry(ino)
    }

    fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let mut state = self.state();
        let ino = state.symlink(cx, parent, name, target)?;
        state.entry(ino)
    }

    fn link(&self, _cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.state().link(ino, parent, name)
    }

    fn tmpfile(&self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry> {
        self.state().tmpfile(cx, parent, perm)
    }

    fn unlink(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        self.state().unlink(parent, name)
    }

    fn rmdir(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        self.state().rmdir(parent, name)
    }

    fn rename(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (NameIn { dir: parent, name }, NameIn { dir: new_parent, name: new_name });
        self.state().rename(cx, from, to, mode)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.state().file(ino)?.read(offset, buf))
    }

    fn write(
        &self,
        _cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.state().write(ino, offset, data, flags)
    }

    fn fallocate(
        &self,
        _cx: &Context,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.state().fallocate(ino, mode, offset, len)
    }

    fn copy_range(
        &self,
        _cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.state().copy_range(Span { from, from_offset, to, to_offset, len })
    }

    fn clone_range(
        &self,
        _cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.state().clone_range(Span { from, from_offset, to, to_offset, len })
    }

    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        self.state().seek(ino, offset, whence)
    }

    fn fsync(&self, ino: Ino, _datasync: bool) -> Result<()> {
        self.state().get(ino).map(|_| ())
    }

    fn sync(&self) -> Result<()> {
        self.state().get(state::ROOT).map(|_| ())
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(dir, offset, false, &mut |entry, _| emit(entry))
    }

    fn dir_end(&self, dir: Ino) -> Result<u64> {
        self.state().dir_end(dir)
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        self.list(dir, offset, true, emit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.state().getxattr(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.state().listxattr(ino)
    }

    fn setxattr(
        &self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.state().setxattr(cx, ino, name, value, mode)
    }

    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.state().removexattr(cx, ino, name)
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        self.state().flags(ino)
    }

    fn set_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        self.state().set_flags(cx, ino, flags)
    }

    fn statfs(&self) -> Result<StatFs> {
        let state = self.state();
        state.get(state::ROOT)?;
        let blocks = state.profile.capacity / content::BLOCK;
        let used: u64 = state.inodes.values().map(|inode| inode.allocated()).sum();
        let free = blocks.saturating_sub(used);
        Ok(StatFs {
            block_size: content::BLOCK as u32,
            blocks,
            blocks_free: free,
            blocks_available: free,
            files: 0,
            files_free: 0,
            name_max: vfs::NAME_MAX as u32,
        })
    }

    fn destroy(&self) -> Result<()> {
        let mut state = self.state();
        state.get(state::ROOT)?;
        state.destroyed = true;
        Ok(())
    }
}
