//! Making, finding, moving and removing names.
//!
//! Left to the kernel, which does it before it asks: that a directory does not move below itself, and that nothing
//! changes in a directory while it is removed.

use super::NullFs;
use super::dir::{Child, Names};
use super::table::{Body, Inode};
use std::sync::{MutexGuard, PoisonError, RwLockWriteGuard};
use vfs::{
    Attr, Context, Entry, Errno, FileKind, Ino, NAME_MAX, RenameMode, Result, TARGET_MAX, Timestamp,
};

const LINK_MAX: u32 = 65535;

/// What is to be made.
pub(super) struct New {
    pub kind: FileKind,
    pub perm: u16,
    pub rdev: u32,
    pub body: Body,
}

impl New {
    fn size(&self) -> u64 {
        if let Body::Link(target) = &self.body { target.len() as u64 } else { 0 }
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL.into()),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG.into()),
        _ => Ok(()),
    }
}

pub(super) fn entry(inode: &mut Inode) -> Entry {
    inode.lookups += 1;
    Entry { attr: inode.attr, generation: inode.generation }
}

/// One name of a rename.
#[derive(Clone, Copy)]
pub(super) struct NameIn<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
}

/// The directories of a rename, which may be one.
struct Pair<'a> {
    from: RwLockWriteGuard<'a, Body>,
    to: Option<RwLockWriteGuard<'a, Body>>,
}

impl Pair<'_> {
    fn from(&mut self) -> Result<&mut Names> {
        self.from.names_mut()
    }

    fn to(&mut self) -> Result<&mut Names> {
        match &mut self.to {
            Some(to) => to.names_mut(),
            None => self.from.names_mut(),
        }
    }
}

impl NullFs {
    pub(super) fn find(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let body = self.table.node(parent)?.body();
        let names = body.names()?;
        let ino = match name {
            b"." => parent,
            b".." => names.parent,
            _ if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG.into()),
            _ => names.get(name).ok_or(Errno::ENOENT)?.ino,
        };
        // While the directory is held the name stays, and what it stands for with it.
        Ok(entry(&mut *self.table.node(ino)?.inode()?))
    }

    /// What a new inode of `dir` begins with.
    fn inherited(&self, cx: &Context, dir: &Attr, new: &New) -> Attr {
        let now = Timestamp::now();
        let is_link = new.kind == FileKind::Symlink;
        let inherits = dir.perm & libc::S_ISGID as u16 != 0;
        let given = if inherits && new.kind == FileKind::Dir { libc::S_ISGID as u16 } else { 0 };
        let masked = if is_link { 0 } else { cx.umask & 0o777 };
        Attr {
            kind: new.kind,
            perm: new.perm & 0o7777 & !masked | given,
            nlink: 1,
            uid: cx.uid,
            gid: if inherits { dir.gid } else { cx.gid },
            rdev: new.rdev,
            size: new.size(),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Inode::default().attr
        }
    }

    /// A name came (`len` of its bytes) or went (less than 0).
    fn counted(&self, dir: Ino, len: i64) -> Result<()> {
        let mut inode = self.table.node(dir)?.inode()?;
        inode.attr.size = inode.attr.size.saturating_add_signed(2 * len);
        inode.modified(Timestamp::now());
        Ok(())
    }

    pub(super) fn make(&self, cx: &Context, at: NameIn<'_>, new: New) -> Result<Entry> {
        check_name(at.name)?;
        let mut body = self.table.node(at.dir)?.body_mut();
        self.make_in(body.names_mut()?, cx, at, new, 1)
    }

    fn make_in(
        &self,
        names: &mut Names,
        cx: &Context,
        at: NameIn<'_>,
        new: New,
        lookups: u64,
    ) -> Result<Entry> {
        if names.get(at.name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        let dir = self.alive(at.dir)?;
        let (attr, kind) = (self.inherited(cx, &dir, &new), new.kind);
        let attr = self.table.add(attr, lookups, false, new.body)?;
        names.insert(at.name, Child { ino: attr.ino, kind });
        self.counted(at.dir, at.name.len() as i64)?;
        let generation = self.table.node(attr.ino)?.inode()?.generation;
        Ok(Entry { attr, generation })
    }

    /// ENOENT for a directory that was removed and is still held.
    fn alive(&self, dir: Ino) -> Result<Attr> {
        let attr = self.table.node(dir)?.inode()?.attr;
        if attr.nlink == 0 { Err(Errno::ENOENT.into()) } else { Ok(attr) }
    }

    pub(super) fn make_link(&self, cx: &Context, at: NameIn<'_>, target: &[u8]) -> Result<Entry> {
        match target.len() {
            0 => return Err(Errno::ENOENT.into()),
            len if len > TARGET_MAX => return Err(Errno::ENAMETOOLONG.into()),
            _ => {}
        }
        let body = Body::Link(target.into());
        self.make(cx, at, New { kind: FileKind::Symlink, perm: 0o777, rdev: 0, body })
    }

    pub(super) fn make_nameless(&self, cx: &Context, dir: Ino, new: New) -> Result<Entry> {
        self.table.node(dir)?.body().names()?;
        let attr = Attr { nlink: 0, ..self.inherited(cx, &self.alive(dir)?, &new) };
        let attr = self.table.add(attr, 1, true, new.body)?;
        let generation = self.table.node(attr.ino)?.inode()?.generation;
        Ok(Entry { attr, generation })
    }

    pub(super) fn add_name(&self, ino: Ino, at: NameIn<'_>) -> Result<Entry> {
        check_name(at.name)?;
        let mut body = self.table.node(at.dir)?.body_mut();
        let names = body.names_mut()?;
        if names.get(at.name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.alive(at.dir)?;
        let mut inode = self.table.node(ino)?.inode()?;
        match inode.attr.nlink {
            _ if inode.attr.kind == FileKind::Dir => return Err(Errno::EPERM.into()),
            0 if !inode.linkable => return Err(Errno::ENOENT.into()),
            LINK_MAX.. => return Err(Errno::EMLINK.into()),
            _ => {}
        }
        inode.attr.nlink += 1;
        inode.attr.ctime = Timestamp::now();
        inode.linkable = false;
        names.insert(at.name, Child { ino, kind: inode.attr.kind });
        let entry = entry(&mut inode);
        drop(inode);
        self.counted(at.dir, at.name.len() as i64)?;
        Ok(entry)
    }

    /// `child` has lost a name.
    fn unnamed(&self, child: Child) -> Result<()> {
        let mut inode = self.table.node(child.ino)?.inode()?;
        inode.attr.nlink -= 1;
        inode.attr.ctime = Timestamp::now();
        let gone = inode.is_gone();
        drop(inode);
        if gone {
            self.table.remove(child.ino);
        }
        Ok(())
    }

    pub(super) fn remove_name(&self, at: NameIn<'_>, as_dir: bool) -> Result<()> {
        check_name(at.name)?;
        let _tree = as_dir.then(|| self.tree());
        let mut body = self.table.node(at.dir)?.body_mut();
        let names = body.names_mut()?;
        let child = names.get(at.name).ok_or(Errno::ENOENT)?;
        self.check_replaced(child, as_dir)?;
        names.remove(at.name);
        self.counted(at.dir, -(at.name.len() as i64))?;
        drop(body);
        self.unnamed(child)
    }

    /// `child` may go, as a directory or not. With `tree` held, for a directory.
    fn check_replaced(&self, child: Child, as_dir: bool) -> Result<()> {
        match (as_dir, child.kind == FileKind::Dir) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (false, false) => Ok(()),
            (true, true) => match self.table.node(child.ino)?.body().names()?.is_empty() {
                true => Ok(()),
                false => Err(Errno::ENOTEMPTY.into()),
            },
        }
    }

    /// Who holds this may hold the bodies of more than one.
    fn tree(&self) -> MutexGuard<'_, ()> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn move_name(
        &self,
        cx: &Context,
        from: NameIn<'_>,
        to: NameIn<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        let _tree = self.tree();
        let other = to.dir != from.dir;
        let mut pair = Pair {
            from: self.table.node(from.dir)?.body_mut(),
            to: if other { Some(self.table.node(to.dir)?.body_mut()) } else { None },
        };
        let source = pair.from()?.get(from.name).ok_or(Errno::ENOENT)?;
        let target = pair.to()?.get(to.name);
        match (mode, target) {
            (RenameMode::NoReplace | RenameMode::NoReplaceWhiteout, Some(_)) => {
                return Err(Errno::EEXIST.into());
            }
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            (_, Some(target)) if target.ino == source.ino => return Ok(()),
            (RenameMode::Exchange, Some(target)) => {
                return self.exchange(pair, from, source, to, target);
            }
            (_, Some(target)) => self.check_replaced(target, source.kind == FileKind::Dir)?,
            (_, None) => drop(self.alive(to.dir)?),
        }
        self.moved(&mut pair, from, source, to, target)?;
        if matches!(mode, RenameMode::Whiteout | RenameMode::NoReplaceWhiteout) {
            let (kind, body) = (FileKind::CharDevice, Body::Nothing);
            self.make_in(pair.from()?, cx, from, New { kind, perm: 0, rdev: 0, body }, 0)?;
        }
        drop(pair);
        target.map_or(Ok(()), |target| self.unnamed(target))
    }

    fn moved(
        &self,
        pair: &mut Pair<'_>,
        from: NameIn<'_>,
        source: Child,
        to: NameIn<'_>,
        target: Option<Child>,
    ) -> Result<()> {
        if target.is_some() {
            pair.to()?.remove(to.name);
            self.counted(to.dir, -(to.name.len() as i64))?;
        }
        pair.from()?.remove(from.name);
        pair.to()?.insert(to.name, source);
        self.counted(from.dir, -(from.name.len() as i64))?;
        self.counted(to.dir, to.name.len() as i64)?;
        self.settled(source, from.dir, to.dir)
    }

    fn exchange(
        &self,
        mut pair: Pair<'_>,
        from: NameIn<'_>,
        source: Child,
        to: NameIn<'_>,
        target: Child,
    ) -> Result<()> {
        pair.from()?.remove(from.name);
        pair.to()?.remove(to.name);
        pair.from()?.insert(from.name, target);
        pair.to()?.insert(to.name, source);
        for dir in [from.dir, to.dir] {
            self.counted(dir, 0)?;
        }
        self.settled(source, from.dir, to.dir)?;
        self.settled(target, to.dir, from.dir)
    }

    /// `child` was moved.
    fn settled(&self, child: Child, from: Ino, to: Ino) -> Result<()> {
        let node = self.table.node(child.ino)?;
        if child.kind == FileKind::Dir && from != to {
            node.body_mut().names_mut()?.parent = to;
        }
        node.inode()?.attr.ctime = Timestamp::now();
        Ok(())
    }
}
