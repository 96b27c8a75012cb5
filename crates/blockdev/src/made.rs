//! Files that are made where nothing was, and taken away again if nothing comes of them.
//!
//! Invariant: what is taken away is the file that was made, in the directory that it was made in: whoever may rename
//! on the way there chooses no other. It does not know what is written to them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

#[cfg(target_os = "linux")]
const PASS: libc::c_int = libc::O_PATH;
/// It is opened to be listed: not all systems know another way.
#[cfg(not(target_os = "linux"))]
const PASS: libc::c_int = libc::O_RDONLY;

/// The name of a file that was made.
#[derive(Debug)]
pub struct Made {
    dir: File,
    name: CString,
    /// Device and inode number.
    key: (u64, u64),
}

impl Made {
    /// Makes a file at `path`, where nothing is, not even a link, to be read and written.
    pub fn file(path: &Path, mode: u32) -> io::Result<(File, Made)> {
        Place::of(path)?.make(mode)
    }

    /// Makes a file, also where a symbolic link leads that leads to nothing. Links are followed as the kernel follows
    /// them with `fs.protected_symlinks`, whatever that says: who makes an image in /tmp as root makes it at nobody
    /// else's choice.
    pub(crate) fn through_links(path: &Path) -> io::Result<(File, Made)> {
        let mut at = Place::of(path)?;
        for _ in 0..MOST_LINKS {
            let there = match at.make(0o666) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => error,
                made => return made,
            };
            let link = at.stat(libc::AT_SYMLINK_NOFOLLOW)?;
            if !link.is_link {
                return Err(there);
            }
            // Before it is read: nobody else can put another one in the place of one that passes.
            may_follow(&link, &at.dir)?;
            match at.stat(0) {
                Ok(_) => return Err(there),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            at = at.behind()?;
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// Takes it away, unless its name is another's by now, or nobody's. Who puts another one there at that very
    /// moment could have taken that away himself.
    pub fn remove(self) -> io::Result<()> {
        let place = Place { dir: self.dir, name: self.name };
        if place.stat(libc::AT_SYMLINK_NOFOLLOW)?.key != self.key {
            return Err(ErrorKind::NotFound.into());
        }
        // SAFETY: the descriptor is open, and the name NUL-terminated.
        match unsafe { libc::unlinkat(place.dir.as_raw_fd(), place.name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A name in an open directory.
struct Place {
    dir: File,
    name: CString,
}

/// What has a name.
struct Seen {
    key: (u64, u64),
    uid: u32,
    is_link: bool,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        Place::from(libc::AT_FDCWD, path.as_os_str().as_bytes())
    }

    /// `path` from the directory `at`, if it does not begin at the root.
    fn from(at: libc::c_int, path: &[u8]) -> io::Result<Place> {
        // Slashes behind the last name say that it is a directory, which the kernel then refuses to make.
        let bare = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let cut = path[..bare].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(cut);
        let above = if above.is_empty() { b"." } else { above };
        let dir = open(at, &CString::new(above)?, PASS | libc::O_DIRECTORY, 0)?;
        Ok(Place { dir, name: CString::new(name)? })
    }

    fn make(&self, mode: u32) -> io::Result<(File, Made)> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let file = open(self.dir.as_raw_fd(), &self.name, flags, mode)?;
        let meta = file.metadata()?;
        let (dir, name) = (self.dir.try_clone()?, self.name.clone());
        Ok((file, Made { dir, name, key: (meta.dev(), meta.ino()) }))
    }

    /// Where the link of this name leads.
    fn behind(&self) -> io::Result<Place> {
        let mut target = vec![0; libc::PATH_MAX as usize];
        let (dir, len) = (self.dir.as_raw_fd(), target.len());
        let buffer = target.as_mut_ptr().cast();
        // SAFETY: the descriptor is open, the name NUL-terminated, and the call writes `len` bytes at most.
        let got = unsafe { libc::readlinkat(dir, self.name.as_ptr(), buffer, len) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        Place::from(dir, &target[..got])
    }

    // The widths of these members differ between systems.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    fn stat(&self, flags: libc::c_int) -> io::Result<Seen> {
        // SAFETY: plain data; all zeros is a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        let (dir, name) = (self.dir.as_raw_fd(), self.name.as_ptr());
        // SAFETY: the descriptor is open, the name NUL-terminated, and the call writes `stat`.
        if unsafe { libc::fstatat(dir, name, &raw mut stat, flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Seen {
            key: (stat.st_dev as u64, stat.st_ino as u64),
            uid: stat.st_uid,
            is_link: stat.st_mode & libc::S_IFMT == libc::S_IFLNK,
        })
    }
}

fn open(at: libc::c_int, name: &CStr, flags: libc::c_int, mode: u32) -> io::Result<File> {
    let (flags, mode) = (flags | libc::O_CLOEXEC, mode as libc::c_uint);
    // SAFETY: the descriptor is open, or the working directory's, and the name NUL-terminated.
    let fd = unsafe { libc::openat(at, name.as_ptr(), flags, mode) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave it to us alone.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Where everybody may make links, but remove only his own, those of strangers are not followed.
fn may_follow(link: &Seen, dir: &File) -> io::Result<()> {
    const STICKY_AND_OPEN: u32 = 0o1002;
    let dir = dir.metadata()?;
    // SAFETY: geteuid takes nothing, and always succeeds.
    let caller = unsafe { libc::geteuid() };
    let open_to_all = dir.mode() & STICKY_AND_OPEN == STICKY_AND_OPEN;
    match open_to_all && link.uid != caller && link.uid != dir.uid() {
        true => Err(io::Error::from_raw_os_error(libc::EACCES)),
        false => Ok(()),
    }
}
