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
use vfs::{FsError, Result};

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

/// Who meets a damaged log may choose to do without it.
fn with_remedy(error: FsError) -> FsError {
    match error {
        FsError::Corrupt(mut damage) => {
            damage.text = format!(
                "the log of fsyncs cannot be replayed: {}; nothing was changed. The last \
                 commit can be mounted with `ro,nologreplay`; `spinney rescue zero-log` gives up \
                 the fsyncs after it",
                damage.text
            );
            FsError::Corrupt(damage)
        }
        other => other,
    }
}
