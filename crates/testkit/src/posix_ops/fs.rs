//! The methods of `PosixFs`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use libc::c_int;
use vfs::{
    Attr, Context, DirEntry, Entry, Errno, FallocateMode, FileKind, FileSystem, Ino, RenameMode,
    Result, SeekWhence, SetAttr, SetTime, StatFs, WriteFlags, XattrMode,
};

use super::cred::{acting_as, losing_privileges};
use super::sys;
use super::table::Table;

const PATH: c_int = libc::O_PATH | libc::O_NOFOLLOW;
/// Never wait for the other end of a FIFO.
const READ: c_int = libc::O_RDONLY | libc::O_NONBLOCK;

pub struct PosixFs {
    table: Table,
}

fn signed(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| Errno::EFBIG.into())
}

fn timespec(time: Option<SetTime>) -> libc::timespec {
    match time {
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(SetTime::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(SetTime::At(time)) => {
            libc::timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) }
        }
    }
}

/// The device number as the C library writes it.
fn decode_rdev(rdev: u32) -> u64 {
    let (major, minor) = (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00);
    libc::makedev(major, minor)
}

impl PosixFs {
    /// The directory becomes the root.
    pub fn open(dir: &Path) -> Result<PosixFs> {
        sys::raise_descriptor_limit();
        let path = sys::cstring(dir.as_os_str().as_bytes())?;
        let root = sys::open(&path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        Ok(PosixFs { table: Table::new(root)? })
    }

    fn reopen(&self, ino: Ino, flags: c_int) -> Result<OwnedFd> {
        sys::open(&sys::proc_path(&*self.table.fd(ino)?), flags, 0)
    }

    /// For writing at `offset`; append-only files open for appending alone.
    fn reopen_to_write(&self, ino: Ino, offset: u64) -> Result<OwnedFd> {
        let at_end = || Ok::<_, vfs::FsError>(self.table.attr(ino)?.size == offset);
        match self.reopen(ino, libc::O_WRONLY) {
            Err(error) if error.errno() == libc::EPERM && at_end()? => {
                self.reopen(ino, libc::O_WRONLY | libc::O_APPEND)
            }
            result => result,
        }
    }

    /// A name that was just made or found.
    fn entry(&self, dir: &OwnedFd, name: &[u8]) -> Result<Entry> {
        self.table.enter(sys::openat(dir, &sys::cstring(name)?, PATH)?)
    }

    /// The number of a listed inode. What the record says is wrong where a directory
    /// is the root of a subvolume or a mount.
    fn listed_number(&self, dir: Ino, fd: &OwnedFd, entry: &DirEntry<'_>) -> Result<Ino> {
        if entry.name == b"." || (entry.name == b".." && dir == self.root()) {
            return Ok(dir);
        }
        if entry.kind == FileKind::Dir
            && let Ok(found) = sys::openat(fd, &sys::cstring(entry.name)?, PATH)
        {
            return self.table.number(&found);
        }
        self.table.number_beside(fd, entry.ino)
    }

    fn make(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        call: impl FnOnce(&OwnedFd, &std::ffi::CStr) -> Result<()>,
    ) -> Result<Entry> {
        let (dir, text) = (self.table.fd(parent)?, sys::cstring(name)?);
        acting_as(cx, || call(&dir, &text))?;
        self.entry(&dir, name)
    }
}

impl FileSystem for PosixFs {
    fn root(&self) -> Ino {
        self.table.root
    }

    fn lookup(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.entry(&*self.table.fd(parent)?, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.table.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.table.attr(ino)
    }

    fn setattr(&self, _cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let fd = self.table.fd(ino)?;
        if let Some(size) = set.size {
            let (size, attr) = (signed(size)?, self.table.attr(ino)?);
            // truncate(2) leaves the times where the size stays.
            let stays = attr.kind == FileKind::File && attr.size == size as u64;
            let cut =
                || if stays { sys::truncate_open(&fd, size) } else { sys::truncate(&fd, size) };
            if set.kill_priv { losing_privileges(attr.gid, cut) } else { cut() }?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            sys::chown(&fd, set.uid, set.gid)?;
        }
        if let Some(perm) = set.perm {
            sys::chmod(&fd, perm)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            sys::utimens(&fd, [timespec(set.atime), timespec(set.mtime)])?;
        }
        self.table.attr(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        sys::readlink(&*self.table.fd(ino)?)
    }

    fn mknod(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let mode = kind.mode_bits() | u32::from(perm);
        self.make(cx, parent, name, |dir, name| sys::mknodat(dir, name, mode, decode_rdev(rdev)))
    }

    fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.make(cx, parent, name, |dir, name| sys::mkdirat(dir, name, u32::from(perm)))
    }

    fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let target = sys::cstring(target)?;
        self.make(cx, parent, name, |dir, name| sys::symlinkat(&target, dir, name))
    }

    fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        let from = self.table.fd(ino)?;
        self.make(cx, parent, name, |dir, name| sys::link(&from, dir, name))
    }

    fn tmpfile(&self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry> {
        let dir = sys::proc_path(&*self.table.fd(parent)?);
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        let fd = acting_as(cx, || sys::open(&dir, flags, u32::from(perm)))?;
        self.table.enter(sys::open(&sys::proc_path(&fd), libc::O_PATH, 0)?)
    }

    fn unlink(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        sys::unlinkat(&*self.table.fd(parent)?, &sys::cstring(name)?, 0)
    }

    fn rmdir(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        sys::unlinkat(&*self.table.fd(parent)?, &sys::cstring(name)?, libc::AT_REMOVEDIR)
    }

    fn rename(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (self.table.fd(parent)?, self.table.fd(new_parent)?);
        let (name, new_name) = (sys::cstring(name)?, sys::cstring(new_name)?);
        let flags = match mode {
            RenameMode::Replace => 0,
            RenameMode::NoReplace => libc::RENAME_NOREPLACE,
            RenameMode::Exchange => libc::RENAME_EXCHANGE,
            RenameMode::Whiteout => libc::RENAME_WHITEOUT,
            RenameMode::NoReplaceWhiteout => libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT,
        };
        acting_as(cx, || sys::renameat2(&from, &name, &to, &new_name, flags))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = File::from(self.reopen(ino, READ)?);
        let mut done = 0;
        while done < buf.len() {
            match file.read_at(&mut buf[done..], offset + done as u64).map_err(sys::from_io)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    fn write(
        &self,
        _cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        signed(offset)?;
        let file = File::from(self.reopen_to_write(ino, offset)?);
        let write = || file.write_all_at(data, offset).map_err(sys::from_io);
        match flags.kill_priv {
            true => losing_privileges(self.table.attr(ino)?.gid, write),
            false => write(),
        }?;
        if flags.sync {
            file.sync_data().map_err(sys::from_io)?;
        }
        Ok(data.len())
    }

    fn fallocate(
        &self,
        _cx: &Context,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let flags = match mode {
            FallocateMode::Allocate => 0,
            FallocateMode::KeepSize => libc::FALLOC_FL_KEEP_SIZE,
            FallocateMode::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            FallocateMode::ZeroRange { keep_size: true } => {
                libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE
            }
            FallocateMode::ZeroRange { keep_size: false } => libc::FALLOC_FL_ZERO_RANGE,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        let (offset, len) = (signed(offset)?, signed(len)?);
        let fd = match self.reopen(ino, libc::O_WRONLY) {
            // Append-only files may be allocated through an appending descriptor.
            Err(error) if error.errno() == libc::EPERM => {
                self.reopen(ino, libc::O_WRONLY | libc::O_APPEND)?
            }
            result => result?,
        };
        sys::fallocate(&fd, flags, offset, len)
    }

    fn copy_range(
        &self,
        _cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.reopen(from, READ)?, self.reopen(to, libc::O_WRONLY)?);
        // A copy to the end of its own source would chase that end.
        let len = len.min(self.table.attr(from)?.size.saturating_sub(from_offset));
        let mut done = 0;
        while done < len {
            let (a, b) = (signed(from_offset + done)?, signed(to_offset + done)?);
            let left = (len - done) as usize;
            match sys::copy_file_range(&source, a, &target, b, left)? {
                0 => break,
                copied => done += copied as u64,
            }
        }
        Ok(done)
    }

    fn clone_range(
        &self,
        _cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        let (source, target) = (self.reopen(from, READ)?, self.reopen(to, libc::O_WRONLY)?);
        sys::clone_range(&source, from_offset, &target, to_offset, len)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        let whence = match whence {
            SeekWhence::Data => libc::SEEK_DATA,
            SeekWhence::Hole => libc::SEEK_HOLE,
        };
        sys::lseek(&self.reopen(ino, READ)?, signed(offset)?, whence)
    }

    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        sys::fsync(&self.reopen(ino, READ)?, datasync)
    }

    fn sync(&self) -> Result<()> {
        sys::syncfs(&self.reopen(self.root(), READ)?)
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let fd = self.reopen(dir, READ | libc::O_DIRECTORY)?;
        // Offsets of some file systems use all 64 bits.
        sys::lseek(&fd, offset as i64, libc::SEEK_SET)?;
        loop {
            let records = sys::getdents(&fd)?;
            if records.is_empty() {
                return Ok(());
            }
            let mut rest = &records[..];
            while !rest.is_empty() {
                let (entry, len) = record(rest)?;
                let ino = self.listed_number(dir, &fd, &entry)?;
                if !emit(&DirEntry { ino, ..entry }) {
                    return Ok(());
                }
                rest = &rest[len..];
            }
        }
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        let mut failed = None;
        self.readdir(dir, offset, &mut |listed| {
            if matches!(listed.name, b"." | b"..") {
                return emit(listed, None);
            }
            match self.lookup(&Context::default(), dir, listed.name) {
                Ok(entry) => {
                    let taken = emit(&DirEntry { ino: entry.attr.ino, ..*listed }, Some(&entry));
                    if !taken {
                        self.forget(entry.attr.ino, 1);
                    }
                    taken
                }
                Err(error) if error.errno() == libc::ENOENT => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        sys::getxattr(&*self.table.fd(ino)?, &sys::cstring(name)?)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let list = sys::listxattr(&*self.table.fd(ino)?)?;
        let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    fn setxattr(
        &self,
        _cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let flags = match mode {
            XattrMode::Set => 0,
            XattrMode::Create => libc::XATTR_CREATE,
            XattrMode::Replace => libc::XATTR_REPLACE,
        };
        sys::setxattr(&*self.table.fd(ino)?, &sys::cstring(name)?, value, flags)
    }

    fn removexattr(&self, _cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        sys::removexattr(&*self.table.fd(ino)?, &sys::cstring(name)?)
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        sys::get_flags(&self.reopen(ino, READ)?)
    }

    fn set_flags(&self, _cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        sys::set_flags(&self.reopen(ino, READ)?, flags)
    }

    fn statfs(&self) -> Result<StatFs> {
        sys::statfs(&*self.table.fd(self.root())?)
    }

    fn destroy(&self) -> Result<()> {
        self.sync()
    }
}

/// The first `linux_dirent64` of `bytes` and its length.
fn record(bytes: &[u8]) -> Result<(DirEntry<'_>, usize)> {
    const NAME: usize = 19;
    let word = |at: usize| {
        let raw = bytes.get(at..at + 8).and_then(|raw| raw.try_into().ok());
        raw.map(u64::from_le_bytes).ok_or(Errno::EUCLEAN)
    };
    let (ino, next, tail) = (word(0)?, word(8)?, word(16)?);
    let (len, kind) = (tail as usize & 0xffff, (tail >> 16) as u32 & 0xff);
    let name = bytes.get(NAME..len).ok_or(Errno::EUCLEAN)?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let kind = FileKind::from_mode(kind << 12).ok_or(Errno::EUCLEAN)?;
    Ok((DirEntry { ino: Ino(ino), kind, name, next }, len))
}
