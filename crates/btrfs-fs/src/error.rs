//! From the engine's errors to the face's: the one place where they meet.

use btrfs_disk::{Corrupt, Error};
use vfs::{Errno, FsError};

pub fn to_fs(error: Error) -> FsError {
    match error {
        Error::Io { context, source } => FsError::Io { context, source },
        Error::Corrupt(corrupt) => from_corrupt(corrupt),
        Error::NotBtrfs(why) => FsError::NotAVolume(why),
        Error::Unsupported(what) => FsError::Unsupported(what),
        Error::NoSpace => FsError::Posix(Errno::ENOSPC),
        Error::ReadOnly(why) => FsError::ReadOnly(why),
    }
}

pub fn from_corrupt(corrupt: Corrupt) -> FsError {
    FsError::Corrupt { data: corrupt.data, what: corrupt.to_string() }
}

/// `?` for results of the lower rooms.
pub trait IntoFs<T> {
    fn fs(self) -> vfs::Result<T>;
}

impl<T> IntoFs<T> for Result<T, Error> {
    fn fs(self) -> vfs::Result<T> {
        self.map_err(to_fs)
    }
}

impl<T> IntoFs<T> for Result<T, Corrupt> {
    fn fs(self) -> vfs::Result<T> {
        self.map_err(from_corrupt)
    }
}
