//! What copies need of this machine's own directories and files: names, something that is opened as what it
//! was when it was looked at, and the look of what is new. It knows nothing of volumes.

use crate::error::{Error, Result};
use crate::sys;
use btrfs_image::set_mode;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vfs::{Context, FileKind, Timestamp};

/// The regular file `host` that has been looked at: another may have come in its place meanwhile, or a link,
/// or a pipe that gives nothing. Only with `follow` it may be what a link leads to.
pub(super) fn open_seen(host: &Path, seen: &fs::Metadata, follow: bool) -> Result<File> {
    let failed = |e: std::io::Error| Error::host(host, e);
    // Of a pipe nobody waits for the other end.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | if follow { 0 } else { libc::O_NOFOLLOW };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(host).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || (meta.dev(), meta.ino()) != (seen.dev(), seen.ino()) {
        return Err(Error::refused(host.display(), "something else is there by now"));
    }
    Ok(file)
}

/// A name that nothing has, in the same directory.
pub(super) fn beside(host: &Path) -> std::io::Result<PathBuf> {
    let mut number = 0u64;
    loop {
        let path = host.with_file_name(format!(".spinney-{}-{number}", std::process::id()));
        match path.symlink_metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(path),
            Ok(_) => number += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Sorted.
pub(super) fn host_names(host: &Path) -> Result<Vec<Vec<u8>>> {
    let failed = |e: std::io::Error| Error::host(host, e);
    let mut names = Vec::new();
    for entry in fs::read_dir(host).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().as_bytes().to_vec());
    }
    names.sort_unstable();
    Ok(names)
}

/// As if the caller had just made it: times, and permissions by the umask.
pub(super) fn make_new_on_host(top: &Path, cx: &Context) -> Result<()> {
    let (umask, now) = (u32::from(cx.umask), Timestamp::now());
    let mut left: Vec<PathBuf> = vec![top.to_owned()];
    let mut directories = Vec::new();
    while let Some(path) = left.pop() {
        let failed = |e: std::io::Error| Error::host(&path, e);
        let meta = path.symlink_metadata().map_err(failed)?;
        if meta.is_dir() {
            // Its entries' paths go through it: its own permissions come last.
            left.extend(host_names(&path)?.iter().map(|n| path.join(OsStr::from_bytes(n))));
            directories.push((path, meta.mode()));
            continue;
        }
        if let Some(kind) = FileKind::from_mode(meta.mode()).filter(|k| *k != FileKind::Symlink) {
            set_mode(&path, meta.mode() & 0o777 & !umask, kind).map_err(failed)?;
        }
        sys::set_times(&path, now, now).map_err(failed)?;
    }
    for (path, mode) in directories.into_iter().rev() {
        let failed = |e: std::io::Error| Error::host(&path, e);
        let mode = mode & 0o777 & !umask;
        set_mode(&path, mode, FileKind::Dir).map_err(failed)?;
        sys::set_times(&path, now, now).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_was_looked_at_is_opened() {
        let dir = testkit::oracle::TempDir::new("open-seen").unwrap();
        let (path, other) = (dir.join("file"), dir.join("other"));
        fs::write(&path, "x").unwrap();
        fs::write(&other, "x").unwrap();
        let seen = fs::metadata(&path).unwrap();
        assert!(open_seen(&path, &seen, false).is_ok());
        assert!(open_seen(&other, &seen, true).is_err());
        let kept = dir.join("kept");
        fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink(&kept, &path).unwrap();
        assert!(open_seen(&path, &seen, true).is_ok() && open_seen(&path, &seen, false).is_err());
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(open_seen(&path, &seen, true).is_err());
    }
}
