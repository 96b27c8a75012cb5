//! The inode table of the model and the small questions everybody asks of it.
//!
//! Invariants: an inode is in the table while it has a name or a lookup reference;
//! every name of a directory leads to an inode in the table; a directory's `index`
//! values only grow, so that `readdir` positions stay true under changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use vfs::{Attr, Entry, Errno, FileKind, Ino, Result, Timestamp};

use super::content::{BLOCK, Content};
use super::{Profile, bits};

pub(super) struct Directory {
    pub parent: Ino,
    by_name: BTreeMap<Arc<[u8]>, u64>,
    by_index: BTreeMap<u64, Named>,
    next_index: u64,
    /// Of all names: who counted them each time took longer with each name.
    name_bytes: u64,
    subdirs: u32,
}

/// What a name stands for.
struct Named {
    name: Arc<[u8]>,
    ino: Ino,
    is_dir: bool,
}

/// Index of a directory's first entry: 0 and 1 are `.` and `..`.
pub(super) const FIRST_INDEX: u64 = 2;

impl Directory {
    pub fn new(parent: Ino) -> Directory {
        let (by_name, by_index) = Default::default();
        Directory { parent, by_name, by_index, next_index: FIRST_INDEX, name_bytes: 0, subdirs: 0 }
    }

    pub fn get(&self, name: &[u8]) -> Option<Ino> {
        self.by_name.get(name).map(|index| self.by_index[index].ino)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn insert(&mut self, name: &[u8], ino: Ino, is_dir: bool) {
        let index = self.next_index;
        self.next_index += 1;
        self.name_bytes += name.len() as u64;
        self.subdirs += u32::from(is_dir);
        let name: Arc<[u8]> = name.into();
        self.by_index.insert(index, Named { name: Arc::clone(&name), ino, is_dir });
        let old = self.by_name.insert(name, index);
        assert!(old.is_none(), "a name stands for one inode");
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<Ino> {
        let index = self.by_name.remove(name)?;
        let gone = self.by_index.remove(&index)?;
        self.name_bytes -= name.len() as u64;
        self.subdirs -= u32::from(gone.is_dir);
        Some(gone.ino)
    }

    /// Behind all entries.
    pub fn end(&self) -> u64 {
        self.next_index
    }

    /// First entry whose index is at least `index`.
    pub fn entry_from(&self, index: u64) -> Option<(u64, &[u8], Ino)> {
        let (&index, named) = self.by_index.range(index..).next()?;
        Some((index, &named.name, named.ino))
    }
}

pub(super) enum Body {
    File(Content),
    Dir(Box<Directory>),
    Symlink(Vec<u8>),
    Special,
}

pub(super) struct Inode {
    pub kind: FileKind,
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// `FS_*_FL` bits.
    pub flags: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub body: Body,
    pub lookups: u64,
    /// Made by `tmpfile` and never named: `link` may still name it.
    pub linkable: bool,
}

impl Inode {
    pub fn immutable(&self) -> bool {
        self.flags & bits::IMMUTABLE != 0
    }

    pub fn append_only(&self) -> bool {
        self.flags & bits::APPEND != 0
    }

    /// Blocks of content, written or preallocated.
    pub fn allocated(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.allocated(),
            _ => 0,
        }
    }

    pub fn touch(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
    }
}

pub(super) struct State {
    pub inodes: BTreeMap<Ino, Inode>,
    pub profile: Profile,
    pub clock: super::Clock,
    pub last_time: Timestamp,
    pub next_ino: u64,
    pub destroyed: bool,
}

pub(super) const ROOT: Ino = Ino(256);
pub(super) const GENERATION: u64 = 1;

impl State {
    pub fn new(profile: Profile, clock: super::Clock) -> State {
        let last_time = Timestamp::default();
        let inodes = BTreeMap::new();
        let mut state =
            State { inodes, profile, clock, last_time, next_ino: ROOT.0, destroyed: false };
        let now = state.now();
        let mut root = state.blank(FileKind::Dir, 0o755, now);
        (root.nlink, root.lookups) = (1, 1);
        root.body = Body::Dir(Box::new(Directory::new(ROOT)));
        state.adopt(root);
        state
    }

    /// The clock, made strictly increasing so that every change can be seen.
    pub fn now(&mut self) -> Timestamp {
        let mut now = (self.clock)();
        if now <= self.last_time {
            now = self.last_time;
            now.nanos += 1;
            if now.nanos == 1_000_000_000 {
                now = Timestamp { secs: now.secs + 1, nanos: 0 };
            }
        }
        self.last_time = now;
        now
    }

    pub fn blank(&self, kind: FileKind, perm: u16, now: Timestamp) -> Inode {
        let body = match kind {
            FileKind::File => Body::File(Content::default()),
            _ => Body::Special,
        };
        Inode {
            kind,
            perm,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: 0,
            xattrs: BTreeMap::new(),
            body,
            lookups: 0,
            linkable: false,
        }
    }

    pub fn adopt(&mut self, inode: Inode) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    pub fn get(&self, ino: Ino) -> Result<&Inode> {
        if self.destroyed {
            return Err(Errno::ENODEV.into());
        }
        self.inodes.get(&ino).ok_or_else(|| Errno::ESTALE.into())
    }

    pub fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.get(ino)?;
        self.inodes.get_mut(&ino).ok_or_else(|| Errno::ESTALE.into())
    }

    pub fn dir(&self, ino: Ino) -> Result<&Directory> {
        match &self.get(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    pub fn dir_mut(&mut self, ino: Ino) -> Result<&mut Directory> {
        match &mut self.get_mut(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// `name` stands for `ino` in a directory from now on.
    pub fn put_name(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let is_dir = self.get(ino)?.kind == FileKind::Dir;
        self.dir_mut(dir)?.insert(name, ino, is_dir);
        Ok(())
    }

    pub fn file(&self, ino: Ino) -> Result<&Content> {
        let inode = self.get(ino)?;
        match (&inode.body, inode.kind) {
            (Body::File(content), _) => Ok(content),
            (_, FileKind::Dir) => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    pub fn file_mut(&mut self, ino: Ino) -> Result<&mut Content> {
        self.file(ino)?;
        match &mut self.get_mut(ino)?.body {
            Body::File(content) => Ok(content),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn size(&self, inode: &Inode) -> u64 {
        match &inode.body {
            Body::File(content) => content.size,
            Body::Dir(dir) if self.profile.btrfs_dirs => 2 * dir.name_bytes,
            Body::Dir(_) => BLOCK,
            Body::Symlink(target) => target.len() as u64,
            Body::Special => 0,
        }
    }

    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.get(ino)?;
        let nlink = match &inode.body {
            Body::Dir(dir) if !self.profile.btrfs_dirs && inode.nlink > 0 => 2 + dir.subdirs,
            _ => inode.nlink,
        };
        let blocks = inode.allocated() * (BLOCK / 512);
        let attributes = match self.profile.statx_attributes {
            true => bits::statx_attributes(inode.flags),
            false => 0,
        };
        Ok(Attr {
            ino,
            kind: inode.kind,
            perm: inode.perm,
            nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: self.size(inode),
            blocks,
            blksize: BLOCK as u32,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            attributes,
        })
    }

    /// The entry for `ino`, with one more lookup reference on it.
    pub fn entry(&mut self, ino: Ino) -> Result<Entry> {
        let attr = self.attr(ino)?;
        self.get_mut(ino)?.lookups += 1;
        Ok(Entry { attr, generation: GENERATION })
    }

    pub fn forget(&mut self, ino: Ino, count: u64) {
        let Some(inode) = self.inodes.get_mut(&ino) else { return };
        assert!(inode.lookups >= count, "{ino:?}: more references given back than taken");
        inode.lookups -= count;
        self.drop_if_gone(ino);
    }

    pub fn drop_if_gone(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0 && inode.lookups == 0) {
            self.inodes.remove(&ino);
        }
    }
}
