//! Volumes filled to the last byte with one kind of operation alone, of many shapes: whatever
//! was acknowledged is there after a sync and after a crash, commits need no more than was
//! promised for them, deleting works, and the volume can be emptied. And as much fits as with
//! the kernel.
//!
//! `cargo test -p spinney-btrfs-fs --test fill -- everything --ignored --nocapture` runs all kinds on
//! all shapes (`SPINNEY_FILL=KIND:SHAPE` one of them, by number), and `table` in its place
//! prints what fits beside what fits with the kernel. `SPINNEY_TMP=/dev/shm/x` keeps it off
//! the disk.

mod common;
#[path = "fill/kinds.rs"]
mod kinds;
#[path = "fill/shapes.rs"]
mod shapes;

use btrfs_fs::BtrfsFs;
use common::{crashed, open_image, snapshot, stat};
use kinds::{ALL, Filler, Kind, empty};
use shapes::{Before, SHAPES, Shape};
use std::time::Instant;
use testkit::{PosixFs, oracle};
use vfs::FileSystem;

/// Of many kinds one always fits a little longer: each refusal costs a commit.
const REFUSALS: u64 = 200;

/// Steps until one is refused, and then until one is refused behind a sync, or many were.
fn fill(fs: &dyn FileSystem, filler: &mut Filler<'_>, sync_every: u64) -> u64 {
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
    }
}

fn sync(fs: &BtrfsFs) {
    fs.sync().expect("what was acknowledged is kept");
    assert_eq!(fs.read_only_reason(), None);
}

fn case(kind: Kind, shape: &Shape, seed: u64) {
    let start = Instant::now();
    let image = shape.image();
    let fs = shape.open(&image);
    let mut filler = Filler::new(&fs, kind, seed, "full", shape.before == Before::Snapshots);
    let steps = fill(&fs, &mut filler, shape.sync_every);
    drop(filler);
    let expected = snapshot(&fs);
    sync(&fs);
    let copy = crashed(&image, "crashed.img");
    common::assert_sound(&copy);
    common::assert_same(&expected, &snapshot(&open_image(&copy, btrfs_fs::Options::default())));
    let _ = std::fs::remove_file(copy);
    // Deleting works on the full volume, and all of it comes back.
    empty(&fs, fs.root());
    sync(&fs);
    let (unpaid, over) = (stat(&fs, "commit.unpaid_nodes"), stat(&fs, "commit.over_promise"));
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
    println!("{kind:?} {shape:?}: {steps} steps, {unpaid} unpaid, {:.1?}", start.elapsed());
    assert_eq!((unpaid, over), (0, 0), "commits need no more than what was promised");
}

/// Each kind once, and each small shape.
macro_rules! sample {
    ($($name:ident: $kind:literal on $shape:literal;)*) => {$(
        #[test]
        fn $name() {
            testkit::require!(btrfs_progs);
            if SHAPES[$shape].before == Before::Snapshots {
                testkit::require!(kernel_btrfs);
            }
            case(ALL[$kind], &SHAPES[$shape], common::number("SPINNEY_SEED", 1));
        }
    )*};
}

sample! {
    attributes_of_one_file: 0 on 0;
    attributes_of_a_thousand_files: 1 on 3;
    large_attributes: 2 on 9;
    symlinks: 3 on 4;
    long_names: 4 on 2;
    hard_links: 5 on 3;
    inline_files: 6 on 8;
    holes: 7 on 0;
    shared_blocks: 8 on 1;
    overwritten_blocks: 9 on 8;
    renames: 10 on 5;
    acls: 11 on 6;
    truncated_files: 12 on 9;
    directories: 13 on 7;
    everything_at_random: 14 on 2;
}

#[test]
#[ignore = "an hour; by hand"]
fn everything() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    let only = std::env::var("SPINNEY_FILL").ok();
    let mut failed = Vec::new();
    for (k, kind) in ALL.into_iter().enumerate() {
        for (s, shape) in SHAPES.iter().enumerate() {
            let name = format!("{k}:{s}");
            if only.as_ref().is_some_and(|only| *only != name) {
                continue;
            }
            let seed = common::number("SPINNEY_SEED", 1);
            if std::panic::catch_unwind(|| case(kind, shape, seed)).is_err() {
                println!("FAILED {name} {kind:?} {shape:?}");
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Steps that we take, and that the kernel does.
fn fits(kind: Kind, shape: &Shape) -> (u64, u64) {
    let image = shape.image();
    let fs = shape.open(&image);
    let ours = fill(&fs, &mut Filler::new(&fs, kind, 1, "full", false), shape.sync_every);
    fs.destroy().expect("close");
    drop(fs);
    let image = shape.image();
    let kernels = oracle::with_kernel(&image.path, "noatime", |mount| {
        let fs = PosixFs::open(mount.path()).expect("open");
        fill(&fs, &mut Filler::new(&fs, kind, 1, "full", false), shape.sync_every)
    });
    (ours, kernels.expect("mount"))
}

/// Percent of what fits with the kernel.
const LEAST: u64 = 97;

#[test]
fn as_much_fits_as_with_the_kernel() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    let mut short = Vec::new();
    for (kind, shape) in [(0, 0), (4, 2), (3, 0), (12, 2)] {
        let (kind, shape) = (ALL[kind], &SHAPES[shape]);
        let (ours, kernels) = fits(kind, shape);
        println!("{kind:?} {shape:?}: {ours} steps, the kernel {kernels}");
        if ours * 100 < kernels * LEAST {
            short.push(format!("{kind:?} {shape:?}: {ours} of {kernels}"));
        }
    }
    assert!(short.is_empty(), "{short:#?}");
}

#[test]
#[ignore = "minutes; by hand"]
fn table() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    for kind in ALL {
        for (s, shape) in SHAPES.iter().enumerate().take(3) {
            let (ours, kernels) = fits(kind, shape);
            let percent = (ours as f64 / kernels as f64 - 1.0) * 100.0;
            println!("| {kind:?} | {s} | {kernels} | {ours} | {percent:+.1} % |");
        }
    }
}
