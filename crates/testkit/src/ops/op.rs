//! One operation as plain data, so that it can be printed, dropped and applied again.
//!
//! An operation names its inodes by path or by slot. A slot holds an inode that was
//! opened earlier and may have lost its names since.

use std::fmt;

use vfs::{Context, FallocateMode, FileKind, RenameMode, SeekWhence, SetTime, XattrMode};

use super::Rng;
use super::outcome::Bytes;

/// Components separated by `/`, relative to the root; no symbolic link is followed.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Path(pub Vec<u8>);

impl Path {
    pub fn new(text: &str) -> Path {
        Path(text.as_bytes().to_vec())
    }

    pub fn join(&self, name: &[u8]) -> Path {
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend(name);
        Path(bytes)
    }

    /// The directory's path and the last component.
    pub fn split(&self) -> (Path, &[u8]) {
        match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (Path(self.0[..at].to_vec()), &self.0[at + 1..]),
            None => (Path::default(), &self.0),
        }
    }

    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }
}

/// Long components are shortened to their start and length.
impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("/")?;
        for (step, name) in self.components().enumerate() {
            let text = String::from_utf8_lossy(name);
            let slash = if step == 0 { "" } else { "/" };
            match name.len() {
                0..=40 => write!(f, "{slash}{}", text.escape_debug())?,
                len => write!(f, "{slash}{}...[{len}]", text[..4].escape_debug())?,
            }
        }
        Ok(())
    }
}

/// The name of an attribute; prints as text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        match self.0.len() {
            0..=60 => write!(f, "\"{}\"", text.escape_debug()),
            len => write!(f, "\"{}...[{len}]\"", text[..12].escape_debug()),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Path(Path),
    Slot(usize),
}

/// Content that a few numbers describe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    pub seed: u64,
    pub len: usize,
    pub kind: FillKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillKind {
    Random,
    /// Repeats itself, so that it can be compressed.
    Text,
    Zeros,
}

impl Fill {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        match self.kind {
            FillKind::Random => Rng::new(self.seed).fill(&mut bytes),
            FillKind::Text => {
                let pattern = format!("line {} of some text\n", self.seed % 1000);
                let pattern = pattern.as_bytes();
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = pattern[at % pattern.len()];
                }
            }
            FillKind::Zeros => {}
        }
        bytes
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Mknod {
        cx: Context,
        path: Path,
        kind: FileKind,
        perm: u16,
        rdev: u32,
    },
    Mkdir {
        cx: Context,
        path: Path,
        perm: u16,
    },
    Symlink {
        cx: Context,
        path: Path,
        target: Bytes,
    },
    Tmpfile {
        cx: Context,
        dir: Path,
        perm: u16,
        slot: usize,
    },
    Link {
        from: Target,
        to: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    /// Puts the inode into a slot; what the slot held is let go.
    Open {
        path: Path,
        slot: usize,
    },
    Close {
        slot: usize,
    },
    Read {
        target: Target,
        offset: u64,
        len: usize,
    },
    Write {
        target: Target,
        offset: u64,
        fill: Fill,
        kill_priv: bool,
    },
    /// Writes at what is the end now.
    Append {
        target: Target,
        fill: Fill,
    },
    Truncate {
        target: Target,
        size: u64,
    },
    Fallocate {
        target: Target,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    CopyRange {
        from: Target,
        from_offset: u64,
        to: Target,
        to_offset: u64,
        len: u64,
    },
    CloneRange {
        from: Target,
        from_offset: u64,
        to: Target,
        to_offset: u64,
        len: u64,
    },
    Seek {
        target: Target,
        offset: u64,
        whence: SeekWhence,
    },
    Chmod {
        target: Target,
        perm: u16,
    },
    Chown {
        target: Target,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Utimes {
        target: Target,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    },
    Stat {
        target: Target,
    },
    Readlink {
        path: Path,
    },
    /// All names, read in pieces of `batch`.
    Readdir {
        target: Target,
        batch: usize,
    },
    GetXattr {
        target: Target,
        name: Name,
    },
    ListXattr {
        target: Target,
    },
    SetXattr {
        target: Target,
        name: Name,
        value: Bytes,
        mode: XattrMode,
    },
    RemoveXattr {
        target: Target,
        name: Name,
    },
    GetFlags {
        target: Target,
    },
    SetFlags {
        target: Target,
        flags: u32,
    },
    Fsync {
        target: Target,
        datasync: bool,
    },
    Sync,
}

impl Op {
    /// The inodes whose times the operation may change: what it names, and the
    /// directories that hold the names.
    pub fn touches(&self) -> Vec<Target> {
        let mut touched = Vec::new();
        let mut path = |path: &Path| {
            touched.push(Target::Path(path.clone()));
            touched.push(Target::Path(path.split().0));
        };
        match self {
            Op::Mknod { path: p, .. }
            | Op::Mkdir { path: p, .. }
            | Op::Symlink { path: p, .. }
            | Op::Unlink { path: p }
            | Op::Rmdir { path: p }
            | Op::Open { path: p, .. }
            | Op::Readlink { path: p } => path(p),
            Op::Tmpfile { dir, .. } => touched.push(Target::Path(dir.clone())),
            Op::Link { from, to } => {
                path(to);
                touched.push(from.clone());
            }
            Op::Rename { from, to, .. } => {
                path(from);
                path(to);
            }
            Op::CopyRange { from, to, .. } | Op::CloneRange { from, to, .. } => {
                touched.extend([from.clone(), to.clone()]);
            }
            Op::Close { .. } | Op::Sync => {}
            Op::Read { target, .. }
            | Op::Write { target, .. }
            | Op::Append { target, .. }
            | Op::Truncate { target, .. }
            | Op::Fallocate { target, .. }
            | Op::Seek { target, .. }
            | Op::Chmod { target, .. }
            | Op::Chown { target, .. }
            | Op::Utimes { target, .. }
            | Op::Stat { target }
            | Op::Readdir { target, .. }
            | Op::GetXattr { target, .. }
            | Op::ListXattr { target }
            | Op::SetXattr { target, .. }
            | Op::RemoveXattr { target, .. }
            | Op::GetFlags { target }
            | Op::SetFlags { target, .. }
            | Op::Fsync { target, .. } => touched.push(target.clone()),
        }
        touched
    }

    /// The same in a directory, with other slots.
    pub fn below(mut self, dir: &str, slots: usize) -> Op {
        let in_dir = |path: &mut Path| {
            *path = path.components().fold(Path::new(dir), |at, name| at.join(name));
        };
        match &mut self {
            Op::Mknod { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Symlink { path, .. }
            | Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::Readlink { path } => in_dir(path),
            Op::Open { path, slot } | Op::Tmpfile { dir: path, slot, .. } => {
                in_dir(path);
                *slot += slots;
            }
            Op::Close { slot } => *slot += slots,
            Op::Rename { from, to, .. } => [from, to].into_iter().for_each(in_dir),
            Op::Link { from, to } => {
                from.shift(in_dir, slots);
                in_dir(to);
            }
            Op::CopyRange { from, to, .. } | Op::CloneRange { from, to, .. } => {
                [from, to].into_iter().for_each(|target| target.shift(in_dir, slots));
            }
            Op::Sync => {}
            Op::Read { target, .. }
            | Op::Write { target, .. }
            | Op::Append { target, .. }
            | Op::Truncate { target, .. }
            | Op::Fallocate { target, .. }
            | Op::Seek { target, .. }
            | Op::Chmod { target, .. }
            | Op::Chown { target, .. }
            | Op::Utimes { target, .. }
            | Op::Stat { target }
            | Op::Readdir { target, .. }
            | Op::GetXattr { target, .. }
            | Op::ListXattr { target }
            | Op::SetXattr { target, .. }
            | Op::RemoveXattr { target, .. }
            | Op::GetFlags { target }
            | Op::SetFlags { target, .. }
            | Op::Fsync { target, .. } => target.shift(in_dir, slots),
        }
        self
    }
}

impl Target {
    fn shift(&mut self, in_dir: impl Fn(&mut Path), slots: usize) {
        match self {
            Target::Path(path) => in_dir(path),
            Target::Slot(slot) => *slot += slots,
        }
    }
}
