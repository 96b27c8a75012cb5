//! Durability on request.
//!
//! An fsync writes back the inode's content, which enters it into the delta, and has the
//! tree log take what changed of it; `sync` commits. What of content the device refused, and to
//! whom that is told, stands in writeback_errors.rs.

use crate::engine::Engine;
use crate::ino::is_stand_in;
use crate::inode::{ErrorSeen, Inode};
use crate::log::Request;
use crate::writeback_errors::refused;
use btrfs_txn::delta::Level;
use inode_index::Ref;
use vfs::{FsError, Ino, Result};

/// The inode, its content and its names are durable when this returns; of a directory the
/// entries that it has and has no more. `fdatasync` is the same.
/// `opened` says which opening of the file asks; 0: that is not known.
pub(crate) fn fsync(engine: &Engine, ino: Ino, opened: u64, _datasync: bool) -> Result<()> {
    engine.stats.fsyncs.add(1);
    if engine.core.health.is_read_only() || engine.core.health.is_still() {
        return Ok(());
    }
    if is_stand_in(ino) {
        return engine.committer.commit_written_back();
    }
    let inode = engine.inodes.get(ino)?;
    let synced = write_back(engine, &inode).and_then(|()| log(engine, &inode));
    if synced.as_ref().is_err_and(|error| !matches!(error, FsError::Io { .. })) {
        // Not told by this. Who hears that there is no room, or that commits are held, may be served once
        // more without a word of it, be it a write to a file of `chattr +S`.
        return synced;
    }
    // Also one that this call met itself: it is told now.
    let was_refused = hears_of_refusal(engine, &inode, opened);
    synced?;
    if was_refused {
        // By now it is durable: but a device that refuses is one to be looked after.
        let why = format!("content of inode {} was refused before", inode.id.objectid);
        return Err(refused(why));
    }
    Ok(())
}

/// With a permit, and no lock held at first; but where content is written past the page cache, each waits for
/// the device, which takes many at once. Nor does one wait who has none to write.
fn write_back(engine: &Engine, inode: &Ref<Inode>) -> Result<()> {
    let has_content = || inode.read().is_ok_and(|state| state.dirty.is_some());
    let copies = !engine.core.volume.tells_late() && has_content();
    let _permit = copies.then(|| engine.fsync.prepare());
    engine.writeback.flush_inode(inode)
}

fn log(engine: &Engine, inode: &Inode) -> Result<()> {
    if !engine.options.tree_log {
        return engine.committer.commit_written_back();
    }
    // An error: erased, or not to be had any more, as in a subvolume that was deleted. Its content is not kept.
    let (level, nameless) = {
        let state = inode.read()?;
        let level = if state.is_dir() { Level::Entries } else { Level::Inode };
        // One that never had a name (O_TMPFILE) has lost none.
        (level, state.item.nlink == 0 && !state.linkable)
    };
    let generation = engine.core.layers().current.generation;
    let request = Request { id: inode.id, level, generation };
    if nameless && engine.fsync.commits_nameless(&request)? {
        return Ok(());
    }
    engine.fsync.log(request)
}

/// An fsync that asked in the epoch of the last commit, and has its turn now.
#[cfg(feature = "fault-injection")]
pub(crate) fn fsync_late(engine: &Engine, ino: Ino) -> Result<()> {
    let (inode, generation) = (engine.inodes.get(ino)?, engine.core.roots().generation);
    engine.fsync.log(Request { id: inode.id, level: Level::Inode, generation })
}

fn hears_of_refusal(engine: &Engine, inode: &Inode, opened: u64) -> bool {
    let refused = inode.read().is_ok_and(|state| state.refused.is_some());
    let last = engine.writeback.errors().last_opened();
    refused && inode.write().is_ok_and(|mut state| ErrorSeen::by(&mut state.refused, opened, last))
}

/// EIO once for what a device refused, and to each thread once for the end of a volume that was
/// given up because of it; EROFS from then on.
pub(crate) fn sync(engine: &Engine, thread: u32) -> Result<()> {
    let committed = engine.committer.commit();
    let unreported = engine.writeback.errors().take_unreported();
    if engine.core.health.poisoned().is_some() && engine.writeback.errors().tells_end(thread) {
        return match committed {
            Err(FsError::ReadOnly(why)) => Err(refused(why)),
            Ok(()) => unreported.map_or(Ok(()), Err),
            other => other,
        };
    }
    match (committed, unreported) {
        (Ok(()), Some(error)) => Err(error),
        // What was refused says more than that something was.
        (Err(FsError::Io { .. }), Some(error)) if engine.core.health.poisoned().is_none() => {
            Err(error)
        }
        (committed, _) => committed,
    }
}

#[cfg(test)]
mod tests {
    use crate::reserve::tests::{new_file, volume};
    use vfs::{Context, FileSystem};

    #[test]
    fn who_has_no_content_to_write_asks_for_no_permit() {
        let fs = volume(128, 16384);
        let cx = Context { umask: 0o022, ..Context::default() };
        let file = new_file(&fs);
        let asked = || fs.engine.fsync.preparing.asked();
        fs.fsync(fs.root(), false).expect("fsync of a directory");
        assert_eq!(asked(), 0);
        fs.write(&cx, file, 0, b"content", Default::default()).expect("write");
        fs.fsync(file, false).expect("fsync");
        assert_eq!(asked(), 1);
        fs.fsync(file, false).expect("once more");
        assert_eq!(asked(), 1);
        fs.destroy().expect("close");
    }
}
