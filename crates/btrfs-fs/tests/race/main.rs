//! Many threads at the same few files: what is read of them can be told by what was written.
//!
//! `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_STEPS` choose other seeds and more.

#[path = "../common/mod.rs"]
mod common;

mod driver;
mod history;
mod names;
mod rounds;

use btrfs_disk::TreeId;
use btrfs_disk::items::inode_flags;
use btrfs_fs::{BtrfsFs, Caller, Compress, Delete, Method, Options, SubvolId};
use common::{CX, Image, close_and_judge, number, seeds, steps};
use driver::{Actor, World};
use history::{CELLS, Event, File, History, What};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use testkit::ops::Rng;
use vfs::{FileSystem, Ino};

const FS_VERITY: u32 = 0x10_0000;
const FS_NOCOW: u32 = 0x80_0000;

/// Few of everything.
fn options(seed: u64) -> Options {
    Options { cache_bytes: 1 << 20, dirty_bytes: 8 << 20, ..common::inodes(seed) }
}

fn subvolume(fs: &BtrfsFs, name: &str) -> Ino {
    let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
    made.expect("a subvolume").1.attr.ino
}

/// Snapshots of the subvolume come, are read and go.
fn snapshots(world: &World<'_>, source: Ino) {
    let (fs, mut log, mut count) = (world.fs, Vec::new(), 0);
    world.meanwhile(|| {
        count += 1;
        let name = format!("snapshot{count}");
        let start = world.tick();
        let made = fs.snapshot(&Caller::root(), source, fs.root(), name.as_bytes(), count % 2 == 0);
        let end = world.tick();
        let (id, entry) = made.expect("snapshot");
        let root = entry.attr.ino;
        if count % 2 == 0 {
            as_committed(fs, id, root);
        }
        for (ino, of) in files_in(fs, root) {
            let file = world.files.fetch_add(1, SeqCst);
            let what = What::Copy { from: (of, 0), to: (file, 0), count: CELLS };
            log.push(Event { name: "snapshot", start, end, what, sure: true });
            world.read_whole(&mut log, "read of a snapshot", ino, file);
            world.read_whole(&mut log, "read of a snapshot again", ino, file);
            fs.forget(ino, 1);
        }
        fs.forget(root, 1);
        let which = Delete::Name(fs.root(), name.as_bytes());
        fs.delete_subvolume(&Caller::root(), which).expect("delete the snapshot");
        std::thread::sleep(Duration::from_millis(20));
    });
    world.events.lock().unwrap().append(&mut log);
}

/// Who makes a stream of a read-only subvolume reads the same as everybody.
fn as_committed(fs: &BtrfsFs, id: SubvolId, root: Ino) {
    let (_, mut pieces) = fs.find_new(id, 0, None, 10_000).expect("all pieces of it");
    pieces.dedup_by_key(|piece| piece.inode);
    // What had no name has none here.
    pieces.retain(|piece| !piece.path.is_empty());
    let committed = fs.committed().expect("the last commit");
    for piece in pieces {
        let ino = fs.lookup(&CX, root, &piece.path).expect("its path").attr.ino;
        let [mut one, mut other] = [vec![0; 1 << 20], vec![0; 1 << 20]];
        // Behind the end nothing is said.
        let size = fs.read(ino, 0, &mut one).expect("read");
        let told = fs.flags(ino).expect("flags");
        let of = |told_by: u32, flags: u64| if told & told_by != 0 { flags } else { 0 };
        let uncopied = inode_flags::NODATACOW | inode_flags::NODATASUM;
        let flags = of(FS_NOCOW, uncopied) | of(FS_VERITY, inode_flags::RO_VERITY);
        let read = committed.read(TreeId(id.0), piece.inode, flags, 0, &mut other);
        read.expect("read as committed");
        assert!(one[..size] == other[..size], "{:?} of a snapshot", piece.path);
        fs.forget(ino, 1);
    }
}

/// Files in a directory, and which they are.
fn files_in(fs: &BtrfsFs, dir: Ino) -> Vec<(Ino, File)> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .expect("readdir");
    let mut found = Vec::new();
    for name in names.iter().filter(|name| !name.starts_with(b".")) {
        let ino = fs.lookup(&CX, dir, name).expect("a name of a snapshot").attr.ino;
        match fs.getxattr(ino, b"user.file") {
            Ok(number) => found.push((ino, File::from_le_bytes(number.try_into().unwrap()))),
            // Made in that moment.
            Err(error) => assert_eq!(error.errno(), libc::ENODATA, "{error:?}"),
        }
    }
    found
}

/// A subvolume with the file of the slot comes and goes.
fn doomed(world: &World<'_>, slot: usize) {
    let (fs, mut count) = (world.fs, 0);
    world.meanwhile(|| {
        count += 1;
        let name = format!("doomed{count}");
        let dir = subvolume(fs, &name);
        let new = world.new_file(dir, 0).expect("a file");
        let old = std::mem::replace(&mut *world.slots[slot].write().unwrap(), new);
        if count == 1 {
            fs.unlink(&CX, old.dir, old.name.as_bytes()).expect("what was there before");
        }
        std::thread::sleep(Duration::from_millis(30));
        let which = Delete::Name(fs.root(), name.as_bytes());
        fs.delete_subvolume(&Caller::root(), which).expect("delete a subvolume in use");
        fs.forget(dir, 1);
    });
}

/// What looks at or moves everything, by turns.
fn others(world: &World<'_>) {
    let fs = world.fs;
    let mut turn = world.seed;
    world.meanwhile(|| {
        turn += 1;
        match turn % 5 {
            0 => drop(fs.balance_groups(|_| true).expect("balance")),
            1 => {
                fs.start_scrub(turn.is_multiple_of(2)).expect("scrub");
                while fs.scrub_status().expect("scrub").state == btrfs_fs::ScrubState::Running {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let done = fs.scrub_status().expect("scrub").done;
                assert_eq!((done.csum_errors, done.verify_errors, done.read_errors), (0, 0, 0));
            }
            2 => drop(fs.trim(&CX, 0, u64::MAX, 0).expect("trim")),
            3 => drop(fs.usage().expect("usage")),
            _ => drop(fs.statfs().expect("statfs")),
        }
        std::thread::sleep(Duration::from_millis(30));
    });
}

fn run(seed: u64, threads: u64, steps: usize) {
    println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={steps}");
    let image = Image::new(4 << 30, if seed % 4 == 3 { &["-O", "^no-holes"] } else { &[] });
    let compress = Method::parse("zstd").map(|method| Compress { method, force: false });
    let compress = compress.filter(|_| seed % 3 == 2);
    let fs = image.open_with(Options { compress, ..options(seed) });
    if seed % 5 == 4 {
        fs.enable_quotas().expect("quotas");
    }
    let (sub, goes) = (subvolume(&fs, "sub"), seed % 2 == 1);
    let world = World::new(&fs, &[sub, fs.root(), sub, fs.root()], seed, goes);
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(|| {
            world.meanwhile(|| {
                world.fs.sync().expect("commit");
                std::thread::sleep(Duration::from_millis(3));
            })
        });
        scope.spawn(|| snapshots(world, sub));
        scope.spawn(|| others(world));
        if goes {
            scope.spawn(|| doomed(world, 3));
        }
        let actors: Vec<_> = (0..threads)
            .map(|n| {
                let actor = Actor { world, rng: Rng::new(seed * 1000 + n), log: Vec::new() };
                scope.spawn(move || actor.run(steps))
            })
            .collect();
        let ended: Vec<_> = actors.into_iter().map(|actor| actor.join()).collect();
        world.done.store(true, SeqCst);
        ended.into_iter().for_each(|ended| ended.expect("an actor"));
    });
    finish(&world);
    drop(world);
    close_and_judge(&image, fs);
}

/// All that was read can be.
fn finish(world: &World<'_>) {
    let mut log = Vec::new();
    for slot in &world.slots {
        let slot = slot.read().unwrap().clone();
        world.read_whole(&mut log, "last read", slot.ino, slot.file);
        // The kernel that judges may not know how to read these.
        if world.fs.flags(slot.ino).is_ok_and(|flags| flags & FS_VERITY != 0) {
            world.fs.unlink(&CX, slot.dir, slot.name.as_bytes()).expect("unlink");
        }
    }
    world.held.lock().unwrap().drain(..).for_each(|ino| world.fs.forget(ino, 1));
    let mut events = world.events.lock().unwrap();
    events.append(&mut log);
    let bad = History::new(&events).impossible(5);
    assert!(bad.is_empty(), "SPINNEY_SEED={}: {}", world.seed, bad.join("\n"));
    println!("{} events", events.len());
    let errors = world.fs.device_errors().expect("device errors");
    assert_eq!(errors, [0; 5], "the device made no error");
}

#[test]
fn what_is_read_can_be() {
    testkit::require!(kernel_btrfs);
    for seed in seeds(1, 2) {
        run(seed, number("SPINNEY_THREADS", 6), steps(800));
    }
}
