//! What stopped a copy, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use vfs::FsError;

/// Why a copy ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum CopyError {
    /// The host's side failed.
    Host {
        /// The path on the host.
        path: PathBuf,
        /// What was being done, as in `set owner`.
        action: &'static str,
        /// What the host said.
        source: io::Error,
    },
    /// The volume's side failed; `path` is the host's name of the same thing.
    Volume {
        /// The path on the host.
        path: PathBuf,
        /// What was being done, as in `set owner`.
        action: &'static str,
        /// What the volume said.
        source: FsError,
    },
    /// Something that must not be carried over.
    Refused {
        /// The path on the host.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
}

/// Whether an error with this number is one of the target as a whole: no room is left, or it takes
/// nothing. Of a volume it may be that of one subvolume ([`is_of_subvolume`]).
pub fn is_of_all(errno: i32) -> bool {
    errno == libc::ENOSPC || is_of_subvolume(errno)
}

/// Whether a volume answers so for a subvolume that may not have more, or is read-only, and others are not.
pub fn is_of_subvolume(errno: i32) -> bool {
    [libc::EDQUOT, libc::EROFS].contains(&errno)
}

pub(super) type Result<T> = std::result::Result<T, CopyError>;

impl CopyError {
    /// The path that the copy stopped at.
    pub fn path(&self) -> &Path {
        match self {
            CopyError::Host { path, .. }
            | CopyError::Volume { path, .. }
            | CopyError::Refused { path, .. } => path,
        }
    }

    /// Whether it stands for the target as a whole ([`is_of_all`]): not where one attribute is longer than what
    /// an inode may have, nor where one owner may not have more.
    pub fn is_of_all(&self) -> bool {
        let (action, errno) = match self {
            CopyError::Host { action, source, .. } => (action, source.raw_os_error()),
            CopyError::Volume { action, source, .. } => (action, Some(source.errno())),
            CopyError::Refused { .. } => return false,
        };
        let of_one = match *action {
            "set xattr" => errno != Some(libc::EROFS),
            "set owner" => errno == Some(libc::EDQUOT),
            _ => false,
        };
        !of_one && errno.is_some_and(is_of_all)
    }

    pub(super) fn refused(path: &Path, why: &'static str) -> CopyError {
        CopyError::Refused { path: path.to_owned(), why }
    }
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Host { path, action, source } => {
                write!(f, "{}: {action}: {source}", path.display())
            }
            CopyError::Volume { path, action, source } => {
                write!(f, "{}: {action} in the volume: {source}", path.display())
            }
            CopyError::Refused { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CopyError::Host { source, .. } => Some(source),
            CopyError::Volume { source, .. } => Some(source),
            CopyError::Refused { .. } => None,
        }
    }
}

/// Says of a result where it happened and what was being done.
pub(super) trait At<T> {
    fn at(self, path: &Path, action: &'static str) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path, action: &'static str) -> Result<T> {
        self.map_err(|source| CopyError::Host { path: path.to_owned(), action, source })
    }
}

impl<T> At<T> for vfs::Result<T> {
    fn at(self, path: &Path, action: &'static str) -> Result<T> {
        self.map_err(|source| CopyError::Volume { path: path.to_owned(), action, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Errno;

    #[test]
    fn what_is_wrong_with_one_thing_is_not_of_all() {
        let host = |action, errno| {
            Err::<(), _>(io::Error::from_raw_os_error(errno)).at(Path::new("f"), action)
        };
        for (action, errno, of_all) in [
            ("write", libc::ENOSPC, true),
            ("write", libc::EDQUOT, true),
            ("create file", libc::EROFS, true),
            ("write", libc::EIO, false),
            // As ext4 says of an attribute that does not fit into an inode's block.
            ("set xattr", libc::ENOSPC, false),
            ("set xattr", libc::EDQUOT, false),
            ("set xattr", libc::EROFS, true),
            // What is made belongs to the caller first.
            ("set owner", libc::EDQUOT, false),
            ("set owner", libc::ENOSPC, true),
        ] {
            let told = host(action, errno).unwrap_err();
            assert_eq!(told.is_of_all(), of_all, "{told}");
        }
        let full = Err::<(), _>(FsError::from(Errno::ENOSPC));
        assert!(!full.at(Path::new("f"), "set xattr").unwrap_err().is_of_all());
    }
}
