//! The errno of a refused request.
//!
//! ENOSYS is a message to the kernel: "never send this operation again". Only the
//! dispatcher says that, on purpose. A file system that answers ENOSYS means "not
//! this time", so it becomes EOPNOTSUPP.

use vfs::{Errno, FsError};

pub(super) type Answer<T> = Result<T, Failure>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure(i32);

impl Failure {
    /// The kernel shall do without this operation for the life of the mount.
    pub(crate) const NEVER_SEND: Failure = Failure(libc::ENOSYS);

    pub(crate) fn errno(self) -> i32 {
        self.0
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        match errno {
            Errno::ENOSYS => Failure(libc::EOPNOTSUPP),
            other => Failure(other.code()),
        }
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        match &error {
            FsError::Posix(errno) => return (*errno).into(),
            FsError::Io { .. } | FsError::Corrupt(_) => tracing::error!("{error}"),
            _ => tracing::debug!("{error}"),
        }
        Failure(error.errno())
    }
}
