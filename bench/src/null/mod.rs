//! A file system in memory that does as little as one can: what a mount of it takes is FUSE, the
//! kernel and the programs.
//!
//! It answers what a mount of Spinney is asked, with the right contents, and keeps nothing when it ends. Its
//! way to a request is the product's own (`fuse`), so the two differ in what a file system does, and nowhere else:
//! inodes are found by number without a lock, each has locks of its own, nothing is
//! ordered, checked or counted but what the next answer needs.
//!
//! What it does not know: space, durability, flags, compression, ACLs beyond the three that a mode
//! has, access times.

mod content;
mod dir;
mod names;
mod table;
mod xattrs;

use content::{Content, MOST, PIECE};
use dir::{FIRST, Names};
use names::{NameIn, New, entry};
use std::sync::Mutex;
use table::{Body, Inode, Table};
use vfs::{
    Attr, Context, DirEntry, Entry, Errno, FallocateMode, FileKind, FileSystem, Ino, RenameMode,
    Result, SeekWhence, SetAttr, SetTime, StatFs, Timestamp, WriteFlags, XattrMode,
};

const ROOT: Ino = Ino(1);
/// Of one copy; who wants more asks again.
const COPIED_AT_ONCE: u64 = 64 << 20;

pub struct NullFs {
    table: Table,
    /// See `table`.
    tree: Mutex<()>,
}

impl Default for NullFs {
    fn default() -> NullFs {
        NullFs::new()
    }
}

fn end_of(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64);
    end.ok_or(Errno::EFBIG.into())
}

fn set_times(attr: &mut Attr, set: &SetAttr, now: Timestamp) {
    let pick = |time| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    attr.atime = set.atime.map_or(attr.atime, pick);
    attr.mtime = set.mtime.map_or(attr.mtime, pick);
    attr.ctime = set.ctime.unwrap_or(now);
    attr.btime = set.btime.unwrap_or(attr.btime);
}

impl NullFs {
    pub fn new() -> NullFs {
        let now = Timestamp::now();
        let (kind, perm) = (FileKind::Dir, 0o755);
        let attr = Attr { kind, perm, nlink: 1, mtime: now, ctime: now, ..Inode::default().attr };
        let table = Table::new();
        let root = table.add(attr, 1, false, Body::Dir(Box::new(Names::new(ROOT))));
        debug_assert!(root.is_ok_and(|attr| attr.ino == ROOT));
        NullFs { table, tree: Mutex::default() }
    }

    fn resize(&self, ino: Ino, size: u64) -> Result<()> {
        end_of(size, 0)?;
        let node = self.table.node(ino)?;
        let mut body = node.body_mut();
        let content = body.file_mut()?;
        content.truncate(size);
        self.changed(ino, content, false)
    }

    /// What is told of a file whose content changed. Called with the content held.
    fn changed(&self, ino: Ino, content: &Content, kill_priv: bool) -> Result<()> {
        let mut inode = self.table.node(ino)?.inode()?;
        (inode.attr.size, inode.attr.blocks) = (content.size(), content.sectors());
        inode.modified(Timestamp::now());
        if kill_priv {
            inode.drop_set_ids(false);
        }
        Ok(())
    }

    fn list(
        &self,
        dir: Ino,
        offset: u64,
        plus: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        let body = self.table.node(dir)?.body();
        let names = body.names()?;
        let dots = [(0, &b"."[..], dir), (1, &b".."[..], names.parent)];
        for (number, name, ino) in dots.into_iter().skip(offset.min(FIRST) as usize) {
            let named = DirEntry { ino, kind: FileKind::Dir, name, next: number + 1 };
            if !emit(&named, None) {
                return Ok(());
            }
        }
        for (number, name, child) in names.from(offset) {
            let named = DirEntry { ino: child.ino, kind: child.kind, name, next: number + 1 };
            let taken = match plus {
                false => emit(&named, None),
                true => self.list_one(&named, emit)?,
            };
            if !taken {
                break;
            }
        }
        Ok(())
    }

    fn list_one(
        &self,
        named: &DirEntry<'_>,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<bool> {
        let mut inode = self.table.node(named.ino)?.inode()?;
        let taken = emit(named, Some(&entry(&mut inode)));
        inode.lookups -= u64::from(!taken);
        Ok(taken)
    }
}

impl FileSystem for NullFs {
    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, _: &Context, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.find(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Ok(node) = self.table.node(ino) else { return };
        let Ok(mut inode) = node.inode() else { return };
        inode.lookups = inode.lookups.saturating_sub(count);
        let gone = inode.is_gone();
        drop(inode);
        if gone {
            self.table.remove(ino);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.table.node(ino)?.inode()?.attr)
    }

    fn setattr(&self, _: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if let Some(size) = set.size {
            self.resize(ino, size)?;
        }
        let mut inode = self.table.node(ino)?.inode()?;
        if (SetAttr { size: None, ..*set }) == SetAttr::default() {
            return Ok(inode.attr);
        }
        if set.kill_priv {
            inode.drop_set_ids(set.kill_sgid);
        }
        if (set.uid.is_some() || set.gid.is_some()) && inode.attr.kind != FileKind::Dir {
            inode.drop_capability();
        }
        let attr = &mut inode.attr;
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.perm = set.perm.map_or(attr.perm, |perm| perm & 0o7777);
        set_times(attr, set, Timestamp::now());
        Ok(*attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &*self.table.node(ino)?.body() {
            Body::Link(target) => Ok(target.to_vec()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn mknod(
        &self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let (rdev, body) = match kind {
            FileKind::Dir | FileKind::Symlink => return Err(Errno::EINVAL.into()),
            FileKind::File => (0, Body::File(Content::default())),
            FileKind::CharDevice | FileKind::BlockDevice => (rdev, Body::Nothing),
            FileKind::Fifo | FileKind::Socket => (0, Body::Nothing),
        };
        self.make(cx, NameIn { dir, name }, New { kind, perm, rdev, body })
    }

    fn mkdir(&self, cx: &Context, dir: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let body = Body::Dir(Box::new(Names::new(dir)));
        // Of the three special bits, mkdir takes only the sticky one.
        let new = New { kind: FileKind::Dir, perm: perm & 0o1777, rdev: 0, body };
        self.make(cx, NameIn { dir, name }, new)
    }

    fn symlink(&self, cx: &Context, dir: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make_link(cx, NameIn { dir, name }, target)
    }

    fn link(&self, _: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.add_name(ino, NameIn { dir, name })
    }

    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Entry> {
        let body = Body::File(Content::default());
        self.make_nameless(cx, dir, New { kind: FileKind::File, perm, rdev: 0, body })
    }

    fn unlink(&self, _: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove_name(NameIn { dir, name }, false)
    }

    fn rmdir(&self, _: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove_name(NameIn { dir, name }, true)
    }

    fn rename(
        &self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.move_name(cx, NameIn { dir, name }, NameIn { dir: new_dir, name: new_name }, mode)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.table.node(ino)?.body().file()?.read(offset, buf))
    }

    fn write(
        &self,
        _: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        if end_of(offset, data.len() as u64)? > MOST {
            return Err(Errno::EFBIG.into());
        }
        let mut body = self.table.node(ino)?.body_mut();
        let content = body.file_mut()?;
        if !data.is_empty() {
            content.put(offset, data);
            self.changed(ino, content, flags.kill_priv)?;
        }
        Ok(data.len())
    }

    fn fallocate(
        &self,
        _: &Context,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let mut body = self.table.node(ino)?.body_mut();
        let content = body.file_mut()?;
        let end = end_of(offset, len)?;
        match mode {
            FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => content.zero(offset, len),
            FallocateMode::Allocate | FallocateMode::KeepSize => {}
            _ => return Err(Errno::EOPNOTSUPP.into()),
        }
        if matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange { keep_size: false }) {
            content.grow(end);
        }
        self.changed(ino, content, false)
    }

    fn copy_range(
        &self,
        _: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let apart = from_offset.abs_diff(to_offset);
        let (source, target) = (self.table.node(from)?, self.table.node(to)?);
        let size = source.body().file()?.size();
        let len = len.min(size.saturating_sub(from_offset)).min(COPIED_AT_ONCE);
        if from == to && apart < len {
            return Err(Errno::EINVAL.into());
        }
        if end_of(to_offset, len)? > MOST {
            return Err(Errno::EFBIG.into());
        }
        let mut done = 0;
        while done < len {
            let most = (len - done).min(PIECE as u64) as usize;
            // Of one at a time: another may copy the other way.
            let given = source.body().file()?.give(from_offset + done, most);
            if given.len == 0 {
                break;
            }
            let (at, next) = (to_offset + done, done + given.len as u64);
            let mut body = target.body_mut();
            let content = body.file_mut()?;
            content.take(at, given);
            if next >= len {
                self.changed(to, content, false)?;
            }
            done = next;
        }
        Ok(done)
    }

    fn clone_range(&self, _: &Context, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<()> {
        // No mount passes it on.
        Err(Errno::EOPNOTSUPP.into())
    }

    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        let body = self.table.node(ino)?.body();
        let content = body.file()?;
        let found = content.seek(offset, whence == SeekWhence::Data);
        found.filter(|_| offset < content.size()).ok_or(Errno::ENXIO.into())
    }

    fn fsync(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(dir, offset, false, &mut |named, _| emit(named))
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        self.list(dir, offset, true, emit)
    }

    fn dir_end(&self, dir: Ino) -> Result<u64> {
        Ok(self.table.node(dir)?.body().names()?.end())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.table.node(ino)?.inode()?;
        xattrs::get(&inode, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.table.node(ino)?.inode()?;
        Ok(inode.xattrs.as_ref().map_or(Vec::new(), |all| all.keys().cloned().collect()))
    }

    fn setxattr(
        &self,
        _: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let mut inode = self.table.node(ino)?.inode()?;
        xattrs::set(&mut inode, name, value, mode)
    }

    fn removexattr(&self, _: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        let mut inode = self.table.node(ino)?.inode()?;
        xattrs::remove(&mut inode, name)
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        self.getattr(ino).map(|_| 0)
    }

    fn statfs(&self) -> Result<StatFs> {
        let room = 1 << 30;
        Ok(StatFs {
            block_size: 4096,
            blocks: room,
            blocks_free: room,
            blocks_available: room,
            files: 0,
            files_free: 0,
            name_max: vfs::NAME_MAX as u32,
        })
    }

    /// All that has a name is kept for the next mount.
    fn destroy(&self) -> Result<()> {
        self.table.forget_all(ROOT);
        Ok(())
    }
}
