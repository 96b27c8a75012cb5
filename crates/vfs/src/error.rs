//! Errors by who must act, and the one table that turns them into errno values.
//!
//! * `Posix`: the caller asked for something that cannot be (no entry, exists, full).
//! * `Io`: the medium failed; the operator must look at the device.
//! * `Corrupt`: the medium answered with something that cannot be true.
//! * `Unsupported`: the volume is fine, this program is too small for it.
//! * `ReadOnly`: the mount refuses writes, for the reason given.

use std::fmt;
use std::io;

/// What the calls of a file system answer.
pub type Result<T> = std::result::Result<T, FsError>;

/// The system's numbers; where it has no such error, that of the nearest.
mod codes {
    pub(super) use libc::{
        E2BIG, EACCES, EAGAIN, EBADF, EBUSY, EDQUOT, EEXIST, EFAULT, EFBIG, EINPROGRESS, EINTR,
        EINVAL, EIO, EISDIR, ELOOP, EMLINK, EMSGSIZE, ENAMETOOLONG, ENODEV, ENOENT, ENOMEM, ENOSPC,
        ENOSYS, ENOTCONN, ENOTDIR, ENOTEMPTY, ENOTTY, ENXIO, EOPNOTSUPP, EOVERFLOW, EPERM, ERANGE,
        EROFS, ESPIPE, ESRCH, ESTALE, ETXTBSY, EXDEV,
    };
    #[cfg(not(target_os = "linux"))]
    pub(super) use libc::{EBADMSG as EUCLEAN, ENOATTR as ENODATA};
    #[cfg(target_os = "linux")]
    pub(super) use libc::{ENODATA, EUCLEAN};
}

macro_rules! errnos {
    ($($name:ident $text:literal),* $(,)?) => {
        /// A POSIX error that the caller caused or must handle.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::upper_case_acronyms)]
        #[non_exhaustive]
        pub enum Errno { $(#[doc = $text] $name),* }

        impl Errno {
            /// The system's number.
            pub fn code(self) -> i32 {
                match self { $(Errno::$name => codes::$name),* }
            }
            /// In words, for people.
            pub fn text(self) -> &'static str {
                match self { $(Errno::$name => $text),* }
            }
            /// The error of this number, if it is one of these.
            pub fn from_code(code: i32) -> Option<Errno> {
                $(if code == codes::$name { return Some(Errno::$name); })*
                None
            }
        }
    };
}

errnos! {
    EPERM "operation not permitted",
    ENOENT "no such file or directory",
    EINTR "interrupted",
    E2BIG "argument too long",
    EBADF "bad file descriptor",
    EAGAIN "try again",
    ENOMEM "out of memory",
    EACCES "permission denied",
    EFAULT "bad address",
    EBUSY "busy",
    EEXIST "file exists",
    EXDEV "crosses file systems or subvolumes",
    ENODEV "no such device",
    ENOTDIR "not a directory",
    EISDIR "is a directory",
    EINVAL "invalid argument",
    ENOTTY "not a control operation of this file",
    ETXTBSY "text file busy",
    EFBIG "file too large",
    ENOSPC "no space left on the volume",
    ESPIPE "illegal seek",
    EROFS "read-only file system",
    EMLINK "too many links",
    EMSGSIZE "message too long",
    ERANGE "result too large",
    ENAMETOOLONG "name too long",
    ENOSYS "not implemented",
    ENOTEMPTY "directory not empty",
    ELOOP "too many symbolic links",
    ENODATA "no such attribute",
    EOVERFLOW "value too large",
    EOPNOTSUPP "operation not supported",
    EDQUOT "quota exceeded",
    EINPROGRESS "already under way",
    ENOTCONN "not enabled",
    ESRCH "nothing like that is under way",
    ESTALE "stale handle",
    ENXIO "no data at or behind this offset",
    EIO "input/output error",
    EUCLEAN "structure needs cleaning",
}

/// What of a volume is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum DamageKind {
    /// What a structure says cannot be true.
    #[default]
    Structure,
    /// A structure fails its checksum.
    Checksum,
    /// File content fails its checksum, or cannot be had in full.
    Content,
}

/// Damage, and where it is as far as that is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Damage {
    /// What of the volume it is.
    pub kind: DamageKind,
    /// For people: what is wrong, and where.
    pub text: String,
    /// In the volume's own address space, in bytes.
    pub address: Option<u64>,
    /// The item by its key: object id, type, offset.
    pub item: Option<(u64, u8, u64)>,
    /// Of several copies, from 0: the first that is bad where all are.
    pub copy: Option<u32>,
}

impl Damage {
    /// A structure says what cannot be true.
    pub fn new(text: impl Into<String>) -> Damage {
        Damage { text: text.into(), ..Damage::default() }
    }
}

impl From<Damage> for FsError {
    fn from(damage: Damage) -> FsError {
        FsError::Corrupt(Box::new(damage))
    }
}

/// Why a call failed, by who must act.
#[derive(Debug)]
#[non_exhaustive]
pub enum FsError {
    /// The caller asked for something that cannot be.
    Posix(Errno),
    /// The medium failed (EIO); the operator must look at the device.
    Io {
        /// What was being done, and where.
        context: String,
        /// The system's error.
        source: io::Error,
    },
    /// The medium answered with something that cannot be true: EIO where it is file content,
    /// EUCLEAN where it is a structure.
    Corrupt(Box<Damage>),
    /// There is no volume of this kind on the device (EINVAL, as for the kernel's mount).
    NotAVolume(String),
    /// The volume is fine, and this program too small for it (EOPNOTSUPP): what it lacks.
    Unsupported(String),
    /// The mount refuses writes (EROFS): why.
    ReadOnly(String),
}

impl FsError {
    /// The medium failed, or answered what cannot be true: asking again may go better, and what
    /// does not need the answer can go on.
    pub fn is_of_medium(&self) -> bool {
        matches!(self, FsError::Io { .. } | FsError::Corrupt(_))
    }

    /// The same for another caller, whom it concerns as well.
    pub fn again(&self) -> FsError {
        match self {
            FsError::Posix(errno) => FsError::Posix(*errno),
            FsError::Io { context, source } => {
                let source = match source.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(source.kind(), source.to_string()),
                };
                FsError::Io { context: context.clone(), source }
            }
            FsError::Corrupt(damage) => FsError::Corrupt(damage.clone()),
            FsError::NotAVolume(why) => FsError::NotAVolume(why.clone()),
            FsError::Unsupported(what) => FsError::Unsupported(what.clone()),
            FsError::ReadOnly(why) => FsError::ReadOnly(why.clone()),
        }
    }

    /// The one errno table.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::Posix(errno) => errno.code(),
            FsError::Io { .. } => libc::EIO,
            FsError::Corrupt(damage) if damage.kind == DamageKind::Content => libc::EIO,
            FsError::Corrupt(_) => codes::EUCLEAN,
            FsError::NotAVolume(_) => libc::EINVAL,
            FsError::Unsupported(_) => libc::EOPNOTSUPP,
            FsError::ReadOnly(_) => libc::EROFS,
        }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FsError::Posix(errno) => f.write_str(errno.text()),
            FsError::Io { context, source } => write!(f, "{context}: {source}"),
            FsError::Corrupt(damage) => write!(f, "damaged volume: {}", damage.text),
            FsError::NotAVolume(why) => write!(f, "not a btrfs volume: {why}"),
            FsError::Unsupported(what) => write!(f, "not supported: {what}"),
            FsError::ReadOnly(why) => write!(f, "read-only: {why}"),
        }
    }
}

impl std::error::Error for FsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FsError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> FsError {
        FsError::Posix(errno)
    }
}
