//! What is kept for commits is there for each of them, on small volumes in memory whose room others have.

use super::{CX, Interruption, all_for, all_ordinary, create, end, name, stat, unlink, with_files};
use crate::erasures::Erasure;
use crate::reserve::tests::{volume, volume_on};
use crate::reserve::{Cost, cost};
use crate::{BtrfsFs, Caller};
use blockdev::MemDevice;
use blocksim::Hooked;
use btrfs_space::{Kind, MetadataReservation, Priority};
use btrfs_txn::delta::Level;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use vfs::{FileKind, FileSystem, Ino, XattrMode};

/// A commit.
fn label(fs: &BtrfsFs, text: &str) {
    fs.set_label(&CX, text.as_bytes()).expect("label");
}

/// Behind a commit beside somebody who reads older roots the next one waits for him.
fn assert_waits_for_reader(fs: &BtrfsFs, when: &str) {
    let waits = || stat(fs, "commit.after_readers");
    let reads = fs.engine.core.roots();
    label(fs, &format!("first {when}"));
    let (before, done) = (waits(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reads = reads;
            while waits() == before && !done.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            drop(reads);
        });
        label(fs, &format!("second {when}"));
        done.store(true, Ordering::Relaxed);
    });
    assert!(waits() > before, "a reader is waited for {when}");
}

/// What a commit freed is pinned while somebody reads older roots. The next one waits for him a while, where
/// that is all that it could have; each time.
#[test]
fn a_commit_waits_for_what_the_one_before_has_freed() {
    let (fs, inos) = with_files(2000);
    let rest = all_for(&fs, Priority::Delete);
    for round in 0..3 {
        assert_waits_for_reader(&fs, &format!("of round {round}"));
    }
    end(&fs, &inos, rest, "the label is kept");
}

/// A small volume, with files of which the second is written, on which somebody takes `all` metadata and syncs the
/// first while a commit is at work. What he has of it, and the files.
fn synced_beside(
    all: impl Fn(&BtrfsFs) -> MetadataReservation + Send + 'static,
) -> (Arc<BtrfsFs>, Vec<Ino>, MetadataReservation) {
    let below = MemDevice::new(256 << 20);
    let device = Arc::new(Hooked { below, hook: Interruption::default() });
    let fs = Arc::new(volume_on(device.clone(), 4096));
    let inos: Vec<Ino> = (0..100).map(|number| create(&fs, number)).collect();
    fs.sync().expect("sync");
    let put = |fs: &BtrfsFs, ino| {
        fs.setxattr(&CX, ino, b"user.a", b"b", XattrMode::Set).expect("an attribute");
    };
    put(&fs, inos[1]);
    let held = Arc::new(Mutex::new(None));
    let (others, rest, ino) = (fs.clone(), held.clone(), inos[0]);
    let work = move || {
        put(&others, ino);
        let id = others.engine.inodes.get(ino).expect("it is open").id;
        others.engine.log.lock().synced.insert(id, Level::Inode);
        *rest.lock().expect("unpoisoned") = Some(all(&others));
    };
    device.hook.meanwhile(move || std::thread::spawn(work).join().expect("it writes"));
    fs.sync().expect("sync");
    let rest = held.lock().expect("unpoisoned").take().expect("it was called");
    (fs, inos, rest)
}

/// A log that is carried along needs a few nodes. Where it found none for want of ordinary room two commits
/// became one, the second of them before anything that the first had freed came back.
#[test]
fn a_log_is_carried_along_where_there_is_no_ordinary_room() {
    let (fs, inos, rest) = synced_beside(all_ordinary);
    assert_eq!(stat(&fs, "commit.doubled"), 0, "the log had room");
    end(&fs, &inos, rest, "what was written is kept");
}

/// But of what commits alone may use it has none: another commit does without.
#[test]
fn a_log_that_is_carried_along_leaves_commits_what_is_kept_for_them() {
    let (fs, inos, rest) = synced_beside(|fs| all_for(fs, Priority::Delete));
    assert_eq!((stat(&fs, "log.inodes_carried"), stat(&fs, "commit.doubled")), (0, 1));
    end(&fs, &inos, rest, "what was written is kept");
}

/// An operation reserves for the tree that it changes, and counts in the delta no more than that.
#[test]
fn what_an_operation_reserves_is_enough_whatever_number_of_subvolumes_there_is() {
    let fs = volume(128, 4096);
    let subs: Vec<Ino> = (0..40)
        .map(|number| {
            let made = fs.create_subvolume(&Caller::root(), fs.root(), &name(number));
            made.expect("subvolume").1.attr.ino
        })
        .collect();
    let open: Vec<Ino> = subs
        .iter()
        .map(|sub| {
            let made = fs.mknod(&CX, *sub, b"file", FileKind::File, 0o644, 0);
            made.expect("create").attr.ino
        })
        .collect();
    fs.sync().expect("sync");
    let mut rest = all_for(&fs, Priority::Delete);
    let reservations = &fs.engine.reservations;
    rest.shrink(reservations.nodes_for(&cost::unlink()));
    fs.unlink(&CX, subs[0], b"file").expect("there is room for one");
    let (need, held) = (reservations.need(Priority::Commit), reservations.held());
    assert!(need <= held, "{need} bytes are needed, {held} are held");
    end(&fs, &open, rest, "it is gone");
}

/// Where nobody read when there was no room, nobody was waited for: the next one who reads is.
#[test]
fn a_commit_without_room_beside_nobody_who_reads_takes_no_wait_from_the_next() {
    let (fs, inos) = with_files(2000);
    let rest = all_for(&fs, Priority::Delete);
    let space = &fs.engine.core.space;
    // More than is left of what is kept, less than one commit takes.
    let some = space.reserve_metadata(16384, Priority::Commit).expect("it is kept for commits");
    label(&fs, "nobody reads");
    assert_eq!(space.pinned(Kind::Metadata), 0);
    assert_waits_for_reader(&fs, "behind it");
    drop((some, rest));
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}

/// A file that only waits to be erased in the background, as the thread there has it.
fn to_erase(fs: &BtrfsFs, ino: Ino, number: u64) -> Erasure {
    unlink(fs, number).expect("unlink");
    let health = &fs.engine.core.health;
    health.refuse_changes(true);
    fs.forget(ino, 1);
    health.refuse_changes(false);
    let waiting = fs.engine.orphans.erasures.take_set_aside().pop().expect("it waits");
    Erasure { looks_for_room: true, ..waiting }
}

/// Who writes in place waits for what is erased, and a step of that looks for the last room itself: neither keeps
/// the other from it.
#[test]
fn who_writes_in_place_leaves_the_last_room_to_what_he_waits_for() {
    let (fs, inos) = with_files(100);
    let (engine, (last, inos)) = (&fs.engine, inos.split_last().expect("files"));
    let erasures = &engine.orphans.erasures;
    let erasure = to_erase(&fs, *last, 99);
    let rest = all_for(&fs, Priority::Delete);
    let (before, ended) = (stat(&fs, "commit.for_space"), AtomicBool::new(false));
    erasures.serve(true);
    erasures.add(erasure);
    // More than a commit gives back of what is held for it.
    let cost = Cost { bytes: rest.bytes() / 8, ..Cost::default() };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let held = engine.reserver.reserve_in_place(cost).map(drop);
            ended.store(true, Ordering::Release);
            held
        });
        // It looks for room from here on.
        while stat(&fs, "commit.for_space") == before && !ended.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // It has the last room then, and gives it up for who may need it.
        while engine.reserver.last_room.try_lock().is_none() {
            std::thread::yield_now();
        }
        assert!(!ended.load(Ordering::Acquire), "it waited with the last room, to the end");
        let mut erasure = erasures.next().expect("it waits");
        let erased = engine.orphans.step_behind(&mut erasure);
        assert!(!ended.load(Ordering::Acquire), "the step waited for who waited for it");
        // As it would be behind some steps.
        drop(rest);
        erasures.stepped();
        engine.orphans.settle(erasure, erased);
        erasures.serve(false);
        writer.join().expect("no panic").expect("there is room");
    });
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}
