//! A mounted volume in short words, for named sequences of operations.

use testkit::ops::Rng;
use testkit::posix_ops::PosixFs;
use vfs::{
    Context, FallocateMode, FileKind, FileSystem, Ino, RenameMode, SetAttr, WriteFlags, XattrMode,
};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o22 };

pub struct World<'a>(pub &'a PosixFs);

fn split(path: &str) -> (&str, &[u8]) {
    match path.rsplit_once('/') {
        Some((dir, name)) => (dir, name.as_bytes()),
        None => ("", path.as_bytes()),
    }
}

impl World<'_> {
    pub fn ino(&self, path: &str) -> Ino {
        let step = |at, name: &str| {
            let entry = self.0.lookup(&CX, at, name.as_bytes());
            entry.unwrap_or_else(|error| panic!("{path}: {error}")).attr.ino
        };
        path.split('/').filter(|name| !name.is_empty()).fold(self.0.root(), step)
    }

    fn place<'p>(&self, path: &'p str) -> (Ino, &'p [u8]) {
        let (dir, name) = split(path);
        (self.ino(dir), name)
    }

    pub fn create(&self, path: &str) -> Ino {
        let (dir, name) = self.place(path);
        self.0.mknod(&CX, dir, name, FileKind::File, 0o644, 0).expect("mknod").attr.ino
    }

    pub fn fifo(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.0.mknod(&CX, dir, name, FileKind::Fifo, 0o644, 0).expect("mkfifo");
    }

    pub fn mkdir(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.0.mkdir(&CX, dir, name, 0o755).expect("mkdir");
    }

    pub fn symlink(&self, target: &str, path: &str) {
        let (dir, name) = self.place(path);
        self.0.symlink(&CX, dir, name, target.as_bytes()).expect("symlink");
    }

    pub fn link(&self, old: &str, new: &str) {
        let (dir, name) = self.place(new);
        self.0.link(&CX, self.ino(old), dir, name).expect("link");
    }

    /// A file without a name, and its number.
    pub fn tmpfile(&self, dir: &str) -> Ino {
        self.0.tmpfile(&CX, self.ino(dir), 0o644).expect("tmpfile").attr.ino
    }

    pub fn link_ino(&self, ino: Ino, new: &str) {
        let (dir, name) = self.place(new);
        self.0.link(&CX, ino, dir, name).expect("link");
    }

    pub fn unlink(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.0.unlink(&CX, dir, name).expect("unlink");
    }

    pub fn rmdir(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.0.rmdir(&CX, dir, name).expect("rmdir");
    }

    pub fn rename(&self, old: &str, new: &str) {
        self.rename_as(old, new, RenameMode::Replace);
    }

    pub fn rename_as(&self, old: &str, new: &str, mode: RenameMode) {
        let ((from, a), (to, b)) = (self.place(old), self.place(new));
        self.0.rename(&CX, from, a, to, b, mode).expect("rename");
    }

    pub fn write_ino(&self, ino: Ino, offset: u64, len: usize, seed: u64) {
        let mut data = vec![0; len];
        Rng::new(seed).fill(&mut data);
        let done = self.0.write(&CX, ino, offset, &data, WriteFlags::default()).expect("write");
        assert_eq!(done, len);
    }

    /// Random content out of `seed`.
    pub fn write(&self, path: &str, offset: u64, len: usize, seed: u64) {
        self.write_ino(self.ino(path), offset, len, seed);
    }

    /// A new file with content.
    pub fn file(&self, path: &str, len: usize, seed: u64) {
        let ino = self.create(path);
        self.write_ino(ino, 0, len, seed);
    }

    pub fn truncate(&self, path: &str, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.0.setattr(&CX, self.ino(path), &set).expect("truncate");
    }

    pub fn chmod(&self, path: &str, perm: u16) {
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        self.0.setattr(&CX, self.ino(path), &set).expect("chmod");
    }

    pub fn fallocate(&self, path: &str, mode: FallocateMode, offset: u64, len: u64) {
        self.0.fallocate(&CX, self.ino(path), mode, offset, len).expect("fallocate");
    }

    pub fn clone(&self, from: &str, at: u64, to: &str, to_at: u64, len: u64) {
        let (from, to) = (self.ino(from), self.ino(to));
        self.0.clone_range(&CX, from, at, to, to_at, len).expect("clone");
    }

    pub fn setxattr(&self, path: &str, name: &str, value: &[u8]) {
        let ino = self.ino(path);
        self.0.setxattr(&CX, ino, name.as_bytes(), value, XattrMode::Set).expect("setxattr");
    }

    pub fn removexattr(&self, path: &str, name: &str) {
        self.0.removexattr(&CX, self.ino(path), name.as_bytes()).expect("removexattr");
    }

    pub fn fsync(&self, path: &str) {
        self.0.fsync(self.ino(path), false).expect("fsync");
    }

    pub fn fdatasync(&self, path: &str) {
        self.0.fsync(self.ino(path), true).expect("fdatasync");
    }

    pub fn fsync_ino(&self, ino: Ino) {
        self.0.fsync(ino, false).expect("fsync");
    }
}
