//! Closing: unnamed inodes go, everything is committed.

use crate::engine::Engine;
use vfs::{FsError, Result};

pub(crate) fn close(engine: &Engine) -> Result<()> {
    // What has no name goes at the next mount.
    let health = &engine.core.health;
    if health.is_read_only() || health.is_still() || health.is_shut_down() {
        return Ok(());
    }
    erase_unnamed(engine);
    let committed = engine.committer.commit();
    if engine.reservations.is_short() {
        let changes = engine.core.layers().current.items.slots();
        tracing::error!(changes, "no room to commit: what was not synced is lost");
    }
    engine.reservations.assert_returned();
    match name_unwritten(engine) {
        0 => committed,
        files => committed.map_err(|error| match error {
            FsError::Io { context, source } => {
                let files = if files == 1 { "1 file".into() } else { format!("{files} files") };
                let context = format!("content of {files} is lost: {context}");
                FsError::Io { context, source }
            }
            other => other,
        }),
    }
}

/// Says which files lose what is in memory alone; answers how many they are.
fn name_unwritten(engine: &Engine) -> usize {
    let mut files = 0;
    for inode in engine.inodes.table().all() {
        let Ok(state) = inode.read() else { continue };
        let bytes = state.dirty.as_ref().map_or(0, |dirty| dirty.bytes());
        if bytes > 0 && state.item.nlink > 0 {
            let (tree, inode) = (inode.id.tree, inode.id.objectid);
            tracing::error!(%tree, inode, bytes, "written content of this file is lost");
            files += 1;
        }
    }
    files
}

/// Nobody can refer to anything any more: what has no name goes with this commit.
fn erase_unnamed(engine: &Engine) {
    for inode in engine.inodes.table().all() {
        let unnamed = inode.read().is_ok_and(|s| s.item.nlink == 0 && s.orphan.is_one());
        if unnamed && let Err(error) = engine.orphans.erase(&inode) {
            tracing::warn!(inode = inode.id.objectid, %error, "left for the next mount");
        }
    }
}
