//! Tests of the tests: systems that break a promise, which the harness must catch.
//!
//! Those inside the engine are `btrfs_fs::Defect`, behind the feature `fault-injection`.

use std::sync::atomic::{AtomicU64, Ordering};
use vfs::{
    Attr, Context, DirEntry, Entry, FallocateMode, FileKind, FileSystem, Ino, RenameMode, Result,
    SeekWhence, SetAttr, StatFs, WriteFlags, XattrMode,
};

/// What becomes of a sync.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sloth {
    /// `fsync` returns at once.
    NoFsync,
    /// `fsync` of a directory returns at once.
    NoDirectories,
    /// Every second `fsync` or `sync` returns at once.
    EverySecond,
    /// `fsync` returns at once while a `sync` runs.
    InsideCommits,
}

struct Lazy {
    inner: Box<dyn FileSystem>,
    sloth: Sloth,
    syncs: AtomicU64,
    running: AtomicU64,
}

fn lazy(inner: Box<dyn FileSystem>, sloth: Sloth) -> Box<dyn FileSystem> {
    Box::new(Lazy { inner, sloth, syncs: AtomicU64::new(0), running: AtomicU64::new(0) })
}

pub fn without_fsync(inner: Box<dyn FileSystem>) -> Box<dyn FileSystem> {
    lazy(inner, Sloth::NoFsync)
}

pub fn without_directories(inner: Box<dyn FileSystem>) -> Box<dyn FileSystem> {
    lazy(inner, Sloth::NoDirectories)
}

pub fn every_second_sync(inner: Box<dyn FileSystem>) -> Box<dyn FileSystem> {
    lazy(inner, Sloth::EverySecond)
}

pub fn inside_commits(inner: Box<dyn FileSystem>) -> Box<dyn FileSystem> {
    lazy(inner, Sloth::InsideCommits)
}

impl Lazy {
    fn skips(&self, ino: Option<Ino>) -> bool {
        let is_dir = |ino| self.inner.getattr(ino).is_ok_and(|attr| attr.kind == FileKind::Dir);
        match self.sloth {
            Sloth::NoFsync => ino.is_some(),
            Sloth::NoDirectories => ino.is_some_and(is_dir),
            Sloth::EverySecond => self.syncs.fetch_add(1, Ordering::Relaxed) % 2 == 1,
            Sloth::InsideCommits => ino.is_some() && self.running.load(Ordering::Relaxed) > 0,
        }
    }
}

/// Methods that go on to `inner`.
macro_rules! pass_on {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result { self.inner.$name($($arg),*) })*
    };
}

impl FileSystem for Lazy {
    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        if self.skips(Some(ino)) { Ok(()) } else { self.inner.fsync(ino, datasync) }
    }

    fn sync(&self) -> Result<()> {
        if self.skips(None) {
            return Ok(());
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        let result = self.inner.sync();
        self.running.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.inner.forget(ino, count);
    }

    pass_on! {
        fn root() -> Ino;
        fn lookup(cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry>;
        fn getattr(ino: Ino) -> Result<Attr>;
        fn setattr(cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr>;
        fn readlink(ino: Ino) -> Result<Vec<u8>>;
        fn mknod(cx: &Context, parent: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32) -> Result<Entry>;
        fn mkdir(cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry>;
        fn symlink(cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
        fn link(cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
        fn tmpfile(cx: &Context, parent: Ino, perm: u16) -> Result<Entry>;
        fn unlink(cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
        fn rmdir(cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
        fn rename(cx: &Context, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
        fn read(ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
        fn write(cx: &Context, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize>;
        fn fallocate(cx: &Context, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
        fn copy_range(cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;
        fn clone_range(cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<()>;
        fn seek(ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64>;
        fn readdir(dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;
        fn readdir_plus(dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool) -> Result<()>;
        fn getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(ino: Ino) -> Result<Vec<Vec<u8>>>;
        fn setxattr(cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        fn removexattr(cx: &Context, ino: Ino, name: &[u8]) -> Result<()>;
        fn flags(ino: Ino) -> Result<u32>;
        fn set_flags(cx: &Context, ino: Ino, flags: u32) -> Result<()>;
        fn statfs() -> Result<StatFs>;
        fn destroy() -> Result<()>;
    }
}
