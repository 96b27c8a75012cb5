//! Commits that nobody asked for: when the interval has passed, and when the delta has used
//! up its memory. Without them a crash would cost whatever was done since the last `sync`.

use crate::common;
use blocksim::{Access, Hook, SimDevice};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::MkfsOptions;
use common::{CX, Image, close_and_judge, crashed, new_file, stat};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::oracle;
use vfs::{FileKind, FileSystem};

/// The names and content that a crash would leave now, as the kernel sees them.
fn on_the_volume(image: &Image, name: &str) -> Option<Vec<u8>> {
    let copy = crashed(image, "crashed.img");
    oracle::assert_clean(&copy);
    let seen = oracle::with_kernel(&copy, "noatime", |mount| std::fs::read(mount.join(name)).ok());
    std::fs::remove_file(&copy).expect("remove the copy");
    seen.expect("the kernel mounts the volume")
}

/// The chunks that a fresh volume lacks are made, which asks for a commit.
fn settle(fs: &BtrfsFs) {
    new_file(fs, "chunks", &[7; 100_000]);
    fs.sync().expect("commit");
    std::thread::sleep(Duration::from_millis(500));
    fs.sync().expect("commit");
}

/// Nodes that a commit replaced are of no more use: those in memory are the ones of the trees.
#[test]
fn nodes_that_are_free_leave_memory() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let made = fs.mknod(&CX, fs.root(), b"f", FileKind::File, 0o644, 0).expect("create");
    let mut write = |round: u8| {
        fs.write(&CX, made.attr.ino, 0, &[round; 5000], Default::default()).expect("write");
        fs.sync().expect("sync");
        stat(&fs, "memory.cache")
    };
    let few = (0..10).map(&mut write).last().expect("ten");
    let many = (10..110).map(&mut write).last().expect("a hundred");
    assert!(many <= 2 * few, "{few} bytes of nodes behind ten commits, {many} behind more");
    fs.destroy().expect("close");
}

/// The trees of an old commit keep those of all later ones; they go one after the other, and not within each other
/// on the stack of who lets go.
#[test]
fn who_reads_an_old_commit_may_outlast_thousands() {
    let image = Image::new(2 << 30, &["-n", "4096"]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let ino = new_file(&fs, "f", b"x");
    fs.sync().expect("sync");
    let held = fs.committed().expect("the trees of now");
    for second in 0..2000 {
        let change = vfs::SetAttr { perm: Some(0o600 + second % 2), ..Default::default() };
        fs.setattr(&CX, ino, &change).expect("chmod");
        fs.sync().expect("sync");
    }
    std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn_scoped(scope, || drop(held)).expect("a thread").join().expect("it ends");
    });
    fs.destroy().expect("close");
}

/// `commit=1`, and again in the next second, and not when there is nothing to commit.
#[test]
fn the_interval_commits_by_itself() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let interval = Duration::from_secs(1);
    let fs = image.open_with(Options { commit_interval: interval, ..Options::default() });
    settle(&fs);
    for name in ["first", "second"] {
        let before = stat(&fs, "commit.count");
        let start = Instant::now();
        new_file(&fs, name, name.as_bytes());
        while stat(&fs, "commit.count") == before {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing commits {name}");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Nothing is at work: the copy is what a crash would leave.
        assert_eq!(on_the_volume(&image, name).as_deref(), Some(name.as_bytes()));
    }
    let idle = stat(&fs, "commit.count");
    std::thread::sleep(3 * interval);
    assert_eq!(stat(&fs, "commit.count"), idle, "there is nothing to commit");
    close_and_judge(&image, fs);
}

/// Until the interval has passed nothing reaches the volume: the test above sees the timer.
#[test]
fn a_long_interval_waits() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let interval = Duration::from_secs(3600);
    let fs = image.open_with(Options { commit_interval: interval, ..Options::default() });
    settle(&fs);
    let before = stat(&fs, "commit.count");
    new_file(&fs, "first", b"first");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(stat(&fs, "commit.count"), before);
    assert_eq!(on_the_volume(&image, "first"), None);
    close_and_judge(&image, fs);
}

/// A load of names: the delta's budget makes commits while it goes on, and holds what is in
/// memory down; a budget that is never full makes none.
#[test]
fn a_full_delta_commits() {
    testkit::require!(kernel_btrfs);
    for background in [true, false] {
        for (budget, most) in [(256 << 10, 1 << 20), (256 << 20, u64::MAX)] {
            let image = Image::new(2 << 30, &[]);
            let fs = image.open_with(Options {
                commit_interval: Duration::from_secs(3600),
                delta_bytes: budget,
                background,
                ..Options::default()
            });
            let mut largest = 0;
            for number in 0..4000 {
                let name = format!("name-{number}");
                fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::Fifo, 0o644, 0).expect("room");
                if number % 10 == 0 {
                    largest = largest.max(stat(&fs, "delta.bytes"));
                }
            }
            let commits = stat(&fs, "commit.count");
            println!("background {background}, {budget} bytes: {commits} commits, {largest}");
            match budget {
                0x4_0000 => assert!(commits >= 3, "{commits} commits"),
                _ => assert_eq!(commits, 0),
            }
            assert!(largest <= most, "{largest} bytes of delta");
            close_and_judge(&image, fs);
        }
    }
}

/// While commits take their time, who changes something rests, and waits for none of them; of a
/// machine that gives one thread no time for long that is true now and then.
#[test]
fn who_fills_the_delta_beside_slow_commits_is_slowed_down_and_not_stopped() {
    assert!((0..3).any(|_| is_never_stopped()), "somebody had to wait for a commit");
}

fn is_never_stopped() -> bool {
    let slow: Hook = Arc::new(|access, _| {
        if access == Access::Flush {
            std::thread::sleep(Duration::from_millis(150));
        }
    });
    let device = SimDevice::new(blocksim::Image::zeros(512 << 20));
    btrfs_image::mkfs::make(&device, &MkfsOptions::default()).expect("mkfs");
    let device = device.hooked(Some(slow));
    let options = Options {
        commit_interval: Duration::from_secs(3600),
        delta_bytes: 4 << 20,
        background: true,
        ..Options::default()
    };
    let fs = BtrfsFs::open_device(Arc::new(device), options).expect("open");
    for number in 0.. {
        let name = format!("name-{number}");
        fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::Fifo, 0o644, 0).expect("room");
        if number % 100 == 0 && stat(&fs, "commit.count") >= 6 {
            break;
        }
    }
    let [rests, stopped] = ["delta.paced", "delta.throttled"].map(|name| stat(&fs, name));
    println!("{rests} rests; stopped {stopped} times");
    assert!(rests > 0, "nobody was slowed down");
    fs.destroy().expect("close");
    stopped == 0
}

/// A load of content: what is not written back is held down by `dirty_bytes`.
#[test]
fn unwritten_content_has_a_budget() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 << 20, &[]);
    let budget = 1 << 20;
    let fs = image.open_with(Options {
        commit_interval: Duration::from_secs(3600),
        dirty_bytes: budget,
        ..Options::default()
    });
    let mut largest = 0;
    for number in 0..1500 {
        new_file(&fs, &format!("file-{number}"), &[7; 20_000]);
        largest = largest.max(stat(&fs, "delta.dirty_bytes"));
    }
    let written = stat(&fs, "data.written_bytes");
    assert!(written > 1400 * 20_480, "{written} bytes are written");
    assert!(largest <= 2 * budget, "{largest} bytes wait");
    close_and_judge(&image, fs);
}

/// Names, content and inodes in use, more than the budget of all together, while each part's own
/// bound is far away: the parts make room for each other, and the cache gets back what is left.
#[test]
fn one_budget_is_shared() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &[]);
    let budget = 16 << 20;
    let fs = image.open_with(Options {
        commit_interval: Duration::from_secs(3600),
        memory_bytes: budget,
        ..Options::default()
    });
    // All at once, or what a commit takes from one part to another meanwhile counts twice.
    let held = |fs: &BtrfsFs| -> u64 {
        let parts = ["cache", "delta", "sealed", "building", "inodes", "content"];
        let parts = parts.map(|part| format!("memory.{part}"));
        let commits = stat(fs, "commit.count");
        let stats = fs.stats();
        let held = stats.iter().filter(|stat| parts.iter().any(|part| part == stat.name));
        let held = held.map(|stat| stat.value).sum();
        if stat(fs, "commit.count") == commits { held } else { 0 }
    };
    let (mut largest, mut least_cache) = (0, u64::MAX);
    for number in 0..12_000 {
        new_file(&fs, &format!("file-{number}"), &[7; 3000]);
        if number % 20 == 0 {
            largest = largest.max(held(&fs));
            least_cache = least_cache.min(stat(&fs, "memory.cache_budget"));
        }
    }
    println!("{largest} of {budget} bytes, the cache {least_cache} at least");
    assert!(stat(&fs, "commit.count") > 1, "nobody made room");
    assert!(least_cache < budget / 2, "the cache gave nothing: {least_cache}");
    // The cache follows in steps, and the parts are looked at one after the other beside a commit.
    assert!(largest <= budget + budget / 32, "{largest} bytes are held");
    fs.sync().expect("commit");
    let (cache, inodes) = (stat(&fs, "memory.cache_budget"), stat(&fs, "memory.inodes"));
    assert!(cache + inodes > budget / 8 * 7, "cache {cache}, inodes {inodes}");
    close_and_judge(&image, fs);
}
