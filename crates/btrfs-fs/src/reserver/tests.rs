//! Removals that look for the last room, on a small volume in memory.

mod crowd;
mod drops;
mod kept;
mod short;

use crate::BtrfsFs;
use crate::reserve::Cost;
use crate::reserve::tests::{volume, volume_on};
use blockdev::MemDevice;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_space::{Kind, MetadataReservation, Moment, Priority, Space};
use std::io;
use std::sync::{Arc, Mutex};
use vfs::{Context, FileKind, FileSystem, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

fn name(number: u64) -> Vec<u8> {
    format!("a-file-with-a-name-of-some-length-{number}").into_bytes()
}

fn create(fs: &BtrfsFs, number: u64) -> Ino {
    let made = fs.mknod(&CX, fs.root(), &name(number), FileKind::File, 0o644, 0);
    made.expect("create").attr.ino
}

fn write(fs: &BtrfsFs, ino: Ino) {
    fs.write(&CX, ino, 0, b"a few bytes", Default::default()).expect("write");
}

fn unlink(fs: &BtrfsFs, number: u64) -> vfs::Result<()> {
    fs.unlink(&CX, fs.root(), &name(number))
}

fn stat(fs: &BtrfsFs, name: &str) -> u64 {
    fs.stats().into_iter().find(|stat| stat.name == name).expect("a counter").value
}

/// What commits make possible is done by who has asked for one, who may be looking for the last room
/// himself: that takes no part in the search.
#[test]
fn what_is_erased_behind_a_commit_looks_for_no_room() {
    let fs = volume(128, 16384);
    let engine = &fs.engine;
    let open = create(&fs, 1);
    fs.forget(create(&fs, 2), 1);
    unlink(&fs, 1).expect("unlink");
    // A full volume had no room to erase it.
    engine.core.health.refuse_changes(true);
    fs.forget(open, 1);
    engine.core.health.refuse_changes(false);
    let all = engine.reservations.hold_anyway(Cost { bytes: 1 << 40, ..Cost::default() });
    let error = unlink(&fs, 2).expect_err("somebody has reserved more than there is");
    assert_eq!(error.errno(), libc::ENOSPC);
    drop(all);
    assert!(fs.engine.inodes.get(open).is_ok(), "there was no room to erase it");
    unlink(&fs, 2).expect("there is room again");
    fs.sync().expect("sync");
    assert!(fs.engine.inodes.get(open).is_err(), "erased behind the commit");
    fs.destroy().expect("close");
}

/// All metadata that ordinary operations could still have.
fn all_ordinary(fs: &BtrfsFs) -> MetadataReservation {
    // Nothing of what is kept: a commit may begin at any time.
    all_for(fs, Priority::Normal)
}

fn all_for(fs: &BtrfsFs, priority: Priority) -> MetadataReservation {
    let space = &fs.engine.core.space;
    while space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("a chunk of data") {}
    let mut all = space.reserve_metadata(0, priority).expect("nothing");
    for bytes in [1 << 20, 1 << 16, 1 << 12] {
        while let Ok(more) = space.reserve_metadata(bytes, priority) {
            all.absorb(more);
        }
    }
    all
}

const FILES: u64 = 20_000;
/// Every so many of them; the others lie between them in the trees.
const WRITTEN: usize = 200;
const REMOVED: usize = 50;

fn many_files() -> (BtrfsFs, Vec<Ino>) {
    with_files(FILES)
}

fn with_files(count: u64) -> (BtrfsFs, Vec<Ino>) {
    let fs = volume(256, 4096);
    let inos = make_files(&fs, count);
    (fs, inos)
}

fn make_files(fs: &BtrfsFs, count: u64) -> Vec<Ino> {
    let inos: Vec<Ino> = (0..count).map(|number| create(fs, number)).collect();
    // The last chunk of data is not empty, to be given up for metadata.
    fs.write(&CX, inos[0], 0, &[1; 100_000], Default::default()).expect("write");
    fs.sync().expect("sync");
    inos
}

fn assert_kept(fs: &BtrfsFs) {
    for name in ["commit.unkept", "commit.unpaid_nodes", "commit.short", "commit.over_promise"] {
        assert_eq!(stat(fs, name), 0, "{name}");
    }
}

/// All that was acknowledged has room, whatever of it is in memory; `rest` was held against it.
fn end(fs: &BtrfsFs, inos: &[Ino], rest: MetadataReservation, kept: &str) {
    fs.sync().expect(kept);
    assert_kept(fs);
    drop(rest);
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}

/// Content that lands with the next commit needs what is held for it, whatever is removed before.
#[test]
fn removals_leave_unwritten_content_its_room() {
    let (fs, inos) = many_files();
    for number in (WRITTEN..FILES as usize).step_by(WRITTEN) {
        write(&fs, inos[number]);
    }
    let rest = all_ordinary(&fs);
    for number in (1..FILES).step_by(REMOVED) {
        unlink(&fs, number).expect("a removal gets on");
    }
    end(&fs, &inos, rest, "what was written is kept");
}

/// What is in memory has room for the trees as they are. A commit that leaves it there may make
/// them so large that it needs more than there is.
#[test]
fn content_that_outgrows_its_room_lands_with_the_commit_before() {
    let (fs, inos) = with_files(FILES / 10);
    inos[1..].iter().for_each(|ino| write(&fs, *ino));
    grow(&fs);
    assert_eq!(stat(&fs, "commit.count"), 1, "one commit before, for what was there");
    let rest = all_ordinary(&fs);
    fs.engine.committer.commit_written_back().expect("what is in the delta is kept");
    end(&fs, &inos, rest, "what was written is kept");
}

/// Content of inodes without names stays in memory, but not where what is held for it is the room that
/// somebody looks for.
#[test]
fn content_without_a_name_holds_up_nobody() {
    let (fs, inos) = many_files();
    for number in (WRITTEN..FILES as usize).step_by(WRITTEN) {
        write(&fs, inos[number]);
        unlink(&fs, number as u64).expect("unlink");
    }
    fs.sync().expect("sync");
    assert!(fs.engine.core.memory.dirty() > 0, "it stays in memory");
    let rest = all_ordinary(&fs);
    let mut number = FILES;
    // Where it stays, one of these finds no room.
    while fs.engine.core.memory.dirty() > 0 {
        fs.forget(create(&fs, number), 1);
        number += 1;
    }
    end(&fs, &inos, rest, "what was created is kept");
}

/// What only a commit would make room for is refused while commits are held, or the one that comes would
/// not have what is kept for it.
#[test]
fn removals_leave_the_commit_that_is_held_its_room() {
    let (fs, inos) = many_files();
    let rest = all_ordinary(&fs);
    fs.hold_commits().expect("hold");
    let refused = (1..FILES).find_map(|number| unlink(&fs, number).err());
    assert_eq!(refused.map(|error| error.errno()), Some(libc::ENOSPC));
    fs.commit_held().expect("what was done is kept");
    assert_kept(&fs);
    unlink(&fs, FILES - 1).expect("a removal gets on");
    drop(rest);
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}

/// What a commit lacks it takes from empty chunks of data; that somebody else has just given those up is as
/// good.
#[test]
fn a_commit_finds_what_another_has_made_room_for() {
    let (fs, inos) = with_files(FILES / 10);
    let space = fs.space();
    grow(&fs);
    while space.new_chunk(Kind::Data).is_ok() {}
    let mut rest = space.reserve_metadata(0, Priority::Commit).expect("nothing");
    while let Ok(more) = space.reserve_metadata(1 << 12, Priority::Commit) {
        rest.absorb(more);
    }
    space.meanwhile(Moment::Reclaim, |space: &Space| {
        while space.reclaim_for(Kind::Metadata, space.chunk_changes()).expect("a chunk of data") {}
    });
    end(&fs, &inos, rest, "what was created is kept");
}

/// A volume whose next commit makes the trees twice as large.
fn grow(fs: &BtrfsFs) {
    for number in FILES..2 * FILES {
        fs.forget(create(fs, number), 1);
    }
}

/// Content of inodes without names has room for the trees as they are, and lands with the commit that
/// makes them so large that it has not.
#[test]
fn content_without_a_name_that_outgrows_its_room_lands() {
    let (fs, inos) = with_files(FILES / 10);
    for number in 1..FILES / 10 {
        write(&fs, inos[number as usize]);
        unlink(&fs, number).expect("unlink");
    }
    fs.sync().expect("sync");
    assert!(fs.engine.core.memory.dirty() > 0, "it stays in memory");
    grow(&fs);
    let reservations = &fs.engine.reservations;
    let mut rest = all_ordinary(&fs);
    while reservations.content_holds_most() {
        rest.shrink(1 << 16);
    }
    assert!(reservations.content_would_outgrow(), "but there is room for it now");
    fs.sync().expect("sync");
    assert_eq!(fs.engine.core.memory.dirty(), 0, "it has landed");
    end(&fs, &inos, rest, "what was written is kept");
}

/// Calls something in the midst of a write, once.
#[derive(Default)]
struct Interruption(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Interruption {
    fn meanwhile(&self, work: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("unpoisoned") = Some(Box::new(work));
    }
}

impl RequestHook for Interruption {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if matches!(request, Request::Write { .. }) {
            let meanwhile = self.0.lock().expect("unpoisoned").take();
            meanwhile.into_iter().for_each(|work| work());
        }
        go_on()
    }
}

/// A commit of everything writes back what there is when it begins. What is written meanwhile stays in
/// memory for the next one, unless it would have no room by then.
#[test]
fn content_that_comes_while_a_commit_writes_back_has_room_or_lands() {
    let below = MemDevice::new(256 << 20);
    let device = Arc::new(Hooked { below, hook: Interruption::default() });
    let fs = Arc::new(volume_on(device.clone(), 4096));
    let inos = make_files(&fs, FILES / 10);
    grow(&fs);
    fs.write(&CX, inos[0], 0, &[2; 100_000], Default::default()).expect("write");
    let held = Arc::new(Mutex::new(None));
    let (others, rest, of) = (fs.clone(), held.clone(), inos.clone());
    let work = move || {
        of[1..].iter().for_each(|ino| write(&others, *ino));
        *rest.lock().expect("unpoisoned") = Some(all_ordinary(&others));
    };
    let apart = || std::thread::spawn(work).join().expect("it writes");
    device.hook.meanwhile(apart);
    fs.sync().expect("sync");
    let rest = held.lock().expect("unpoisoned").take().expect("it was called");
    assert_eq!(fs.engine.core.memory.dirty(), 0, "it has landed");
    end(&fs, &inos, rest, "what was written is kept");
}

/// Beside a commit nobody asks for another one for room's sake; and once its nodes are made, trees may
/// be larger by those, and not by all that was held for it.
#[test]
fn what_a_commit_may_have_needed_counts_until_its_nodes_are_made() {
    let below = MemDevice::new(256 << 20);
    let device = Arc::new(Hooked { below, hook: Interruption::default() });
    let fs = Arc::new(volume_on(device.clone(), 4096));
    let inos = make_files(&fs, FILES / 10);
    let most = |fs: &BtrfsFs| {
        fs.engine.reservations.nodes_for(&Cost { places: 1 << 40, trees: 1, ..Cost::default() })
    };
    let before = most(&fs);
    (FILES..FILES + 100).for_each(|number| fs.forget(create(&fs, number), 1));
    let seen = Arc::new(Mutex::new(None));
    let (others, told) = (fs.clone(), seen.clone());
    device.hook.meanwhile(move || {
        let asks = others.engine.reserver.is_first_to_ask();
        *told.lock().expect("unpoisoned") = Some((most(&others), asks));
    });
    fs.sync().expect("sync");
    let (during, asks) = seen.lock().expect("unpoisoned").take().expect("it was called");
    assert!(!asks, "a commit that is at work gives back what is held beside it");
    assert!(during < 2 * before, "{during} bytes at most, {before} before");
    assert!(fs.engine.reserver.is_first_to_ask(), "once in an epoch");
    assert!(!fs.engine.reserver.is_first_to_ask());
    assert_kept(&fs);
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}

/// A commit that found no room has ended, too: the next one may be asked for, and nobody waits for what
/// this one would have given back.
#[test]
fn a_commit_that_ran_short_is_not_at_work_any_more() {
    let (fs, inos) = with_files(10);
    fs.forget(create(&fs, FILES), 1);
    let space = fs.space();
    let now = space.allocations();
    space.fail_allocations(now..u64::MAX);
    fs.sync().expect_err("there is no room");
    space.fail_allocations(0..0);
    assert_eq!(stat(&fs, "commit.short"), 1);
    assert!(!fs.engine.reserver.commit_is_coming(), "nobody has asked for one");
    assert!(fs.engine.reserver.is_first_to_ask());
    fs.sync().expect("there is room again");
    inos.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.destroy().expect("close");
}

/// `change`, by number, until commits have made room for it twice: nobody is refused before.
fn wait_for_room(change: impl Fn(&BtrfsFs, Ino, u64) -> vfs::Result<()>) {
    let (fs, inos) = with_files(FILES / 10);
    for number in FILES..FILES + 5000 {
        fs.forget(create(&fs, number), 1);
    }
    let rest = all_ordinary(&fs);
    let mut number = 0;
    while stat(&fs, "commit.for_space") < 2 {
        change(&fs, inos[0], number).expect("a commit makes room");
        number += 1;
    }
    end(&fs, &inos, rest, "what was changed is kept");
}

/// Each step of sharing has a reservation of its own, and waits for room with no inode locked.
#[test]
fn sharing_waits_for_room() {
    wait_for_room(|fs, ino, number| {
        let to = (100 + 2 * number) * 4096;
        fs.clone_range(&CX, ino, 0, ino, to, 4096)
    });
}

/// So has each extent that is preallocated.
#[test]
fn preallocation_waits_for_room() {
    wait_for_room(|fs, ino, number| {
        let at = (100 + 2 * number) * 4096;
        fs.fallocate(&CX, ino, vfs::FallocateMode::KeepSize, at, 4096)
    });
}

/// A rest gives a commit at work its time. Where little has changed none is asked for, and a removal that rests
/// all the same waits for nothing: 200,000 removals on 400 MB would take a minute that way.
#[test]
fn nobody_rests_for_a_commit_that_is_not_asked_for() {
    let device = Arc::new(MemDevice::new(1 << 30));
    drop(volume_on(device.clone(), 4096));
    let fs = BtrfsFs::open_device(device, crate::Options::default()).expect("open");
    let inos = make_files(&fs, FILES / 100);
    let held = Cost { bytes: 80 << 20, ..Cost::default() };
    let held = fs.engine.reservations.hold(held, Priority::Normal).expect("there is room");
    let rest = all_ordinary(&fs);
    (1..FILES / 100).for_each(|number| unlink(&fs, number).expect("a removal gets on"));
    // One that was asked for may be rested for; it was each removal that rested.
    let rests = stat(&fs, "delta.paced");
    assert!(rests < 10, "{rests} rests");
    drop(held);
    end(&fs, &inos, rest, "what was removed is gone");
}
