//! Errors of every `btrfs-*` crate, typed by who must act.

use crate::{Key, Logical};
use std::fmt;
use std::io;

/// What can fail as [`Error`] says.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What cannot be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum DamageKind {
    /// What a structure says.
    #[default]
    Structure,
    /// The checksum of a structure.
    Checksum,
    /// File content, or its checksum.
    Content,
    /// A node is of another time than what leads to it.
    Generation,
}

/// Something on the medium that cannot be true. Says where as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Corrupt {
    /// Which claim is wrong.
    pub kind: DamageKind,
    /// What is wrong, in a few words, without the place.
    pub what: String,
    /// The node, extent or chunk where it was met.
    pub logical: Option<Logical>,
    /// The item where it was met.
    pub key: Option<Key>,
    /// Of a chunk with several, from 0: the first that is bad where all are.
    pub copy: Option<u32>,
}

impl Corrupt {
    /// A structure that cannot be true; where it is gets added by those who know it.
    pub fn new(what: impl Into<String>) -> Corrupt {
        Corrupt {
            kind: DamageKind::Structure,
            what: what.into(),
            logical: None,
            key: None,
            copy: None,
        }
    }

    /// The same of another kind.
    pub fn kind(mut self, kind: DamageKind) -> Corrupt {
        self.kind = kind;
        self
    }

    /// The same, met in this copy, counted from 0.
    pub fn copy(mut self, copy: usize) -> Corrupt {
        self.copy = u32::try_from(copy).ok();
        self
    }

    /// The same, met at this address, unless an address is known already.
    pub fn at(mut self, logical: Logical) -> Corrupt {
        self.logical.get_or_insert(logical);
        self
    }

    /// The same, met in this item, unless an item is known already.
    pub fn key(mut self, key: Key) -> Corrupt {
        self.key.get_or_insert(key);
        self
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(logical) = self.logical {
            write!(f, "logical {}: ", logical.0)?;
        }
        if let Some(key) = self.key {
            write!(f, "item {key}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Corrupt {}

/// Why something failed, apart by who has to act on it.
#[derive(Debug)]
// Exhaustive: every kind becomes an errno and a sentence of its own in each face; a new one must
// be decided there.
pub enum Error {
    /// The device failed.
    Io {
        /// What was being done, and where.
        context: String,
        /// What the device or its driver answered.
        source: io::Error,
    },
    /// The device answered with something that cannot be true.
    Corrupt(Corrupt),
    /// There is no volume at all: nothing on the device says that it is one.
    NotBtrfs(String),
    /// The volume is fine, this program does not know a feature that it uses.
    Unsupported(String),
    /// No room for what was asked.
    NoSpace,
    /// The volume refuses writes, for the reason given.
    ReadOnly(String),
}

impl Error {
    /// The device's error `source`, met where `context` says.
    pub fn io(context: impl Into<String>, source: io::Error) -> Error {
        Error::Io { context: context.into(), source }
    }

    /// It was met in copy `copy`.
    pub fn in_copy(self, copy: usize) -> Error {
        match self {
            Error::Corrupt(corrupt) => Error::Corrupt(corrupt.copy(copy)),
            other => other,
        }
    }

    /// What the device has cannot be read, or cannot be true: whoever needs nothing of it may go on.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Corrupt(_) | Error::Io { .. })
    }

    /// Damage of which no place is known.
    pub fn corrupt(what: impl Into<String>) -> Error {
        Error::Corrupt(Corrupt::new(what))
    }
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Error {
        Error::Corrupt(corrupt)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { context, source } => write!(f, "{context}: {source}"),
            Error::Corrupt(corrupt) => write!(f, "damaged volume: {corrupt}"),
            Error::NotBtrfs(why) => write!(f, "not a btrfs volume: {why}"),
            Error::Unsupported(what) => write!(f, "not supported: {what}"),
            Error::NoSpace => f.write_str("no space left on the volume"),
            Error::ReadOnly(why) => write!(f, "read-only: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
