//! Commits that find no room although they were promised some, again and again, while others
//! work: nobody's work is taken back, the volume goes on, and when there is room everything is
//! committed. On the volume is the last commit with its fsyncs all the time.

#![allow(dead_code)]

use crate::{common, harness};
use base::base;
use blocksim::SimDevice;
use btrfs_fs::{BtrfsFs, Defect, Injection, Options};
use harness::{base, hold, ops, state};
use hold::{Gate, Hold, work_here};
use ops::{append, create, fsync, punch, truncate, unlink, write};
use std::sync::Arc;
use std::time::Duration;
use testkit::RefFs;
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::ops::{Config, Op, OpKind, Outcome, Rng, Session, generate};
use vfs::{Errno, FallocateMode, FileSystem, FsError, SetTime};

/// So little that a merge reads nodes, where it can be held.
const CACHE: u64 = 64 << 10;

/// A volume, a model of it, and who works on both.
struct World {
    device: Arc<SimDevice>,
    gate: Arc<Gate>,
    fs: BtrfsFs,
    model: RefFs,
}

impl World {
    fn new(number: u64, defect: Option<Defect>) -> World {
        let base = base(number);
        let gate = Gate::new(Duration::ZERO);
        let device = SimDevice::new(base.image.clone()).hooked(Some(gate.hook()));
        let device = Arc::new(device);
        let options =
            Options { cache_bytes: CACHE, injection: Injection::of(defect), ..base::options() };
        let fs = BtrfsFs::open_device(device.clone(), options).unwrap();
        World { device, gate, fs, model: base.model() }
    }

    fn counter(&self, name: &str) -> u64 {
        self.fs.stats().iter().find(|stat| stat.name == name).expect("a counter").value
    }

    /// Syncs; the commit is held at `hold` until `inside` is done, and finds no room from then on.
    fn fail_around(&self, hold: Hold, inside: impl FnOnce()) -> Result<(), FsError> {
        self.gate.arm(hold);
        let space = self.fs.space();
        let synced = std::thread::scope(|scope| {
            let committer = scope.spawn(|| self.gate.commit(|| self.fs.sync()));
            self.gate.wait_held();
            inside();
            let now = space.allocations();
            space.fail_allocations(now..u64::MAX);
            self.gate.release();
            committer.join().unwrap()
        });
        space.fail_allocations(0..0);
        assert_eq!(self.fs.read_only_reason(), None, "{synced:?}");
        synced
    }

    fn assert_same(&self, when: &str) {
        let ours = TreeSnapshot::of(&self.fs).unwrap();
        let theirs = TreeSnapshot::of(&self.model).unwrap();
        let differences = diff(&theirs, &ours, &Rules::default().ignoring_clock());
        assert!(differences.is_empty(), "{when}: {differences:#?}");
    }

    /// What is free is what a new mount finds free: nothing that a commit took is lost.
    fn assert_no_leak(&self, again: &BtrfsFs) {
        let [ours, theirs] = [self.fs.space(), again.space()].map(|space| space.totals());
        for (ours, theirs) in [(ours.data, theirs.data), (ours.metadata, theirs.metadata)] {
            assert_eq!((ours.used, ours.free), (theirs.used, theirs.free));
        }
    }

    /// There is room: everything is durable, and sound.
    fn end(&self, mut sessions: [Session<'_>; 2]) {
        sessions.iter_mut().for_each(Session::close_all);
        self.fs.sync().unwrap();
        self.assert_same("after the last sync");
        let crashed = self.device.image();
        state::check(&crashed).unwrap();
        let again = base::mount(Arc::new(SimDevice::new(crashed))).unwrap();
        let differences = diff(
            &TreeSnapshot::of(&self.model).unwrap(),
            &TreeSnapshot::of(&again).unwrap(),
            &Rules::default().ignoring_clock(),
        );
        assert!(differences.is_empty(), "{differences:#?}");
        self.assert_no_leak(&again);
        self.fs.destroy().unwrap();
        state::check(&self.device.image()).unwrap();
    }
}

fn both(sessions: &mut [Session<'_>; 2], ops: &[Op]) {
    let [model, ours] = sessions;
    for op in ops {
        let (expected, outcome) = (model.apply(op), ours.apply(op));
        assert_eq!(expected, outcome, "{op:?}");
        // Whether a punch that frees nothing changes the times is left open.
        if let Op::Fallocate { target, mode: FallocateMode::PunchHole, .. } = op {
            let (target, mtime) = (target.clone(), Some(SetTime::Now));
            let align = Op::Utimes { target, atime: None, mtime };
            model.apply(&align);
            ours.apply(&align);
        }
    }
}

fn no_room(synced: &Result<(), FsError>) -> bool {
    matches!(synced, Err(FsError::Posix(Errno::ENOSPC)))
}

/// Answers how many commits found no room.
fn random_world(seed: u64, config: &Config) -> u64 {
    println!("seed {seed}");
    // Its nodes are as large as the model thinks.
    let world = World::new(0, None);
    let ops = generate(seed, 150, config);
    let mut rng = Rng::new(seed);
    let mut rest = &ops[..];
    let mut take = |most: u64, rng: &mut Rng| {
        let (now, later) = rest.split_at(rest.len().min(1 + rng.below(most) as usize));
        rest = later;
        now
    };
    work_here();
    let mut sessions = [Session::new(&world.model), Session::new(&world.fs)];
    for round in 0.. {
        let (before, inside) = (take(8, &mut rng), take(8, &mut rng));
        if before.is_empty() {
            break;
        }
        both(&mut sessions, before);
        let hold = Hold::Read(rng.below(6));
        let synced = world.fail_around(hold, || both(&mut sessions, inside));
        assert!(synced.is_ok() || no_room(&synced), "{synced:?}");
        if round % 4 == 0 {
            world.assert_same(&format!("round {round}"));
        }
        if rng.below(8) == 0 {
            world.fs.sync().unwrap();
        }
    }
    let short = world.counter("commit.short");
    world.end(sessions);
    short
}

#[test]
fn epochs_that_find_no_room_join_the_next() {
    let quiet = |config: Config| config.without(&[OpKind::Seek, OpKind::Sync, OpKind::Fsync]);
    for (config, first) in [(Config::all(), 0), (Config::metadata(), 1000), (Config::data(), 2000)]
    {
        let (config, mut worlds, mut short) = (quiet(config), 0, 0);
        for seed in common::seeds(first, 12) {
            (worlds, short) = (worlds + 1, short + random_world(seed, &config));
        }
        println!("{short} commits of {worlds} worlds found no room");
        assert!(short > worlds * 2, "{short}: or this shows nothing");
    }
}

/// What was synced beside the first commit makes it one with a second, which finds no room: the
/// first is owed until a third is durable.
#[test]
fn the_second_of_two_commits_finds_no_room() {
    let mut owed = 0;
    for number in 0..2 {
        for hold in [Hold::Write(0), Hold::Write(1), Hold::Flush(0)] {
            let world = World::new(number, Some(Defect::DoubledCommits));
            work_here();
            let mut sessions = [Session::new(&world.model), Session::new(&world.fs)];
            both(&mut sessions, &[create("A/new"), write("A/new", 0, 30_000, 1)]);
            let inside = [append("A/foo", 5000, 2), fsync("A/foo"), unlink("A/bar")];
            let synced = world.fail_around(hold, || both(&mut sessions, &inside));
            world.assert_same("after the first try");
            if no_room(&synced) && world.counter("commit.doubled") == 1 {
                owed += 1;
                let crashed = base::mount(Arc::new(SimDevice::new(world.device.image()))).unwrap();
                let now = TreeSnapshot::of(&crashed).unwrap();
                let foo = testkit::ops::Path::new("A/foo");
                assert_eq!(now.nodes[&foo].attr.size, 17_000, "it was synced");
                // What the first made is published, and not durable: whoever asked before that hears no yes.
                let new = testkit::ops::Path::new("A/new");
                assert!(!now.nodes.contains_key(&new), "that commit is owed");
                let dir = world.fs.lookup(&ops::CX, world.fs.root(), b"A").unwrap().attr.ino;
                let ino = world.fs.lookup(&ops::CX, dir, b"new").unwrap().attr.ino;
                world.fs.fsync_late(ino).unwrap();
                let crashed = base::mount(Arc::new(SimDevice::new(world.device.image()))).unwrap();
                let now = TreeSnapshot::of(&crashed).unwrap();
                assert_eq!(now.nodes[&new].attr.size, 30_000, "it was synced");
                assert_eq!(sessions[1].apply(&fsync("A/foo")), Outcome::Done);
            }
            world.end(sessions);
        }
    }
    assert!(owed >= 2, "{owed}: or this shows nothing");
}

/// A volume on which no commit finds room for long: whoever wants durability hears so, removals
/// and reads go on, and others are told when there is no memory for more.
#[test]
fn removals_go_on_while_no_commit_finds_room() {
    let world = World::new(0, None);
    let mut sessions = [Session::new(&world.model), Session::new(&world.fs)];
    let name = |n: u64| format!("A/file{n}");
    for n in 0..200 {
        both(&mut sessions, &[create(&name(n)), write(&name(n), 0, 3000, n)]);
    }
    let space = world.fs.space();
    let now = space.allocations();
    space.fail_allocations(now..u64::MAX);
    assert!(no_room(&world.fs.sync()), "there is no room");
    let changes = world.counter("delta.items");
    for n in 0..150 {
        both(&mut sessions, &[unlink(&name(n))]);
    }
    both(&mut sessions, &[truncate("B/big", 100), punch("A/foo", 0, 4096)]);
    assert!(world.counter("delta.items") < changes / 2, "what nobody has committed is gone");
    assert!(no_room(&world.fs.sync()), "there is none still");
    let synced = sessions[1].apply(&fsync(&name(160)));
    assert!(matches!(synced, Outcome::Error(code) if code.0 == libc::ENOSPC), "{synced:?}");
    world.assert_same("while there is no room");
    space.fail_allocations(0..0);
    assert_eq!(world.fs.read_only_reason(), None);
    world.end(sessions);
}

/// Wherever a commit runs short, also while it settles: what it had built is in memory no longer.
#[test]
fn what_a_commit_without_room_had_built_is_gone() {
    let world = World::new(0, None);
    let mut sessions = [Session::new(&world.model), Session::new(&world.fs)];
    let space = world.fs.space();
    let mut failed = 0;
    for built in 0..1000 {
        let name = format!("A/new{built}");
        both(&mut sessions, &[create(&name), write(&name, 0, 5000, built)]);
        let now = space.allocations();
        space.fail_allocations(now + built..u64::MAX);
        let synced = world.fs.sync();
        space.fail_allocations(0..0);
        assert_eq!(world.counter("memory.building"), 0, "behind {built} allocations: {synced:?}");
        if synced.is_ok() {
            break;
        }
        assert!(no_room(&synced), "{synced:?}");
        failed += 1;
    }
    assert!(failed > 3, "{failed}: or this shows nothing");
    world.end(sessions);
}

/// What the log knew of an epoch is void once that has joined another: no fsync goes on with it.
#[test]
fn an_fsync_after_it_has_everything() {
    let world = World::new(0, None);
    let mut sessions = [Session::new(&world.model), Session::new(&world.fs)];
    both(&mut sessions, &[append("B/big", 5000, 1), fsync("B/big"), punch("B/big", 0, 65_536)]);
    let space = world.fs.space();
    space.fail_allocations(space.allocations()..u64::MAX);
    assert!(no_room(&world.fs.sync()), "there is no room");
    space.fail_allocations(0..0);
    both(&mut sessions, &[fsync("B/big")]);
    let crashed = base::mount(Arc::new(SimDevice::new(world.device.image()))).unwrap();
    let big = testkit::ops::Path::new("B/big");
    let [now, wanted] = [&crashed as &dyn FileSystem, &world.model]
        .map(|fs| TreeSnapshot::of(fs).unwrap().nodes[&big].content.clone());
    assert_eq!(now, wanted);
    world.end(sessions);
}

/// A truncation or a punch that finds no room has changed nothing: not the size, and nothing of what was written
/// since the last commit.
#[test]
fn what_finds_no_room_to_drop_drops_nothing() {
    for number in 0..2 {
        let world = World::new(number, Some(Defect::NoRoomToDrop));
        let fs = &world.fs;
        let made = fs.mknod(&ops::CX, fs.root(), b"file", vfs::FileKind::File, 0o644, 0).unwrap();
        let ino = made.attr.ino;
        let write = |at: u64, byte: u8| {
            fs.write(&ops::CX, ino, at, &[byte; 4096], Default::default()).unwrap();
        };
        (0..8).for_each(|n| write(n * 8192, 1));
        fs.sync().unwrap();
        (2..6).for_each(|n| write(n * 8192, 2));
        let content = || {
            let mut content = vec![9; fs.getattr(ino).unwrap().size as usize];
            fs.read(ino, 0, &mut content).unwrap();
            content
        };
        let before = content();
        let shorter = vfs::SetAttr { size: Some(5000), ..Default::default() };
        let cut = || fs.setattr(&ops::CX, ino, &shorter).map(drop);
        let punch = || fs.fallocate(&ops::CX, ino, FallocateMode::PunchHole, 8192, 40_000);
        for drops in [&cut as &dyn Fn() -> vfs::Result<()>, &punch] {
            assert_eq!(drops().unwrap_err().errno(), libc::ENOSPC);
            assert!(content() == before);
        }
        fs.destroy().unwrap();
        state::check(&world.device.image()).unwrap();
    }
}
