//! Why no volume was made.

use std::fmt;
use std::io;

/// What making a volume returns.
pub type Result<T> = std::result::Result<T, MkfsError>;

/// Why no volume was made. After `Io` the device holds a part of one.
#[derive(Debug)]
#[non_exhaustive]
pub enum MkfsError {
    /// The options contradict each other or the format.
    Invalid(String),
    /// The device is shorter than the least that the options need.
    TooSmall {
        /// Bytes that are needed.
        minimum: u64,
        /// Bytes that are there.
        have: u64,
    },
    /// The device failed, or no randomness was to be had.
    Io {
        /// What was being done.
        context: String,
        /// What the system said.
        source: io::Error,
    },
}

impl MkfsError {
    pub(crate) fn io(context: impl Into<String>, source: io::Error) -> MkfsError {
        MkfsError::Io { context: context.into(), source }
    }
}

impl fmt::Display for MkfsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MkfsError::Invalid(what) => f.write_str(what),
            MkfsError::TooSmall { minimum, have } => {
                write!(f, "{have} bytes are too few: the minimum is {minimum}")?;
                write!(f, " ({} MiB)", minimum.div_ceil(1 << 20))
            }
            MkfsError::Io { context, source } => write!(f, "{context}: {source}"),
        }
    }
}

impl std::error::Error for MkfsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MkfsError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
