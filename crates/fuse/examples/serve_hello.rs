//! The transport without btrfs: a read-only file system in memory, served by FUSE.
//!
//! `serve_hello MOUNTPOINT [OPTIONS]`, options as after `mount -o`. Unmounting ends the
//! program. This is all that a file system needs to be mounted: an implementation of
//! `vfs::FileSystem`, and `Session::mount`.

use fuse::{Config, Session};
use std::sync::Arc;
use vfs::{
    Attr, Context, DirEntry, Entry, Errno, FallocateMode, FileKind, FileSystem, Ino, RenameMode,
    Result, SeekWhence, SetAttr, StatFs, Timestamp, WriteFlags, XattrMode,
};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mountpoint = arguments.next().ok_or("which mount point?")?;
    let mut config = Config { read_only: true, fsname: "hello".into(), ..Config::default() };
    config.apply_options(&arguments.next().unwrap_or_default())?;
    Session::mount(Arc::new(Hello { made: Timestamp::now() }), &mountpoint, &config)?.run()?;
    Ok(())
}

/// Files of the only directory, from inode 2 on.
const FILES: [(&str, &str); 2] =
    [("hello.txt", "hello from a file system of its own\n"), ("empty", "")];
const ROOT: Ino = Ino(1);

struct Hello {
    made: Timestamp,
}

impl Hello {
    fn content(&self, ino: Ino) -> Result<&'static [u8]> {
        if ino == ROOT {
            return Err(Errno::EISDIR.into());
        }
        let number = usize::try_from(ino.0).ok().and_then(|ino| ino.checked_sub(2));
        let file = number.and_then(|number| FILES.get(number)).ok_or(Errno::ESTALE)?;
        Ok(file.1.as_bytes())
    }

    fn entry(&self, ino: Ino) -> Result<Entry> {
        Ok(Entry { attr: self.getattr(ino)?, generation: 0 })
    }

    /// Name and inode of what is listed, behind `.` and `..`.
    fn names() -> impl Iterator<Item = (&'static str, Ino)> {
        (2..).zip(FILES).map(|(ino, (name, _))| (name, Ino(ino)))
    }
}

fn refused<T>() -> Result<T> {
    Err(Errno::EROFS.into())
}

impl FileSystem for Hello {
    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, _: &Context, _: Ino, name: &[u8]) -> Result<Entry> {
        let found = Hello::names().find(|(known, _)| known.as_bytes() == name);
        self.entry(found.ok_or(Errno::ENOENT)?.1)
    }

    /// Nothing ever goes: nobody counts.
    fn forget(&self, _: Ino, _: u64) {}

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let (kind, perm, size) = match ino {
            ROOT => (FileKind::Dir, 0o555, 0),
            file => (FileKind::File, 0o444, self.content(file)?.len() as u64),
        };
        let made = self.made;
        Ok(Attr {
            ino,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            blksize: 4096,
            atime: made,
            mtime: made,
            ctime: made,
            btime: made,
            attributes: 0,
        })
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let content = self.content(ino)?;
        let rest = content.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.readdir_plus(dir, offset, &mut |entry, _| emit(entry))
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        if dir != ROOT {
            return Err(Errno::ENOTDIR.into());
        }
        let all = [(".", ROOT), ("..", ROOT)].into_iter().chain(Hello::names());
        for (next, (name, ino)) in (1..).zip(all).skip_while(|(next, _)| *next <= offset) {
            let entry = self.entry(ino)?;
            let named = DirEntry { ino, kind: entry.attr.kind, name: name.as_bytes(), next };
            if !emit(&named, (ino != ROOT).then_some(&entry)) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { block_size: 4096, blocks: 1, name_max: 255, ..StatFs::default() })
    }

    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        let size = self.content(ino)?.len() as u64;
        match whence {
            _ if offset >= size => Err(Errno::ENXIO.into()),
            SeekWhence::Data => Ok(offset),
            SeekWhence::Hole => Ok(size),
        }
    }

    fn readlink(&self, _: Ino) -> Result<Vec<u8>> {
        Err(Errno::EINVAL.into())
    }
    fn getxattr(&self, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::ENODATA.into())
    }
    fn listxattr(&self, _: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn fsync(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn destroy(&self) -> Result<()> {
        Ok(())
    }

    // What would change something.

    fn setattr(&self, _: &Context, _: Ino, _: &SetAttr) -> Result<Attr> {
        refused()
    }
    fn mknod(&self, _: &Context, _: Ino, _: &[u8], _: FileKind, _: u16, _: u32) -> Result<Entry> {
        refused()
    }
    fn mkdir(&self, _: &Context, _: Ino, _: &[u8], _: u16) -> Result<Entry> {
        refused()
    }
    fn symlink(&self, _: &Context, _: Ino, _: &[u8], _: &[u8]) -> Result<Entry> {
        refused()
    }
    fn link(&self, _: &Context, _: Ino, _: Ino, _: &[u8]) -> Result<Entry> {
        refused()
    }
    fn tmpfile(&self, _: &Context, _: Ino, _: u16) -> Result<Entry> {
        refused()
    }
    fn unlink(&self, _: &Context, _: Ino, _: &[u8]) -> Result<()> {
        refused()
    }
    fn rmdir(&self, _: &Context, _: Ino, _: &[u8]) -> Result<()> {
        refused()
    }
    fn rename(&self, _: &Context, _: Ino, _: &[u8], _: Ino, _: &[u8], _: RenameMode) -> Result<()> {
        refused()
    }
    fn write(&self, _: &Context, _: Ino, _: u64, _: &[u8], _: WriteFlags) -> Result<usize> {
        refused()
    }
    fn fallocate(&self, _: &Context, _: Ino, _: FallocateMode, _: u64, _: u64) -> Result<()> {
        refused()
    }
    fn copy_range(&self, _: &Context, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<u64> {
        refused()
    }
    fn clone_range(&self, _: &Context, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<()> {
        refused()
    }
    fn setxattr(&self, _: &Context, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        refused()
    }
    fn removexattr(&self, _: &Context, _: Ino, _: &[u8]) -> Result<()> {
        refused()
    }
}
