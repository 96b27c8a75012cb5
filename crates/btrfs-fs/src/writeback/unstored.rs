//! Why content was not stored, and what who wrote it is told.

use crate::writeback_errors::refused;
use vfs::FsError;

/// Why content was not stored.
pub(crate) enum Unstored {
    /// The device refused it.
    Refused(FsError),
    /// Items that it must stand between, or that say who has what lies there, cannot be read; nothing has
    /// changed.
    Unread(FsError),
    Other(FsError),
}

impl Unstored {
    /// For who writes back what was acknowledged: content stays in memory for want of its place as
    /// for a refusal of the device.
    pub(super) fn of_acknowledged(self) -> FsError {
        match self {
            Unstored::Unread(error) if error.is_of_medium() => refused(error.to_string()),
            other => other.into(),
        }
    }
}

impl From<FsError> for Unstored {
    fn from(error: FsError) -> Unstored {
        Unstored::Other(error)
    }
}

impl From<Unstored> for FsError {
    fn from(unstored: Unstored) -> FsError {
        match unstored {
            Unstored::Refused(error) | Unstored::Unread(error) | Unstored::Other(error) => error,
        }
    }
}
