//! What is wrong with a stream, and where.

use std::fmt::{self, Display};
use std::io;

/// An error, and at which byte of the stream it is.
#[derive(Debug)]
pub struct Error {
    /// Of the command (or header) that it is about.
    pub offset: u64,
    /// What it is.
    pub problem: Problem,
}

/// What is wrong with a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// It could not be read or written.
    Io(io::Error),
    /// It ends in the middle, or without its last command.
    Truncated,
    /// It does not begin as streams do.
    NotAStream,
    /// It has a version that nobody here knows.
    Version(u32),
    /// A command says that it is longer than any may be.
    TooLong(u32),
    /// A command's checksum is not that of its bytes: found, said.
    Checksum(u32, u32),
    /// A command has a number that the stream's version has not.
    UnknownCommand(u16),
    /// A command has an attribute that nobody here knows.
    UnknownAttribute(u16),
    /// An attribute is longer or shorter than it may be.
    AttributeLength(&'static str),
    /// A path is longer than any that can be opened; a receiver would refuse it.
    LongPath(Vec<u8>),
    /// A command lacks an attribute.
    Missing(&'static str),
    /// A command has an attribute twice.
    Twice(&'static str),
    /// What a command says makes no sense.
    Senseless(&'static str),
}

impl Error {
    pub(crate) fn at(offset: u64) -> impl Fn(Problem) -> Error {
        move |problem| Error { offset, problem }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {} of the stream: {}", self.offset, self.problem)
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Io(error) => error.fmt(f),
            Problem::Truncated => f.write_str("it ends in the middle"),
            Problem::NotAStream => f.write_str("it is no stream of `btrfs send`"),
            Problem::Version(version) => {
                write!(f, "version {version} is not known; versions 1 to 3 are")
            }
            Problem::TooLong(len) => {
                write!(f, "a command of {len} bytes is longer than any may be")
            }
            Problem::Checksum(found, said) => {
                write!(f, "damaged: the checksum is {found:#010x}, and should be {said:#010x}")
            }
            Problem::UnknownCommand(number) => write!(f, "command {number} is not known"),
            Problem::UnknownAttribute(number) => write!(f, "attribute {number} is not known"),
            Problem::AttributeLength(what) => write!(f, "{what} has a wrong length"),
            Problem::LongPath(path) => {
                let shown = |part: &[u8]| String::from_utf8_lossy(part).escape_debug().to_string();
                let (front, end) =
                    (&path[..path.len().min(60)], &path[path.len().saturating_sub(60)..]);
                let (front, end) = (shown(front), shown(end));
                write!(f, "{front}...{end}: a path of {} bytes, and 4095 are the most", path.len())
            }
            Problem::Missing(what) => write!(f, "a command without {what}"),
            Problem::Twice(what) => write!(f, "a command has {what} twice"),
            Problem::Senseless(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Problem::Truncated,
            _ => Problem::Io(error),
        }
    }
}
