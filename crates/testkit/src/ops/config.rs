//! What the generator makes: which operations, how often, over which names and sizes.

/// The kinds of operation that have a weight of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    Create,
    Special,
    Mkdir,
    Symlink,
    Tmpfile,
    Link,
    Unlink,
    Rmdir,
    Rename,
    RenameFlags,
    Open,
    Close,
    Read,
    Write,
    Append,
    Truncate,
    Fallocate,
    CopyRange,
    CloneRange,
    Seek,
    Chmod,
    Chown,
    Utimes,
    Stat,
    Readlink,
    Readdir,
    GetXattr,
    SetXattr,
    Acl,
    Compression,
    Flags,
    Fsync,
    Sync,
}

use OpKind::*;

const ALL: &[(OpKind, u32)] = &[
    (Create, 120),
    (Special, 12),
    (Mkdir, 40),
    (Symlink, 22),
    (Tmpfile, 10),
    (Link, 40),
    (Unlink, 40),
    (Rmdir, 26),
    (Rename, 50),
    (RenameFlags, 25),
    (Open, 24),
    (Close, 14),
    (Read, 50),
    (Write, 150),
    (Append, 30),
    (Truncate, 50),
    (Fallocate, 60),
    (CopyRange, 25),
    (CloneRange, 40),
    (Seek, 40),
    (Chmod, 25),
    (Chown, 15),
    (Utimes, 20),
    (Stat, 60),
    (Readlink, 14),
    (Readdir, 20),
    (GetXattr, 25),
    (SetXattr, 45),
    (Acl, 20),
    (Compression, 6),
    (Flags, 12),
    (Fsync, 10),
    (Sync, 2),
];

#[derive(Clone, Debug)]
pub struct Config {
    pub weights: Vec<(OpKind, u32)>,
    /// Names per directory that paths are made of.
    pub names: u64,
    /// Directories deep.
    pub depth: u64,
    /// No offset or size goes beyond this.
    pub max_size: u64,
    pub slots: usize,
    /// Callers other than root, and umasks other than 022.
    pub callers: bool,
    /// Now and then an immutable or append-only flag.
    pub freeze: bool,
}

impl Config {
    /// Everything that a `FileSystem` can be asked for.
    pub fn all() -> Config {
        Config {
            weights: ALL.to_vec(),
            names: 6,
            depth: 3,
            max_size: 1 << 20,
            slots: 4,
            callers: true,
            freeze: true,
        }
    }

    /// What reaches a FUSE server on Linux 6.18: no `FICLONERANGE`.
    pub fn fuse() -> Config {
        Config::all().without(&[CloneRange])
    }

    /// Names and attributes, little content.
    pub fn metadata() -> Config {
        let data = [Write, Append, Truncate, Fallocate, CopyRange, CloneRange, Seek, Read];
        let mut config = Config::all().scale(&data, 1, 10);
        config.max_size = 16 << 10;
        config
    }

    /// Content of few files.
    pub fn data() -> Config {
        let data = [Write, Append, Truncate, Fallocate, CopyRange, CloneRange, Seek, Read];
        let mut config = Config::all().scale(&data, 10, 1).without(&[Flags, Acl, Special]);
        (config.names, config.depth, config.max_size) = (4, 1, 4 << 20);
        config
    }

    pub fn without(mut self, kinds: &[OpKind]) -> Config {
        self.weights.retain(|(kind, _)| !kinds.contains(kind));
        self
    }

    fn scale(mut self, kinds: &[OpKind], times: u32, by: u32) -> Config {
        for (kind, weight) in &mut self.weights {
            if kinds.contains(kind) {
                *weight = (*weight * times).div_ceil(by);
            }
        }
        self
    }
}
