//! Volumes filled to the last byte with one kind of operation alone, of many shapes: whatever
//! was acknowledged is there, as the reference model has it, and after a crash at any moment
//! what was synced is; commits need no more than was promised for them, deleting works, and the
//! volume can be emptied. And as much fits as with the kernel.
//!
//! What CI runs are small volumes, each kind on three shapes.
//! `cargo test -p spinney-btrfs-fs --test fill -- everything --ignored --nocapture` runs all kinds on
//! all shapes in an order that `SPINNEY_SEED` makes, until `SPINNEY_FILL_SECONDS` have passed if
//! that is set (`SPINNEY_FILL=KIND:SHAPE` runs one of them, by number; `matrix` says which can be
//! asked for, and how a matrix goes on where another run of it ended), and `table` in its place
//! holds what fits against what fits with the kernel. `SPINNEY_TMP=/dev/shm/x` keeps it off
//! the disk.

#![allow(dead_code)]

mod common;
#[path = "fill/crash.rs"]
mod crash;
#[path = "fill/crowd.rs"]
mod crowd;
mod harness;
#[path = "fill/kinds.rs"]
mod kinds;
#[path = "fill/matrix.rs"]
mod matrix;
#[path = "fill/mirror.rs"]
mod mirror;
#[path = "fill/shapes.rs"]
mod shapes;

use blocksim::SimDevice;
use btrfs_fs::BtrfsFs;
use common::stat;
use harness::{base, outside, state};
use kinds::{ALL, Filler, Kind, empty};
use matrix::Matrix;
use mirror::{Mirror, at_top, below, shorten};
use shapes::{Base, Before, HALF_GIB, LONG, SHAPES, SMALL, Shape, small_base};
use std::sync::Arc;
use std::time::Instant;
use testkit::compare::{NodeView, Rules, TreeSnapshot, diff, view, walk};
use testkit::ops::{Path, Rng};
use testkit::oracle::TempDir;
use testkit::{PosixFs, oracle};
use vfs::{FileSystem, Ino};

/// As the program has it (`crates/cli`). With that of glibc one of these took 84 s of processor time and
/// was not done; 35 s with this one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of many kinds one always fits a little longer: each refusal costs a commit.
const REFUSALS: u64 = 200;

/// Bytes that a device records between two syncs before the older ones become what is durable: then
/// there are fewer moments at which a crash may come.
const RECORD: usize = 128 << 20;

/// Steps until one is refused, and then until one is refused behind a sync, or many were.
/// `between` is called behind each step with the number of those that were acknowledged.
fn fill(
    fs: &dyn FileSystem,
    filler: &mut Filler<'_>,
    sync_every: u64,
    between: &mut dyn FnMut(u64, &Filler<'_>),
) -> u64 {
    let (mut steps, mut refusals) = (0, 0);
    let mut refused = false;
    loop {
        match filler.step() {
            Ok(()) => (steps, refused) = (steps + 1, false),
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC, "only ENOSPC: {error}");
                fs.sync().expect("what was acknowledged is kept");
                refusals += 1;
                if std::mem::replace(&mut refused, true) || refusals == REFUSALS {
                    return steps;
                }
            }
        }
        if sync_every > 0 && steps % sync_every == 0 {
            fs.sync().expect("what was acknowledged is kept");
        }
        between(steps, filler);
    }
}

/// Steps that may be refused.
fn go_on(filler: &mut Filler<'_>, steps: u64) {
    for _ in 0..steps {
        if let Err(error) = filler.step() {
            assert_eq!(error.errno(), libc::ENOSPC, "only ENOSPC: {error}");
        }
    }
}

/// One volume, filled with one kind.
struct Case<'a> {
    told: String,
    seed: u64,
    rng: Rng,
    device: &'a SimDevice,
    mirror: &'a Mirror<'a>,
    tops: &'a [&'a [u8]],
    scratch: TempDir,
    crashes: u64,
}

impl Case<'_> {
    /// An fsync of something recent, which may find no room.
    fn fsync(&mut self, filler: &Filler<'_>) {
        let ino = filler.recent(&mut self.rng);
        if let Err(error) = self.mirror.fsync(ino, false) {
            assert_eq!(error.errno(), libc::ENOSPC, "only ENOSPC: {error}");
        }
    }

    fn crash(&mut self, outside: bool) {
        self.crashes += 1;
        let seed = self.seed << 8 | self.crashes;
        let outside = outside.then(|| self.scratch.path());
        crash::judge(self.device, self.mirror, self.tops, seed, &self.told, outside);
    }

    /// Fsyncs, ever rarer, and two crashes some steps behind one of them each.
    fn fill(&mut self, filler: &mut Filler<'_>, sync_every: u64) -> u64 {
        let (mut next, mut number) = (1 + self.rng.below(30), 0);
        let crash_behind = [self.rng.below(6), 6 + self.rng.below(4)];
        let mut crash_at = None;
        let mirror = self.mirror;
        fill(mirror, filler, sync_every, &mut |steps, filler| {
            if steps >= next {
                self.fsync(filler);
                next = steps * 2 + self.rng.below(30);
                if crash_behind.contains(&number) {
                    crash_at = Some(steps + self.rng.below(40));
                }
                number += 1;
            }
            if crash_at.is_some_and(|at| at <= steps) {
                crash_at = None;
                self.crash(false);
            }
        })
    }

    /// On the full volume: what is acknowledged beside refusals.
    fn refused(&mut self, filler: &mut Filler<'_>) {
        self.crash(false);
        go_on(filler, 20);
        self.fsync(filler);
        let more = self.rng.below(15);
        go_on(filler, more);
        self.crash(true);
    }

    fn sync(&self, fs: &BtrfsFs) {
        self.mirror.sync().expect("what was acknowledged is kept");
        assert_eq!(fs.read_only_reason(), None, "{}", self.told);
    }
}

/// The tested file system and the model agree, but for the clock. One inode after the other is held
/// against the other side's: of the trees there may be millions.
fn assert_as_expected(fs: &dyn FileSystem, mirror: &Mirror<'_>, tops: &[&[u8]], told: &str) {
    let rules = Rules { attributes: false, ..Rules::default().ignoring_clock() };
    let (model, state) = (mirror.model(), mirror.state());
    let numbers = &state.numbers;
    let mut found = Vec::new();
    let mut compare = |name: &[u8], node: &NodeView, ours: Option<Ino>| {
        let path = Path::default().join(name);
        let one = |mut node: NodeView| {
            shorten(&mut node);
            TreeSnapshot { nodes: [(path.clone(), node)].into() }
        };
        let ours = ours.and_then(|ino| view(model, ino).ok());
        found.extend(diff(&ours.map(one).unwrap_or_default(), &one(node.clone()), &rules));
    };
    for top in tops {
        let mut names = 0;
        at_top(fs, top, |dir| {
            compare(top, &view(fs, dir).expect("a directory"), numbers.get(&dir).copied());
            let walked = walk(fs, dir, &mut |dir, name, node| {
                names += 1;
                let ours = numbers.get(&dir).and_then(|dir| {
                    let ino = model.lookup(&common::CX, *dir, name).ok()?.attr.ino;
                    model.forget(ino, 1);
                    Some(ino)
                });
                let same = ours.filter(|ours| numbers.get(&node.attr.ino) == Some(ours));
                compare(name, node, same);
            });
            walked.expect("walk");
        });
        let expected = at_top(model, top, |dir| crash::count(model, dir));
        assert_eq!(names, expected, "{told}: names");
    }
    let some: Vec<String> = found.iter().take(10).map(ToString::to_string).collect();
    assert!(some.is_empty(), "{told}: {} differences: {some:#?}", found.len());
}

fn others(fs: &dyn FileSystem, shape: &Shape) -> Vec<TreeSnapshot> {
    shape.others().iter().map(|name| below(fs, name)).collect()
}

/// Names of the root, and of the subvolumes that stay there.
fn names_left(fs: &dyn FileSystem) -> Vec<String> {
    let tree = TreeSnapshot::of(fs).expect("walk");
    let names = tree.nodes.keys().filter(|path| path.components().count() > 0);
    names.map(|path| format!("{path:?}")).collect()
}

fn case(kind: Kind, shape: &Shape, seed: u64) {
    case_on(&shape.base(), kind, shape, seed, false);
}

fn case_on(base: &Base, kind: Kind, shape: &Shape, seed: u64, deaf: bool) {
    let start = Instant::now();
    let device = Arc::new(SimDevice::new(base.image.clone()).keeping(RECORD));
    let fs = shape.mount(device.clone());
    let shared = shape.before == Before::Snapshots;
    let mut mirror = Mirror::new(&fs, Some(&device));
    mirror.deaf = deaf;
    let before = others(&fs, shape);
    if shared {
        mirror.import(b"base");
    }
    let tops: &[&[u8]] = if shared { &[b"full", b"base"] } else { &[b"full"] };
    let mut filler = Filler::new(&mirror, kind, seed, "full", shared);
    let told = format!("{kind:?} {shape:?} SPINNEY_SEED={seed}");
    let scratch = TempDir::new("fill").expect("temp dir");
    let rng = Rng::new(seed);
    let mut case =
        Case { told, seed, rng, device: &device, mirror: &mirror, tops, scratch, crashes: 0 };
    case.sync(&fs);
    let steps = case.fill(&mut filler, shape.sync_every);
    case.refused(&mut filler);
    drop(filler);
    case.sync(&fs);
    assert_as_expected(&fs, &mirror, tops, &case.told);
    assert!(before == others(&fs, shape), "{}: what nobody touched differs", case.told);
    // Deleting works on the full volume, and all of it comes back.
    for top in tops {
        let dir = fs.lookup(&common::CX, fs.root(), top).expect("lookup").attr.ino;
        empty(&mirror, dir);
        fs.forget(dir, 1);
    }
    case.crash(true);
    empty(&fs, fs.root());
    fs.sync().expect("an empty volume");
    let left = names_left(&fs);
    let subvolumes = if shared { 4 } else { 0 };
    assert_eq!(left.len(), subvolumes, "{}: {left:?}", case.told);
    let stats = ["commit.unpaid_nodes", "commit.over_promise", "commit.short", "commit.unkept"];
    let stats = stats.map(|name| (name, stat(&fs, name)));
    let free = fs.statfs().expect("statfs").blocks_free;
    fs.destroy().expect("close");
    let told = case.told;
    drop(mirror);
    drop(fs);
    state::check(&device.image()).unwrap_or_else(|why| panic!("{told}: emptied: {why}"));
    println!("{told}: {steps} steps, {free} of {} free, {:.1?}", base.free, start.elapsed());
    assert!(stats.iter().all(|(_, count)| *count == 0), "{told}: {stats:?}");
    assert!(free + shape.stays() >= base.free, "{told}: {free} free, not {}", base.free);
}

/// Each kind on the first two of these small shapes, so that each shape has several kinds; `everything` has all.
macro_rules! sample {
    ($($name:ident: $kind:literal on $($shape:literal),*;)*) => {$(
        #[test]
        fn $name() {
            testkit::require!(btrfs_progs);
            for shape in [$($shape),*].into_iter().take(2) {
                if SMALL[shape].before == Before::Snapshots {
                    testkit::require!(kernel_btrfs);
                }
                let seed = common::number("SPINNEY_SEED", 1);
                case_on(small_base(shape), ALL[$kind], &SMALL[shape], seed, false);
            }
        }
    )*};
}

sample! {
    attributes_of_one_file: 0 on 6, 8, 9;
    attributes_of_a_thousand_files: 1 on 3, 8, 9;
    large_attributes: 2 on 9, 6, 1;
    symlinks: 3 on 0, 4, 7;
    long_names: 4 on 6, 8, 9;
    hard_links: 5 on 6, 8, 9;
    inline_files: 6 on 5, 4, 2;
    holes: 7 on 0, 3, 9;
    shared_blocks: 8 on 6, 8, 9;
    overwritten_blocks: 9 on 8, 2, 5;
    renames: 10 on 6, 8, 9;
    acls: 11 on 1, 3, 4;
    truncated_files: 12 on 9, 1, 7;
    directories: 13 on 7, 3, 1;
    preallocated_files: 14 on 1, 9, 7;
    moved_files: 15 on 2, 6, 8;
    set_attributes: 16 on 4, 1, 5;
    attributes_that_go: 17 on 3, 1, 2;
    inherited_acls: 18 on 7, 2, 5;
    files_without_cow: 19 on 0, 9, 5;
    everything_at_random: 20 on 2, 8, 9;
}

#[test]
fn large_attributes_of_half_a_gibibyte() {
    testkit::require!(btrfs_progs);
    case(ALL[2], &HALF_GIB, common::number("SPINNEY_SEED", 1));
}

/// The judge notices an fsync that does nothing.
#[test]
#[should_panic(expected = " wrong: ")]
fn an_fsync_that_does_nothing() {
    case_on(small_base(1), Kind::LongName, &SMALL[1], 1, true);
}

/// Promises that race: the same kind by all, and each another.
#[test]
fn eight_threads() {
    testkit::require!(btrfs_progs);
    let seed = common::number("SPINNEY_SEED", 1);
    crowd::case(Kind::Mix, &["-m", "single"], 64, 1, seed);
    crowd::case(Kind::LongName, &["--mixed"], 32, 1, seed);
    crowd::case(ALL[2], &["-n", "4096", "-m", "single"], 64, 2, seed);
}

#[test]
#[ignore = "minutes; by hand"]
fn eight_threads_of_each_kind() {
    testkit::require!(btrfs_progs);
    let shapes: [(&[&str], u64); 4] = [
        (&[], 128),
        (&["--mixed"], 32),
        (&["-m", "single", "-n", "65536"], 96),
        (&["-n", "4096"], 128),
    ];
    for seed in common::seeds(1, 2) {
        for kind in ALL {
            shapes.iter().for_each(|(mkfs, mib)| crowd::case(kind, mkfs, *mib, 1, seed));
        }
    }
}

#[test]
#[ignore = "hours; by hand"]
fn everything() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    let seed = common::number("SPINNEY_SEED", 1);
    println!("SPINNEY_SEED={seed}");
    let shape = |number: usize| SHAPES.iter().chain(&SMALL).nth(number).expect("a shape");
    let matrix = Matrix::of(ALL.len(), SHAPES.len() + SMALL.len());
    let failed = matrix.run(seed, |pair| {
        println!("SPINNEY_FILL={pair} {:?} {:?}", ALL[pair.kind], shape(pair.shape));
        case(ALL[pair.kind], shape(pair.shape), seed);
    });
    assert!(failed.is_empty(), "SPINNEY_SEED={seed}: {failed:?}");
}

/// Steps that we take, and that the kernel does, from the same volume on.
fn fits(kind: Kind, shape: &Shape, shared: bool) -> (u64, u64) {
    let image = shape.image();
    let kernels = common::crashed(&image, "kernels.img");
    let fill_it = |fs: &dyn FileSystem| {
        let mut filler = Filler::new(fs, kind, 1, "full", shared);
        fill(fs, &mut filler, shape.sync_every, &mut |_, _| {})
    };
    let fs = shape.open(&image);
    let ours = fill_it(&fs);
    fs.destroy().expect("close");
    drop(fs);
    let kernels = oracle::with_kernel(&kernels, "noatime", |mount| {
        fill_it(&PosixFs::open(mount.path()).expect("open"))
    });
    (ours, kernels.expect("mount"))
}

/// Percent of what fits with the kernel, at least.
const LEAST: u64 = 97;

/// What fits of each, and in how many of them too little. `shared`: each step changes a file of
/// the snapshots as well.
fn compare_with_kernel(
    pairs: impl Iterator<Item = (usize, &'static Shape)>,
    shared: bool,
) -> Vec<String> {
    let mut short = Vec::new();
    for (kind, shape) in pairs {
        let kind = ALL[kind];
        let (ours, kernels) = fits(kind, shape, shared);
        let percent = (ours as f64 / kernels as f64 - 1.0) * 100.0;
        let line = format!("| {kind:?} | {shape:?} | {kernels} | {ours} | {percent:+.1} % |");
        println!("{line}");
        if ours * 100 < kernels * LEAST {
            short.push(line);
        }
    }
    short
}

#[test]
fn as_much_fits_as_with_the_kernel() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    // The kernel keeps more back than the small ones have.
    let large = [(0, 0), (4, 2), (3, 0), (12, 2), (2, 6), (12, 9)];
    let large = large.map(|(kind, shape)| (kind, &SHAPES[shape]));
    let four_kib_nodes = [(4, &SMALL[3]), (2, &SMALL[3])];
    let short = compare_with_kernel(large.into_iter().chain(four_kib_nodes), false);
    assert!(short.is_empty(), "{short:#?}");
}

#[test]
#[ignore = "three minutes; by hand"]
fn as_much_fits_beside_snapshots() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    let pairs = |kinds: &[usize]| kinds.iter().map(|kind| (*kind, &SHAPES[8])).collect::<Vec<_>>();
    let alone = compare_with_kernel(pairs(&[2, 4, 6]).into_iter(), false);
    let shared = compare_with_kernel(pairs(&[1, 2, 4, 6]).into_iter(), true);
    let short = [alone, shared].concat();
    assert!(short.is_empty(), "{short:#?}");
}

/// Those of all kinds on `shapes` that `SPINNEY_FILL` asks for.
fn asked(shapes: std::ops::Range<usize>) -> impl Iterator<Item = (usize, &'static Shape)> {
    let pairs = Matrix::of(ALL.len(), SHAPES.len()).asked();
    let pairs = pairs.into_iter().filter(move |pair| shapes.contains(&pair.shape));
    pairs.map(|pair| (pair.kind, &SHAPES[pair.shape]))
}

#[test]
#[ignore = "an hour; by hand"]
fn table() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    let short = compare_with_kernel(asked(0..LONG), false);
    assert!(short.is_empty(), "{short:#?}");
}

#[test]
#[ignore = "half an hour; by hand"]
fn table_with_shared_files() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    let short = compare_with_kernel(asked(8..9), true);
    assert!(short.is_empty(), "{short:#?}");
}
