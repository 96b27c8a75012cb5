//! Applies operations to a `FileSystem`, as the kernel would for a process: resolves
//! paths by lookup, keeps slots open by holding their lookup references, and gives all
//! other references back.
//!
//! What the kernel's VFS refuses before a file system hears of it is refused here too
//! (reading a directory, a `user.` attribute on a device), so that a session over a
//! mount and one over an engine answer alike.

use vfs::{
    Attr, Context, Entry, Errno, FileKind, FileSystem, Ino, Result, SetAttr, WriteFlags, XattrMode,
};

use super::op::{Op, Path, Target};
use super::outcome::{Bytes, Moved, Outcome, StatView, Step};

const ROOT_CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

pub struct Session<'a> {
    fs: &'a dyn FileSystem,
    root: Ino,
    slots: Vec<Option<Ino>>,
    watch_times: bool,
    alone: bool,
}

/// A resolved inode with one lookup reference on it (but for the root), given back on
/// drop.
struct Held<'a> {
    fs: &'a dyn FileSystem,
    ino: Ino,
    kind: FileKind,
    counted: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.fs.forget(self.ino, 1);
        }
    }
}

impl Held<'_> {
    /// Hands the reference over to the caller.
    fn keep(mut self) -> Ino {
        self.counted = false;
        self.ino
    }
}

/// What `open` for reading or writing says to inodes that are not regular files.
fn check_regular(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Dir => Err(Errno::EISDIR.into()),
        FileKind::Symlink => Err(Errno::ELOOP.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn is_user_xattr(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

impl<'a> Session<'a> {
    pub fn new(fs: &'a dyn FileSystem) -> Session<'a> {
        Session::below(fs, fs.root())
    }

    /// Paths start at `root`, a directory on which the caller holds a reference.
    pub fn below(fs: &'a dyn FileSystem, root: Ino) -> Session<'a> {
        Session { fs, root, slots: Vec::new(), watch_times: false, alone: true }
    }

    /// Others work on the same names meanwhile, so that nothing can be said about what
    /// should be there.
    pub fn among_others(mut self) -> Session<'a> {
        self.alone = false;
        self
    }

    /// Also tells which times each operation moved. Needs a clock that never gives the
    /// same time twice (the kernel's multigrain timestamps will do).
    pub fn watching_times(mut self) -> Session<'a> {
        self.watch_times = true;
        self
    }

    pub fn step(&mut self, op: &Op) -> Step {
        let before = if self.watch_times { self.watch(op) } else { Vec::new() };
        let outcome = self.apply(op);
        let moved = |seen: &Option<(Held<'a>, Attr)>| {
            let (held, old) = seen.as_ref()?;
            let new = self.fs.getattr(held.ino).ok()?;
            Some(Moved { mtime: new.mtime != old.mtime, ctime: new.ctime != old.ctime })
        };
        Step { outcome, moved: before.iter().map(moved).collect() }
    }

    fn watch(&self, op: &Op) -> Vec<Option<(Held<'a>, Attr)>> {
        let seen = |target: &Target| {
            let held = self.target(target).ok()?;
            let attr = self.fs.getattr(held.ino).ok()?;
            Some((held, attr))
        };
        op.touches().iter().map(seen).collect()
    }

    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.run(op).unwrap_or_else(Outcome::from)
    }

    fn held(&self, entry: Entry) -> Held<'a> {
        Held { fs: self.fs, ino: entry.attr.ino, kind: entry.attr.kind, counted: true }
    }

    fn resolve(&self, path: &Path) -> Result<Held<'a>> {
        let (ino, kind) = (self.root, FileKind::Dir);
        let mut at = Held { fs: self.fs, ino, kind, counted: false };
        for name in path.components() {
            if at.kind != FileKind::Dir {
                return Err(Errno::ENOTDIR.into());
            }
            at = self.held(self.fs.lookup(&ROOT_CX, at.ino, name)?);
        }
        Ok(at)
    }

    fn target(&self, target: &Target) -> Result<Held<'a>> {
        match target {
            Target::Path(path) => self.resolve(path),
            Target::Slot(slot) => {
                let ino = self.slots.get(*slot).copied().flatten().ok_or(Errno::EBADF)?;
                let kind = self.fs.getattr(ino)?.kind;
                Ok(Held { fs: self.fs, ino, kind, counted: false })
            }
        }
    }

    fn regular(&self, target: &Target) -> Result<Held<'a>> {
        let held = self.target(target)?;
        check_regular(held.kind)?;
        Ok(held)
    }

    /// The directory that holds the path's last name.
    fn parent<'p>(&self, path: &'p Path) -> Result<(Held<'a>, &'p [u8])> {
        let (dir, name) = path.split();
        let held = self.resolve(&dir)?;
        match held.kind {
            FileKind::Dir => Ok((held, name)),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn put(&mut self, slot: usize, ino: Option<Ino>) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        if let Some(old) = std::mem::replace(&mut self.slots[slot], ino) {
            self.fs.forget(old, 1);
        }
    }

    fn run(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Symlink { .. }
            | Op::Tmpfile { .. }
            | Op::Link { .. } => self.make(op),
            Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Open { .. }
            | Op::Close { .. } => self.change_names(op),
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Append { .. }
            | Op::Truncate { .. }
            | Op::Fallocate { .. }
            | Op::CopyRange { .. }
            | Op::CloneRange { .. }
            | Op::Seek { .. } => self.data(op),
            Op::Chmod { .. } | Op::Chown { .. } | Op::Utimes { .. } => self.set_attr(op),
            Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. } => self.xattr(op),
            _ => self.other(op),
        }
    }

    fn make(&mut self, op: &Op) -> Result<Outcome> {
        let entry = match op {
            Op::Mknod { cx, path, kind, perm, rdev } => {
                let (dir, name) = self.parent(path)?;
                self.fs.mknod(cx, dir.ino, name, *kind, *perm, *rdev)?
            }
            Op::Mkdir { cx, path, perm } => {
                let (dir, name) = self.parent(path)?;
                self.fs.mkdir(cx, dir.ino, name, *perm)?
            }
            Op::Symlink { cx, path, target } => {
                let (dir, name) = self.parent(path)?;
                self.fs.symlink(cx, dir.ino, name, &target.0)?
            }
            Op::Tmpfile { cx, dir, perm, slot } => {
                let dir = self.resolve(dir)?;
                if dir.kind != FileKind::Dir {
                    return Err(Errno::ENOTDIR.into());
                }
                let entry = self.fs.tmpfile(cx, dir.ino, *perm)?;
                drop(dir);
                self.put(*slot, Some(entry.attr.ino));
                return Ok(Outcome::Stat(StatView::of(&entry.attr)));
            }
            Op::Link { from, to } => {
                let from = self.target(from)?;
                let (dir, name) = self.parent(to)?;
                self.fs.link(&ROOT_CX, from.ino, dir.ino, name)?
            }
            _ => return Ok(Outcome::Done),
        };
        let held = self.held(entry);
        // What the caller was told and what is there must be the same.
        let now = StatView::of(&self.fs.getattr(held.ino)?);
        assert!(!self.alone || now == StatView::of(&entry.attr), "{entry:?} is {now:?}");
        Ok(Outcome::Stat(StatView::of(&entry.attr)))
    }

    fn change_names(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                self.fs.unlink(&ROOT_CX, dir.ino, name)?;
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                self.fs.rmdir(&ROOT_CX, dir.ino, name)?;
            }
            Op::Rename { from, to, mode } => {
                let (from_dir, from_name) = self.parent(from)?;
                let (to_dir, to_name) = self.parent(to)?;
                let (a, b) = (from_dir.ino, to_dir.ino);
                self.fs.rename(&ROOT_CX, a, from_name, b, to_name, *mode)?;
            }
            Op::Open { path, slot } => {
                let held = self.resolve(path)?;
                // The root carries no reference that could be given back.
                let ino = if held.counted { Some(held.keep()) } else { None };
                self.put(*slot, ino);
            }
            Op::Close { slot } => self.put(*slot, None),
            _ => {}
        }
        Ok(Outcome::Done)
    }

    fn data(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Read { target, offset, len } => {
                let held = self.regular(target)?;
                let mut buf = vec![0xaa; *len];
                let read = self.fs.read(held.ino, *offset, &mut buf)?;
                buf.truncate(read);
                Ok(Outcome::Data(Bytes(buf)))
            }
            Op::Write { target, offset, fill, kill_priv } => {
                let held = self.regular(target)?;
                let flags = WriteFlags { kill_priv: *kill_priv, ..WriteFlags::default() };
                self.write(&held, *offset, &fill.bytes(), flags)
            }
            Op::Append { target, fill } => {
                let held = self.regular(target)?;
                let size = self.fs.getattr(held.ino)?.size;
                self.write(&held, size, &fill.bytes(), WriteFlags::default())
            }
            Op::Truncate { target, size } => {
                let held = self.regular(target)?;
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                let attr = self.fs.setattr(&ROOT_CX, held.ino, &set)?;
                Ok(Outcome::Stat(StatView::of(&attr)))
            }
            Op::Fallocate { target, mode, offset, len } => {
                let held = self.regular(target)?;
                self.fs.fallocate(&ROOT_CX, held.ino, *mode, *offset, *len)?;
                Ok(Outcome::Done)
            }
            Op::Seek { target, offset, whence } => {
                let held = self.regular(target)?;
                Ok(Outcome::Position(self.fs.seek(held.ino, *offset, *whence)?))
            }
            _ => self.transfer(op),
        }
    }

    fn transfer(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.regular(from)?, self.regular(to)?);
                let (a, b) = (*from_offset, *to_offset);
                let copied = self.fs.copy_range(&ROOT_CX, from.ino, a, to.ino, b, *len)?;
                Ok(Outcome::Count(copied))
            }
            Op::CloneRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.regular(from)?, self.regular(to)?);
                let (a, b) = (*from_offset, *to_offset);
                self.fs.clone_range(&ROOT_CX, from.ino, a, to.ino, b, *len)?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Done),
        }
    }

    fn write(&self, to: &Held<'_>, offset: u64, data: &[u8], how: WriteFlags) -> Result<Outcome> {
        let written = self.fs.write(&ROOT_CX, to.ino, offset, data, how)?;
        Ok(Outcome::Count(written as u64))
    }

    fn set_attr(&mut self, op: &Op) -> Result<Outcome> {
        let (target, set) = match op {
            Op::Chmod { target, perm } => {
                (target, SetAttr { perm: Some(*perm), ..SetAttr::default() })
            }
            Op::Chown { target, uid, gid } => {
                (target, SetAttr { uid: *uid, gid: *gid, ..SetAttr::default() })
            }
            Op::Utimes { target, atime, mtime } => {
                (target, SetAttr { atime: *atime, mtime: *mtime, ..SetAttr::default() })
            }
            _ => return Ok(Outcome::Done),
        };
        let held = self.target(target)?;
        if set.perm.is_some() && held.kind == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if set == SetAttr::default() {
            return Ok(Outcome::Done);
        }
        let owner = set.uid.is_some() || set.gid.is_some();
        let set = SetAttr { kill_priv: owner && held.kind != FileKind::Dir, ..set };
        let attr = self.fs.setattr(&ROOT_CX, held.ino, &set)?;
        Ok(Outcome::Stat(StatView::of(&attr)))
    }

    fn xattr(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::GetXattr { target, name } => {
                let held = self.target(target)?;
                self.check_xattr(&held, &name.0, Errno::ENODATA)?;
                Ok(Outcome::Data(Bytes(self.fs.getxattr(held.ino, &name.0)?)))
            }
            Op::ListXattr { target } => {
                let held = self.target(target)?;
                let mut names: Vec<_> =
                    self.fs.listxattr(held.ino)?.into_iter().map(Bytes).collect();
                names.sort_by(|a, b| a.0.cmp(&b.0));
                Ok(Outcome::XattrNames(names))
            }
            Op::SetXattr { target, name, value, mode } => {
                let held = self.target(target)?;
                self.check_xattr(&held, &name.0, Errno::EPERM)?;
                self.set_xattr(&held, &name.0, &value.0, *mode)
            }
            Op::RemoveXattr { target, name } => {
                let held = self.target(target)?;
                self.check_xattr(&held, &name.0, Errno::EPERM)?;
                self.fs.removexattr(&ROOT_CX, held.ino, &name.0)?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Done),
        }
    }

    fn set_xattr(
        &self,
        held: &Held<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Outcome> {
        self.fs.setxattr(&ROOT_CX, held.ino, name, value, mode)?;
        Ok(Outcome::Done)
    }

    /// `user.` attributes belong to files and directories.
    fn check_xattr(&self, held: &Held<'_>, name: &[u8], refusal: Errno) -> Result<()> {
        match held.kind {
            FileKind::File | FileKind::Dir => Ok(()),
            _ if is_user_xattr(name) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    fn other(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Stat { target } => {
                let held = self.target(target)?;
                Ok(Outcome::Stat(StatView::of(&self.fs.getattr(held.ino)?)))
            }
            Op::Readlink { path } => {
                let held = self.resolve(path)?;
                match held.kind {
                    FileKind::Symlink => Ok(Outcome::Data(Bytes(self.fs.readlink(held.ino)?))),
                    _ => Err(Errno::EINVAL.into()),
                }
            }
            Op::Readdir { target, batch } => {
                let held = self.target(target)?;
                match (held.kind, self.fs.getattr(held.ino)?.nlink) {
                    // A removed directory that somebody still has open.
                    (FileKind::Dir, 0) => Err(Errno::ENOENT.into()),
                    (FileKind::Dir, _) => self.readdir(held.ino, *batch),
                    _ => Err(Errno::ENOTDIR.into()),
                }
            }
            Op::GetFlags { target } => {
                let held = self.with_flags(target)?;
                Ok(Outcome::Flags(self.fs.flags(held.ino)?))
            }
            Op::SetFlags { target, flags } => {
                let held = self.with_flags(target)?;
                self.fs.set_flags(&ROOT_CX, held.ino, *flags)?;
                Ok(Outcome::Done)
            }
            Op::Fsync { target, datasync } => {
                let held = self.with_flags(target)?;
                self.fs.fsync(held.ino, *datasync)?;
                Ok(Outcome::Done)
            }
            Op::Sync => {
                self.fs.sync()?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Done),
        }
    }

    /// Flags and fsync want an open file or directory.
    fn with_flags(&self, target: &Target) -> Result<Held<'a>> {
        let held = self.target(target)?;
        match held.kind {
            FileKind::File | FileKind::Dir => Ok(held),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn readdir(&self, dir: Ino, batch: usize) -> Result<Outcome> {
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let mut left = batch;
            self.fs.readdir(dir, offset, &mut |entry| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                names.push((Bytes(entry.name.to_vec()), entry.kind));
                offset = entry.next;
                true
            })?;
            if left > 0 {
                break;
            }
        }
        names.sort_by(|a, b| a.0.0.cmp(&b.0.0));
        Ok(Outcome::Names(names))
    }

    /// Lets all slots go.
    pub fn close_all(&mut self) {
        for slot in 0..self.slots.len() {
            self.put(slot, None);
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.close_all();
    }
}
