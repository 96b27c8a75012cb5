//! Logs that the engine wrote, replayed by the kernel: what was synced is there, and the
//! volume is sound.

use crate::common;
use btrfs_fs::Options;
use common::{CX, Image, assert_same, crashed, snapshot, stat};
use std::path::Path;
use testkit::compare::TreeSnapshot;
use testkit::ops::{Config, OpKind, Session, generate};
use testkit::oracle;
use vfs::{FallocateMode, FileKind, FileSystem, Ino, RenameMode, WriteFlags};

fn has_log(image: &Path) -> bool {
    let text = oracle::sh("btrfs", &["inspect-internal", "dump-super", image.to_str().unwrap()]);
    let text = text.expect("dump-super");
    let line = text.lines().find(|l| l.starts_with("log_root\t")).expect("log_root");
    !line.trim_end().ends_with("\t0")
}

/// Lets the kernel replay, compares, and has the volume judged.
fn kernel_replays(copy: &Path, expected: &TreeSnapshot) {
    let seen = oracle::with_kernel(copy, "noatime", |mount| {
        TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
    })
    .expect("the kernel replays the log");
    common::assert_sound(copy);
    assert_same(expected, &seen);
    oracle::with_kernel(copy, "noatime", |mount| oracle::scrub(mount).expect("scrub"))
        .expect("the kernel mounts the volume");
}

/// This engine replays: in memory alone, then for good.
fn we_replay(copy: &Path, expected: &TreeSnapshot) {
    let shown = common::open_image(copy, Options { read_only: true, ..quiet() });
    assert_same(expected, &snapshot(&shown));
    drop(shown);
    let replayed = common::open_image(copy, quiet());
    assert_same(expected, &snapshot(&replayed));
    replayed.destroy().expect("close");
    drop(replayed);
    assert!(!has_log(copy), "a replay ends the log");
    common::judge(copy, expected);
}

/// Each a copy of what a crash would leave now.
fn both_replay(image: &Image, expected: &TreeSnapshot) {
    kernel_replays(&crashed(image, "crashed.img"), expected);
    we_replay(&crashed(image, "ours.img"), expected);
}

fn quiet() -> Options {
    Options { background: false, tree_log: true, ..Options::default() }
}

fn sync_everything(fs: &dyn FileSystem, tree: &TreeSnapshot) {
    for node in tree.nodes.values() {
        fs.fsync(node.attr.ino, false).expect("fsync");
    }
}

/// True if there was a log to replay.
fn random(seed: u64, steps: usize, config: &Config, mkfs: &[&str]) -> bool {
    println!("seed {seed}, {steps} steps, mkfs {mkfs:?}");
    let image = Image::new(256 << 20, mkfs);
    let fs = image.open_with(quiet());
    let config = config.clone().without(&[OpKind::Sync]);
    let ops = generate(seed, steps, &config);
    let mut session = Session::new(&fs);
    for (number, op) in ops.iter().enumerate() {
        session.apply(op);
        if number == steps / 2 {
            fs.sync().expect("sync");
        }
        if number > steps / 2 && number % 37 == 0 {
            sync_everything(&fs, &snapshot(&fs));
        }
    }
    let before = stat(&fs, "commit.count");
    let expected = snapshot(&fs);
    sync_everything(&fs, &expected);
    let logged = has_log(&image.path);
    println!(
        "commits in the end {}, fallbacks {}, writes {}, log {logged}",
        stat(&fs, "commit.count") - before,
        stat(&fs, "log.fallback_commits"),
        stat(&fs, "log.writes"),
    );
    let expected = snapshot(&fs);
    both_replay(&image, &expected);
    session.close_all();
    drop(session);
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&image.path);
    assert!(!has_log(&image.path), "a commit ends the log");
    logged
}

/// `SEED=5,6 STEPS=2000 MKFS="-n 4096"` runs those instead.
#[test]
fn everything_synced_is_there_after_the_kernel_replays() {
    testkit::require!(kernel_btrfs);
    if let Ok(seeds) = std::env::var("SEED") {
        let steps = std::env::var("STEPS").map_or(400, |steps| steps.parse().expect("a number"));
        let mkfs = std::env::var("MKFS").unwrap_or_default();
        let mkfs: Vec<&str> = mkfs.split_whitespace().collect();
        for seed in seeds.split(',') {
            random(seed.parse().expect("a number"), steps, &fitting(&mkfs), &mkfs);
        }
        return;
    }
    let mut logs = 0;
    for seed in 1..5 {
        logs += random(seed, 400, &Config::all(), &[]) as usize;
    }
    // A parent that belongs to the log for its own sake must not hide what it lost.
    logs += random(47, 1500, &Config::all(), &[]) as usize;
    assert!(logs > 3, "only {logs} of 5 left a log");
}

#[test]
fn logs_of_other_formats() {
    testkit::require!(kernel_btrfs);
    let mut logs = 0;
    for (seed, mkfs) in [
        (60, &["-n", "4096"][..]),
        (61, &["-n", "65536", "--csum", "xxhash"]),
        (62, &["--csum", "sha256", "-m", "single"]),
        (63, &["--csum", "blake2"]),
        (64, &["-O", "^no-holes"]),
        (65, &["--mixed"]),
    ] {
        logs += random(seed, 600, &fitting(mkfs), mkfs) as usize;
    }
    assert!(logs > 4, "only {logs} of 6 left a log");
}

/// Attributes that the model takes do not fit a leaf of 4 KiB.
fn fitting(mkfs: &[&str]) -> Config {
    if mkfs.contains(&"4096") || mkfs.contains(&"--mixed") {
        Config::all().without(&[OpKind::SetXattr, OpKind::Symlink])
    } else {
        Config::all()
    }
}

/// An image whose last commit is what `make` did.
fn image_with(mkfs: &[&str], make: impl FnOnce(&dyn FileSystem)) -> Image {
    let image = Image::new(256 << 20, mkfs);
    let fs = image.open_with(quiet());
    make(&fs);
    fs.destroy().expect("close");
    image
}

fn create(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).expect("create").attr.ino
}

fn mkdir(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    fs.mkdir(&CX, dir, name.as_bytes(), 0o755).expect("mkdir").attr.ino
}

fn at(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    fs.lookup(&CX, dir, name.as_bytes()).expect(name).attr.ino
}

/// An entry that is gone and a new one must not share an index in the log: the kernel's
/// replay inserts before it deletes.
#[test]
fn an_index_is_not_used_twice() {
    testkit::require!(kernel_btrfs);
    let image = image_with(&[], |fs| {
        for name in ["a", "b", "c"] {
            create(fs, fs.root(), name);
        }
    });
    let fs = image.open_with(quiet());
    fs.unlink(&CX, fs.root(), b"c").expect("unlink");
    let new = create(&fs, fs.root(), "new");
    fs.fsync(fs.root(), false).expect("fsync");
    fs.fsync(new, false).expect("fsync");
    assert_eq!(stat(&fs, "log.writes"), 1, "the second fsync has nothing to add");
    both_replay(&image, &snapshot(&fs));
}

/// The kernel's replay puts old and new names of one item together; where they do not fit
/// it fails for good.
#[test]
fn more_names_than_a_replay_can_hold_are_committed() {
    testkit::require!(kernel_btrfs);
    let name = |i: usize| format!("{i:0180}");
    let image = image_with(&["-n", "4096"], |fs| {
        let file = create(fs, fs.root(), "file");
        for i in 0..12 {
            fs.link(&CX, file, fs.root(), name(i).as_bytes()).expect("link");
        }
    });
    let fs = image.open_with(quiet());
    let file = at(&fs, fs.root(), "file");
    for i in 12..17 {
        fs.link(&CX, file, fs.root(), name(i).as_bytes()).expect("link");
    }
    fs.fsync(file, false).expect("fsync");
    assert_eq!(stat(&fs, "log.fallback_commits"), 1);
    let expected = snapshot(&fs);
    kernel_replays(&crashed(&image, "crashed.img"), &expected);
}

/// A directory `dir` in which the last commit has names of one hash, and more of that hash.
fn one_hash(mkfs: &[&str], committed: usize) -> (Image, Vec<Vec<u8>>) {
    let names = common::forge::forged("long-", 0x0bad_cafe, 255, committed + 2);
    let image = image_with(mkfs, |fs| {
        let dir = mkdir(fs, fs.root(), "dir");
        names[..committed].iter().for_each(|name| _ = made(fs, dir, name));
    });
    (image, names)
}

fn made(fs: &dyn FileSystem, dir: Ino, name: &[u8]) -> Ino {
    fs.mknod(&CX, dir, name, FileKind::File, 0o644, 0).expect("create").attr.ino
}

/// As above, of a directory's names that share a hash: each moment has no more than fits, and who
/// replays has those of the commit and of the log at once.
#[test]
fn more_names_of_one_hash_than_a_replay_can_hold_are_committed() {
    testkit::require!(kernel_btrfs);
    for (mkfs, committed) in [(&["-n", "4096"][..], 13), (&[], 57)] {
        let (image, names) = one_hash(mkfs, committed);
        let fs = image.open_with(quiet());
        let dir = at(&fs, fs.root(), "dir");
        fs.unlink(&CX, dir, &names[0]).expect("unlink");
        let new = made(&fs, dir, &names[committed]);
        fs.fsync(new, false).expect("fsync");
        assert_eq!(stat(&fs, "log.fallback_commits"), 1);
        both_replay(&image, &snapshot(&fs));
    }
}

/// To the last that fits: beside what the commit has, and in a directory that the log makes.
#[test]
fn the_kernel_replays_as_many_names_of_one_hash_as_there_can_be() {
    testkit::require!(kernel_btrfs);
    let (image, names) = one_hash(&[], 56);
    let fs = image.open_with(quiet());
    let (dir, born) = (at(&fs, fs.root(), "dir"), mkdir(&fs, fs.root(), "born"));
    let last = made(&fs, dir, &names[56]);
    let other = create(&fs, dir, "other");
    fs.rename(&CX, dir, b"other", dir, &names[7], RenameMode::Replace).expect("rename");
    let mut all = vec![last, other];
    all.extend(names[..57].iter().map(|name| made(&fs, born, name)));
    for parent in [dir, born] {
        let refused = fs.mknod(&CX, parent, &names[57], FileKind::File, 0o644, 0).err();
        assert_eq!(refused.map(|error| error.errno()), Some(libc::EOVERFLOW));
    }
    all.iter().for_each(|ino| fs.fsync(*ino, false).expect("fsync"));
    sync_everything(&fs, &snapshot(&fs));
    assert_eq!((stat(&fs, "log.fallback_commits"), stat(&fs, "commit.count")), (0, 0));
    both_replay(&image, &snapshot(&fs));
}

/// What an fsync costs, counted: no commit, no second look at what is logged already.
#[test]
fn the_second_fsync_of_a_file_logs_what_changed_since_the_first() {
    testkit::require!(kernel_btrfs);
    let image = image_with(&[], |fs| {
        let file = create(fs, fs.root(), "file");
        fs.write(&CX, file, 0, &[1; 50_000], WriteFlags::default()).expect("write");
    });
    let fs = image.open_with(quiet());
    let file = at(&fs, fs.root(), "file");
    let mut items = Vec::new();
    for round in 0..50u64 {
        fs.write(&CX, file, round * 8192, &[2; 4096], WriteFlags::default()).expect("write");
        let before = stat(&fs, "log.items");
        fs.fsync(file, false).expect("fsync");
        items.push(stat(&fs, "log.items") - before);
    }
    assert_eq!(stat(&fs, "commit.count"), 0);
    // Beside the first look at the inode: whether the commit has content in what a write behind
    // the end leaves out, of which there are 43, asked twice. Nothing of it in the log.
    let reads = stat(&fs, "log.tree_reads");
    assert_eq!((stat(&fs, "log.inodes_first"), reads), (1, 1 + 2 * 43));
    // The inode, the extent with its neighbours, a checksum: no more in the end than at first.
    assert!(items[10..].iter().all(|count| *count <= 6), "{items:?}");
    let nothing = stat(&fs, "log.writes");
    fs.fsync(file, false).expect("fsync");
    assert_eq!(stat(&fs, "log.writes"), nothing, "nothing changed, nothing written");
    both_replay(&image, &snapshot(&fs));
}

/// As above, of a file that has a hole where the commit has content: behind it, in it, and with one
/// more of them each time.
#[test]
fn a_hole_over_what_the_commit_has_does_not_log_the_file_anew() {
    testkit::require!(kernel_btrfs);
    let image = image_with(&[], |fs| {
        let file = create(fs, fs.root(), "file");
        fs.write(&CX, file, 0, &[1; 2 << 20], WriteFlags::default()).expect("write");
    });
    let fs = image.open_with(quiet());
    let file = at(&fs, fs.root(), "file");
    let write = |at: u64| {
        fs.write(&CX, file, at, &[2; 4096], WriteFlags::default()).map(|_| ()).expect("write");
    };
    let punch = |at: u64, len: u64| {
        fs.fallocate(&CX, file, FallocateMode::PunchHole, at, len).expect("punch");
    };
    punch(100 << 12, 300 << 12);
    fs.fsync(file, false).expect("fsync");
    let steps: [&dyn Fn(u64); 3] =
        [&|n| write((2 << 20) + n * 8192), &|n| write((102 + 3 * n) << 12), &|n| {
            punch((1 + 2 * n) << 12, 4096)
        }];
    for step in steps {
        let mut items = Vec::new();
        for round in 0..45 {
            step(round);
            let before = stat(&fs, "log.items");
            fs.fsync(file, false).expect("fsync");
            items.push(stat(&fs, "log.items") - before);
        }
        assert!(items.iter().all(|count| *count <= 8), "{items:?}");
    }
    assert_eq!(stat(&fs, "commit.count"), 0);
    both_replay(&image, &snapshot(&fs));
}

/// Saves of one file as editors make them, without a commit: none costs more than those before.
#[test]
fn the_hundredth_save_of_a_file_costs_no_more_than_the_first() {
    testkit::require!(kernel_btrfs);
    let image = image_with(&[], |fs| _ = create(fs, fs.root(), "file"));
    let fs = image.open_with(quiet());
    let (root, mut costs) = (fs.root(), Vec::new());
    let counts = || ["log.rounds", "log.inodes", "log.items"].map(|name| stat(&fs, name));
    for round in 0..100u64 {
        let new = create(&fs, root, "new");
        fs.write(&CX, new, 0, &[round as u8; 5000], WriteFlags::default()).expect("write");
        let before = counts();
        fs.fsync(new, false).expect("fsync");
        costs.push([0, 1, 2].map(|at| counts()[at] - before[at]));
        fs.rename(&CX, root, b"new", root, b"file", RenameMode::Replace).expect("rename");
        if round % 2 == 1 {
            fs.forget(new, 1);
        }
    }
    fs.fsync(root, false).expect("fsync");
    assert_eq!((stat(&fs, "log.fallback_commits"), stat(&fs, "commit.count")), (0, 0));
    let most = |of: &[[u64; 3]]| [0, 1, 2].map(|at| of.iter().map(|c| c[at]).max().expect("some"));
    let (first, last) = (most(&costs[2..12]), most(&costs[90..]));
    assert!((0..3).all(|at| last[at] <= first[at] + 1), "{first:?}, in the end {last:?}");
    both_replay(&image, &snapshot(&fs));
}

/// A log may refer to chunks that its commit knows, whatever other chunks there are by now.
#[test]
fn a_new_chunk_is_in_the_way_of_what_lies_in_it_alone() {
    testkit::require!(kernel_btrfs);
    // The data chunk that mkfs makes has 8 MiB; ours would have 102, so one is made ahead.
    let image = Image::new(1 << 30, &[]);
    let fs = image.open_with(quiet());
    let file = create(&fs, fs.root(), "file");
    let fallbacks = || stat(&fs, "log.fallback_commits");
    fs.write(&CX, file, 0, &[1; 9000], WriteFlags::default()).expect("write");
    fs.fsync(file, false).expect("fsync");
    fs.fsync(fs.root(), false).expect("fsync");
    assert_eq!((fallbacks(), stat(&fs, "commit.count")), (0, 0), "it lies in the old chunk");
    both_replay(&image, &snapshot(&fs));
    for part in 0..12 {
        fs.write(&CX, file, part << 20, &[2; 1 << 20], WriteFlags::default()).expect("write");
    }
    fs.fsync(file, false).expect("fsync");
    assert_eq!(fallbacks(), 1, "it lies in the new one, too");
    fs.write(&CX, file, 0, &[3; 1 << 20], WriteFlags::default()).expect("write");
    fs.fsync(file, false).expect("fsync");
    assert_eq!(fallbacks(), 1, "the commit knows both");
    let expected = snapshot(&fs);
    kernel_replays(&crashed(&image, "crashed.img"), &expected);
}

/// `dir` with a file, a file of two names, and a directory that is not empty.
fn make_tree(fs: &dyn FileSystem) {
    let dir = mkdir(fs, fs.root(), "dir");
    for name in ["a", "b"] {
        let file = create(fs, dir, name);
        fs.write(&CX, file, 0, &[1; 9000], WriteFlags::default()).expect("write");
    }
    let below = mkdir(fs, dir, "below");
    create(fs, below, "c");
    fs.link(&CX, at(fs, dir, "b"), below, b"b").expect("link");
}

fn remove_tree(fs: &dyn FileSystem) {
    let dir = at(fs, fs.root(), "dir");
    let below = at(fs, dir, "below");
    for (parent, names) in [(below, ["b", "c"]), (dir, ["a", "b"])] {
        names.iter().for_each(|name| fs.unlink(&CX, parent, name.as_bytes()).expect(name));
    }
    fs.rmdir(&CX, dir, b"below").expect("rmdir");
    fs.rmdir(&CX, fs.root(), b"dir").expect("rmdir");
}

/// What `rm -r` took away goes with the log of what took its place, without a commit.
#[test]
fn a_tree_that_was_removed_and_made_again_is_logged() {
    testkit::require!(kernel_btrfs);
    let image = image_with(&[], make_tree);
    let fs = image.open_with(quiet());
    remove_tree(&fs);
    make_tree(&fs);
    fs.fsync(at(&fs, at(&fs, fs.root(), "dir"), "a"), false).expect("fsync");
    sync_everything(&fs, &snapshot(&fs));
    assert_eq!((stat(&fs, "log.fallback_commits"), stat(&fs, "commit.count")), (0, 0));
    both_replay(&image, &snapshot(&fs));
}

/// A replay would take away what was moved out, or see two names of it.
#[test]
fn a_tree_is_committed_if_something_was_moved_out_of_it_before_it_was_removed() {
    testkit::require!(kernel_btrfs);
    let image = image_with(&[], make_tree);
    let fs = image.open_with(quiet());
    let (root, dir) = (fs.root(), at(&fs, fs.root(), "dir"));
    fs.rename(&CX, dir, b"below", root, b"above", RenameMode::Replace).expect("rename");
    fs.unlink(&CX, dir, b"a").expect("unlink");
    fs.unlink(&CX, dir, b"b").expect("unlink");
    fs.rmdir(&CX, root, b"dir").expect("rmdir");
    fs.fsync(root, false).expect("fsync");
    assert_eq!(stat(&fs, "log.fallback_commits"), 1);
    kernel_replays(&crashed(&image, "crashed.img"), &snapshot(&fs));
}

/// Of very many a commit is done sooner.
#[test]
fn a_large_tree_that_was_removed_is_committed() {
    testkit::require!(kernel_btrfs);
    let names: Vec<String> = (0..800).map(|number| format!("{number}")).collect();
    let image = image_with(&[], |fs| {
        let dir = mkdir(fs, fs.root(), "dir");
        let below = mkdir(fs, dir, "below");
        for name in &names {
            create(fs, dir, name);
            create(fs, below, name);
        }
    });
    let fs = image.open_with(quiet());
    let dir = at(&fs, fs.root(), "dir");
    let below = at(&fs, dir, "below");
    let remove = |parent: Ino| {
        names.iter().for_each(|name| fs.unlink(&CX, parent, name.as_bytes()).expect(name));
    };
    remove(below);
    fs.rmdir(&CX, dir, b"below").expect("rmdir");
    fs.fsync(dir, false).expect("fsync");
    assert_eq!(stat(&fs, "log.fallback_commits"), 0, "801 are not very many");
    remove(dir);
    fs.rmdir(&CX, fs.root(), b"dir").expect("rmdir");
    fs.fsync(fs.root(), false).expect("fsync");
    assert_eq!(stat(&fs, "log.fallback_commits"), 1);
    kernel_replays(&crashed(&image, "crashed.img"), &snapshot(&fs));
}
