//! Operations in few words.
#![allow(dead_code)]

use testkit::ops::{Bytes, Fill, FillKind, Name, Op, Path, Target};
use vfs::{Context, FallocateMode, FileKind, RenameMode, XattrMode};

pub const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

pub fn at(path: &str) -> Target {
    Target::Path(Path::new(path))
}

fn random(seed: u64, len: usize) -> Fill {
    Fill { seed, len, kind: FillKind::Random }
}

pub fn create(path: &str) -> Op {
    Op::Mknod { cx: CX, path: Path::new(path), kind: FileKind::File, perm: 0o644, rdev: 0 }
}

pub fn fifo(path: &str) -> Op {
    Op::Mknod { cx: CX, path: Path::new(path), kind: FileKind::Fifo, perm: 0o600, rdev: 0 }
}

pub fn mkdir(path: &str) -> Op {
    Op::Mkdir { cx: CX, path: Path::new(path), perm: 0o755 }
}

pub fn symlink(target: &str, path: &str) -> Op {
    let target = Bytes(target.as_bytes().to_vec());
    Op::Symlink { cx: CX, path: Path::new(path), target }
}

pub fn link(from: &str, to: &str) -> Op {
    Op::Link { from: at(from), to: Path::new(to) }
}

pub fn unlink(path: &str) -> Op {
    Op::Unlink { path: Path::new(path) }
}

pub fn rmdir(path: &str) -> Op {
    Op::Rmdir { path: Path::new(path) }
}

fn renamed(from: &str, to: &str, mode: RenameMode) -> Op {
    Op::Rename { from: Path::new(from), to: Path::new(to), mode }
}

pub fn rename(from: &str, to: &str) -> Op {
    renamed(from, to, RenameMode::Replace)
}

pub fn exchange(from: &str, to: &str) -> Op {
    renamed(from, to, RenameMode::Exchange)
}

pub fn whiteout(from: &str, to: &str) -> Op {
    renamed(from, to, RenameMode::Whiteout)
}

pub fn open(path: &str, slot: usize) -> Op {
    Op::Open { path: Path::new(path), slot }
}

pub fn tmpfile(dir: &str, slot: usize) -> Op {
    Op::Tmpfile { cx: CX, dir: Path::new(dir), perm: 0o644, slot }
}

pub fn link_open(slot: usize, to: &str) -> Op {
    Op::Link { from: Target::Slot(slot), to: Path::new(to) }
}

pub fn write(path: &str, offset: u64, len: usize, seed: u64) -> Op {
    Op::Write { target: at(path), offset, fill: random(seed, len), kill_priv: false }
}

pub fn write_open(slot: usize, offset: u64, len: usize, seed: u64) -> Op {
    let target = Target::Slot(slot);
    Op::Write { target, offset, fill: random(seed, len), kill_priv: false }
}

pub fn append(path: &str, len: usize, seed: u64) -> Op {
    Op::Append { target: at(path), fill: random(seed, len) }
}

pub fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate { target: at(path), size }
}

pub fn fallocate(path: &str, mode: FallocateMode, offset: u64, len: u64) -> Op {
    Op::Fallocate { target: at(path), mode, offset, len }
}

pub fn punch(path: &str, offset: u64, len: u64) -> Op {
    fallocate(path, FallocateMode::PunchHole, offset, len)
}

pub fn prealloc(path: &str, offset: u64, len: u64) -> Op {
    fallocate(path, FallocateMode::KeepSize, offset, len)
}

pub fn clone(from: &str, to: &str) -> Op {
    Op::CloneRange { from: at(from), from_offset: 0, to: at(to), to_offset: 0, len: 0 }
}

pub fn clone_part(from: &str, from_offset: u64, to: &str, to_offset: u64, len: u64) -> Op {
    Op::CloneRange { from: at(from), from_offset, to: at(to), to_offset, len }
}

pub fn copy(from: &str, from_offset: u64, to: &str, to_offset: u64, len: u64) -> Op {
    Op::CopyRange { from: at(from), from_offset, to: at(to), to_offset, len }
}

pub fn set_xattr(path: &str, name: &str, len: usize, seed: u64) -> Op {
    Op::SetXattr {
        target: at(path),
        name: Name(name.as_bytes().to_vec()),
        value: Bytes(random(seed, len).bytes()),
        mode: XattrMode::Set,
    }
}

pub fn remove_xattr(path: &str, name: &str) -> Op {
    Op::RemoveXattr { target: at(path), name: Name(name.as_bytes().to_vec()) }
}

pub fn chmod(path: &str, perm: u16) -> Op {
    Op::Chmod { target: at(path), perm }
}

pub fn fsync(path: &str) -> Op {
    Op::Fsync { target: at(path), datasync: false }
}

pub fn fsync_open(slot: usize) -> Op {
    Op::Fsync { target: Target::Slot(slot), datasync: false }
}

pub fn fdatasync(path: &str) -> Op {
    Op::Fsync { target: at(path), datasync: true }
}

pub fn sync() -> Op {
    Op::Sync
}
