//! From a volume onto the host.
//!
//! The volume is not trusted: names are judged before they become part of a path,
//! everything below the top is made exclusively (an existing name, a symbolic link
//! among them, is never written through), and a directory is entered once. Nor is the directory on the
//! host: who owns it may put other things at the names of what was just made. So all is made in directories
//! that are open, and attributes go to what is open; names are made from there, not from the top.

use super::BUFFER;
use super::damage::{Piece, read_around, unverified};
use super::dirs::Dirs;
use super::error::{At, CopyError, Result};
use super::host::{self, HostDir, HostPlace, HostStat, Target, Thing};
use super::links::ExportLinks;
use super::options::{CopyOptions, CopyReport, Lost, Teller};
use super::tried::Tried;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
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
    match HostDir::place(host).at(host, "open directory")? {
        HostPlace::Name(dir, name) => export_tree_at(fs, ino, &dir, &name, options),
        HostPlace::NewDir(dir, name) => match fs.getattr(ino).at(host, "read attributes")?.kind {
            FileKind::Dir => export_tree_at(fs, ino, &dir, &name, options),
            _ => Err(io::Error::from_raw_os_error(libc::ENOTDIR)).at(host, "create"),
        },
        HostPlace::Dir(dir) => export_contents(fs, ino, dir, options),
    }
}

/// Copies what `ino` stands for to `name` in `dir`, as [`export_tree`] does.
pub fn export_tree_at(
    fs: &dyn FileSystem,
    ino: Ino,
    dir: &HostDir,
    name: &[u8],
    options: &CopyOptions<'_>,
) -> Result<CopyReport> {
    exported(fs, options, |export| export.top(ino, dir, name))
}

/// Copies what is in the volume's directory `ino` into the host's directory `dir`, which takes over its
/// attributes.
pub fn export_contents(
    fs: &dyn FileSystem,
    ino: Ino,
    dir: HostDir,
    options: &CopyOptions<'_>,
) -> Result<CopyReport> {
    exported(fs, options, |export| {
        let attr = export.fs.getattr(ino).at(dir.path(), "read attributes")?;
        match attr.kind {
            FileKind::Dir => export.enter_top(dir, attr),
            _ => Err(io::Error::from(ErrorKind::AlreadyExists)).at(dir.path(), "create"),
        }
    })
}

fn exported(
    fs: &dyn FileSystem,
    options: &CopyOptions<'_>,
    copy: impl FnOnce(&mut Export<'_>) -> Result<()>,
) -> Result<CopyReport> {
    let own = ExportLinks::default();
    let mut export = Export::new(fs, options, &own);
    let result = copy(&mut export).and_then(|()| export.run());
    for frame in export.stack.iter().filter(|f| f.held) {
        fs.forget(frame.attr.ino, 1);
    }
    result.map(|()| export.teller.report())
}

/// Gives the open file or directory, which is called `host`, the attributes that a copy of `ino` would have.
pub fn export_attributes(
    fs: &dyn FileSystem,
    ino: Ino,
    host: &Path,
    file: &File,
    options: &CopyOptions<'_>,
) -> Result<()> {
    let attr = fs.getattr(ino).at(host, "read attributes")?;
    let own = ExportLinks::default();
    Export::new(fs, options, &own).attributes(Target::Open(file), host, &attr)
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
    dirs: Dirs,
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
            dirs: Dirs::default(),
            links: options.export_links.unwrap_or(own),
            entered: HashSet::new(),
            buffer: vec![0; BUFFER],
        }
    }

    fn top(&mut self, ino: Ino, dir: &HostDir, name: &[u8]) -> Result<()> {
        let path = dir.join(name);
        let attr = self.fs.getattr(ino).at(&path, "read attributes")?;
        if attr.kind != FileKind::Dir {
            return self.other(dir, name, &path, &attr);
        }
        let there = match dir.make_dir(name) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && self.options.as_new.is_none() => {
                match dir.dir(name) {
                    Err(other) if not_a_directory(&other) => Err(e),
                    there => there,
                }
            }
            made => made,
        };
        self.enter_top(there.at(&path, "create directory")?, attr)
    }

    fn enter_top(&mut self, dir: HostDir, attr: Attr) -> Result<()> {
        self.teller.made(dir.path(), FileKind::Dir, false, None);
        self.descend(dir, attr, false)
    }

    fn run(&mut self) -> Result<()> {
        while let Some(frame) = self.stack.last_mut() {
            if let Some((name, ino)) = frame.left.pop() {
                let done = self.entry((&name, ino));
                self.go_on(done)?;
                continue;
            }
            let Some(Frame { path, attr, held, .. }) = self.stack.pop() else { break };
            let left = self.dirs.pop().at(&path, "leave");
            if held {
                self.fs.forget(attr.ino, 1);
            }
            let done = self.attributes(Target::Open(left?.file()), &path, &attr);
            self.go_on(done)?;
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

    fn entry(&mut self, (name, ino): (&[u8], Ino)) -> Result<()> {
        let Some(Frame { path, attr, .. }) = self.stack.last() else { return Ok(()) };
        let (path, parent) = (joined(path, name), attr.ino);
        let dir = self.dirs.last().at(&path, "open directory")?;
        let (attr, held) = lookup_listed(self.fs, parent, name, ino).at(&path, "look up")?;
        let forget = |fs: &dyn FileSystem| {
            if held {
                fs.forget(attr.ino, 1)
            }
        };
        if attr.kind == FileKind::Dir {
            // Once entered, the frame owns the reference.
            let entered = self.enter(&dir, (name, &path), attr, held);
            return entered.inspect_err(|_| forget(self.fs));
        }
        let result = self.other(&dir, name, &path, &attr);
        forget(self.fs);
        result
    }

    fn enter(
        &mut self,
        dir: &HostDir,
        (name, path): (&[u8], &Path),
        attr: Attr,
        held: bool,
    ) -> Result<()> {
        is_short(path)?;
        let made = dir.make_dir(name).at(path, "create directory")?;
        self.teller.made(path, attr.kind, false, None);
        self.descend(made, attr, held)
    }

    /// Anything but a directory, or another name of it.
    fn other(&mut self, dir: &HostDir, name: &[u8], path: &Path, attr: &Attr) -> Result<()> {
        is_short(path)?;
        if self.links.link(attr.ino, dir, name).at(path, "link")? {
            self.teller.made(path, attr.kind, true, None);
            return Ok(());
        }
        let stat = match attr.kind {
            FileKind::File => {
                let file = self.file(dir, name, path, attr)?;
                HostStat::of_file(&file)
            }
            kind => {
                let thing = self.thing(dir, name, path, attr, kind)?;
                self.attributes(Target::Thing(&thing), path, attr)?;
                thing.stat()
            }
        };
        self.teller.made(path, attr.kind, false, None);
        if attr.nlink > 1 {
            self.links.insert(attr.ino, path, stat.at(path, "stat")?.key, attr.nlink - 1);
        }
        Ok(())
    }

    fn thing(
        &self,
        dir: &HostDir,
        name: &[u8],
        path: &Path,
        attr: &Attr,
        kind: FileKind,
    ) -> Result<Thing> {
        if kind != FileKind::Symlink {
            let rdev = host::rdev_to_host(attr.rdev);
            return dir.make_node(name, kind, rdev).at(path, "create node");
        }
        let target = self.fs.readlink(attr.ino).and_then(whole).at(path, "read link")?;
        dir.make_symlink(name, &target).at(path, "create link")
    }

    fn descend(&mut self, dir: HostDir, attr: Attr, held: bool) -> Result<()> {
        let path = dir.path().to_owned();
        if !self.entered.insert(attr.ino) {
            return Err(CopyError::refused(&path, "is a directory with two names"));
        }
        let mut left = self.names(&path, attr.ino)?;
        left.sort_by(|a, b| b.cmp(a));
        self.dirs.push(dir).at(&path, "stat")?;
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

    fn file(&mut self, dir: &HostDir, name: &[u8], path: &Path, attr: &Attr) -> Result<File> {
        if self.options.nameless
            && let Some(file) = dir.make_nameless()
        {
            self.fill(&file, path, attr)?;
            match dir.name_file(&file, name) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    // Profiles of containers refuse it. All is done again, for this one file.
                }
                named => return named.map(|()| file).at(path, "name file"),
            }
        }
        let file = dir.make_file(name).at(path, "create file")?;
        self.fill(&file, path, attr)?;
        Ok(file)
    }

    /// With all that it is to have.
    fn fill(&mut self, file: &File, path: &Path, attr: &Attr) -> Result<()> {
        file.set_len(attr.size).at(path, "set size")?;
        let mut at = 0;
        while at < attr.size {
            let Some(start) = self.seek(path, attr.ino, at, SeekWhence::Data)? else { break };
            let hole = self.seek(path, attr.ino, start, SeekWhence::Hole)?;
            let end = hole.unwrap_or(attr.size).min(attr.size);
            self.range(path, file, attr.ino, start, end)?;
            at = end.max(at + 1);
        }
        // Before the times: what is written back by then changes none.
        host::settled(file).at(path, "close")?;
        self.attributes(Target::Open(file), path, attr)
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
        if let Some(cx) = self.options.as_new {
            return match attr.kind {
                FileKind::Symlink => Ok(()),
                _ => target
                    .set_mode(u32::from(attr.perm) & 0o777 & !u32::from(cx.umask))
                    .at(path, "set permissions"),
            };
        }
        let given = self.options.owners && target.give(attr.uid, attr.gid).at(path, "set owner")?;
        // A program of somebody else's must not run as the caller.
        let perm = u32::from(attr.perm) & if given { 0o7777 } else { 0o777 };
        let tried = match self.options.xattrs {
            true => self.xattrs(target, path, attr.ino),
            false => Tried::default(),
        };
        if attr.kind != FileKind::Symlink {
            target.set_mode(tried.perm(perm)).at(path, "set permissions")?;
        }
        target.set_times(attr.atime, attr.mtime).at(path, "set times")?;
        tried.result()
    }

    fn xattrs(&self, target: Target<'_>, path: &Path, ino: Ino) -> Tried<CopyError> {
        let mut tried = Tried::default();
        let names = self.fs.listxattr(ino).at(path, "list xattrs");
        let there = target.list_xattrs().at(path, "list xattrs");
        let (names, there) = (tried.all(names), tried.all(there));
        let (Some(mut names), Some(there)) = (names, there) else { return tried };
        names.sort();
        // Only what the host's directory passed on; labels are the host's business.
        for name in there.iter().filter(|n| host::is_acl(n) && !names.contains(n)) {
            tried.one(name, target.remove_xattr(name).at(path, "remove xattr"));
        }
        for name in names {
            // No system call can say such a name, which a volume may have.
            if name.contains(&0) {
                self.teller.skipped_xattr(path, &name);
                continue;
            }
            let value = self.fs.getxattr(ino, &name).at(path, "read xattr");
            let set = value.and_then(|value| match target.set_xattr(&name, &value) {
                Err(e) if host::no_such_xattr_here(&e) => {
                    tried.left_out(&name);
                    self.teller.skipped_xattr(path, &name);
                    Ok(())
                }
                other => other.at(path, "set xattr"),
            });
            tried.one(&name, set);
        }
        tried
    }
}

fn not_a_directory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP | libc::EMLINK))
}

fn joined(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

/// What is made in open directories could have longer paths than anybody can say.
fn is_short(path: &Path) -> Result<()> {
    match path.as_os_str().len() < libc::PATH_MAX as usize {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)).at(path, "create"),
    }
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
