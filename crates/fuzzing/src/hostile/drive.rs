//! Uses a volume hard: opens it, reads all of it, changes it, closes it, and reads it
//! again. Whatever the volume answers is fine, as long as it answers.

use super::base::options;
use super::choices::Choices;
use super::disk::Layered;
use btrfs_fs::{BtrfsFs, Options};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use testkit::ops::hash;
use vfs::{
    Attr, Context, FallocateMode, FileKind, FileSystem, FsError, Ino, RenameMode, Result,
    SeekWhence, SetAttr, WriteFlags, XattrMode,
};

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };
/// More names than any image of these tests has.
const MOST_NAMES: usize = 30_000;
/// Bytes of a file that are read from each end.
const ENDS: usize = 256 << 10;

/// What was read of one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub ino: Ino,
    pub kind: FileKind,
    pub size: u64,
    /// Hash of what could be read; `None` where something could not.
    pub content: Option<u64>,
}

#[derive(Default, Debug)]
pub struct Walk {
    pub names: BTreeMap<Vec<u8>, Seen>,
    /// Errors by errno.
    pub errors: BTreeMap<i32, usize>,
}

/// What became of an image.
#[derive(Debug)]
pub enum Opening {
    /// Not opened, nothing written.
    Refused(String),
    Opened(Opened),
}

#[derive(Debug)]
pub struct Opened {
    pub before: Walk,
    /// `None` if the volume could not be opened again.
    pub after: Option<Walk>,
    /// Names that the operations had to do with.
    pub touched: HashSet<Ino>,
    pub operation_errors: usize,
    /// Why nothing may be written (any more).
    pub read_only: Option<String>,
    pub closed: bool,
}

/// Opens, walks, changes, closes and walks again. Panics where the engine does, and where
/// its answer cannot be right.
pub fn drive(device: &Arc<Layered>, choices: &mut Choices<'_>) -> Opening {
    device.forget_writes();
    let fs = match BtrfsFs::open_device(device.clone(), options()) {
        Ok(fs) => fs,
        Err(error) => {
            assert_typed(&error);
            assert_eq!(device.writes(), 0, "written although refused: {error}");
            return Opening::Refused(error.to_string());
        }
    };
    let before = walk(&fs);
    let (touched, operation_errors) = operate(&fs, &before, choices);
    let again = walk(&fs);
    drop(again);
    let read_only = fs.read_only_reason();
    let result = fs.destroy();
    let read_only = read_only.or(fs.read_only_reason().filter(|_| result.is_err()));
    drop(fs);
    let closed = result.is_ok();
    let after = open_again(device).map(|fs| walk(&fs));
    Opening::Opened(Opened { before, after, touched, operation_errors, read_only, closed })
}

/// Opens what was opened before. A log that was written on a damaged volume may contradict
/// it; then the last commit can be read without the log.
fn open_again(device: &Arc<Layered>) -> Option<BtrfsFs> {
    match BtrfsFs::open_device(device.clone(), options()) {
        Ok(fs) => Some(fs),
        Err(error) if error.to_string().contains("nologreplay") => {
            let last_commit = Options { read_only: true, ignore_log: true, ..options() };
            BtrfsFs::open_device(device.clone(), last_commit).ok()
        }
        Err(_) => None,
    }
}

/// A refusal says that the volume or the device is to blame.
fn assert_typed(error: &FsError) {
    let posix = matches!(error, FsError::Posix(errno) if *errno != vfs::Errno::ENOENT
        && *errno != vfs::Errno::EOVERFLOW && *errno != vfs::Errno::ENOSPC
        && *errno != vfs::Errno::ENOTDIR);
    assert!(!posix, "a damaged volume is refused with {error}");
}

struct Walker<'a> {
    fs: &'a dyn FileSystem,
    walk: Walk,
    dirs: HashSet<Ino>,
}

/// Everything that can be read, each directory once.
pub fn walk(fs: &dyn FileSystem) -> Walk {
    let mut walker = Walker { fs, walk: Walk::default(), dirs: HashSet::new() };
    walker.dir(fs.root(), b"");
    let _ = fs.statfs();
    let _ = fs.stats();
    walker.walk
}

impl Walker<'_> {
    fn ok<T>(&mut self, result: Result<T>) -> Option<T> {
        if let Err(error) = &result {
            *self.walk.errors.entry(error.errno()).or_default() += 1;
        }
        result.ok()
    }

    fn dir(&mut self, ino: Ino, path: &[u8]) {
        if !self.dirs.insert(ino) || self.dirs.len() > 2000 {
            return;
        }
        let (mut children, mut without) = (Vec::new(), Vec::new());
        let mut count = 0;
        let listed = self.fs.readdir_plus(ino, 0, &mut |entry, looked_up| {
            count += 1;
            match looked_up {
                Some(looked_up) => children.push((entry.name.to_vec(), looked_up.attr)),
                None => without.push(entry.name.to_vec()),
            }
            count < MOST_NAMES
        });
        assert!(count < MOST_NAMES, "a directory that never ends");
        self.ok(listed);
        self.in_steps(ino, count);
        // A name whose inode cannot be read is listed without it; asking for it tells why.
        for name in without.into_iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
            let looked_up = self.fs.lookup(&CX, ino, &name);
            if let Some(entry) = self.ok(looked_up) {
                self.fs.forget(entry.attr.ino, 1);
            }
        }
        for (name, attr) in children {
            let path = [path, b"/", &name].concat();
            self.node(ino, &name, &attr, &path);
            self.fs.forget(attr.ino, 1);
        }
    }

    /// The same directory a few names at a time: it must end too.
    fn in_steps(&mut self, dir: Ino, count: usize) {
        let mut offset = 0;
        for _ in 0..count + 2 {
            let mut taken = 0;
            let listed = self.fs.readdir(dir, offset, &mut |entry| {
                offset = entry.next;
                taken += 1;
                taken < 37
            });
            if self.ok(listed).is_none() || taken == 0 {
                return;
            }
        }
        panic!("a directory listed in steps never ends");
    }

    fn node(&mut self, dir: Ino, name: &[u8], attr: &Attr, path: &[u8]) {
        let looked_up = self.fs.lookup(&CX, dir, name);
        if let Some(entry) = self.ok(looked_up) {
            self.fs.forget(entry.attr.ino, 1);
        }
        let attr = match self.fs.getattr(attr.ino) {
            Ok(attr) => attr,
            Err(error) => {
                self.ok::<()>(Err(error));
                *attr
            }
        };
        self.attributes(attr.ino);
        let content = match attr.kind {
            FileKind::File => self.content(attr.ino, attr.size),
            FileKind::Symlink => {
                let target = self.fs.readlink(attr.ino);
                self.ok(target).map(|target| hash(&target))
            }
            _ => Some(0),
        };
        let seen = Seen { ino: attr.ino, kind: attr.kind, size: attr.size, content };
        self.walk.names.insert(path.to_vec(), seen);
        if attr.kind == FileKind::Dir && path.len() < 4096 {
            self.dir(attr.ino, path);
        }
    }

    fn attributes(&mut self, ino: Ino) {
        let names = self.fs.listxattr(ino);
        for name in self.ok(names).unwrap_or_default() {
            let value = self.fs.getxattr(ino, &name);
            self.ok(value);
        }
        let flags = self.fs.flags(ino);
        self.ok(flags);
    }

    fn content(&mut self, ino: Ino, size: u64) -> Option<u64> {
        let mut buf = vec![0; ENDS];
        let mut sum = 0u64;
        for offset in [0, size / 2, size.saturating_sub(ENDS as u64)] {
            let read = self.fs.read(ino, offset, &mut buf);
            let read = self.ok(read)?;
            assert!(read as u64 <= size.saturating_sub(offset), "read behind the end");
            sum = sum.rotate_left(7) ^ hash(&buf[..read]);
        }
        for (offset, whence) in [(0, SeekWhence::Hole), (size / 3, SeekWhence::Data)] {
            if let Ok(at) = self.fs.seek(ino, offset, whence) {
                assert!(at >= offset && at <= size, "seek from {offset} to {at} of {size}");
            }
        }
        Some(sum)
    }
}

struct Operator<'a, 'c, 'b> {
    fs: &'a BtrfsFs,
    choices: &'c mut Choices<'b>,
    touched: HashSet<Ino>,
    errors: usize,
    dir: Ino,
}

/// New files, then changes of what was there.
fn operate(fs: &BtrfsFs, walk: &Walk, choices: &mut Choices<'_>) -> (HashSet<Ino>, usize) {
    let dir = fs.mkdir(&CX, fs.root(), b"hostile", 0o755).map_or(fs.root(), |e| e.attr.ino);
    let touched = HashSet::from([fs.root(), dir]);
    let mut operator = Operator { fs, choices, touched, errors: 0, dir };
    operator.fresh();
    let paths: Vec<_> = walk.names.keys().collect();
    if !paths.is_empty() {
        for step in 0..24 {
            let path = paths[operator.choices.index(paths.len())];
            let (parent, name) = split(path);
            let parent = walk.names.get(parent).map_or(fs.root(), |seen| seen.ino);
            operator.change(parent, name, &walk.names[path], step);
        }
    }
    let synced = fs.sync();
    operator.note(synced);
    (operator.touched, operator.errors)
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let at = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    (&path[..at], path.get(at + 1..).unwrap_or(b""))
}

impl Operator<'_, '_, '_> {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        self.errors += usize::from(result.is_err());
        result.ok()
    }

    fn fresh(&mut self) {
        for number in 0..4u8 {
            let name = format!("new-{number}");
            let made = self.fs.mknod(&CX, self.dir, name.as_bytes(), FileKind::File, 0o644, 0);
            let Some(entry) = self.note(made) else { continue };
            let ino = entry.attr.ino;
            self.touched.insert(ino);
            let data = vec![number + 1; 20_000 + 30_000 * usize::from(number)];
            let written = self.fs.write(&CX, ino, 100, &data, WriteFlags::default());
            if self.note(written) == Some(data.len()) {
                let synced = self.fs.fsync(ino, false);
                self.note(synced);
                self.read_back(ino, &data);
            }
            let set = self.fs.setxattr(&CX, ino, b"user.x", b"value", XattrMode::Set);
            self.note(set);
            self.fs.forget(ino, 1);
        }
        let gone = self.fs.unlink(&CX, self.dir, b"new-0");
        self.note(gone);
        let moved =
            self.fs.rename(&CX, self.dir, b"new-1", self.dir, b"new-2", RenameMode::Replace);
        self.note(moved);
    }

    /// What was just written is read or refused, never something else.
    fn read_back(&mut self, ino: Ino, data: &[u8]) {
        let mut back = vec![0; data.len()];
        let read = self.fs.read(ino, 100, &mut back);
        if let Some(read) = self.note(read) {
            assert!(back[..read] == data[..read], "another content than was written");
        }
    }

    fn change(&mut self, parent: Ino, name: &[u8], seen: &Seen, step: u64) {
        self.touched.insert(seen.ino);
        let (fs, ino) = (self.fs, seen.ino);
        // Held as a caller of the kernel would: by a lookup.
        let held = self.fs.lookup(&CX, parent, name);
        let held = self.note(held).map(|entry| entry.attr.ino);
        self.touched.extend(held);
        let ino = held.unwrap_or(ino);
        let offset = self.choices.below(seen.size.clamp(1, 1 << 20));
        let new = format!("moved-{step}").into_bytes();
        let done = match (seen.kind, self.choices.below(12)) {
            (FileKind::Dir, 0..=3) => fs.rmdir(&CX, parent, name),
            (FileKind::Dir, 4..=7) => fs.mkdir(&CX, ino, &new, 0o755).map(drop),
            (FileKind::Dir, _) => fs.setattr(&CX, ino, &perm()).map(drop),
            (_, 0..=1) => fs.unlink(&CX, parent, name),
            (_, 2) => fs.rename(&CX, parent, name, self.dir, &new, RenameMode::Replace),
            (_, 3) => fs.link(&CX, ino, self.dir, &new).map(drop),
            (FileKind::File, 4) => fs.setattr(&CX, ino, &size(offset)).map(drop),
            (FileKind::File, 5) => fs.setattr(&CX, ino, &size(0)).map(drop),
            (FileKind::File, 6) => fs.fallocate(&CX, ino, FallocateMode::PunchHole, offset, 70_000),
            (FileKind::File, 7) => fs.fallocate(&CX, ino, FallocateMode::Allocate, offset, 50_000),
            (FileKind::File, 8) => self.clone_of(ino, &new),
            (FileKind::File, 9..=10) => {
                let flags = WriteFlags { sync: step.is_multiple_of(2), ..WriteFlags::default() };
                fs.write(&CX, ino, offset, &[0xAB; 9000], flags).map(drop)
            }
            _ => fs.setxattr(&CX, ino, b"user.hostile", &[3; 40], XattrMode::Set),
        };
        self.note(done);
        if let Some(held) = held {
            fs.forget(held, 1);
        }
    }

    fn clone_of(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        let to = self.fs.mknod(&CX, self.dir, name, FileKind::File, 0o644, 0)?.attr.ino;
        let done = self.fs.clone_range(&CX, ino, 0, to, 0, 0);
        self.fs.forget(to, 1);
        done
    }
}

fn perm() -> SetAttr {
    SetAttr { perm: Some(0o711), ..SetAttr::default() }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}
