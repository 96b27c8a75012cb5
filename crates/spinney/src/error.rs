//! What goes wrong, typed by who must act: what it was about, and the cause.
//!
//! It does not know who reads it: a program at a terminal adds its own advice.

use btrfs_image::{CopyError, is_of_all, is_of_subvolume};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use vfs::FsError;

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

/// Something that failed, what it was about, and why.
///
/// Turns into an [`io::Error`] of the fitting kind, so that `?` works in functions that
/// return `io::Result`.
pub struct Error(Box<Parts>);

struct Parts {
    subject: String,
    volume: Option<PathBuf>,
    cause: Cause,
    /// Of a copy: whether others would fail as well; where it is not known the cause says it.
    of_all: Option<bool>,
}

/// Why something failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The file system answered so: no such name, no room, a damaged structure.
    Volume(FsError),
    /// A file or device of this machine failed.
    #[non_exhaustive]
    Host {
        /// What was being done, as in `set owner`.
        action: Option<&'static str>,
        /// What the system said.
        source: io::Error,
    },
    /// Refused by a rule, before anything was changed; of what was to be received, before the command that is
    /// refused changed anything.
    #[non_exhaustive]
    Refused {
        /// Which rule.
        why: String,
        /// What would help.
        remedy: Option<&'static str>,
    },
    /// A stream that was to be received is damaged, or cut off; what came before that was played.
    #[non_exhaustive]
    Stream {
        /// Where, and what is wrong.
        why: String,
        /// It ends too early.
        cut_off: bool,
    },
    /// Another program has the image or device, or this one has it already; who, where that is known.
    InUse(Option<String>),
    /// A [`Transaction`](crate::Transaction) of the volume is open, and until it ends nothing else is made durable:
    /// it is to be committed or aborted first.
    TransactionOpen,
}

impl Error {
    pub(crate) fn new(subject: impl fmt::Display, cause: Cause) -> Error {
        let subject = subject.to_string();
        Error(Box::new(Parts { subject, volume: None, cause, of_all: None }))
    }

    pub(crate) fn refused(subject: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::new(subject, Cause::Refused { why: why.to_string(), remedy: None })
    }

    /// Whether it stands for the target of a copy as a whole ([`is_of_all`]).
    pub(crate) fn is_of_all(&self) -> bool {
        let errno = match &self.0.cause {
            Cause::Volume(said) => Some(said.errno()),
            Cause::Host { source, .. } => source.raw_os_error(),
            _ => None,
        };
        self.0.of_all.unwrap_or_else(|| errno.is_some_and(is_of_all))
    }

    /// That of one attribute, which may be longer than what an inode may have, says nothing of others
    /// ([`CopyError::is_of_all`]).
    pub(crate) fn of_attribute(mut self) -> Error {
        if self.errno() != Some(libc::EROFS) {
            self.0.of_all = Some(false);
        }
        self
    }

    /// Whether another subvolume of the volume that failed may take what this one does not.
    pub(crate) fn is_of_subvolume(&self) -> bool {
        matches!(&self.0.cause, Cause::Volume(said) if is_of_subvolume(said.errno()))
    }

    /// Whether another file system of this machine may.
    pub(crate) fn is_of_host(&self) -> bool {
        matches!(self.0.cause, Cause::Host { .. })
    }

    pub(crate) fn remedied(mut self, advice: &'static str) -> Error {
        if let Cause::Refused { remedy, .. } = &mut self.0.cause {
            *remedy = Some(advice);
        }
        self
    }

    pub(crate) fn host(path: &Path, source: io::Error) -> Error {
        Error::new(path.display(), Cause::Host { action: None, source })
    }

    pub(crate) fn volume_said(subject: impl fmt::Display, volume: &Path, error: FsError) -> Error {
        let mut told = Error::new(subject, Cause::Volume(error));
        told.0.volume = Some(volume.to_owned());
        told
    }

    pub(crate) fn transaction_open(subject: impl fmt::Display, volume: &Path) -> Error {
        let mut told = Error::new(subject, Cause::TransactionOpen);
        told.0.volume = Some(volume.to_owned());
        told
    }

    pub(crate) fn copy(volume: &Path, error: CopyError) -> Error {
        let (place, of_all) = (error.path().display().to_string(), error.is_of_all());
        let mut told = match error {
            CopyError::Host { action, source, .. } => {
                Error::new(place, Cause::Host { action: Some(action), source })
            }
            CopyError::Volume { source, .. } => Error::volume_said(place, volume, source),
            CopyError::Refused { why, .. } => Error::refused(place, why),
            other => Error::refused(place, other),
        };
        told.0.of_all = Some(of_all);
        told
    }

    pub(crate) fn stream(error: btrfs_send::Error) -> Error {
        let subject = "the stream";
        match error.problem {
            btrfs_send::Problem::Io(source) => {
                Error::new(subject, Cause::Host { action: None, source })
            }
            _ => Error::refused(subject, error),
        }
    }

    /// The same of one that is read.
    pub(crate) fn incoming(error: btrfs_send::Error) -> Error {
        match error.problem {
            btrfs_send::Problem::Io(_) => Error::stream(error),
            ref problem => {
                let cut_off = matches!(problem, btrfs_send::Problem::Truncated);
                Error::new("the stream", Cause::Stream { why: error.to_string(), cut_off })
            }
        }
    }

    /// The path, image or device that it is about; `IMAGE:/PATH` for a path in a volume.
    pub fn subject(&self) -> &str {
        &self.0.subject
    }

    /// The volume, where it was the volume that failed.
    pub fn volume(&self) -> Option<&Path> {
        self.0.volume.as_deref()
    }

    /// Why it failed.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// The nearest kind that the standard library has. Of what a device said it is one that says something of a
    /// medium, or `Other`: what else a device may answer means something else to who reads a file, as
    /// `UnexpectedEof` its end, and `Interrupted` to try again.
    pub fn kind(&self) -> io::ErrorKind {
        match self.cause() {
            Cause::Volume(FsError::Corrupt(_) | FsError::NotAVolume(_)) => {
                io::ErrorKind::InvalidData
            }
            Cause::Volume(FsError::Unsupported(_)) => io::ErrorKind::Unsupported,
            // EIO, which all of these are to a system call, is of no kind.
            Cause::Volume(FsError::Io { source, .. }) => of_medium(source.kind()),
            Cause::Volume(error) => io::Error::from_raw_os_error(error.errno()).kind(),
            Cause::Host { source, .. } => source.kind(),
            Cause::Refused { .. } => io::ErrorKind::InvalidInput,
            Cause::Stream { cut_off: true, .. } => io::ErrorKind::UnexpectedEof,
            Cause::Stream { cut_off: false, .. } => io::ErrorKind::InvalidData,
            Cause::InUse(_) | Cause::TransactionOpen => io::ErrorKind::ResourceBusy,
        }
    }

    /// The number that a system call would have answered with.
    pub fn errno(&self) -> Option<i32> {
        match self.cause() {
            Cause::Volume(error) => Some(error.errno()),
            Cause::Host { source, .. } => source.raw_os_error(),
            Cause::Refused { .. } | Cause::Stream { .. } => Some(libc::EINVAL),
            Cause::InUse(_) | Cause::TransactionOpen => Some(libc::EBUSY),
        }
    }

    /// The medium answered with something that cannot be true: the volume is damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self.cause(), Cause::Volume(FsError::Corrupt(_)))
    }
}

/// What a device's kind of error is of a file on it.
fn of_medium(said: io::ErrorKind) -> io::ErrorKind {
    use io::ErrorKind::*;
    match said {
        TimedOut
        | StorageFull
        | QuotaExceeded
        | FileTooLarge
        | OutOfMemory
        | PermissionDenied
        | ReadOnlyFilesystem
        | ResourceBusy
        | NetworkDown
        | NetworkUnreachable
        | HostUnreachable
        | ConnectionReset
        | ConnectionAborted
        | NotConnected
        | StaleNetworkFileHandle => said,
        _ => Other,
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Volume(error) => error.fmt(f),
            Cause::Host { action: Some(action), source } => write!(f, "{action}: {source}"),
            Cause::Host { action: None, source } => source.fmt(f),
            Cause::Refused { why, remedy: Some(remedy) } => write!(f, "{why} ({remedy})"),
            Cause::Refused { why, remedy: None } | Cause::Stream { why, .. } => f.write_str(why),
            Cause::InUse(Some(who)) => write!(f, "in use: {who}"),
            Cause::InUse(None) => f.write_str("in use by another program"),
            Cause::TransactionOpen => {
                f.write_str("a transaction is open (commit or abort it first)")
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject() {
            "" => self.cause().fmt(f),
            subject => write!(f, "{subject}: {}", self.cause()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.cause() {
            Cause::Volume(error) => Some(error),
            Cause::Host { source, .. } => Some(source),
            Cause::Refused { .. } | Cause::Stream { .. } => None,
            Cause::InUse(_) | Cause::TransactionOpen => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
