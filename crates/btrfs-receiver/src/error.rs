//! Why a stream could not be played, and where in it.

use btrfs_send::Time;
use std::fmt::{self, Display};
use vfs::FsError;

/// What ended a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The stream is damaged, cut off, or cannot be read.
    Stream(btrfs_send::Error),
    /// A command says what nobody may do, or what makes no sense here.
    #[non_exhaustive]
    Refused {
        /// Of the command in the stream.
        offset: u64,
        /// Which command, and about what.
        what: String,
        /// Why.
        why: Wrong,
    },
    /// The target could not do it.
    #[non_exhaustive]
    Target {
        /// Of the command in the stream.
        offset: u64,
        /// Which command, and about what.
        what: String,
        /// What it said.
        error: FsError,
    },
}

/// What comes of it.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with a command.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wrong {
    /// Its path.
    Path(&'static str),
    /// It comes before any subvolume.
    NoSubvolume,
    /// Nothing here has that UUID: what it builds on was not received here, or is gone.
    Unknown([u8; 16]),
    /// The stream was made without content.
    WithoutContent,
    /// Compressed content that is not what it says.
    Encoded(String),
    /// A time that none is.
    Time(Time),
    /// A number that is too large for what it is.
    Number(&'static str),
}

/// One step of a command.
pub(crate) enum Failed {
    Wrong(Wrong),
    Target(FsError),
}

impl From<Wrong> for Failed {
    fn from(wrong: Wrong) -> Failed {
        Failed::Wrong(wrong)
    }
}

impl From<FsError> for Failed {
    fn from(error: FsError) -> Failed {
        Failed::Target(error)
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Stream(error) => error.fmt(f),
            Error::Refused { offset, what, why } => {
                write!(f, "at byte {offset} of the stream: {what}: {why}")
            }
            Error::Target { offset, what, error } => {
                write!(f, "at byte {offset} of the stream: {what}: {error}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Stream(error) => Some(error),
            Error::Target { error, .. } => Some(error),
            Error::Refused { .. } => None,
        }
    }
}

impl Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Path(why) => write!(f, "the path is refused: {why}"),
            Wrong::NoSubvolume => f.write_str("no subvolume was begun before it"),
            Wrong::Unknown(uuid) => {
                f.write_str("no read-only subvolume here has or was received with the UUID ")?;
                show_uuid(uuid, f)
            }
            Wrong::WithoutContent => f.write_str("the stream was made without content (--no-data)"),
            Wrong::Encoded(why) => write!(f, "compressed content is damaged: {why}"),
            Wrong::Time((secs, nanos)) => write!(f, "{secs} s and {nanos} ns is no time"),
            Wrong::Number(which) => write!(f, "the {which} is too large"),
        }
    }
}

fn show_uuid(uuid: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            f.write_str("-")?;
        }
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}
