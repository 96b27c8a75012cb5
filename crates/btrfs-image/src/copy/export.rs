//! From a volume onto the host.
//!
//! The volume is not trusted: names are judged before they become part of a path,
//! everything below the top is made exclusively (an existing name, a symbolic link
//! among them, is never written through), and a directory is entered once. Nor is the directory: who
//! owns it may put other things at the names of what was just made, so a file gets its attributes as
//! the open file that it is, and nothing else permissions through a symbolic link.

use super::BUFFER;
use super::damage::{Piece, read_around, unverified};
use super::error::{At, CopyError, Result};
use super::host::{self, Target};
use super::links::ExportLinks;
use super::options::{CopyOptions, CopyReport, Lost, Teller};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vfs::{Attr, Damage, Errno, FileKind, FileSystem, FsError, Ino, SeekWhence, lookup_listed};

/// Copies what `ino` stands for to the path `host`. A directory may go into one that
/// exists, which takes over its attributes; anything else must not exist.
pub fn export_tree(
    fs: &dyn FileSystem,
    ino: Ino,
    host: &Path,
    options: &CopyOptions<'_>,
) -> Result<CopyReport> {
    let own = ExportLinks::default();
    let mut export = Export::new(fs, options, &own);
    let result = export.top(ino, host);
    for frame in export.stack.iter().filter(|f| f.held) {
        fs.forget(frame.attr.ino, 1);
    }
    result.map(|()| export.teller.report())
}

/// Gives what is at the path `host`, and no symbolic link unless `ino` is one, the
/// attributes that a copy of `ino` would have. With `file` it is that one, which was opened there.
pub fn export_attributes(
    fs: &dyn FileSystem,
    ino: Ino,
    host: &Path,
    file: Option<&File>,
    options: &CopyOptions<'_>,
) -> Result<()> {
    let attr = fs.getattr(ino).at(host, "read attributes")?;
    let target = file.map_or(Target::At(host, attr.kind), Target::Open);
    Export::new(fs, options, &ExportLinks::default()).attributes(target, host, &attr)
}

/// A directory whose entries are being copied.
struct Frame {
    path: PathBuf,
    attr: Attr,
    held: bool,
    /// In reverse order, each with what the listing says that it is.
    left: Vec<(Vec<u8>, Ino)>,
}

struct Export<'a> {
    fs: &'a dyn FileSystem,
    options: &'a CopyOptions<'a>,
    teller: Teller<'a>,
    stack: Vec<Frame>,
    links: &'a ExportLinks,
    entered: HashSet<Ino>,
    buffer: Vec<u8>,
}

impl<'a> Export<'a> {
    /// `own` is for copies that share their links with no others.
    fn new(
        fs: &'a dyn FileSystem,
        options: &'a CopyOptions<'a>,
        own: &'a ExportLinks,
    ) -> Export<'a> {
        Export {
            fs,
            options,
            teller: Teller::new(options),
            stack: Vec::new(),
            links: options.export_links.unwrap_or(own),
            entered: HashSet::new(),
            buffer: vec![0; BUFFER],
        }
    }

    fn top(&mut self, ino: Ino, host: &Path) -> Result<()> {
        let attr = self.fs.getattr(ino).at(host, "read attributes")?;
        if attr.kind == FileKind::Dir {
            match make_dir(host) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists && host.is_dir() => {}
                other => other.at(host, "create directory")?,
            }
            self.teller.made(host, FileKind::Dir, false);
            self.descend(host.to_owned(), attr, false)?;
        } else {
            self.other(host, &attr)?;
        }
        self.run()
    }

    fn run(&mut self) -> Result<()> {
        while let Some(frame) = self.stack.last_mut() {
            if let Some((name, ino)) = frame.left.pop() {
                let (path, parent) = (frame.path.join(OsStr::from_bytes(&name)), frame.attr.ino);
                let done = self.entry(path, parent, (&name, ino));
                self.go_on(done)?;
                continue;
            }
            let (path, attr) = (frame.path.clone(), frame.attr);
            let done = self.attributes(Target::At(&path, attr.kind), &path, &attr);
            self.go_on(done)?;
            if let Some(Frame { held: true, .. }) = self.stack.pop() {
                self.fs.forget(attr.ino, 1);
            }
        }
        Ok(())
    }

    /// What the volume cannot give does not end the copy, if somebody is told; nor what the host does
    /// not take of one thing.
    fn go_on(&self, result: Result<()>) -> Result<()> {
        match (result, self.options.lost) {
            (Err(CopyError::Volume { path, source, .. }), Some(lost)) => {
                lost(&Lost { path: &path, range: None, why: &source, copied: false });
                Ok(())
            }
            (result, _) => self.teller.go_on(result),
        }
    }

    fn entry(&mut self, path: PathBuf, parent: Ino, (name, ino): (&[u8], Ino)) -> Result<()> {
        let (attr, held) = lookup_listed(self.fs, parent, name, ino).at(&path, "look up")?;
        let forget = |fs: &dyn FileSystem| {
            if held {
                fs.forget(attr.ino, 1)
            }
        };
        if attr.kind == FileKind::Dir {
            // Once entered, the frame owns the reference.
            return self.enter(path, attr, held).inspect_err(|_| forget(self.fs));
        }
        let result = self.other(&path, &attr);
        forget(self.fs);
        result
    }

    fn enter(&mut self, path: PathBuf, attr: Attr, held: bool) -> Result<()> {
        make_dir(&path).at(&path, "create directory")?;
        self.teller.made(&path, attr.kind, false);
        self.descend(path, attr, held)
    }

    /// Anything but a directory, or another name of it.
    fn other(&mut self, path: &Path, attr: &Attr) -> Result<()> {
        if self.links.link(attr.ino, path).at(path, "link")? {
            self.teller.made(path, attr.kind, true);
            return Ok(());
        }
        let mut made = None;
        match attr.kind {
            FileKind::File => made = Some(self.file(path, attr)?),
            FileKind::Symlink => {
                let target = self.fs.readlink(attr.ino).and_then(whole).at(path, "read link")?;
                let target = OsStr::from_bytes(&target);
                std::os::unix::fs::symlink(target, path).at(path, "create link")?;
            }
            kind => {
                let rdev = host::rdev_to_host(attr.rdev);
                host::make_node(path, kind.mode_bits() | 0o600, rdev).at(path, "create node")?;
            }
        }
        let target = made.as_ref().map_or(Target::At(path, attr.kind), Target::Open);
        self.attributes(target, path, attr)?;
        self.teller.made(path, attr.kind, false);
        if attr.nlink > 1 {
            self.links.insert(attr.ino, path, attr.nlink - 1).at(path, "stat")?;
        }
        Ok(())
    }

    fn descend(&mut self, path: PathBuf, attr: Attr, held: bool) -> Result<()> {
        if !self.entered.insert(attr.ino) {
            return Err(CopyError::refused(&path, "is a directory with two names"));
        }
        let mut left = self.names(&path, attr.ino)?;
        left.sort_by(|a, b| b.cmp(a));
        self.stack.push(Frame { path, attr, held, left });
        Ok(())
    }

    fn names(&self, path: &Path, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut names: Vec<(Vec<u8>, Ino)> = Vec::new();
        // Where the last names are lost nobody can say where they end.
        let (mut at, end) = (0, self.fs.dir_end(dir).unwrap_or(u64::MAX));
        loop {
            let start = at;
            let mut take = |entry: &vfs::DirEntry<'_>| {
                if entry.next > end {
                    return false;
                }
                at = entry.next;
                if !matches!(entry.name, b"." | b"..") {
                    names.push((entry.name.to_vec(), entry.ino));
                }
                true
            };
            let mut told = self.fs.readdir(dir, start, &mut take);
            let ended = at == start;
            if ended {
                told = told.and_then(|()| self.fs.listing_ended(dir, end));
            }
            if let Err(why) = told {
                self.names_lost(path, why)?;
                break;
            }
            if ended {
                break;
            }
        }
        match names.iter().find(|(name, _)| !harmless(name)) {
            None => Ok(names),
            Some(_) => Err(CopyError::refused(path, "holds a name that no path can have")),
        }
    }

    /// The names that could be told are copied where somebody hears of the others.
    fn names_lost(&self, path: &Path, why: FsError) -> Result<()> {
        match self.options.lost {
            Some(lost) => {
                lost(&Lost { path, range: None, why: &why, copied: false });
                Ok(())
            }
            None => Err(why).at(path, "read directory"),
        }
    }

    fn file(&mut self, path: &Path, attr: &Attr) -> Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.at(path, "create file")?;
        file.set_len(attr.size).at(path, "set size")?;
        let mut at = 0;
        while at < attr.size {
            let Some(start) = self.seek(path, attr.ino, at, SeekWhence::Data)? else { break };
            let hole = self.seek(path, attr.ino, start, SeekWhence::Hole)?;
            let end = hole.unwrap_or(attr.size).min(attr.size);
            self.range(path, &file, attr.ino, start, end)?;
            at = end.max(at + 1);
        }
        Ok(file)
    }

    /// `None` behind the last data.
    fn seek(&self, path: &Path, ino: Ino, at: u64, whence: SeekWhence) -> Result<Option<u64>> {
        match self.fs.seek(ino, at, whence) {
            Err(FsError::Posix(Errno::ENXIO)) => Ok(None),
            other => other.at(path, "seek").map(Some),
        }
    }

    fn range(&mut self, path: &Path, file: &File, ino: Ino, start: u64, end: u64) -> Result<()> {
        let (teller, lost) = (&self.teller, self.options.lost);
        let mut take = |at: u64, piece: Piece<'_>| match piece {
            Piece::Good(bytes) => {
                file.write_all_at(bytes, at).at(path, "write")?;
                teller.data(path, bytes.len() as u64);
                Ok(())
            }
            Piece::Lost(len, why) => match lost {
                Some(lost) => {
                    lost(&Lost { path, range: Some((at, len)), why: &why, copied: false });
                    Ok(())
                }
                None => Err(why).at(path, "read"),
            },
            Piece::Unverified(len) => {
                if let Some(lost) = lost {
                    let why = unverified();
                    lost(&Lost { path, range: Some((at, len)), why: &why, copied: true });
                }
                Ok(())
            }
        };
        read_around(self.fs, ino, (start, end), &mut self.buffer, &mut take)
    }

    /// In the order that keeps each from undoing another: owner, xattrs, mode, times.
    fn attributes(&self, target: Target<'_>, path: &Path, attr: &Attr) -> Result<()> {
        let given = self.options.owners && target.give(attr.uid, attr.gid).at(path, "set owner")?;
        // A program of somebody else's must not run as the caller.
        let perm = u32::from(attr.perm) & if given { 0o7777 } else { 0o777 };
        if self.options.xattrs {
            self.xattrs(target, path, attr.ino)?;
        }
        if attr.kind != FileKind::Symlink {
            target.set_mode(perm).at(path, "set permissions")?;
        }
        target.set_times(attr.atime, attr.mtime).at(path, "set times")
    }

    fn xattrs(&self, target: Target<'_>, path: &Path, ino: Ino) -> Result<()> {
        let mut names = self.fs.listxattr(ino).at(path, "list xattrs")?;
        names.sort();
        for name in target.list_xattrs().at(path, "list xattrs")? {
            // Only what the host's directory passed on; labels are the host's business.
            if host::is_acl(&name) && !names.contains(&name) {
                target.remove_xattr(&name).at(path, "remove xattr")?;
            }
        }
        for name in names {
            let value = self.fs.getxattr(ino, &name).at(path, "read xattr")?;
            match target.set_xattr(&name, &value) {
                Err(e) if host::no_such_xattr_here(&e) => self.teller.skipped_xattr(path, &name),
                other => other.at(path, "set xattr")?,
            }
        }
        Ok(())
    }
}

fn make_dir(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn harmless(name: &[u8]) -> bool {
    !name.is_empty() && !name.contains(&b'/') && !name.contains(&0)
}

/// No path has a zero byte in it, or none at all; a metadata dump has links that do.
fn whole(target: Vec<u8>) -> vfs::Result<Vec<u8>> {
    match target.is_empty() || target.contains(&0) {
        true => Err(Damage::new("a link to no path").into()),
        false => Ok(target),
    }
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in [&b""[..], b"/", b"a/b", b"../x", b"/etc/passwd", b"a\0b"] {
            assert!(!harmless(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b"-rf", b"\xff\n", b"a\\b"] {
            assert!(harmless(name), "{name:?}");
        }
    }
}
