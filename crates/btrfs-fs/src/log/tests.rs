//! What a log waits for, and what it takes, on small volumes in memory.

use crate::reserve::tests::{new_file, volume, volume_on};
use crate::{BtrfsFs, Options};
use blockdev::MemDevice;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_space::{Kind, MetadataReservation, Moment, Priority, Space};
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vfs::{Context, FileKind, FileSystem, Ino, XattrMode};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

fn put(fs: &BtrfsFs, ino: Ino) {
    fs.setxattr(&CX, ino, b"user.a", b"b", XattrMode::Set).expect("an attribute");
}

fn stat(fs: &BtrfsFs, name: &str) -> u64 {
    fs.stats().into_iter().find(|stat| stat.name == name).expect("a counter").value
}

/// Whom a log waits for may fail halfway: what he leaves goes into no log.
#[test]
fn what_failed_halfway_before_a_log_got_on_is_in_none() {
    let fs = volume(128, 16384);
    let core = &fs.engine.core;
    let ino = new_file(&fs);
    fs.sync().expect("sync");
    put(&fs, ino);
    let written = stat(&fs, "log.writes");
    let synced = std::thread::scope(|scope| {
        let op = core.begin();
        let syncs = scope.spawn(|| fs.fsync(ino, false));
        let layers = core.layers();
        while let Some(active) = layers.current.gate.enter() {
            layers.current.gate.leave(active);
            assert!(!syncs.is_finished(), "the log waits for who is under way");
            std::thread::yield_now();
        }
        core.health.poison("halfway");
        drop(op);
        syncs.join().expect("no panic")
    });
    synced.expect_err("nothing may be written any more");
    assert_eq!(stat(&fs, "log.writes"), written);
    fs.forget(ino, 1);
    let _ = fs.destroy();
}

/// Calls something in the midst of a read, once.
#[derive(Default)]
struct Interruption(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl RequestHook for Interruption {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if matches!(request, Request::Read { .. }) {
            let meanwhile = self.0.lock().expect("unpoisoned").take();
            meanwhile.into_iter().for_each(|work| work());
        }
        go_on()
    }
}

/// What a step of erasing reads it reads before a log has to wait for it.
#[test]
fn a_log_does_not_wait_for_who_reads_what_he_is_about_to_erase() {
    let device =
        Arc::new(Hooked { below: MemDevice::new(256 << 20), hook: Interruption::default() });
    let fs = volume_on(device.clone(), 4096);
    let large = new_file(&fs);
    for extent in 0..2000 {
        fs.write(&CX, large, extent * 8192, &[7; 4096], Default::default()).expect("write");
    }
    fs.forget(large, 1);
    fs.destroy().expect("close");
    drop(fs);
    // Of its leaves the fewest stay in memory.
    let options = Options { background: false, cache_bytes: 64 << 10, ..Default::default() };
    let fs = Arc::new(BtrfsFs::open_device(device.clone(), options).expect("open"));
    let large = fs.lookup(&CX, fs.root(), b"file").expect("there").attr.ino;
    fs.unlink(&CX, fs.root(), b"file").expect("unlink");
    let made = fs.mknod(&CX, fs.root(), b"other", FileKind::File, 0o644, 0);
    let other = made.expect("create").attr.ino;
    fs.sync().expect("sync");
    put(&fs, other);
    let (tells, heard) = channel();
    let beside = fs.clone();
    *device.hook.0.lock().expect("unpoisoned") = Some(Box::new(move || {
        let (done, ends) = channel();
        std::thread::spawn(move || done.send(beside.fsync(other, false)));
        // For ever, where it waits for who waits for it.
        tells.send(ends.recv_timeout(Duration::from_secs(20)).is_ok()).expect("heard");
    }));
    fs.forget(large, 1);
    assert!(heard.try_recv().expect("it read something"), "the log waited");
    fs.forget(other, 1);
    fs.sync().expect("sync");
    fs.destroy().expect("close");
}

/// All metadata that ordinary operations could still have.
fn all_ordinary(space: &Space) -> MetadataReservation {
    let reserve = |bytes| space.reserve_metadata(bytes, Priority::Normal);
    let mut all = reserve(0).expect("nothing");
    for bytes in [1 << 20, 1 << 16, 1 << 12] {
        while let Ok(more) = reserve(bytes) {
            all.absorb(more);
        }
    }
    all
}

/// What others take meanwhile is not there for the log, nor is what is kept.
#[test]
fn what_a_log_sets_aside_beside_a_commit_is_nothing_of_what_is_kept() {
    let fs = volume(256, 4096);
    let core = &fs.engine.core;
    let ino = new_file(&fs);
    fs.sync().expect("sync");
    put(&fs, ino);
    let space = &core.space;
    let kept = space.room_for_commits() - space.unreserved(Kind::Metadata);
    let held = Arc::new(Mutex::new(None));
    let rest = held.clone();
    space.meanwhile(Moment::Allocate, move |space| {
        *rest.lock().expect("unpoisoned") = Some(all_ordinary(space));
    });
    let mut log = fs.engine.log.lock();
    log.save_for_commit(core, core.roots().generation, u64::MAX);
    let rest = held.lock().expect("unpoisoned").take().expect("somebody took the rest");
    assert!(log.spare.as_ref().is_some_and(|spare| !spare.is_empty()));
    let left = space.room_for_commits();
    log.give_up(core);
    drop((log, rest));
    assert!(left >= kept, "{left} bytes are left, {kept} are kept");
    fs.forget(ino, 1);
    fs.sync().expect("sync");
    fs.destroy().expect("close");
}
