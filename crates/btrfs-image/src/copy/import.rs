//! From the host into a volume.
//!
//! Directories get their attributes after their entries: a default ACL or set-group-ID
//! bit that is not there yet is not inherited, and times stay as they were. A file is there with all
//! of its content, or not at all.

use super::BUFFER;
use super::error::{At, CopyError, Result};
use super::host;
use super::links::ImportLinks;
use super::options::{CopyOptions, CopyReport, Teller};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use vfs::{
    Context, Entry, Errno, FileKind, FileSystem, FsError, Ino, SetAttr, SetTime, Timestamp,
    WriteFlags, XattrMode,
};

/// Copies what `host` names into `parent` of the volume, there called `name`.
pub fn import_tree(
    fs: &dyn FileSystem,
    host: &Path,
    parent: Ino,
    name: &[u8],
    options: &CopyOptions<'_>,
) -> Result<CopyReport> {
    let own = ImportLinks::new(fs);
    let mut import = Import::new(fs, options, &own);
    let result = import.top(host, parent, name);
    import.finish(result)
}

/// Copies the entries of the host's directory into the volume's directory `dir`, which
/// takes over the former's attributes.
pub fn import_contents(
    fs: &dyn FileSystem,
    host: &Path,
    dir: Ino,
    options: &CopyOptions<'_>,
) -> Result<CopyReport> {
    let own = ImportLinks::new(fs);
    let mut import = Import::new(fs, options, &own);
    let result = import.contents(host, dir);
    import.finish(result)
}

/// Gives `ino` the attributes that a copy of what `host` names would have: of `file`, where that is open,
/// whatever has the name by now.
pub fn import_attributes(
    fs: &dyn FileSystem,
    host: &Path,
    file: Option<&File>,
    ino: Ino,
    options: &CopyOptions<'_>,
) -> Result<()> {
    let meta = file.map_or_else(|| host.symlink_metadata(), File::metadata).at(host, "stat")?;
    Import::new(fs, options, &ImportLinks::new(fs)).attributes((host, file), ino, &meta)
}

/// A directory whose entries are being copied.
struct Frame {
    path: PathBuf,
    ino: Ino,
    /// Whether `ino` carries a lookup reference of ours.
    held: bool,
    meta: Metadata,
    /// In reverse order.
    left: Vec<OsString>,
}

struct Import<'a> {
    fs: &'a dyn FileSystem,
    options: &'a CopyOptions<'a>,
    teller: Teller<'a>,
    stack: Vec<Frame>,
    links: &'a ImportLinks<'a>,
    device: u64,
    buffer: Vec<u8>,
}

impl<'a> Import<'a> {
    /// `own` is for copies that share their links with no others.
    fn new(
        fs: &'a dyn FileSystem,
        options: &'a CopyOptions<'a>,
        own: &'a ImportLinks<'a>,
    ) -> Import<'a> {
        Import {
            fs,
            options,
            teller: Teller::new(options),
            stack: Vec::new(),
            links: options.import_links.unwrap_or(own),
            device: 0,
            buffer: vec![0; BUFFER],
        }
    }

    /// Gives all references back, however the copy ended.
    fn finish(self, result: Result<()>) -> Result<CopyReport> {
        for frame in self.stack.iter().filter(|f| f.held) {
            self.fs.forget(frame.ino, 1);
        }
        result.map(|()| self.teller.report())
    }

    fn top(&mut self, host: &Path, parent: Ino, name: &[u8]) -> Result<()> {
        self.device = host.symlink_metadata().at(host, "stat")?.dev();
        self.entry(host.to_owned(), parent, name)?;
        self.run()
    }

    fn contents(&mut self, host: &Path, dir: Ino) -> Result<()> {
        let meta = host.metadata().at(host, "stat")?;
        if !meta.is_dir() {
            return Err(CopyError::refused(host, "is not a directory"));
        }
        self.device = meta.dev();
        self.descend(host.to_owned(), dir, false, meta)?;
        self.run()
    }

    fn run(&mut self) -> Result<()> {
        while let Some(frame) = self.stack.last_mut() {
            if let Some(name) = frame.left.pop() {
                let (path, parent) = (frame.path.join(&name), frame.ino);
                let done = self.entry(path, parent, name.as_bytes());
                self.teller.go_on(done)?;
                continue;
            }
            let (path, ino, meta) = (frame.path.clone(), frame.ino, frame.meta.clone());
            let done = self.attributes((&path, None), ino, &meta);
            self.teller.go_on(done)?;
            if let Some(Frame { held: true, .. }) = self.stack.pop() {
                self.fs.forget(ino, 1);
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, parent: Ino, name: &[u8]) -> Result<()> {
        let meta = path.symlink_metadata().at(&path, "stat")?;
        if self.options.leave_out == Some((meta.dev(), meta.ino())) {
            self.teller.left_out(&path);
            return Ok(());
        }
        let Some(kind) = FileKind::from_mode(meta.mode()) else {
            return Err(CopyError::refused(&path, "is of an unknown kind"));
        };
        if kind != FileKind::Dir && self.link(&path, &meta, parent, name)? {
            self.teller.made(&path, kind, true);
            return Ok(());
        }
        // Of what cannot be read there is nothing, as with cp(1).
        let source = (kind == FileKind::File).then(|| host::open(&path).at(&path, "open"));
        let source = source.transpose()?;
        let ino = self.make(&path, &meta, kind, parent, name)?.attr.ino;
        self.teller.made(&path, kind, false);
        if kind == FileKind::Dir {
            return self.descend(path, ino, true, meta);
        }
        let filled = match &source {
            Some(file) => self.whole(&path, file, meta.len(), ino, (parent, name)),
            None => Ok(()),
        };
        let at = (path.as_path(), source.as_ref());
        let filled = filled.and_then(|()| self.attributes(at, ino, &meta));
        if filled.is_ok() && meta.nlink() > 1 {
            self.links.insert(&meta, ino);
        } else {
            self.fs.forget(ino, 1);
        }
        filled
    }

    /// All of the content, or the file is gone again.
    fn whole(
        &mut self,
        path: &Path,
        file: &File,
        size: u64,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
    ) -> Result<()> {
        self.content(path, file, size, ino).inspect_err(|_| {
            // What made it fail is told, and not this.
            let _ = self.fs.unlink(&Context::default(), parent, name);
        })
    }

    /// Makes another name of something that is there already; false if it is not.
    fn link(&mut self, path: &Path, meta: &Metadata, parent: Ino, name: &[u8]) -> Result<bool> {
        let Some(ino) = self.links.get(meta).at(path, "link")? else { return Ok(false) };
        let cx = Context::default();
        self.fs.link(&cx, ino, parent, name).at(path, "link")?;
        self.fs.forget(ino, 1);
        let set = SetAttr { ctime: Some(changed(meta)), ..SetAttr::default() };
        self.fs.setattr(&cx, ino, &set).at(path, "set times")?;
        self.links.seen(meta);
        Ok(true)
    }

    fn make(
        &self,
        path: &Path,
        meta: &Metadata,
        kind: FileKind,
        parent: Ino,
        name: &[u8],
    ) -> Result<Entry> {
        let mut cx = Context::default();
        if self.options.owners {
            (cx.uid, cx.gid) = (meta.uid(), meta.gid());
        }
        let perm = (meta.mode() & 0o777) as u16;
        match kind {
            FileKind::Dir => self.fs.mkdir(&cx, parent, name, perm),
            FileKind::Symlink => {
                let target = path.read_link().at(path, "read link")?;
                self.fs.symlink(&cx, parent, name, target.as_os_str().as_bytes())
            }
            _ => {
                let rdev = host::rdev_to_volume(meta.rdev());
                self.fs.mknod(&cx, parent, name, kind, perm, rdev)
            }
        }
        .at(path, "create")
    }

    fn descend(&mut self, path: PathBuf, ino: Ino, held: bool, meta: Metadata) -> Result<()> {
        let mut left = Vec::new();
        if !self.options.one_file_system || meta.dev() == self.device {
            let read = list(&path, &mut left);
            self.teller.go_on(read)?;
        }
        left.sort_by(|a, b| b.cmp(a));
        self.stack.push(Frame { path, ino, held, meta, left });
        Ok(())
    }

    fn content(&mut self, path: &Path, file: &File, size: u64, ino: Ino) -> Result<()> {
        let (mut at, mut written) = (0, 0);
        while at < size {
            let Some(start) = host::seek_data(file, at).at(path, "seek")? else { break };
            let end = host::seek_hole(file, start, size).at(path, "seek")?;
            written = self.range(path, file, ino, start, end)?.max(written);
            at = end.max(at + 1);
        }
        if written < size {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.fs.setattr(&Context::default(), ino, &set).at(path, "set size")?;
        }
        Ok(())
    }

    /// Copies one range of data; returns where it ended, earlier if the file shrank.
    fn range(&mut self, path: &Path, file: &File, ino: Ino, start: u64, end: u64) -> Result<u64> {
        let mut at = start;
        while at < end {
            let want = BUFFER.min((end - at) as usize);
            let got = match file.read_at(&mut self.buffer[..want], at) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other.at(path, "read")?,
            };
            if got == 0 {
                break;
            }
            let (cx, flags) = (Context::default(), WriteFlags::default());
            let mut done = 0;
            while done < got {
                let part = &self.buffer[done..got];
                match self.fs.write(&cx, ino, at + done as u64, part, flags).at(path, "write")? {
                    0 => return Err(FsError::from(Errno::ENOSPC)).at(path, "write"),
                    n => done += n,
                }
            }
            at += got as u64;
            self.teller.data(path, got as u64);
        }
        Ok(at)
    }

    /// Owner first (it drops capabilities), then xattrs (ACLs touch permissions), then
    /// permissions and times. Of what is open, or has the name.
    fn attributes(
        &self,
        (path, file): (&Path, Option<&File>),
        ino: Ino,
        meta: &Metadata,
    ) -> Result<()> {
        let cx = Context::default();
        if self.options.owners {
            let (uid, gid) = (Some(meta.uid()), Some(meta.gid()));
            let set = SetAttr { uid, gid, ..SetAttr::default() };
            self.fs.setattr(&cx, ino, &set).at(path, "set owner")?;
        }
        if self.options.xattrs {
            self.xattrs((path, file), ino)?;
        }
        let set = SetAttr {
            perm: (!meta.is_symlink()).then_some((meta.mode() & 0o7777) as u16),
            atime: Some(SetTime::At(time(meta.atime(), meta.atime_nsec()))),
            mtime: Some(SetTime::At(time(meta.mtime(), meta.mtime_nsec()))),
            ctime: Some(changed(meta)),
            ..SetAttr::default()
        };
        self.fs.setattr(&cx, ino, &set).at(path, "set attributes")?;
        Ok(())
    }

    fn xattrs(&self, (path, file): (&Path, Option<&File>), ino: Ino) -> Result<()> {
        let cx = Context::default();
        let names = match file {
            Some(file) => host::list_xattrs_of(file),
            None => host::list_xattrs(path),
        };
        let names = names.at(path, "list xattrs")?;
        // What the volume's directory passed on and the host's file does not have.
        let inherited = self.fs.listxattr(ino).at(path, "list xattrs")?;
        for name in inherited.iter().filter(|n| host::is_acl(n) && !names.contains(n)) {
            self.fs.removexattr(&cx, ino, name).at(path, "remove xattr")?;
        }
        for name in names {
            let value = match file {
                Some(file) => host::get_xattr_of(file, &name),
                None => host::get_xattr(path, &name),
            };
            let value = match value {
                // Names that are listed and cannot be read (or have just gone).
                Err(e) if host::cannot_be_read(&e) => continue,
                other => other.at(path, "read xattr")?,
            };
            match self.fs.setxattr(&cx, ino, &name, &value, XattrMode::Set) {
                Err(FsError::Posix(Errno::EOPNOTSUPP)) => self.teller.skipped_xattr(path, &name),
                other => other.at(path, "set xattr")?,
            }
        }
        Ok(())
    }
}

fn list(path: &Path, names: &mut Vec<OsString>) -> Result<()> {
    for entry in path.read_dir().at(path, "read directory")? {
        names.push(entry.at(path, "read directory")?.file_name());
    }
    Ok(())
}

fn time(secs: i64, nanos: i64) -> Timestamp {
    Timestamp { secs, nanos: nanos as u32 }
}

fn changed(meta: &Metadata) -> Timestamp {
    time(meta.ctime(), meta.ctime_nsec())
}
