//! Directories of this machine by descriptor: what is looked up, made, renamed and taken away is so in that
//! very directory, whatever its path leads to by now.
//!
//! Invariant: no name leads through a symbolic link, unless a call says that it follows one. A path is
//! there for messages, and for who keeps it. It does not know attributes.

use super::{done, system};
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use vfs::{FileKind, Timestamp};

const LIST: libc::c_int = libc::O_RDONLY | libc::O_DIRECTORY;

/// An open directory of this machine.
#[derive(Debug)]
pub struct HostDir {
    file: File,
    path: PathBuf,
}

/// What a path leads to.
// Exhaustive: a copy goes to either, or nowhere.
#[derive(Debug)]
pub enum HostPlace {
    /// A name in a directory, which something has or not.
    Name(HostDir, Vec<u8>),
    /// A name that nothing leads to, and that a directory alone can have: `new/`.
    NewDir(HostDir, Vec<u8>),
    /// A directory that is there, and may have no name of its own: `.`, `dir/`.
    Dir(HostDir),
}

/// What something on this machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HostStat {
    /// Device and inode number: which one it is.
    pub key: (u64, u64),
    /// Type and permissions.
    pub mode: u32,
    /// How many names it has.
    pub nlink: u64,
    /// Which device it is, if one.
    pub rdev: u64,
    /// Who owns it.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Bytes of content.
    pub size: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

impl HostStat {
    /// What it is; `None` for what volumes do not have.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Whether it is of this kind.
    pub fn is(&self, kind: FileKind) -> bool {
        self.kind() == Some(kind)
    }

    // The widths of these members differ between systems.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    pub(super) fn of(stat: &libc::stat) -> HostStat {
        HostStat {
            key: (stat.st_dev as u64, stat.st_ino as u64),
            mode: stat.st_mode as u32,
            nlink: stat.st_nlink as u64,
            rdev: stat.st_rdev as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            atime: time(stat.st_atime as i64, stat.st_atime_nsec as i64),
            mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Of what has this name in a directory, or this path.
    pub(super) fn of_name(
        dir: libc::c_int,
        name: &CStr,
        flags: libc::c_int,
    ) -> io::Result<HostStat> {
        // SAFETY: plain data; all zeros is a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, the name NUL-terminated, and the call writes `stat`.
        done(unsafe { libc::fstatat(dir, name.as_ptr(), &raw mut stat, flags) })?;
        Ok(HostStat::of(&stat))
    }

    /// Of what is open.
    pub fn of_file(file: &File) -> io::Result<HostStat> {
        // SAFETY: plain data; all zeros is a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: takes a descriptor, which `file` owns, and writes `stat`.
        done(unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) })?;
        Ok(HostStat::of(&stat))
    }
}

fn time(secs: i64, nanos: i64) -> Timestamp {
    Timestamp { secs, nanos: nanos as u32 }
}

/// Something else came in the place of what was just made or looked at.
pub(crate) fn replaced() -> io::Error {
    io::Error::other("something else is there by now")
}

/// One name, of something in a directory.
fn one(name: &[u8]) -> io::Result<CString> {
    match name.is_empty() || name.contains(&b'/') || matches!(name, b"." | b"..") {
        true => Err(ErrorKind::InvalidInput.into()),
        false => Ok(CString::new(name)?),
    }
}

/// A path, or one name in `dir`.
fn open(dir: libc::c_int, name: &CStr, flags: libc::c_int, mode: libc::c_uint) -> io::Result<File> {
    // SAFETY: the descriptor is open, or the working directory's, and the name NUL-terminated.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave it to us alone.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

pub(super) fn open_at(
    dir: &File,
    name: &CStr,
    flags: libc::c_int,
    mode: libc::c_uint,
) -> io::Result<File> {
    open(dir.as_raw_fd(), name, flags, mode)
}

fn open_path(path: &Path, flags: libc::c_int) -> io::Result<File> {
    open(libc::AT_FDCWD, &super::c_path(path)?, flags, 0)
}

impl HostDir {
    /// The directory that `path` leads to, to be listed. An empty one leads nowhere.
    pub fn open(path: &Path) -> io::Result<HostDir> {
        Ok(HostDir { file: open_path(path, LIST)?, path: path.to_owned() })
    }

    /// The directory that the last name of `path` is in, and the name; `None` where it has none, or is said
    /// to be a directory (`dir/`). That may be one that its users cannot list.
    pub fn around(path: &Path) -> io::Result<Option<(HostDir, Vec<u8>)>> {
        let bytes = path.as_os_str().as_bytes();
        let (above, name) = match path.components().next_back() {
            Some(Component::Normal(name)) if bytes.ends_with(name.as_bytes()) => {
                bytes.split_at(bytes.len() - name.len())
            }
            _ => return Ok(None),
        };
        let above = Path::new(OsStr::from_bytes(above));
        // A name alone is one in the working directory. Of a path that somebody gives, an empty one is not that.
        let opened = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let file = open_path(opened, system::PASS | libc::O_DIRECTORY)?;
        Ok(Some((HostDir { file, path: above.to_owned() }, name.to_vec())))
    }

    /// Where the copy of something goes to that is to be at `path`.
    pub fn place(path: &Path) -> io::Result<HostPlace> {
        if let Some((dir, name)) = HostDir::around(path)? {
            return Ok(HostPlace::Name(dir, name));
        }
        let bytes = path.as_os_str().as_bytes();
        match HostDir::open(path) {
            // A directory that is not there yet.
            Err(e) if e.kind() == ErrorKind::NotFound && bytes.ends_with(b"/") => {
                let len = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
                let bare = Path::new(OsStr::from_bytes(&bytes[..len]));
                let (dir, name) = HostDir::around(bare)?.ok_or(e)?;
                Ok(HostPlace::NewDir(dir, name))
            }
            opened => opened.map(HostPlace::Dir),
        }
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a name in it.
    pub fn join(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// The directory itself, open.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Another descriptor of it, to be listed; it fails where only who may pass through is allowed to.
    fn again(&self) -> io::Result<File> {
        open_at(&self.file, c".", LIST, 0)
    }

    /// The directory of this name in it, to be listed.
    pub fn dir(&self, name: &[u8]) -> io::Result<HostDir> {
        let file = open_at(&self.file, &one(name)?, LIST | libc::O_NOFOLLOW, 0)?;
        Ok(HostDir { file, path: self.join(name) })
    }

    /// The directory that this one is in, which is `key` and has `path`.
    pub(crate) fn above(&self, key: (u64, u64), path: &Path) -> io::Result<HostDir> {
        let file = open_at(&self.file, c"..", LIST, 0)?;
        match HostStat::of_file(&file)?.key == key {
            true => Ok(HostDir { file, path: path.to_owned() }),
            false => Err(replaced()),
        }
    }

    /// Makes a directory for its owner alone. What is opened is empty: who can put another one in its place
    /// gets no attributes of the new one for what is in that.
    pub(crate) fn make_dir(&self, name: &[u8]) -> io::Result<HostDir> {
        let c_name = one(name)?;
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::mkdirat(self.file.as_raw_fd(), c_name.as_ptr(), 0o700) })?;
        let made = self.dir(name)?;
        match made.any(|_| true)? {
            true => Err(replaced()),
            false => Ok(made),
        }
    }

    /// Makes a file, to be written, for its owner alone.
    pub(crate) fn make_file(&self, name: &[u8]) -> io::Result<File> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        open_at(&self.file, &one(name)?, flags, 0o600)
    }

    /// The same without a name; `None` where there are no such files, or nobody could name one.
    pub(crate) fn make_nameless(&self) -> Option<File> {
        system::nameless(&self.file).ok()
    }

    /// Gives a file that has no name this one, which nothing may have.
    pub(crate) fn name_file(&self, file: &File, name: &[u8]) -> io::Result<()> {
        system::name_file(file, &self.file, &one(name)?)
    }

    pub(crate) fn make_symlink(&self, name: &[u8], target: &[u8]) -> io::Result<system::Thing> {
        let (c_name, c_target) = (one(name)?, CString::new(target)?);
        let (dir, name) = (self.file.as_raw_fd(), c_name.as_ptr());
        // SAFETY: the descriptor is open, and both strings NUL-terminated.
        done(unsafe { libc::symlinkat(c_target.as_ptr(), dir, name) })?;
        let thing = self.made(&c_name, FileKind::Symlink, 0)?;
        match thing.link_target()?.as_slice() == target {
            true => Ok(thing),
            false => Err(replaced()),
        }
    }

    /// Makes a device, FIFO or socket.
    pub(crate) fn make_node(
        &self,
        name: &[u8],
        kind: FileKind,
        rdev: libc::dev_t,
    ) -> io::Result<system::Thing> {
        let c_name = one(name)?;
        let (dir, mode) = (self.file.as_raw_fd(), (kind.mode_bits() | 0o600) as libc::mode_t);
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::mknodat(dir, c_name.as_ptr(), mode, rdev) })?;
        self.made(&c_name, kind, rdev)
    }

    /// What has this name, and is no file and no directory.
    pub(crate) fn thing(&self, name: &[u8]) -> io::Result<system::Thing> {
        system::Thing::open(&self.file, &one(name)?)
    }

    /// What was just made, if it can be nothing else that has other names or another meaning.
    fn made(&self, name: &CStr, kind: FileKind, rdev: libc::dev_t) -> io::Result<system::Thing> {
        let thing = system::Thing::open(&self.file, name)?;
        let stat = thing.stat()?;
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        #[allow(clippy::unnecessary_cast)]
        let same = stat.is(kind) && (!is_device || stat.rdev == rdev as u64) && stat.nlink <= 1;
        if same { Ok(thing) } else { Err(replaced()) }
    }

    /// Opens a file of this name, or what a symbolic link of this name leads to.
    pub fn open_through(&self, name: &[u8], write: bool) -> io::Result<File> {
        let flags = if write { libc::O_WRONLY } else { libc::O_RDONLY };
        open_at(&self.file, &one(name)?, flags | libc::O_NOCTTY, 0)
    }

    /// Opens a regular file of this name to be read, which is no link. Ask only where one was seen: something else
    /// is refused, but may have been opened for a moment. Of a pipe nobody waits for the other end.
    pub fn open_file(&self, name: &[u8]) -> io::Result<File> {
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = open_at(&self.file, &one(name)?, flags, 0)?;
        match HostStat::of_file(&file)?.is(FileKind::File) {
            true => Ok(file),
            false => Err(replaced()),
        }
    }

    /// What has this name; `None` if nothing has. With `follow` it is what a symbolic link leads to.
    pub fn stat(&self, name: &[u8], follow: bool) -> io::Result<Option<HostStat>> {
        let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        match HostStat::of_name(self.file.as_raw_fd(), &one(name)?, flags) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether what has this name, or what a link of this name leads to, is on another file system.
    pub fn leads_elsewhere(&self, name: &[u8]) -> bool {
        let (there, here) = (self.stat(name, true), HostStat::of_file(&self.file));
        matches!((there, here), (Ok(Some(there)), Ok(here)) if there.key.0 != here.key.0)
    }

    /// Gives what is called `name` the name `new`, whatever had that.
    pub fn rename(&self, name: &[u8], new: &[u8]) -> io::Result<()> {
        let (name, new, dir) = (one(name)?, one(new)?, self.file.as_raw_fd());
        // SAFETY: the descriptor is open, and both names NUL-terminated.
        done(unsafe { libc::renameat(dir, name.as_ptr(), dir, new.as_ptr()) })
    }

    /// Takes the name away, which is no directory's.
    pub fn remove(&self, name: &[u8]) -> io::Result<()> {
        let name = one(name)?;
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        done(unsafe { libc::unlinkat(self.file.as_raw_fd(), name.as_ptr(), 0) })
    }

    /// Whether nothing can come in the place of what is called `name`: that, or the directory, is append-only
    /// or immutable.
    pub fn keeps(&self, name: &[u8]) -> io::Result<bool> {
        Ok(system::is_kept(&self.file, c"")? || system::is_kept(&self.file, &one(name)?)?)
    }

    /// Makes `name` another name of what is at `path`, if that is `key`; false if it is not.
    pub(crate) fn link(&self, path: &Path, key: (u64, u64), name: &[u8]) -> io::Result<bool> {
        system::link(path, key, &self.file, &one(name)?)
    }

    /// All names in it, sorted.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.any(|name| {
            names.push(name.to_vec());
            false
        })?;
        names.sort_unstable();
        Ok(names)
    }

    /// Whether there is a name like that; behind it none is looked at.
    fn any(&self, mut is_it: impl FnMut(&[u8]) -> bool) -> io::Result<bool> {
        // One of its own: a copy of the descriptor would share the place in the list.
        let mut list = List::of(self.again()?)?;
        while let Some(name) = list.next()? {
            if !matches!(name, b"." | b"..") && is_it(name) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// See opendir(3).
struct List(*mut libc::DIR);

impl List {
    fn of(dir: File) -> io::Result<List> {
        // SAFETY: takes a descriptor that is open.
        let list = unsafe { libc::fdopendir(dir.as_raw_fd()) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        // From now on it is the list's.
        std::mem::forget(dir);
        Ok(List(list))
    }

    /// Valid until the next call.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        system::clear_errno();
        // SAFETY: the list is open; nobody else has it.
        let entry = unsafe { libc::readdir(self.0) };
        if entry.is_null() {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(0) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the entry has a name that is NUL-terminated, and lives until the next call.
        Ok(Some(unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) }.to_bytes()))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is open, and is used no more.
        unsafe { libc::closedir(self.0) };
    }
}
