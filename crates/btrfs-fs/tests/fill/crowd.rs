//! A volume filled by many at once, while commits come from the clock, from a small delta and
//! from refusals: promises that race are kept as well.

use crate::common::{self, Image, crashed, stat};
use crate::kinds::{ALL, Filler, Kind, empty};
use crate::mirror::Mirror;
use crate::{REFUSALS, assert_as_expected, names_left};
use btrfs_fs::{BtrfsFs, Options};
use std::time::{Duration, Instant};
use testkit::ops::Rng;
use vfs::{FileSystem, FsError};

const THREADS: u64 = 8;
const MIB: u64 = 1 << 20;

fn options(delta_bytes: u64) -> Options {
    let commit_interval = Duration::from_millis(200);
    Options { background: true, delta_bytes, commit_interval, ..Options::default() }
}

fn full(error: &FsError) {
    assert_eq!(error.errno(), libc::ENOSPC, "only ENOSPC: {error}");
}

/// Until some steps in a row were refused: what one is refused, another's commit may free.
fn fill(mirror: &Mirror<'_>, filler: &mut Filler<'_>) -> u64 {
    let (mut steps, mut in_a_row, mut refusals) = (0, 0, 0);
    let mut rng = Rng::new(REFUSALS);
    while in_a_row < 4 && refusals < REFUSALS / THREADS {
        match filler.step() {
            Ok(()) => (steps, in_a_row) = (steps + 1, 0),
            Err(error) => {
                full(&error);
                (in_a_row, refusals) = (in_a_row + 1, refusals + 1);
                if let Err(error) = mirror.sync() {
                    panic!("what was acknowledged is kept: {error}");
                }
            }
        }
        if steps % 500 == 499 {
            // Fsyncs beside commits, and beside each other.
            let ino = filler.recent(&mut rng);
            mirror.fsync(ino, false).unwrap_or_else(|error| full(&error));
        }
    }
    steps
}

fn top(number: u64) -> String {
    format!("full-{number}")
}

/// What thread `number` does in a crowd of `kind`: all the same, or each another.
fn kind_of(kind: Kind, number: u64) -> Kind {
    match kind {
        Kind::Mix => ALL[(number * 5 % (ALL.len() as u64 - 1)) as usize],
        other => other,
    }
}

fn assert_kept(fs: &BtrfsFs, told: &str) {
    assert_eq!(fs.read_only_reason(), None, "{told}");
    let names = ["commit.unpaid_nodes", "commit.over_promise", "commit.short", "commit.unkept"];
    let stats = names.map(|name| (name, stat(fs, name)));
    assert!(stats.iter().all(|(_, count)| *count == 0), "{told}: {stats:?}");
}

pub fn case(kind: Kind, mkfs: &[&str], mib: u64, delta_mib: u64, seed: u64) {
    let start = Instant::now();
    let told = format!("{THREADS} threads, {kind:?}, {mib} MiB {mkfs:?}, SPINNEY_SEED={seed}");
    let image = Image::new(mib * MIB, mkfs);
    let fs = image.open_with(options(delta_mib * MIB));
    let mirrors: Vec<Mirror<'_>> = (0..THREADS).map(|_| Mirror::new(&fs, None)).collect();
    let each = |work: &(dyn Fn(u64, &Mirror<'_>) -> u64 + Sync)| -> u64 {
        std::thread::scope(|scope| {
            let run = |(number, mirror)| scope.spawn(move || work(number, mirror));
            let running: Vec<_> = (0..).zip(&mirrors).map(run).collect();
            running.into_iter().map(|thread| thread.join().expect("a filler")).sum()
        })
    };
    let steps = each(&|number, mirror| {
        let (kind, name) = (kind_of(kind, number), top(number));
        let mut filler = Filler::new(mirror, kind, seed + number, &name, false);
        fill(mirror, &mut filler)
    });
    fs.sync().unwrap_or_else(|error| panic!("{told}: what was acknowledged is kept: {error}"));
    assert_kept(&fs, &told);
    compare(&fs, &mirrors, &told);
    let copy = crashed(&image, "crashed.img");
    common::assert_sound(&copy);
    compare(&common::open_image(&copy, Options::default()), &mirrors, &told);
    std::fs::remove_file(copy).expect("remove the copy");
    each(&|number, mirror| {
        let name = top(number);
        let dir = mirror.lookup(&common::CX, mirror.root(), name.as_bytes()).expect("lookup");
        empty(mirror, dir.attr.ino);
        mirror.forget(dir.attr.ino, 1);
        mirror.rmdir(&common::CX, mirror.root(), name.as_bytes()).expect("rmdir");
        1
    });
    fs.sync().expect("an empty volume");
    assert_kept(&fs, &told);
    assert_eq!(names_left(&fs), Vec::<String>::new(), "{told}");
    fs.destroy().expect("close");
    drop(mirrors);
    drop(fs);
    common::assert_sound(&image.path);
    println!("{told}: {steps} steps, {:.1?}", start.elapsed());
}

/// Each has what it was told, in its directory.
fn compare(fs: &BtrfsFs, mirrors: &[Mirror<'_>], told: &str) {
    for (number, mirror) in (0..).zip(mirrors) {
        let name = top(number);
        assert_as_expected(fs, mirror, &[name.as_bytes()], told);
    }
}
