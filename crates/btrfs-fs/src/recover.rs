//! At mount: a log that a crash left is replayed, and the result made durable at once.
//!
//! Invariants: a log is replayed wholly or not at all, since a replay writes nothing but
//! memory; the superblock forgets the log with the commit that has its changes, and only
//! then its space is free. Where that commit fails (the volume under the log may be
//! damaged) the mount is refused. A volume that is not written shows the replayed state out
//! of memory.

use crate::engine::Engine;
use crate::error::IntoFs;
use crate::error::to_fs;
use crate::log::{Forest, Replayed, replay};
use btrfs_disk::Logical;
use vfs::{Damage, Errno, FsError, Result};

/// The caller has the engine alone.
pub(crate) fn recover(engine: &Engine) -> Result<()> {
    if engine.options.ignore_log {
        return Ok(());
    }
    let superblock = engine.core.volume.superblock();
    let loaded = Forest::load(&engine.core.store, &superblock).map_err(to_fs);
    let Some(forest) = loaded.map_err(with_remedy)? else { return Ok(()) };
    let done = replay(&engine.core, &forest).map_err(with_remedy)?;
    count(engine, &done);
    if !engine.core.health.is_read_only() {
        make_durable(engine).map_err(with_remedy)?;
        forest.release(&engine.core);
    }
    tracing::info!(
        subvolumes = done.subvolumes,
        inodes = done.inodes,
        items = done.items,
        written = !engine.core.health.is_read_only(),
        "replayed the log of fsyncs that a crash left"
    );
    Ok(())
}

fn count(engine: &Engine, done: &Replayed) {
    engine.stats.replay_subvolumes.add(done.subvolumes);
    engine.stats.replay_inodes.add(done.inodes);
    engine.stats.replay_items.add(done.items);
    engine.stats.replay_extents.add(done.extents);
}

fn make_durable(engine: &Engine) -> Result<()> {
    engine.committer.commit()?;
    let mut superblock = (*engine.core.volume.superblock()).clone();
    if superblock.fields.log_root.0 != 0 {
        // The log said nothing new, so there was nothing to commit.
        (superblock.fields.log_root, superblock.fields.log_root_level) = (Logical(0), 0);
        engine.core.volume.commit_superblock(superblock).fs()?;
    }
    Ok(())
}

/// Who meets a log that cannot be replayed may choose to do without it.
fn with_remedy(error: FsError) -> FsError {
    let told = |what: &str| {
        format!(
            "the log of fsyncs cannot be replayed: {what}; nothing was changed. The last \
             commit can be mounted with `ro,nologreplay`; `spinney rescue zero-log` gives up \
             the fsyncs after it"
        )
    };
    match error {
        FsError::Corrupt(mut damage) => {
            damage.text = told(&damage.text);
            FsError::Corrupt(damage)
        }
        // The volume has no room for what it is to become, which may come.
        FsError::Posix(Errno::ENOSPC) => {
            tracing::error!("{}", told(Errno::ENOSPC.text()));
            error
        }
        // It asks for what the format cannot hold.
        FsError::Posix(errno) => Damage::new(told(errno.text())).into(),
        FsError::Io { context, source } => FsError::Io { context: told(&context), source },
        FsError::Unsupported(what) => FsError::Unsupported(told(&what)),
        FsError::ReadOnly(why) => FsError::ReadOnly(told(&why)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_the_way_of_a_replay_the_way_on_is_told() {
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        let errors = [
            (Damage::new("a key").into(), 117),
            (Errno::EOVERFLOW.into(), 117),
            (FsError::Io { context: "reading".into(), source }, libc::EIO),
            (FsError::Unsupported("a kind".into()), libc::EOPNOTSUPP),
            (FsError::ReadOnly("a device".into()), libc::EROFS),
        ];
        for (error, errno) in errors {
            let told = with_remedy(error);
            let text = told.to_string();
            assert!(text.contains("nologreplay") && text.contains("zero-log"), "{text}");
            assert_eq!(told.errno(), errno, "{text}");
        }
        assert_eq!(with_remedy(Errno::ENOSPC.into()).errno(), libc::ENOSPC);
    }
}
