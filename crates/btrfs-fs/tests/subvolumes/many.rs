//! Many snapshots: the last costs what the first did, they go by themselves, and nothing of a
//! deletion that fails is lost. Costs are counted (nodes looked at, items, nodes written), not timed.
//! `SPINNEY_STEPS` makes more of them.

use crate::common;
use btrfs_fs::{BtrfsFs, Caller, Delete, Injection, Options, SubvolId};
use btrfs_txn::Defect;
use common::{CX, Image, number, stat, steps};
use std::time::{Duration, Instant};
use vfs::{FileKind, FileSystem, Ino};

/// Whose costs are held against each other.
const WINDOW: usize = 50;
const FAR_APART: usize = 250;

fn file(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    ino
}

fn subvolume(fs: &BtrfsFs, name: &str) -> (SubvolId, Ino) {
    let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
    let (id, entry) = made.expect("create a subvolume");
    (id, entry.attr.ino)
}

fn snapshot(fs: &BtrfsFs, source: Ino, name: &str) -> Ino {
    let made = fs.snapshot(&Caller::root(), source, fs.root(), name.as_bytes(), false);
    let ino = made.expect("snapshot").1.attr.ino;
    fs.forget(ino, 1);
    ino
}

fn delete(fs: &BtrfsFs, name: &str) -> SubvolId {
    let deleted = fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), name.as_bytes()));
    deleted.expect("delete")
}

fn free(fs: &BtrfsFs) -> u64 {
    let seen = fs.statfs().expect("statfs");
    seen.blocks_free * u64::from(seen.block_size)
}

/// What was looked at and written so far.
fn work(fs: &BtrfsFs) -> u64 {
    let counted = ["cache.hits", "cache.misses", "commit.items_merged", "commit.nodes_written"];
    counted.iter().map(|name| stat(fs, name)).sum()
}

fn cost(fs: &BtrfsFs, step: impl FnOnce()) -> u64 {
    let before = work(fs);
    step();
    work(fs) - before
}

/// The last ones cost at most half as much again as the first, once each extent's references are
/// more than a leaf has room for: they lie far apart from then on.
fn assert_level(what: &str, costs: &[u64]) {
    let each: Vec<u64> = costs.chunks(WINDOW).map(|part| part.iter().sum()).collect();
    println!("{what}: {each:?}");
    let (first, last) = (&costs[FAR_APART..][..WINDOW], &costs[costs.len() - WINDOW..]);
    let (first, last) = (first.iter().sum::<u64>(), last.iter().sum::<u64>());
    println!("{what}: {} at first, {} at last", first / WINDOW as u64, last / WINDOW as u64);
    assert!(2 * last <= 3 * first, "{what}: {WINDOW} cost {first} at first and {last} at last");
}

#[test]
fn the_thousandth_snapshot_costs_what_the_first_did() {
    let count = steps(1000);
    let image = Image::new(number("SPINNEY_MIB", 512) << 20, &[]);
    let fs = image.open();
    let (_, source) = subvolume(&fs, "source");
    let files: Vec<Ino> = (0..8).map(|i| file(&fs, source, &format!("f{i}"), &[7; 5000])).collect();
    fs.sync().expect("sync");
    let before = free(&fs);
    let made: Vec<u64> = (0..count)
        .map(|i| {
            cost(&fs, || {
                let (ino, byte) = (files[i % files.len()], i as u8);
                fs.write(&CX, ino, 0, &[byte; 4096], Default::default()).expect("write");
                let copy = snapshot(&fs, source, &format!("n{i:05}"));
                file(&fs, copy, "own", &[byte; 3000]);
            })
        })
        .collect();
    assert_level("a snapshot with a write in each", &made);
    assert_eq!(fs.subvolumes().expect("list").len(), count + 2);
    let deleted: Vec<u64> = (0..count)
        .map(|i| {
            cost(&fs, || {
                delete(&fs, &format!("n{i:05}"));
            })
        })
        .collect();
    assert_level("a deletion", &deleted);
    assert!(fs.sync_deleted(&[], None).expect("gone"));
    assert_eq!(fs.subvolumes().expect("list").len(), 2);
    fs.sync().expect("sync");
    let left = free(&fs);
    assert!(left + (4 << 20) >= before, "{before} bytes were free, {left} are");
    assert_eq!(stat(&fs, "commit.over_promise"), 0);
    common::close_and_judge(&image, fs);
}

#[test]
fn the_cleaner_comes_when_the_deletion_is_committed() {
    let image = Image::new(256 << 20, &[]);
    let hour = Duration::from_secs(3600);
    let fs = image.open_with(Options { commit_interval: hour, ..Options::default() });
    let (_, source) = subvolume(&fs, "source");
    file(&fs, source, "f", &[1; 9000]);
    snapshot(&fs, source, "copy");
    let id = delete(&fs, "copy");
    // It has nothing to do as yet, and has looked by then.
    std::thread::sleep(Duration::from_millis(100));
    fs.sync().expect("sync");
    let until = Instant::now() + Duration::from_secs(20);
    while fs.subvolume_info(id).is_ok() {
        assert!(Instant::now() < until, "the tree of a deleted subvolume is there still");
        std::thread::sleep(Duration::from_millis(5));
    }
    common::close_and_judge(&image, fs);
}

/// `subvolume delete` of many asks of each what it is, and that waits for no commit of those before.
#[test]
fn deletions_of_many_are_of_one_commit() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let (_, source) = subvolume(&fs, "source");
    file(&fs, source, "f", &[1; 9000]);
    let names: Vec<String> = (0..40).map(|i| format!("n{i:02}")).collect();
    names.iter().for_each(|name| _ = snapshot(&fs, source, name));
    fs.sync().expect("sync");
    let all = fs.subvolumes().expect("list");
    let commits = stat(&fs, "commit.count");
    for name in &names {
        let own = |info: &&btrfs_fs::SubvolumeInfo| info.path.as_deref() == Some(name.as_bytes());
        let id = all.iter().find(own).expect("listed").id;
        assert_eq!(fs.subvolume_info(id).expect("there still").id, id);
        assert_eq!(delete(&fs, name), id);
    }
    assert_eq!(stat(&fs, "commit.count"), commits, "a deletion, or a question, commits");
    let paths = fs.subvolumes().expect("list").into_iter().filter_map(|info| info.path);
    assert!(
        paths.into_iter().all(|path| !path.starts_with(b"n")),
        "a list tells of names that went"
    );
    common::close_and_judge(&image, fs);
}

/// A commit looks for inodes that may leave memory where somebody was at work since the last one,
/// not in all subvolumes that were ever looked at.
#[test]
fn a_commit_passes_over_idle_subvolumes() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let held: Vec<(Ino, Ino)> = (0..40)
        .map(|i| {
            let (_, dir) = subvolume(&fs, &format!("n{i:02}"));
            (dir, file(&fs, dir, "f", &[1; 9000]))
        })
        .collect();
    (0..2).for_each(|_| fs.sync().expect("sync"));
    let looked = |step: &dyn Fn()| {
        let before = stat(&fs, "commit.subvolumes_looked_at");
        step();
        fs.sync().expect("sync");
        stat(&fs, "commit.subvolumes_looked_at") - before
    };
    let written = looked(&|| _ = fs.write(&CX, held[3].1, 0, b"new", Default::default()));
    assert!(written <= 2, "one file changed, and a commit looked into {written} subvolumes");
    let forgotten = looked(&|| {
        fs.write(&CX, held[3].1, 0, b"newer", Default::default()).expect("write");
        held[..5].iter().for_each(|(_, file)| fs.forget(*file, 1));
    });
    assert!((1..=6).contains(&forgotten), "five inodes were forgotten, {forgotten} subvolumes");
    common::close_and_judge(&image, fs);
}

#[test]
fn a_deletion_that_fails_loses_nothing() {
    let image = Image::new(256 << 20, &[]);
    let injection = Injection::of(Some(Defect::NamesStay));
    let fs = image.open_with(Options { background: false, injection, ..Options::default() });
    let (id, sub) = subvolume(&fs, "sub");
    fs.sync().expect("sync");
    let ino = file(&fs, sub, "f", &[9; 70_000]);
    let which = Delete::Name(fs.root(), b"sub");
    let failed = fs.delete_subvolume(&Caller::root(), which);
    assert_eq!(failed.expect_err("it cannot").errno(), libc::EIO);
    // It is as it was, and what was written lands with the next commit.
    fs.write(&CX, ino, 70_000, &[8; 100], Default::default()).expect("write on");
    file(&fs, sub, "g", &[1; 100]);
    fs.sync().expect("sync");
    let crashed = common::crashed(&image, "crashed.img");
    let read = common::open_image(&crashed, Options { read_only: true, ..Options::default() });
    let info = read.subvolume_info(id).expect("the subvolume");
    let found = read.lookup(&CX, info.root, b"f").expect("the file").attr;
    let mut bytes = vec![0; found.size as usize];
    read.read(found.ino, 0, &mut bytes).expect("read");
    assert!(bytes == [[9; 70_000].as_slice(), &[8; 100]].concat(), "content is lost");
    drop(read);
    common::close_and_judge(&image, fs);
}
