//! From the engine's errors to the face's: the one place where they meet.

use btrfs_disk::{Corrupt, DamageKind, Error};
use vfs::{Damage, Errno, FsError};

/// What the face says of it.
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

pub(crate) fn from_corrupt(corrupt: Corrupt) -> FsError {
    let mut damage = Damage::new(corrupt.to_string());
    damage.kind = match corrupt.kind {
        DamageKind::Content => vfs::DamageKind::Content,
        DamageKind::Checksum => vfs::DamageKind::Checksum,
        _ => vfs::DamageKind::Structure,
    };
    damage.address = corrupt.logical.map(|logical| logical.0);
    damage.item = corrupt.key.map(|key| (key.objectid, key.kind, key.offset));
    damage.copy = corrupt.copy;
    damage.into()
}

/// `?` for results of the lower rooms.
pub(crate) trait IntoFs<T> {
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
