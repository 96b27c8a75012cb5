//! Values that names and inodes had, one after the other, and when they were made durable.
//!
//! Two clocks: ticks order calls and returns among each other; positions are places in the
//! device's record, which is where a crash comes. A value may be there from its call's
//! position on; it is surely gone for a sync that began after its successor's return.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vfs::{FileKind, Ino};

use crate::compare::{Content, NodeView};

/// A directory's name for something.
pub type Slot = (Ino, Vec<u8>);

/// When a call began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moment {
    pub tick: u64,
    /// Events that the device had taken.
    pub at: usize,
}

#[derive(Clone, Debug)]
pub struct Version<T> {
    pub value: T,
    pub begin: Moment,
    /// Tick at which the call that replaced it had returned.
    pub end: Option<u64>,
}

/// All values of one thing; never empty.
pub type Versions<T> = Vec<Version<T>>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meta {
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub flags: Option<u32>,
}

pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

pub struct Inode {
    pub kind: FileKind,
    pub target: Option<Vec<u8>>,
    /// Tick at which the call that made it had returned.
    pub born: u64,
    /// When the call began that took its last name.
    pub died: Option<Moment>,
    pub content: Versions<Option<Content>>,
    pub meta: Versions<Meta>,
    pub xattrs: Versions<Xattrs>,
}

/// Two names that one call changed.
pub struct Rename {
    pub tick: u64,
    pub at: usize,
    pub from: Slot,
    pub to: Slot,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Synced {
    All,
    Full(Ino),
    Data(Ino),
}

/// A sync that returned without an error.
pub struct Sync {
    /// Tick of the call.
    pub begin: u64,
    /// Position when it had returned: crashes from there on must keep what it promised.
    pub done: usize,
    pub what: Synced,
}

/// A call, from its beginning to its return.
#[derive(Clone, Copy)]
pub struct Span {
    pub begin: Moment,
    pub end: u64,
    /// It returned an error and may have happened all the same.
    pub uncertain: bool,
}

#[derive(Default)]
pub struct Inner {
    tick: u64,
    pub slots: HashMap<Slot, Versions<Option<Ino>>>,
    pub inodes: HashMap<Ino, Inode>,
    pub renames: Vec<Rename>,
    pub syncs: Vec<Sync>,
}

/// What happened to one volume since its image was made; all threads write to the same.
#[derive(Default)]
pub struct History(Mutex<Inner>);

impl History {
    pub fn new() -> History {
        History::default()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tick(&self) -> u64 {
        let mut inner = self.lock();
        inner.tick += 1;
        inner.tick
    }

    /// A `sync` of somebody who does nothing else, while others work: what had returned before
    /// it counts as durable once it has returned.
    pub fn sync_beside(
        &self,
        position: &dyn Fn() -> usize,
        sync: impl FnOnce() -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        let begin = self.tick();
        sync()?;
        let done = position();
        self.lock().syncs.push(Sync { begin, done, what: Synced::All });
        Ok(())
    }
}

pub fn first<T>(value: T, begin: Moment) -> Versions<T> {
    vec![Version { value, begin, end: None }]
}

fn change<T: PartialEq>(versions: &mut Versions<T>, value: T, span: Span) {
    match versions.last_mut() {
        Some(last) if last.value == value => return,
        Some(last) if !span.uncertain => last.end = Some(span.end),
        _ => {}
    }
    versions.push(Version { value, begin: span.begin, end: None });
}

impl Inner {
    pub fn set_slot(&mut self, slot: Slot, value: Option<Ino>, span: Span) {
        let versions = self.slots.entry(slot).or_insert_with(|| first(None, Moment::default()));
        change(versions, value, span);
    }

    pub fn set_inode(&mut self, ino: Ino, node: &NodeView, span: Span) {
        let meta = Meta {
            perm: node.attr.perm,
            uid: node.attr.uid,
            gid: node.attr.gid,
            rdev: node.attr.rdev,
            flags: node.flags,
        };
        let Some(inode) = self.inodes.get_mut(&ino) else {
            let inode = Inode {
                kind: node.attr.kind,
                target: node.target.clone(),
                born: if span.uncertain { u64::MAX } else { span.end },
                died: None,
                content: first(node.content.clone(), span.begin),
                meta: first(meta, span.begin),
                xattrs: first(node.xattrs.clone(), span.begin),
            };
            self.inodes.insert(ino, inode);
            return;
        };
        change(&mut inode.content, node.content.clone(), span);
        change(&mut inode.meta, meta, span);
        change(&mut inode.xattrs, node.xattrs.clone(), span);
    }

    pub fn bury(&mut self, ino: Ino, span: Span) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.died.get_or_insert(span.begin);
        }
    }
}
