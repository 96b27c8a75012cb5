//! Closing: unnamed inodes go, everything is committed. For who asks for it: everything or nothing.

use crate::engine::Engine;
use crate::writeback::Flushed;
use crate::writeback_errors::refused;
use btrfs_txn::Urgency;
use std::sync::atomic::Ordering;
use vfs::{FsError, Result};

pub(crate) fn close(engine: &Engine) -> Result<()> {
    // What has no name goes at the next mount.
    let health = &engine.core.health;
    if health.is_read_only() || health.is_still() || health.is_shut_down() {
        engine.last_commit.store(true, Ordering::SeqCst);
        return Ok(());
    }
    // Behind this what the device's errors are is not written any more, either.
    engine.device_stats.write();
    engine.end_changes();
    if engine.orphans.erasures.count() > 0 {
        // What is left to erase may take minutes, and who loses patience is not to lose more than that.
        let _told_by_the_next = engine.committer.commit();
    }
    erase_unnamed(engine);
    // Who has passed all that keeps others from beginning to change something waits for room perhaps, or for an
    // inode, and comes behind it.
    engine.last_commit.store(true, Ordering::SeqCst);
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

/// All content is in its place when this returns, but for what found no room; or nothing of what came
/// after the last commit is kept. Who leaves a command's changes without some of their content
/// has emptied the files that it was to be written over.
pub(crate) fn land(engine: &Engine) -> Result<()> {
    let health = &engine.core.health;
    if health.is_read_only() || health.is_still() || health.is_shut_down() {
        return Ok(());
    }
    let given_up = match land_refused(engine) {
        Ok(Flushed::Refused) => {
            let unreported = engine.writeback.errors().take_unreported();
            unreported.unwrap_or_else(|| refused("content was not written".into()))
        }
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    name_unwritten(engine);
    health.poison(&format!("changes were given up: {given_up}"));
    engine.core.volume.stop_writing();
    let kept = match engine.stats.commits.get() {
        0 => "nothing was changed",
        _ => "what came after the last commit is not kept",
    };
    Err(match given_up {
        FsError::Io { context, source } => {
            FsError::Io { context: format!("{kept}: {context}"), source }
        }
        other => other,
    })
}

/// What is refused is tried once more: another place is given to it.
fn land_refused(engine: &Engine) -> Result<Flushed> {
    match engine.writeback.flush_all(Urgency::Awaited)? {
        Flushed::Refused => engine.writeback.flush_all(Urgency::Awaited),
        landed => Ok(landed),
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
        if inode.is_unnamed()
            && let Err(error) = engine.orphans.erase(&inode)
        {
            tracing::warn!(inode = inode.id.objectid, %error, "left for the next mount");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::reserve::tests::{volume, volume_with};
    use crate::{Injection, Options};
    use std::sync::Mutex;
    use std::sync::mpsc::{channel, sync_channel};
    use std::time::Duration;
    use vfs::{Context, FileKind, FileSystem};

    /// Somebody has passed all that keeps others from beginning to change something, waits, and ends when the last
    /// commit is over.
    #[test]
    fn what_ends_behind_the_last_commit_has_failed() {
        let fs = volume(128, 16384);
        let cx = Context { uid: 0, gid: 0, pid: 1, umask: 0 };
        let made = fs.change(|_| fs.mknod(&cx, fs.root(), b"file", FileKind::File, 0o644, 0));
        made.expect("it ends before");
        let told = fs.change(|engine| {
            fs.destroy().expect("close");
            drop(engine.core.begin());
            Ok(())
        });
        assert_eq!(told.expect_err("it may be in no commit").errno(), libc::EROFS);
    }

    /// Nor is it in one where nothing is left to commit.
    #[test]
    fn what_ends_behind_a_remount_and_the_end_has_failed() {
        let fs = volume(128, 16384);
        let told = fs.change(|_| {
            fs.still().expect("still");
            fs.destroy()
        });
        assert_eq!(told.expect_err("it is in no commit").errno(), libc::EROFS);
    }

    /// Returns when the thread of that name was seen asleep at two looks in a row.
    fn until_asleep(name: &str) {
        let mut looks = 0;
        for _ in 0..6000 {
            std::thread::sleep(Duration::from_millis(10));
            let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
            let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat"));
            let mut stats = tasks.filter_map(|task| stat(task).ok());
            let sleeps = stats.any(|stat| stat.contains(&format!("({name}) S")));
            looks = if sleeps { looks + 1 } else { 0 };
            if looks == 2 {
                return;
            }
        }
        panic!("{name} does not wait");
    }

    /// One is held at the end of the last commit, behind which comes a change of who asked before whether he may, and
    /// another waits to close the volume.
    #[test]
    fn who_closes_it_beside_another_hears_what_that_one_heard() {
        let ((tell, told), (go, goes)) = (channel(), sync_channel::<()>(1));
        let goes = Mutex::new(Some(goes));
        let look = move || {
            if std::thread::current().name() == Some("first") {
                let goes = goes.lock().expect("no panic").take().expect("one commit");
                tell.send(()).expect("somebody listens");
                let _ = goes.recv_timeout(Duration::from_secs(60));
            }
        };
        let injection = Injection::after_commit(look);
        let fs = volume_with(Options { background: false, injection, ..Options::default() });
        std::thread::scope(|scope| {
            let closer = |name: &str| {
                let thread = std::thread::Builder::new().name(name.into());
                thread.spawn_scoped(scope, || fs.destroy()).expect("a thread")
            };
            let first = closer("first");
            told.recv_timeout(Duration::from_secs(60)).expect("it commits");
            let second = closer("second-closer");
            until_asleep("second-closer");
            fs.engine.label.set(&[b'x'; 256]);
            go.send(()).expect("it is held");
            first.join().expect("no panic").expect("close");
            second.join().expect("no panic").expect("it is closed");
        });
        assert_eq!(fs.read_only_reason(), None, "nobody wrote behind the end");
        assert_eq!(fs.destroy().expect_err("it is closed").errno(), libc::EROFS);
    }

    /// Whatever it was.
    #[test]
    fn who_comes_behind_a_close_that_failed_hears_the_same_error() {
        let fs = volume(128, 16384);
        fs.engine.core.health.poison("as a test wants it");
        let first = fs.destroy().expect_err("nothing can be written");
        // As who asked before it was closed, and waited.
        fs.engine.core.health.shut_down();
        let second = fs.destroy().expect_err("nothing could be written");
        assert_eq!((second.errno(), second.to_string()), (first.errno(), first.to_string()));
        assert_eq!(second.errno(), libc::EROFS);
    }
}
