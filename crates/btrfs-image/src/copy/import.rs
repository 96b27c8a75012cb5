//! From the host into a volume.
//!
//! Directories get their attributes after their entries: a default ACL or set-group-ID
//! bit that is not there yet is not inherited, and times stay as they were. A file is there with all
//! of its content, or not at all.
//!
//! What is copied is what was opened, all of it: whoever owns the directory may put other things at its
//! names meanwhile, and attributes of one thing must not come to the content of another.

mod content;

use super::BUFFER;
use super::dirs::Dirs;
use super::error::{At, CopyError, Result};
use super::host::{self, HostDir, HostPlace, HostStat, Target, Thing};
use super::links::ImportLinks;
use super::options::{CopyOptions, CopyReport, Teller};
use super::tried::Tried;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use vfs::{Context, Entry, Errno, FileKind, FileSystem, FsError, Ino, SetAttr, SetTime, XattrMode};

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
    let result = Source::at(host).and_then(|source| import.top((host, source), parent, name, None));
    import.finish(result)
}

/// The same of the name `from` in `dir`, whatever has the path of that by now. Of a copy that began further up
/// `stay` is the device that it keeps to: a directory of another one is made, and nothing in it.
pub fn import_tree_at(
    fs: &dyn FileSystem,
    (dir, from): (&HostDir, &[u8]),
    parent: Ino,
    name: &[u8],
    stay: Option<u64>,
    options: &CopyOptions<'_>,
) -> Result<CopyReport> {
    let own = ImportLinks::new(fs);
    let mut import = Import::new(fs, options, &own);
    let host = dir.join(from);
    let result = Source::named(dir, from, &host, stay)
        .and_then(|source| import.top((&host, source), parent, name, stay));
    import.finish(result)
}

/// Copies the entries of the host's directory `from` into the volume's directory `dir`, which
/// takes over the former's attributes.
pub fn import_contents(
    fs: &dyn FileSystem,
    from: HostDir,
    dir: Ino,
    options: &CopyOptions<'_>,
) -> Result<CopyReport> {
    let own = ImportLinks::new(fs);
    let mut import = Import::new(fs, options, &own);
    let result = import.contents(from, dir);
    import.finish(result)
}

/// Gives `ino` the attributes that a copy of `file` would have, which was opened at `host`.
pub fn import_attributes(
    fs: &dyn FileSystem,
    host: &Path,
    file: &File,
    ino: Ino,
    options: &CopyOptions<'_>,
) -> Result<()> {
    let links = ImportLinks::new(fs);
    let import = Import::new(fs, options, &links);
    let meta = HostStat::of_file(file).at(host, "stat")?;
    import.attributes((host, Target::Open(file)), ino, &meta)
}

/// Gives the regular file `ino` the content of `file` instead of its own, which was opened at `host`. What cannot be read
/// at all takes nothing from what is there. It goes in pieces that the engine keeps in memory while it can: what this
/// machine refuses at the end has changed nothing then.
pub fn import_content(
    fs: &dyn FileSystem,
    host: &Path,
    file: &File,
    ino: Ino,
    options: &CopyOptions<'_>,
) -> Result<()> {
    let links = ImportLinks::new(fs);
    let mut import = Import::new(fs, options, &links);
    let size = HostStat::of_file(file).at(host, "stat")?.size;
    import.piece = GATHERED;
    file.read_at(&mut import.buffer[..1], 0).at(host, "read")?;
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&Context::default(), ino, &set).at(host, "set size")?;
    import.content(host, file, size, ino)
}

/// What is written at a time over a file that is there: less than what an engine sends to the device at once.
/// Chosen, not measured.
const GATHERED: usize = 64 << 10;

/// What is copied, open.
enum Source {
    Dir(HostDir),
    /// One that may not be listed, and why.
    Closed(Thing, io::Error),
    File(File),
    /// What is neither; or a directory that is not to be listed.
    Other(Thing),
}

impl Source {
    /// What was `seen` in `dir`. A directory of another device than `stay` is not to be listed: it takes no
    /// right to, and nothing is mounted there for our sake.
    fn open(dir: &HostDir, name: &[u8], seen: &HostStat, stay: Option<u64>) -> io::Result<Source> {
        let is_foreign = |stat: &HostStat| stay.is_some_and(|device| device != stat.key.0);
        let source = match seen.kind() {
            Some(FileKind::Dir) if !is_foreign(seen) => Source::open_dir(dir, name, is_foreign)?,
            // Of what cannot be read there is nothing, as with cp(1).
            Some(FileKind::File) => Source::File(dir.open_file(name)?),
            _ => Source::Other(dir.thing(name)?),
        };
        let opened = source.stat()?;
        if opened.key == seen.key {
            return Ok(source);
        }
        // What is mounted when somebody enters came by the opening itself, and has the name now.
        let is_listed = matches!(source, Source::Dir(_) | Source::Closed(..));
        let may_be = seen.is(FileKind::Dir) && opened.is(FileKind::Dir);
        match may_be
            && (is_listed || is_foreign(&opened))
            && self::seen(dir, name)?.key == opened.key
        {
            true => Ok(source),
            false => Err(host::replaced()),
        }
    }

    fn open_dir(
        dir: &HostDir,
        name: &[u8],
        is_foreign: impl Fn(&HostStat) -> bool,
    ) -> io::Result<Source> {
        match dir.dir(name) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                let thing = dir.thing(name)?;
                match is_foreign(&thing.stat()?) {
                    true => Ok(Source::Other(thing)),
                    false => Ok(Source::Closed(thing, e)),
                }
            }
            opened => opened.map(Source::Dir),
        }
    }

    /// What a path names, which is not followed.
    fn at(host: &Path) -> Result<Source> {
        match HostDir::place(host).at(host, "stat")? {
            HostPlace::Name(dir, name) => Source::named(&dir, &name, host, None),
            HostPlace::NewDir(..) => Err(nothing()).at(host, "stat"),
            HostPlace::Dir(dir) => Ok(Source::Dir(dir)),
        }
    }

    fn named(dir: &HostDir, name: &[u8], host: &Path, stay: Option<u64>) -> Result<Source> {
        let seen = seen(dir, name).at(host, "stat")?;
        Source::open(dir, name, &seen, stay).at(host, "open")
    }

    fn target(&self) -> Target<'_> {
        match self {
            Source::Dir(dir) => Target::Open(dir.file()),
            Source::File(file) => Target::Open(file),
            Source::Closed(thing, _) | Source::Other(thing) => Target::Thing(thing),
        }
    }

    fn stat(&self) -> io::Result<HostStat> {
        match self.target() {
            Target::Open(file) => HostStat::of_file(file),
            Target::Thing(thing) => thing.stat(),
        }
    }
}

fn seen(dir: &HostDir, name: &[u8]) -> io::Result<HostStat> {
    dir.stat(name, false)?.ok_or_else(nothing)
}

fn nothing() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

/// A directory whose entries are being copied.
struct Frame {
    path: PathBuf,
    ino: Ino,
    /// Whether `ino` carries a lookup reference of ours.
    held: bool,
    meta: HostStat,
    /// In reverse order.
    left: Vec<Vec<u8>>,
}

struct Import<'a> {
    fs: &'a dyn FileSystem,
    options: &'a CopyOptions<'a>,
    teller: Teller<'a>,
    stack: Vec<Frame>,
    dirs: Dirs,
    links: &'a ImportLinks<'a>,
    device: u64,
    buffer: Vec<u8>,
    /// Bytes that are written at a time, at most.
    piece: usize,
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
            dirs: Dirs::default(),
            links: options.import_links.unwrap_or(own),
            device: 0,
            buffer: vec![0; BUFFER],
            piece: BUFFER,
        }
    }

    fn finish(self, result: Result<()>) -> Result<CopyReport> {
        result.map(|()| self.teller.report())
    }

    fn top(
        &mut self,
        (host, source): (&Path, Source),
        parent: Ino,
        name: &[u8],
        stay: Option<u64>,
    ) -> Result<()> {
        self.device = match stay {
            Some(device) => device,
            None => source.stat().at(host, "stat")?.key.0,
        };
        self.source(host.to_owned(), source, parent, name)?;
        self.run()
    }

    fn contents(&mut self, from: HostDir, dir: Ino) -> Result<()> {
        let meta = HostStat::of_file(from.file()).at(from.path(), "stat")?;
        self.device = meta.key.0;
        self.descend(from, dir, false, meta)?;
        self.run()
    }

    fn run(&mut self) -> Result<()> {
        self.steps().inspect_err(|_| self.finish_made())
    }

    /// Directories that the copy made get what they are due, also where it ends before all that is in them came. What fails
    /// there the error stands for that it ended with.
    fn finish_made(&mut self) {
        while let Some(Frame { path, ino, held, meta, .. }) = self.stack.pop() {
            let dir = self.dirs.pop();
            if let (Ok(dir), true) = (dir, held) {
                let _ = self.attributes((&path, Target::Open(dir.file())), ino, &meta);
            }
            self.let_go(ino, held);
        }
    }

    fn steps(&mut self) -> Result<()> {
        while let Some(frame) = self.stack.last_mut() {
            if let Some(name) = frame.left.pop() {
                let (path, parent) = (frame.path.join(OsStr::from_bytes(&name)), frame.ino);
                let done = self.entry(path, parent, &name);
                self.teller.go_on(done)?;
                continue;
            }
            let Some(Frame { path, ino, held, meta, .. }) = self.stack.pop() else { break };
            let left = self.dirs.pop().at(&path, "leave");
            let done =
                left.map(|dir| self.attributes((&path, Target::Open(dir.file())), ino, &meta));
            self.let_go(ino, held);
            self.teller.go_on(done?)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, parent: Ino, name: &[u8]) -> Result<()> {
        if path.as_os_str().len() >= libc::PATH_MAX as usize {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)).at(&path, "open");
        }
        let dir = self.dirs.last().at(&path, "open directory")?;
        let seen = seen(&dir, name).at(&path, "stat")?;
        if self.options.leave_out == Some(seen.key) {
            self.teller.left_out(&path);
            return Ok(());
        }
        let stay = self.options.one_file_system.then_some(self.device);
        let source = Source::open(&dir, name, &seen, stay).at(&path, "open")?;
        self.source(path, source, parent, name)
    }

    fn source(&mut self, path: PathBuf, source: Source, parent: Ino, name: &[u8]) -> Result<()> {
        let meta = source.stat().at(&path, "stat")?;
        if self.options.leave_out == Some(meta.key) {
            self.teller.left_out(&path);
            return Ok(());
        }
        let Some(kind) = meta.kind() else {
            return Err(CopyError::refused(&path, "is of an unknown kind"));
        };
        if kind != FileKind::Dir && self.link(&path, &meta, parent, name)? {
            self.teller.made(&path, kind, true, None);
            return Ok(());
        }
        let ino = self.make(&path, &source, &meta, kind, parent, name)?.attr.ino;
        self.teller.made(&path, kind, false, Some(ino));
        let filled = match source {
            Source::Dir(dir) => return self.descend(dir, ino, true, meta),
            Source::File(ref file) => self.whole(&path, file, meta.size, ino, (parent, name)),
            Source::Closed(..) | Source::Other(_) => Ok(()),
        };
        // It stays as well where not all of them can be had, and so do its other names.
        let stays = filled.is_ok();
        let filled = filled.and_then(|()| self.attributes((&path, source.target()), ino, &meta));
        if stays && kind != FileKind::Dir && meta.nlink > 1 {
            self.links.insert(&meta, ino);
        } else {
            self.fs.forget(ino, 1);
        }
        match source {
            Source::Closed(_, why) => filled.and(Err(why).at(&path, "read directory")),
            _ => filled,
        }
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
    fn link(&mut self, path: &Path, meta: &HostStat, parent: Ino, name: &[u8]) -> Result<bool> {
        let Some(ino) = self.links.get(meta).at(path, "link")? else { return Ok(false) };
        let cx = Context::default();
        match self.fs.link(&cx, ino, parent, name) {
            // In another subvolume it is a file of its own.
            Err(FsError::Posix(Errno::EXDEV)) => return Ok(false),
            linked => drop(linked.at(path, "link")?),
        }
        self.fs.forget(ino, 1);
        if self.options.as_new.is_none() {
            let set = SetAttr { ctime: Some(meta.ctime), ..SetAttr::default() };
            self.fs.setattr(&cx, ino, &set).at(path, "set times")?;
        }
        self.links.seen(meta);
        Ok(true)
    }

    fn make(
        &self,
        path: &Path,
        source: &Source,
        meta: &HostStat,
        kind: FileKind,
        parent: Ino,
        name: &[u8],
    ) -> Result<Entry> {
        let mut cx = self.options.as_new.unwrap_or_default();
        if self.options.owners {
            (cx.uid, cx.gid) = (meta.uid, meta.gid);
        }
        let perm = (meta.mode & 0o777) as u16;
        match (kind, source) {
            (FileKind::Dir, _) => self.fs.mkdir(&cx, parent, name, perm),
            (FileKind::Symlink, Source::Other(link)) => {
                let target = link.link_target().at(path, "read link")?;
                self.fs.symlink(&cx, parent, name, &target)
            }
            _ => {
                let rdev = host::rdev_to_volume(meta.rdev);
                self.fs.mknod(&cx, parent, name, kind, perm, rdev)
            }
        }
        .at(path, "create")
    }

    fn descend(&mut self, dir: HostDir, ino: Ino, held: bool, meta: HostStat) -> Result<()> {
        let (path, mut left) = (dir.path().to_owned(), Vec::new());
        if !self.options.one_file_system || meta.key.0 == self.device {
            let read = dir.names().at(&path, "read directory");
            let told = self.teller.go_on(read.map(|names| left = names));
            told.inspect_err(|_| self.let_go(ino, held))?;
        }
        left.reverse();
        let entered = self.dirs.push(dir).at(&path, "stat");
        entered.inspect_err(|_| self.let_go(ino, held))?;
        self.stack.push(Frame { path, ino, held, meta, left });
        Ok(())
    }

    fn let_go(&self, ino: Ino, held: bool) {
        if held {
            self.fs.forget(ino, 1);
        }
    }

    /// Owner first (it drops capabilities), then xattrs (ACLs touch permissions), then
    /// permissions and times. What is made as new has its own since it was made.
    fn attributes(
        &self,
        (path, source): (&Path, Target<'_>),
        ino: Ino,
        meta: &HostStat,
    ) -> Result<()> {
        if self.options.as_new.is_some() {
            return Ok(());
        }
        let cx = Context::default();
        if self.options.owners {
            let (uid, gid) = (Some(meta.uid), Some(meta.gid));
            let set = SetAttr { uid, gid, ..SetAttr::default() };
            self.fs.setattr(&cx, ino, &set).at(path, "set owner")?;
        }
        let tried = match self.options.xattrs {
            true => self.xattrs((path, source), ino),
            false => Tried::default(),
        };
        let perm = tried.perm(meta.mode & 0o7777) as u16;
        let set = SetAttr {
            perm: (!meta.is(FileKind::Symlink)).then_some(perm),
            atime: Some(SetTime::At(meta.atime)),
            mtime: Some(SetTime::At(meta.mtime)),
            ctime: Some(meta.ctime),
            ..SetAttr::default()
        };
        self.fs.setattr(&cx, ino, &set).at(path, "set attributes")?;
        tried.result()
    }

    fn xattrs(&self, (path, source): (&Path, Target<'_>), ino: Ino) -> Tried<CopyError> {
        let (cx, mut tried) = (Context::default(), Tried::default());
        let names = source.list_xattrs().at(path, "list xattrs");
        let there = self.fs.listxattr(ino).at(path, "list xattrs");
        let (names, there) = (tried.all(names), tried.all(there));
        let (Some(names), Some(there)) = (names, there) else { return tried };
        // What the volume's directory passed on and the host's file does not have.
        for name in there.iter().filter(|n| host::is_acl(n) && !names.contains(n)) {
            tried.one(name, self.fs.removexattr(&cx, ino, name).at(path, "remove xattr"));
        }
        for name in names {
            let value = match source.get_xattr(&name) {
                Err(e) if host::cannot_be_read(&e) => {
                    self.left_out(&mut tried, path, &name, &e);
                    continue;
                }
                other => other.at(path, "read xattr"),
            };
            let set = value.and_then(|value| {
                match self.fs.setxattr(&cx, ino, &name, &value, XattrMode::Set) {
                    Err(FsError::Posix(Errno::EOPNOTSUPP)) => {
                        tried.left_out(&name);
                        self.teller.skipped_xattr(path, &name);
                        Ok(())
                    }
                    other => other.at(path, "set xattr"),
                }
            });
            tried.one(&name, set);
        }
        tried
    }

    /// A name that is listed and cannot be read. What has just gone the copy does not lack, unless it is an ACL: then
    /// the permissions that were looked at before are its mask.
    fn left_out(&self, tried: &mut Tried<CopyError>, path: &Path, name: &[u8], error: &io::Error) {
        tried.left_out(name);
        if !host::has_gone(error) || host::is_acl(name) {
            self.teller.skipped_xattr(path, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As where something is mounted by the opening: what was looked at before is not what is opened, and the
    /// name leads to the latter.
    #[test]
    fn a_directory_that_came_by_the_opening_is_taken_and_nothing_else() {
        let top = testkit::oracle::TempDir::new("came").unwrap();
        let dir = HostDir::open(top.path()).unwrap();
        for name in [b"below", b"above"] {
            drop(dir.make_dir(name).unwrap());
        }
        drop(dir.make_file(b"file").unwrap());
        let (below, above) = (seen(&dir, b"below").unwrap(), seen(&dir, b"above").unwrap());
        let opened = Source::open(&dir, b"above", &below, None).unwrap();
        assert!(matches!(opened, Source::Dir(_)) && opened.stat().unwrap().key == above.key);
        // Not to be listed, so not to be entered, what is opened instead is another one.
        let (own, other) = (Some(above.key.0), Some(above.key.0 + 1));
        assert!(matches!(Source::open(&dir, b"above", &above, own).unwrap(), Source::Dir(_)));
        assert!(matches!(Source::open(&dir, b"above", &above, other).unwrap(), Source::Other(_)));
        let foreign = HostStat { key: (above.key.0 + 1, 1), ..above };
        assert!(Source::open(&dir, b"above", &foreign, own).is_err());
        let file = seen(&dir, b"file").unwrap();
        for (name, seen) in [(&b"file"[..], &below), (b"above", &file)] {
            assert!(Source::open(&dir, name, seen, None).is_err());
        }
    }
}
