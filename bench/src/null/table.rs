//! All inodes, by number: found without a lock.
//!
//! Invariants: a number is handed out again only when nobody has it, neither a name nor a caller;
//! it has another generation then. Of the locks of a node `body` is taken before `inode`, and no
//! two bodies at once without `NullFs::tree`, but that of an inode which nobody knows yet.

use super::content::Content;
use super::dir::Names;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};
use vfs::{Attr, Errno, FileKind, Ino, Result, Timestamp};

const SEGMENT: u64 = 1 << 12;
const SEGMENTS: u64 = 1 << 14;
/// The root's.
const FIRST: u64 = 1;

pub(super) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an inode holds.
#[derive(Default)]
pub(super) enum Body {
    /// A device, a FIFO, a socket, or a number that is free.
    #[default]
    Nothing,
    File(Content),
    Dir(Box<Names>),
    Link(Box<[u8]>),
}

impl Body {
    pub fn names(&self) -> Result<&Names> {
        if let Body::Dir(names) = self { Ok(names) } else { Err(Errno::ENOTDIR.into()) }
    }

    pub fn names_mut(&mut self) -> Result<&mut Names> {
        if let Body::Dir(names) = self { Ok(names) } else { Err(Errno::ENOTDIR.into()) }
    }

    pub fn file(&self) -> Result<&Content> {
        match self {
            Body::File(content) => Ok(content),
            Body::Dir(_) => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    pub fn file_mut(&mut self) -> Result<&mut Content> {
        match self {
            Body::File(content) => Ok(content),
            Body::Dir(_) => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

pub(super) struct Inode {
    pub attr: Attr,
    pub generation: u64,
    /// References that callers hold.
    pub lookups: u64,
    /// Made without a name, and may get its first.
    pub linkable: bool,
    pub xattrs: Option<Box<Xattrs>>,
}

impl Inode {
    pub fn is_gone(&self) -> bool {
        self.attr.nlink == 0 && self.lookups == 0
    }

    /// Its content changed.
    pub fn modified(&mut self, now: Timestamp) {
        (self.attr.mtime, self.attr.ctime) = (now, now);
        self.drop_capability();
    }

    pub fn drop_capability(&mut self) {
        if let Some(xattrs) = &mut self.xattrs {
            xattrs.remove(&b"security.capability"[..]);
        }
    }

    /// As a write by an ordinary user must.
    pub fn drop_set_ids(&mut self, without_execution_too: bool) {
        let group_execution = self.attr.perm & libc::S_IXGRP as u16 != 0;
        if self.attr.kind != FileKind::Dir {
            self.attr.perm &= !(libc::S_ISUID as u16);
            if group_execution || without_execution_too {
                self.attr.perm &= !(libc::S_ISGID as u16);
            }
        }
    }
}

impl Default for Inode {
    fn default() -> Inode {
        let never = Timestamp::default();
        let attr = Attr {
            ino: Ino(0),
            kind: FileKind::File,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: never,
            mtime: never,
            ctime: never,
            btime: never,
            attributes: 0,
        };
        Inode { attr, generation: 0, lookups: 0, linkable: false, xattrs: None }
    }
}

#[derive(Default)]
pub(super) struct Node {
    inode: Mutex<Inode>,
    body: RwLock<Body>,
}

impl Node {
    /// Whatever is there.
    fn any(&self) -> MutexGuard<'_, Inode> {
        self.inode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// ESTALE if it is gone.
    pub fn inode(&self) -> Result<MutexGuard<'_, Inode>> {
        let inode = self.any();
        if inode.is_gone() { Err(Errno::ESTALE.into()) } else { Ok(inode) }
    }

    pub fn body(&self) -> RwLockReadGuard<'_, Body> {
        self.body.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn body_mut(&self) -> RwLockWriteGuard<'_, Body> {
        self.body.write().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Table {
    segments: Box<[OnceLock<Box<[Node]>>]>,
    next: AtomicU64,
    free: Mutex<Vec<u64>>,
}

impl Table {
    pub fn new() -> Table {
        let segments = (0..SEGMENTS).map(|_| OnceLock::new()).collect();
        Table { segments, next: AtomicU64::new(FIRST), free: Mutex::default() }
    }

    pub fn node(&self, ino: Ino) -> Result<&Node> {
        let segment = self.segments.get((ino.0 / SEGMENT) as usize).and_then(OnceLock::get);
        segment.map(|nodes| &nodes[(ino.0 % SEGMENT) as usize]).ok_or(Errno::ESTALE.into())
    }

    fn free(&self) -> MutexGuard<'_, Vec<u64>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number, and its node with what `attr` and `body` say; `attr` is told the number.
    pub fn add(&self, mut attr: Attr, lookups: u64, linkable: bool, body: Body) -> Result<Attr> {
        let again = self.free().pop();
        let number = again.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
        let segment = self.segments.get((number / SEGMENT) as usize).ok_or(Errno::ENOSPC)?;
        let nodes = segment.get_or_init(|| (0..SEGMENT).map(|_| Node::default()).collect());
        let node = &nodes[(number % SEGMENT) as usize];
        attr.ino = Ino(number);
        *node.body_mut() = body;
        let mut inode = node.any();
        let generation = inode.generation;
        *inode = Inode { attr, generation, lookups, linkable, xattrs: None };
        Ok(attr)
    }

    /// Nobody holds references any more but the one on the root.
    pub fn forget_all(&self, root: Ino) {
        for number in FIRST..self.next.load(Ordering::Relaxed) {
            let Ok(node) = self.node(Ino(number)) else { return };
            let Ok(mut inode) = node.inode() else { continue };
            inode.lookups = u64::from(number == root.0);
            let gone = inode.is_gone();
            drop(inode);
            if gone {
                self.remove(Ino(number));
            }
        }
    }

    /// To be called by the one who took the last name or reference away.
    pub fn remove(&self, ino: Ino) {
        let Ok(node) = self.node(ino) else { return };
        let body = std::mem::take(&mut *node.body_mut());
        let mut inode = node.any();
        inode.generation += 1;
        let xattrs = inode.xattrs.take();
        drop(inode);
        self.free().push(ino.0);
        // What it held goes when others may use the number again.
        drop((body, xattrs));
    }
}
