//! Threads, snapshots, balances, resizes and scrubs on a volume that has lost nodes of a subvolume and its
//! snapshot: who asks for what is lost is told so, and nobody else notices.
//!
//! Invariants: nothing turns the volume read-only, and every call answers; what does not lie in what is
//! lost is right, also after the next mount; where the lost nodes lie nothing is written, and once they
//! are there again `btrfs check` finds nothing, and all that nobody changed is what it was.
//!
//! `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_MILLIS` make it long.

#[path = "../common/mod.rs"]
mod common;
mod victim;
#[path = "../balance_chaos/worker.rs"]
mod worker;

use blockdev::{BlockDevice, FileDevice, MemDevice};
use btrfs_disk::TreeId;
use btrfs_disk::ids::block_group::{DATA, METADATA, SYSTEM};
use btrfs_disk::items::BalanceItem;
use btrfs_disk::key::kind::DIR_ITEM;
use btrfs_fs::{BtrfsFs, Caller, Delete, Options};
use btrfs_image::mkfs::{MkfsOptions, make};
use common::{CX, Files, Stop, errno, files_of, find};
use fuzzing::hostile::base::{Base, NodeAt};
use fuzzing::hostile::leaf::Leaf;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::ops::Rng;
use testkit::oracle::{self, TempDir};
use vfs::{FileSystem, Ino};
use victim::{ACTORS, Actor};
use worker::{Worker, assert_files};

const SIZE: u64 = 6 << 30;
const THREADS: u64 = 2;

fn options(seed: u64) -> Options {
    Options { cache_bytes: 2 << 20, ..common::inodes(seed) }
}

/// What is known of the volume.
struct Known {
    own: Vec<Files>,
    kept: BTreeMap<String, Files>,
    actors: Vec<Actor>,
    /// As the subvolume was before it was damaged.
    before: Files,
}

fn subvolume(fs: &BtrfsFs, name: &str) -> Ino {
    let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
    made.expect("create").1.attr.ino
}

fn fill(fs: &BtrfsFs, seed: u64) -> Known {
    match seed % 3 {
        0 => fs.enable_quotas().expect("quotas"),
        1 => fs.enable_simple_quotas().expect("quotas"),
        _ => {}
    }
    (0..THREADS).for_each(|thread| _ = subvolume(fs, &format!("own{thread}")));
    let dir = subvolume(fs, "victim");
    let mut rng = Rng::new(seed);
    for actor in 0..ACTORS {
        for n in 0..victim::FILES {
            victim::new_file(fs, dir, &victim::name(actor, n), &victim::content(&mut rng));
        }
    }
    fs.sync().expect("commit");
    let made = fs.snapshot(&Caller::root(), dir, fs.root(), b"shares", seed.is_multiple_of(2));
    made.expect("snapshot");
    for n in (0..victim::FILES).step_by(13) {
        victim::new_file(fs, dir, &victim::name(0, n), &victim::content(&mut rng));
    }
    fs.sync().expect("commit");
    let before = files_of(fs, "victim");
    let actors = (0..ACTORS).map(|actor| Actor::new(actor, &before, seed)).collect();
    Known { own: vec![Files::new(); THREADS as usize], kept: BTreeMap::new(), actors, before }
}

/// Nodes that are lost, and what stood there.
struct Lost {
    places: Vec<(u64, Vec<u8>, Vec<u8>)>,
}

impl Lost {
    /// Some nodes of the subvolumes, in all copies. No leaf with hashes of names: where the leaf behind one loses
    /// its first key while a commit is at work, a name that was looked up there belongs to what is lost by the
    /// next commit. No last leaf of a tree: a commit would put the orphans there.
    fn of(base: &Base, trees: &[u64], rng: &mut Rng) -> Lost {
        let keys = |node: &NodeAt| match node.level {
            0 => Leaf::of(&base.node_bytes(&*base.device, node.logical)).items,
            _ => Vec::new(),
        };
        let names = |node: &NodeAt| keys(node).iter().any(|(key, _)| key.kind == DIR_ITEM);
        let of_trees = || base.nodes.iter().filter(|node| trees.contains(&node.tree.0));
        let last = |node: &NodeAt| keys(node).last().map(|(key, _)| *key);
        let end = |tree| of_trees().filter(|node| node.tree == tree).filter_map(last).max();
        let ends: Vec<_> = trees.iter().map(|tree| end(TreeId(*tree))).collect();
        let is_end = |node: &NodeAt| node.level == 0 && ends.contains(&last(node));
        let is_one = |node: &&NodeAt| !names(node) && !is_end(node);
        let nodes: Vec<_> = of_trees().filter(is_one).collect();
        let chosen: BTreeSet<usize> =
            (0..1 + rng.below(4)).map(|_| rng.below(nodes.len() as u64) as usize).collect();
        let mut places = Vec::new();
        for one in chosen.into_iter().map(|at| nodes[at]) {
            let good = base.node_bytes(&*base.device, one.logical);
            let keys: Vec<_> = keys(one).iter().map(|(key, _)| *key).collect();
            let (first, last) = (keys.first(), keys.last());
            println!("lost: {one:?}, {first:?} to {last:?}, one of {}", nodes.len());
            let mut bad = good.clone();
            bad[300] ^= 0x40;
            for at in base.copies(one.logical) {
                base.device.write_at(at, &bad).expect("in range");
                places.push((at, good.clone(), bad.clone()));
            }
        }
        Lost { places }
    }

    fn is_there_again(&self, device: &MemDevice) {
        for (at, good, bad) in &self.places {
            let mut there = vec![0; good.len()];
            device.read_at(*at, &mut there).expect("in range");
            assert!(there == *bad, "something was written where a node is lost");
            device.write_at(*at, good).expect("in range");
        }
    }
}

struct Mount<'m> {
    fs: &'m BtrfsFs,
    stop: AtomicBool,
    seed: u64,
}

impl Mount<'_> {
    fn until_stopped(&self, mut work: impl FnMut()) {
        let _stop = Stop(&self.stop);
        while !self.stop.load(Ordering::Relaxed) {
            work();
            assert_eq!(self.fs.read_only_reason(), None);
        }
    }

    fn work(&self, thread: u64, files: Files) -> Files {
        let fs = self.fs;
        let dir = find(fs, fs.root(), &format!("own{thread}")).expect("there");
        let rng = Rng::new(self.seed * 100 + thread);
        let mut worker = Worker { fs, dir, files, rng, most: 100_000, refused: 0, nocow: true };
        self.until_stopped(|| {
            worker.change();
            std::thread::sleep(Duration::from_micros(300));
        });
        worker.files
    }

    fn snapshots(&self, kept: &mut BTreeMap<String, Files>) {
        let (mut rng, caller, mut number) = (Rng::new(self.seed + 9), Caller::root(), 0);
        let fs = self.fs;
        self.until_stopped(|| {
            number += 1;
            let own = rng.chance(60);
            let source = if own { format!("own{}", rng.below(THREADS)) } else { "victim".into() };
            let name = format!("{source}-{}-{number}", self.seed);
            let Some(from) = find(fs, fs.root(), &source) else {
                assert!(!own, "{source} is there");
                return;
            };
            let made = fs.snapshot(&caller, from, fs.root(), name.as_bytes(), rng.chance(50));
            fs.forget(from, 1);
            if own {
                made.expect("snapshot");
                kept.insert(name.clone(), files_of(fs, &name));
            } else if made.is_ok() && rng.chance(60) {
                // It goes as far as it can.
                let which = Delete::Name(fs.root(), name.as_bytes());
                fs.delete_subvolume(&caller, which).expect("delete");
            } else {
                victim::told(errno(made), "a snapshot of what is damaged");
            }
            let all: Vec<String> = kept.keys().cloned().collect();
            if all.len() > 6 {
                let one = rng.pick(&all).clone();
                assert_files(fs, &one, &kept[&one]);
                fs.delete_subvolume(&caller, Delete::Name(fs.root(), one.as_bytes()))
                    .expect("delete");
                kept.remove(&one);
            }
            std::thread::sleep(Duration::from_millis(15));
        });
    }

    fn administrate(&self) {
        let (mut rng, fs) = (Rng::new(self.seed * 1000), self.fs);
        self.until_stopped(|| {
            let start = Instant::now();
            let (what, error) = match rng.below(9) {
                0..=3 => {
                    let types = [DATA, METADATA, DATA | METADATA | SYSTEM];
                    let item = BalanceItem { flags: *rng.pick(&types), ..Default::default() };
                    ("balance", errno(fs.start_balance(item)))
                }
                4 => ("resize", errno(fs.resize(SIZE - rng.below(SIZE / 4)))),
                5 => ("scrub", errno(fs.start_scrub(rng.chance(50)))),
                6 => ("trim", errno(fs.trim(&CX, 0, u64::MAX, 0))),
                7 => ("cancel", errno(fs.cancel_balance())),
                _ => ("sync", errno(fs.sync())),
            };
            let may = [0, libc::EINPROGRESS, libc::ESRCH, libc::EUCLEAN, libc::ENOSPC];
            assert!(may.contains(&error), "{what}: errno {error}");
            assert!(start.elapsed() < Duration::from_secs(60), "{what} took {:?}", start.elapsed());
            std::thread::sleep(Duration::from_millis(rng.below(60)));
        });
        let (balance, scrub) =
            (fs.balance_status().expect("told"), fs.scrub_status().expect("told"));
        let (moved, stay, errno) = (balance.completed, balance.failed, balance.errno);
        println!("balance: {moved} moved, {stay} stay, errno {errno}; {:?}", scrub.state);
    }
}

/// One mount, from opening to closing.
fn mounted(device: &Arc<MemDevice>, known: &mut Known, seed: u64) {
    let fs = BtrfsFs::open_device(device.clone(), options(seed)).expect("mount");
    let mount = Mount { fs: &fs, stop: AtomicBool::new(false), seed };
    let (own, actors) = (std::mem::take(&mut known.own), &mut known.actors);
    let kept = &mut known.kept;
    known.own = std::thread::scope(|scope| {
        let mount = &mount;
        let each = own.into_iter().enumerate();
        let workers: Vec<_> =
            each.map(|(t, files)| scope.spawn(move || mount.work(t as u64, files))).collect();
        scope.spawn(move || mount.snapshots(kept));
        scope.spawn(move || mount.administrate());
        for actor in actors {
            scope.spawn(move || {
                let dir = find(mount.fs, mount.fs.root(), "victim");
                mount.until_stopped(|| {
                    if let Some(dir) = dir {
                        actor.step(mount.fs, dir);
                    }
                    std::thread::sleep(Duration::from_micros(300));
                })
            });
        }
        let end = Instant::now() + Duration::from_millis(common::number("SPINNEY_MILLIS", 1500));
        while !mount.stop.load(Ordering::Relaxed) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(Stop(&mount.stop));
        workers.into_iter().map(|w| w.join().expect("a worker")).collect()
    });
    assert_eq!(fs.read_only_reason(), None);
    fs.sync().expect("sync");
    let damaged = known.actors.iter().map(|actor| actor.refused).sum::<u64>();
    println!("{damaged} calls met what is lost");
    fs.destroy().expect("close");
}

fn judge(device: &Arc<MemDevice>, known: &Known, whole: bool) {
    let fs = BtrfsFs::open_device(device.clone(), options(0)).expect("mount");
    for (thread, files) in known.own.iter().enumerate() {
        assert_files(&fs, &format!("own{thread}"), files);
    }
    for (name, files) in &known.kept {
        assert_files(&fs, name, files);
    }
    for actor in &known.actors {
        actor.judge(&fs, whole.then_some(&known.before));
    }
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
}

fn to_file(device: &MemDevice, dir: &TempDir) -> PathBuf {
    let path = dir.join("judged.img");
    let file = FileDevice::create(&path, SIZE).expect("create");
    let mut piece = vec![0; 1 << 20];
    for at in (0..SIZE).step_by(1 << 20) {
        device.read_at(at, &mut piece).expect("in range");
        if piece.iter().any(|byte| *byte != 0) {
            file.write_at(at, &piece).expect("write");
        }
    }
    path
}

fn history(seed: u64) {
    println!("history {seed}");
    let device = Arc::new(MemDevice::new(SIZE));
    let node_size = if seed.is_multiple_of(2) { 4096 } else { 16384 };
    let mkfs = MkfsOptions { node_size: Some(node_size), seed: Some(seed), ..Default::default() };
    make(&*device, &mkfs).expect("mkfs");
    let fs = BtrfsFs::open_device(device.clone(), options(seed)).expect("mount");
    let mut known = fill(&fs, seed);
    let id = |name| fs.subvolume_of(find(&fs, fs.root(), name).expect("there")).expect("one").0.0;
    let trees = ["victim", "shares"].map(id);
    fs.destroy().expect("close");
    drop(fs);
    let base = Base::of(device.clone());
    let lost = Lost::of(&base, &trees, &mut Rng::new(seed));
    for round in 0..2 {
        mounted(&device, &mut known, seed * 10 + round);
    }
    judge(&device, &known, false);
    lost.is_there_again(&device);
    judge(&device, &known, true);
    let dir = TempDir::new("crowd-damage").expect("temp dir");
    let image = to_file(&device, &dir);
    if seed % 3 != 1 {
        // It knows no simple quotas.
        oracle::assert_clean(&image);
    }
    let device = Arc::new(common::open_device(&image, true));
    common::check_device(device, true, btrfs_check::Severity::Warning);
}

#[test]
fn what_is_lost_concerns_nobody_else() {
    testkit::require!(btrfs_progs);
    for seed in common::seeds(1, 3) {
        history(seed);
    }
}
