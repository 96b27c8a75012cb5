//! Making, finding and removing names.

use vfs::{Context, Entry, Errno, FileKind, Ino, NAME_MAX, Result};

use super::acl::{ACCESS, Acl, DEFAULT};
use super::flags;
use super::state::{Body, Directory, Inode, State};

const SYMLINK_MAX: usize = 4095;

/// A name that may be looked up.
pub(super) fn check_lookup_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// A name that may be made or removed.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    check_lookup_name(name)?;
    if matches!(name, b"." | b"..") { Err(Errno::EINVAL.into()) } else { Ok(()) }
}

/// Permissions, owner, ACLs and flags of a new inode below `dir`.
fn inherit(cx: &Context, dir: &Inode, inode: &mut Inode) -> Result<()> {
    inode.uid = cx.uid;
    inode.gid = cx.gid;
    if dir.perm & libc::S_ISGID as u16 != 0 {
        inode.gid = dir.gid;
        if inode.kind == FileKind::Dir {
            inode.perm |= libc::S_ISGID as u16;
        }
    }
    if inode.kind != FileKind::Symlink {
        inherit_acl(cx, dir, inode)?;
    }
    flags::inherit(dir, inode);
    Ok(())
}

fn inherit_acl(cx: &Context, dir: &Inode, inode: &mut Inode) -> Result<()> {
    let default = match dir.xattrs.get(DEFAULT) {
        Some(bytes) => Acl::parse(bytes)?,
        None => None,
    };
    let Some(default) = default else {
        inode.perm &= !(cx.umask & 0o777);
        return Ok(());
    };
    let (access, perm) = default.inherit(inode.perm);
    inode.perm = perm;
    if !access.is_plain() {
        inode.xattrs.insert(ACCESS.to_vec(), access.to_bytes());
    }
    if inode.kind == FileKind::Dir {
        inode.xattrs.insert(DEFAULT.to_vec(), default.to_bytes());
    }
    Ok(())
}

impl State {
    pub(super) fn find(&self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let dir = self.dir(parent)?;
        check_lookup_name(name)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(dir.parent),
            _ => dir.get(name).ok_or_else(|| Errno::ENOENT.into()),
        }
    }

    /// Names can be added to `parent`, and `name` is free.
    pub(super) fn check_free(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let dir = self.dir(parent)?;
        check_name(name)?;
        if dir.get(name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.check_may_create(parent)
    }

    pub(super) fn check_may_create(&self, parent: Ino) -> Result<()> {
        let inode = self.get(parent)?;
        if inode.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        if inode.immutable() { Err(Errno::EPERM.into()) } else { Ok(()) }
    }

    /// `victim` may lose its name in `parent`, as (or to) a directory or not.
    pub(super) fn check_may_delete(&self, parent: Ino, victim: Ino, as_dir: bool) -> Result<()> {
        let (dir, inode) = (self.get(parent)?, self.get(victim)?);
        let frozen = |inode: &Inode| inode.immutable() || inode.append_only();
        if frozen(dir) || frozen(inode) {
            return Err(Errno::EPERM.into());
        }
        match (as_dir, inode.kind == FileKind::Dir) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            _ => Ok(()),
        }
    }

    fn make(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        finish: impl FnOnce(&mut Inode),
    ) -> Result<Ino> {
        self.check_free(parent, name)?;
        let now = self.now();
        let mut inode = self.blank(kind, perm & 0o7777, now);
        inherit(cx, self.get(parent)?, &mut inode)?;
        inode.nlink = 1;
        finish(&mut inode);
        let ino = self.adopt(inode);
        self.put_name(parent, name, ino)?;
        self.get_mut(parent)?.touch(now);
        Ok(ino)
    }

    pub(super) fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Ino> {
        let rdev = match kind {
            FileKind::Dir | FileKind::Symlink => return Err(Errno::EINVAL.into()),
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            FileKind::File | FileKind::Fifo | FileKind::Socket => 0,
        };
        self.make(cx, parent, name, kind, perm, |inode| inode.rdev = rdev)
    }

    pub(super) fn mkdir(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        perm: u16,
    ) -> Result<Ino> {
        let body = Body::Dir(Box::new(Directory::new(parent)));
        // Of the three special bits, mkdir takes only the sticky one.
        let perm = perm & 0o1777;
        self.make(cx, parent, name, FileKind::Dir, perm, |inode| inode.body = body)
    }

    pub(super) fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Ino> {
        if target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let body = Body::Symlink(target.to_vec());
        self.make(cx, parent, name, FileKind::Symlink, 0o777, |inode| inode.body = body)
    }

    pub(super) fn tmpfile(&mut self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry> {
        self.dir(parent)?;
        self.check_may_create(parent)?;
        let now = self.now();
        let mut inode = self.blank(FileKind::File, perm & 0o7777, now);
        inherit(cx, self.get(parent)?, &mut inode)?;
        inode.linkable = true;
        let ino = self.adopt(inode);
        self.entry(ino)
    }

    pub(super) fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.check_free(parent, name)?;
        let (now, limit) = (self.now(), self.profile.link_max);
        let inode = self.get_mut(ino)?;
        if inode.immutable() || inode.append_only() || inode.kind == FileKind::Dir {
            return Err(Errno::EPERM.into());
        }
        if inode.nlink == 0 && !inode.linkable {
            return Err(Errno::ENOENT.into());
        }
        if inode.nlink >= limit {
            return Err(Errno::EMLINK.into());
        }
        inode.nlink += 1;
        inode.linkable = false;
        inode.ctime = now;
        self.put_name(parent, name, ino)?;
        self.get_mut(parent)?.touch(now);
        self.entry(ino)
    }

    /// Takes `name` out of `parent` and one link from its inode.
    pub(super) fn take_name(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let now = self.now();
        self.get_mut(parent)?.touch(now);
        let ino = self.dir_mut(parent)?.remove(name).ok_or(Errno::ENOENT)?;
        let inode = self.get_mut(ino)?;
        inode.nlink -= 1;
        inode.ctime = now;
        self.drop_if_gone(ino);
        Ok(())
    }

    pub(super) fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let ino = self.find(parent, name)?;
        self.check_may_delete(parent, ino, false)?;
        self.take_name(parent, name)
    }

    pub(super) fn rmdir(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let ino = self.find(parent, name)?;
        self.check_may_delete(parent, ino, true)?;
        if !self.dir(ino)?.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.take_name(parent, name)
    }
}
