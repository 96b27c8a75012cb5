//! What a volume is filled with: one kind of operation alone, each step one call that is
//! acknowledged or refused with ENOSPC.
//!
//! Invariants: a step that is refused has changed nothing but what the refused call may leave;
//! steps are made from their number and the seed alone, so that the kernel can be given the same.
//!
//! It knows the calls of a file system, and neither volumes nor judges.

use testkit::ops::Rng;
use vfs::{
    Context, FallocateMode, FileKind, FileSystem, FsError, Ino, RenameMode, SetAttr, SetTime,
    Timestamp, WriteFlags, XattrMode,
};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
/// Files or names of one directory.
const PER_DIR: u64 = 4000;
const SECTOR: u64 = 4096;
/// A file that others are cut out of, shared from or written over.
const LARGE: u64 = 2 << 20;
/// Files that are held open at most, beside the top directory.
const HELD: usize = 1200;
const NOCOW: u32 = 0x80_0000;
/// Links of one file: `btrfs check` takes time with the square of them.
const LINKS: u64 = 2000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Attributes of `size` bytes on one file, or on a thousand in turns.
    Xattr {
        size: usize,
        files: u64,
    },
    Symlink,
    /// Empty files with names of 255 bytes.
    LongName,
    HardLink,
    /// Files whose content lies in their items.
    Inline,
    /// A hole of a sector behind each sector of a large file.
    Punch,
    /// One sector shared to everywhere in one file.
    Reflink,
    /// Single sectors of large files written over, at random.
    Overwrite,
    /// Renames to longer names.
    Rename,
    /// ACLs on new files.
    Acl,
    /// Files cut in the middle of their extents, and grown.
    Truncate,
    Mkdir,
    /// Preallocated files, written into.
    Allocate,
    /// Renames over others, exchanges, and renames to another directory, in turns.
    Move,
    /// Modes, owners and times of files made before, beside a new one.
    SetAttr,
    /// Two new attributes for one that goes.
    RemoveXattr,
    /// Directories that inherit an ACL.
    Inherit,
    /// Files without copy-on-write that are shared and written over.
    NoCow,
    /// Any of the others, at random.
    Mix,
}

pub const ALL: [Kind; 21] = [
    Kind::Xattr { size: 1024, files: 1 },
    Kind::Xattr { size: 64, files: 1000 },
    Kind::Xattr { size: 3900, files: 1 },
    Kind::Symlink,
    Kind::LongName,
    Kind::HardLink,
    Kind::Inline,
    Kind::Punch,
    Kind::Reflink,
    Kind::Overwrite,
    Kind::Rename,
    Kind::Acl,
    Kind::Truncate,
    Kind::Mkdir,
    Kind::Allocate,
    Kind::Move,
    Kind::SetAttr,
    Kind::RemoveXattr,
    Kind::Inherit,
    Kind::NoCow,
    Kind::Mix,
];

pub struct Filler<'a> {
    fs: &'a dyn FileSystem,
    kind: Kind,
    rng: Rng,
    top: Ino,
    dir: Ino,
    /// Where renames go to, and what its directories inherit.
    other: Option<Ino>,
    heir: Option<Ino>,
    /// Files or names made so far in all directories.
    made: u64,
    step: u64,
    file: Option<Ino>,
    /// Has many names, and so nothing else: who reads all names reads it as often.
    linked: Option<Ino>,
    /// Whose first sector is shared to everywhere.
    source: Option<Ino>,
    /// The name that the last step left.
    name: Option<Vec<u8>>,
    /// Files whose nodes are shared, each step changes one of them.
    old: Vec<Ino>,
    held: Vec<Ino>,
}

type Step = Result<(), FsError>;

impl Drop for Filler<'_> {
    fn drop(&mut self) {
        self.held.iter().chain(&self.old).for_each(|ino| self.fs.forget(*ino, 1));
    }
}

impl<'a> Filler<'a> {
    /// With `shared`, each step changes one of the files of the subvolume "base", too.
    pub fn new(
        fs: &'a dyn FileSystem,
        kind: Kind,
        seed: u64,
        name: &str,
        shared: bool,
    ) -> Filler<'a> {
        let top = fs.mkdir(&CX, fs.root(), name.as_bytes(), 0o755).expect("mkdir").attr.ino;
        let old = if shared { files(fs, b"base") } else { Vec::new() };
        Filler {
            fs,
            kind,
            rng: Rng::new(seed),
            top,
            dir: top,
            other: None,
            heir: None,
            made: 0,
            step: 0,
            file: None,
            linked: None,
            source: None,
            name: None,
            old,
            held: vec![top],
        }
    }

    /// The next operation. ENOSPC ends the filling.
    pub fn step(&mut self) -> Step {
        let kind = match self.kind {
            Kind::Mix => *self.rng.pick(&ALL[..ALL.len() - 1]),
            other => other,
        };
        self.one(kind)?;
        self.change_shared()?;
        self.step += 1;
        Ok(())
    }

    /// A file somewhere in the tree that snapshots share gets a sector, or an attribute.
    fn change_shared(&mut self) -> Step {
        if self.old.is_empty() {
            return Ok(());
        }
        let ino = *self.rng.pick(&self.old);
        match self.rng.below(4) {
            0 => self.write(ino, self.rng.clone().below(400) * SECTOR, SECTOR as usize),
            _ => self.set(ino, b"user.changed", &self.step.to_le_bytes()),
        }
    }

    fn one(&mut self, kind: Kind) -> Step {
        match kind {
            Kind::Xattr { size, files } => self.xattr(size, files),
            Kind::Symlink => self.symlink(),
            Kind::LongName => self.new_file(255).map(drop),
            Kind::HardLink => self.link(),
            Kind::Inline => self.inline(),
            Kind::Punch => self.punch(),
            Kind::Reflink => self.reflink(),
            Kind::Overwrite => self.overwrite(),
            Kind::Rename => self.rename(),
            Kind::Acl => self.acl(),
            Kind::Truncate => self.truncate(),
            Kind::Mkdir => self.mkdir(),
            Kind::Allocate => self.allocate(),
            Kind::Move => self.exchange(),
            Kind::SetAttr => self.set_attributes(),
            Kind::RemoveXattr => self.remove_xattr(),
            Kind::Inherit => self.inherit(),
            Kind::NoCow => self.no_cow(),
            Kind::Mix => unreachable!("picked above"),
        }
    }

    /// A name that this directory does not have yet, of `len` bytes at least.
    fn fresh_name(&mut self, len: usize) -> Result<Vec<u8>, FsError> {
        if self.made.is_multiple_of(PER_DIR) && self.made > 0 && self.dir_is_full() {
            let name = format!("dir-{}", self.made);
            let dir = self.fs.mkdir(&CX, self.top, name.as_bytes(), 0o755)?.attr.ino;
            self.held.push(dir);
            self.dir = dir;
        }
        self.made += 1;
        let mut name = format!("{}-", self.made).into_bytes();
        while name.len() < len {
            name.push(b'a' + (self.rng.next_u64() % 26) as u8);
        }
        Ok(name)
    }

    /// The directory of this stretch of names was not made yet.
    fn dir_is_full(&self) -> bool {
        let name = format!("dir-{}", self.made);
        match self.fs.lookup(&CX, self.top, name.as_bytes()) {
            Ok(entry) => {
                self.fs.forget(entry.attr.ino, 1);
                false
            }
            Err(_) => true,
        }
    }

    fn new_file(&mut self, len: usize) -> Result<Ino, FsError> {
        let name = self.fresh_name(len)?;
        let entry = self.fs.mknod(&CX, self.dir, &name, FileKind::File, 0o644, 0)?;
        self.name = Some(name);
        if self.held.len() >= HELD {
            let used = |ino: &Ino| {
                let some = [self.file, self.linked, self.source, self.other, self.heir];
                some.contains(&Some(*ino)) || [self.dir, self.top].contains(ino)
            };
            let at = self.held.iter().position(|ino| !used(ino)).expect("so many are not in use");
            self.fs.forget(self.held.remove(at), 1);
        }
        self.held.push(entry.attr.ino);
        Ok(entry.attr.ino)
    }

    /// The file that steps work on; a new one after `steps` of them.
    fn current(&mut self, steps: u64) -> Result<Ino, FsError> {
        match self.file {
            Some(ino) if !self.step.is_multiple_of(steps) => Ok(ino),
            _ => {
                let ino = self.new_file(12)?;
                self.file = Some(ino);
                Ok(ino)
            }
        }
    }

    fn xattr(&mut self, size: usize, files: u64) -> Step {
        let ino = match files {
            1 => self.current(u64::MAX)?,
            _ if self.held.len() as u64 <= files => self.new_file(12)?,
            _ => self.held[1 + (self.step % files) as usize],
        };
        let name = format!("user.{}", self.step);
        let mut value = vec![0; size];
        self.rng.fill(&mut value);
        self.set(ino, name.as_bytes(), &value)
    }

    /// A file has as many attributes of one hash as a node holds; no such name is met here.
    fn set(&self, ino: Ino, name: &[u8], value: &[u8]) -> Step {
        self.fs.setxattr(&CX, ino, name, value, XattrMode::Set)
    }

    fn symlink(&mut self) -> Step {
        let len = 1 + self.rng.below(3900) as usize;
        let name = self.fresh_name(12)?;
        let entry = self.fs.symlink(&CX, self.dir, &name, &vec![b'x'; len])?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(())
    }

    fn link(&mut self) -> Step {
        let ino = match self.linked {
            Some(ino) if !self.step.is_multiple_of(LINKS) => ino,
            _ => self.new_file(12)?,
        };
        self.linked = Some(ino);
        let name = self.fresh_name(200)?;
        self.fs.link(&CX, ino, self.dir, &name)?;
        self.fs.forget(ino, 1);
        Ok(())
    }

    fn write(&mut self, ino: Ino, offset: u64, len: usize) -> Step {
        let mut content = vec![0; len];
        self.rng.fill(&mut content);
        let written = self.fs.write(&CX, ino, offset, &content, WriteFlags::default())?;
        if written == len { Ok(()) } else { Err(vfs::Errno::ENOSPC.into()) }
    }

    fn inline(&mut self) -> Step {
        let ino = self.new_file(12)?;
        let len = 1 + self.rng.below(2040) as usize;
        self.write(ino, 0, len)
    }

    /// A large file that has just been written, every `steps` steps. It is on the volume: what
    /// is written over while it is still in memory needs no room, and how much that is differs.
    fn large(&mut self, steps: u64) -> Result<Ino, FsError> {
        let before = self.file;
        let ino = self.current(steps)?;
        if before != Some(ino) {
            self.write(ino, 0, LARGE as usize)?;
            self.fs.sync()?;
        }
        Ok(ino)
    }

    fn punch(&mut self) -> Step {
        let holes = LARGE / SECTOR / 2;
        let ino = self.large(holes)?;
        let at = (self.step % holes) * 2 * SECTOR;
        self.fs.fallocate(&CX, ino, FallocateMode::PunchHole, at, SECTOR)
    }

    fn reflink(&mut self) -> Step {
        let ino = match self.source {
            Some(ino) => ino,
            None => {
                let ino = self.new_file(12)?;
                self.write(ino, 0, 2 * SECTOR as usize)?;
                *self.source.insert(ino)
            }
        };
        // Apart, so that no two items become one.
        let at = (2 + 2 * self.step) * SECTOR;
        self.fs.clone_range(&CX, ino, 0, ino, at, SECTOR)
    }

    fn overwrite(&mut self) -> Step {
        let ino = self.large(LARGE / SECTOR * 2)?;
        let at = self.rng.below(LARGE / SECTOR) * SECTOR;
        self.write(ino, at, SECTOR as usize)
    }

    fn rename(&mut self) -> Step {
        self.new_file(12)?;
        let old = self.name.take().expect("just made");
        let dir = self.dir;
        let new = self.fresh_name(250)?;
        self.fs.rename(&CX, dir, &old, self.dir, &new, RenameMode::NoReplace)
    }

    fn acl(&mut self) -> Step {
        let ino = self.new_file(12)?;
        let acl = acl(1 + self.rng.below(60) as u32);
        self.set(ino, b"system.posix_acl_access", &acl)
    }

    fn truncate(&mut self) -> Step {
        let ino = self.new_file(12)?;
        self.write(ino, 0, 40_000)?;
        for size in [19_000, 600_000] {
            self.fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        }
        self.write(ino, 500_000, 5000)
    }

    fn allocate(&mut self) -> Step {
        let ino = self.new_file(12)?;
        let len = SECTOR * (1 + self.rng.below(40));
        self.fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, len)?;
        let at = self.rng.below(len);
        self.write(ino, at, (len - at).min(6000) as usize)
    }

    /// A directory that is made when it is first asked for.
    fn beside(&mut self, dir: Option<Ino>, name: &[u8]) -> Result<Ino, FsError> {
        if let Some(ino) = dir {
            return Ok(ino);
        }
        let ino = self.fs.mkdir(&CX, self.top, name, 0o755)?.attr.ino;
        self.held.push(ino);
        Ok(ino)
    }

    /// Each pair of files leaves one or two names more.
    fn exchange(&mut self) -> Step {
        let other = self.beside(self.other, b"other")?;
        self.other = Some(other);
        self.inline()?;
        let (from, old) = (self.dir, self.name.take().expect("just made"));
        self.inline()?;
        let (to, new) = (self.dir, self.name.take().expect("just made"));
        match self.step % 3 {
            0 => self.fs.rename(&CX, from, &old, to, &new, RenameMode::Replace),
            1 => {
                self.fs.rename(&CX, from, &old, other, &old, RenameMode::NoReplace)?;
                self.fs.rename(&CX, other, &old, to, &new, RenameMode::Exchange)
            }
            _ => self.fs.rename(&CX, from, &old, other, &new, RenameMode::Replace),
        }
    }

    fn set_attributes(&mut self) -> Step {
        self.new_file(100)?;
        for n in 0..3 {
            let ino = *self.rng.pick(&self.held);
            let time = Timestamp { secs: 1_000_000 + self.step as i64, nanos: n };
            let mut set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
            match n {
                0 => set.perm = Some(0o700 + (self.step % 64) as u16),
                1 => (set.uid, set.gid) = (Some(self.step as u32), Some(n)),
                _ => {}
            }
            self.fs.setattr(&CX, ino, &set)?;
        }
        Ok(())
    }

    fn remove_xattr(&mut self) -> Step {
        let ino = self.current(3000)?;
        let step = self.step;
        for name in ["keep", "drop"] {
            let mut value = vec![0; 300];
            self.rng.fill(&mut value);
            self.set(ino, format!("user.{name}-{step}").as_bytes(), &value)?;
        }
        self.fs.removexattr(&CX, ino, format!("user.drop-{step}").as_bytes())
    }

    fn inherit(&mut self) -> Step {
        let heir = self.beside(self.heir, b"heir")?;
        if self.heir.replace(heir).is_none() {
            self.set(heir, b"system.posix_acl_default", &acl(20))?;
        }
        let name = self.fresh_name(40)?;
        let entry = self.fs.mkdir(&CX, heir, &name, 0o755)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(())
    }

    /// What is shared is copied when it is written over, flag or not.
    fn no_cow(&mut self) -> Step {
        let (ino, copy) = (self.new_file(12)?, self.new_file(12)?);
        for ino in [ino, copy] {
            self.fs.set_flags(&CX, ino, NOCOW)?;
        }
        self.write(ino, 0, 4 * SECTOR as usize)?;
        self.write(ino, SECTOR, SECTOR as usize)?;
        self.fs.clone_range(&CX, ino, 0, copy, 0, 4 * SECTOR)?;
        self.write(ino, 2 * SECTOR, SECTOR as usize)
    }

    /// What an fsync may be asked for: one of the last files, or the directory.
    pub fn recent(&self, rng: &mut Rng) -> Ino {
        let last = self.held.last().copied();
        let some: Vec<Ino> =
            [self.file, self.linked, self.source, last, Some(self.dir), self.other]
                .into_iter()
                .flatten()
                .collect();
        *rng.pick(&some)
    }

    fn mkdir(&mut self) -> Step {
        let name = self.fresh_name(40)?;
        let entry = self.fs.mkdir(&CX, self.dir, &name, 0o755)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(())
    }
}

/// The files of a directory of the root.
fn files(fs: &dyn FileSystem, dir: &[u8]) -> Vec<Ino> {
    let dir = fs.lookup(&CX, fs.root(), dir).expect("lookup").attr.ino;
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.kind == FileKind::File {
            names.push(entry.name.to_vec());
        }
        true
    })
    .expect("readdir");
    let inos = names.iter().map(|name| fs.lookup(&CX, dir, name).expect("lookup").attr.ino);
    let inos = inos.collect();
    fs.forget(dir, 1);
    inos
}

/// An access ACL with `users` named users (linux/posix_acl_xattr.h).
fn acl(users: u32) -> Vec<u8> {
    const ANY: u32 = u32::MAX;
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let mut add = |tag: u16, id: u32| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(6u16.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    };
    add(0x01, ANY);
    (0..users).for_each(|user| add(0x02, 1000 + user));
    [0x04, 0x10, 0x20].into_iter().for_each(|tag| add(tag, ANY));
    bytes
}

/// Of a volume with snapshots; they go by a call of their own.
fn is_subvolume(name: &[u8]) -> bool {
    name == b"base" || name.starts_with(b"snapshot-")
}

/// Deletes all that is below `dir`, which stays. Nothing may refuse that.
pub fn empty(fs: &dyn FileSystem, dir: Ino) {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push((entry.name.to_vec(), entry.kind));
        }
        true
    })
    .expect("readdir");
    for (name, kind) in names {
        if kind == FileKind::Dir {
            let child = fs.lookup(&CX, dir, &name).expect("lookup").attr.ino;
            empty(fs, child);
            fs.forget(child, 1);
            if is_subvolume(&name) {
                continue;
            }
            fs.rmdir(&CX, dir, &name).expect("rmdir on a full volume");
        } else {
            fs.unlink(&CX, dir, &name).expect("unlink on a full volume");
        }
    }
}
