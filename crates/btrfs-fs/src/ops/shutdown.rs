//! A stop as if the power went, asked for (`FS_IOC_SHUTDOWN`): how the crash tests of
//! applications stop a file system. The kernel's btrfs 6.18 has none; this is what XFS does.
//!
//! Invariant: when `shut_down` has returned nothing is written any more, so the medium has what
//! a crash at that moment would have left.

use crate::engine::Engine;
use std::io;
use vfs::{Durable, FsError, Result};

/// What every call answers from then on: EIO.
pub(crate) fn error() -> FsError {
    let source = io::Error::from_raw_os_error(libc::EIO);
    FsError::Io { context: "the volume was shut down".into(), source }
}

/// Where what is to be durable first cannot be made so, nothing is shut down.
pub(crate) fn shut_down(engine: &Engine, first: Durable) -> Result<()> {
    match first {
        Durable::Everything => engine.committer.commit()?,
        Durable::Changes => engine.committer.commit_written_back()?,
        Durable::Synced => {}
    }
    engine.core.health.shut_down();
    engine.core.volume.stop_writing();
    // Commits and log writes that have not come to their end give up there; others are done.
    engine.committer.wait_for_running();
    drop(engine.log.lock());
    Ok(())
}
