//! Why a stream could not be made.

use std::fmt::{self, Display};

/// What went wrong.
#[derive(Debug)]
// Exhaustive: each says another who has to act, and every face maps each.
pub enum Error {
    /// A tree of the volume could not be read.
    Tree(btrfs_disk::Error),
    /// Content could not be read.
    Content(vfs::FsError),
    /// Content of a file could not be read, by its path from the subvolume's root directory.
    File(Vec<u8>, vfs::FsError),
    /// No stream can say what this file has, by its path as above.
    Unsayable(Vec<u8>, &'static str),
    /// The stream could not be written.
    Stream(btrfs_send::Error),
    /// It makes no sense, or no stream can say it.
    Refused(String),
}

/// What comes of it.
pub type Result<T> = std::result::Result<T, Error>;

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Tree(error) => error.fmt(f),
            Error::Content(error) => error.fmt(f),
            Error::File(path, error) => write!(f, "{}: {error}", String::from_utf8_lossy(path)),
            Error::Unsayable(path, what) => {
                write!(f, "{}: {what}", String::from_utf8_lossy(path))
            }
            Error::Stream(error) => error.fmt(f),
            Error::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl From<btrfs_disk::Error> for Error {
    fn from(error: btrfs_disk::Error) -> Error {
        Error::Tree(error)
    }
}

impl From<vfs::FsError> for Error {
    fn from(error: vfs::FsError) -> Error {
        Error::Content(error)
    }
}

impl From<btrfs_send::Error> for Error {
    fn from(error: btrfs_send::Error) -> Error {
        Error::Stream(error)
    }
}
