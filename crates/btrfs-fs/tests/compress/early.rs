//! Content that is to be compressed is written back beside those who write: files at rest, whole, and the
//! front of long ones, in extents as long as at a sync; not what is still written, and not what vanishes.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook, SimDevice};
use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use common::places::Places;
use common::{CX, Image, close_and_judge, new_file, stat};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use vfs::{FileSystem, Ino, SetAttr};

const MIB: usize = 1 << 20;

/// No commit comes by itself.
fn mount() -> Options {
    let compress =
        Some(Compress { method: Method::parse("zstd:1").expect("a method"), force: true });
    let day = Duration::from_secs(86_400);
    Options { commit_interval: day, compress, ..Options::default() }
}

fn text(seed: usize, len: usize) -> Vec<u8> {
    let line = |i: usize| format!("{seed} line {i} of {}\n", i.wrapping_mul(i + seed)).into_bytes();
    (0..).flat_map(line).take(len).collect()
}

fn compressed(fs: &BtrfsFs) -> u64 {
    stat(fs, "data.compressed_content_bytes")
}

/// What is compressed when `wanted` bytes are, or nothing has happened for a while.
fn settled(fs: &BtrfsFs, wanted: u64) -> u64 {
    let until = Instant::now() + Duration::from_secs(20);
    while compressed(fs) < wanted && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    compressed(fs)
}

fn assert_is(fs: &BtrfsFs, ino: Ino, expected: &[u8]) {
    let mut content = vec![0; expected.len()];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), expected.len());
    assert!(content == expected, "{ino:?}");
}

#[test]
fn files_at_rest_are_compressed_beside_the_writer() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(mount());
    let contents: Vec<Vec<u8>> = (0..60).map(|seed| text(seed, MIB)).collect();
    let files: Vec<Ino> = contents
        .iter()
        .enumerate()
        .map(|(i, content)| {
            let file = new_file(&fs, &format!("{i}"), content);
            // The last look is asked for by the last 8 MiB.
            settled(&fs, (i as u64 / 8 * 8).saturating_sub(8) * MIB as u64);
            file
        })
        .collect();
    let early = compressed(&fs);
    println!("{early} bytes of {}", contents.len() * MIB);
    assert!(early >= 40 * MIB as u64, "{early}");
    for (file, content) in files.iter().zip(&contents) {
        assert_is(&fs, *file, content);
    }
    fs.sync().expect("sync");
    assert_eq!(stat(&fs, "data.compressed_extents"), 60 * 8);
    close_and_judge(&image, fs);
}

#[test]
fn the_front_of_a_long_file_is_and_is_not_cut() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(mount());
    let content = text(1, 48 * MIB + 5000);
    let file = new_file(&fs, "long", b"");
    for (i, part) in content.chunks(50_000).enumerate() {
        fs.write(&CX, file, i as u64 * 50_000, part, Default::default()).expect("write");
        settled(&fs, (i as u64 * 50_000 / (8 << 20) * (8 << 20)).saturating_sub(16 << 20));
    }
    let early = compressed(&fs);
    assert!(early >= 24 << 20 && early.is_multiple_of(8 << 20), "{early}");
    assert_is(&fs, file, &content);
    fs.sync().expect("sync");
    assert_eq!(stat(&fs, "data.compressed_extents"), 48 * 8 + 1);
    assert_is(&fs, file, &content);
    close_and_judge(&image, fs);
}

#[test]
fn what_vanishes_soon_is_never_written() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(mount());
    for i in 0..20 {
        new_file(&fs, "temporary", &text(i, 3 * MIB));
        fs.unlink(&CX, fs.root(), b"temporary").expect("unlink");
    }
    // Time for the looks that were asked for.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(compressed(&fs), 0);
    close_and_judge(&image, fs);
}

/// Files are written over, cut and read while the commit thread compresses them, and syncs come between.
#[test]
fn content_that_changes_beside_it() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(mount());
    std::thread::scope(|scope| {
        for at in 0..4 {
            let fs = &fs;
            scope.spawn(move || change(fs, at));
        }
        scope.spawn(|| {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(100));
                fs.sync().expect("sync");
            }
        });
    });
    close_and_judge(&image, fs);
}

fn change(fs: &BtrfsFs, at: usize) {
    let mut random = testkit::ops::Rng::new(at as u64);
    let file = new_file(fs, &format!("{at}"), b"");
    let mut model = Vec::new();
    for i in 0..60 {
        let (from, len) = (random.below(3 << 20) as usize, 1 + random.below(1 << 20) as usize);
        let content = text(i, len);
        fs.write(&CX, file, from as u64, &content, Default::default()).expect("write");
        model.resize(model.len().max(from + len), 0);
        model[from..from + len].copy_from_slice(&content);
        if i % 7 == 6 {
            model.truncate(random.below(model.len() as u64) as usize);
            let set = SetAttr { size: Some(model.len() as u64), ..SetAttr::default() };
            fs.setattr(&CX, file, &set).expect("cut");
        }
        assert_is(fs, file, &model);
    }
}

/// What the commit thread writes, up to what no look takes in hand; the first of it is held.
#[derive(Default)]
struct Order {
    places: Places,
    /// How many writes came before that, and whether it has come.
    before: Mutex<(usize, bool)>,
}

const PLAIN: [u8; 4096] = [0xab; 4096];

impl RequestHook for Order {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        if let Request::Write { pieces, .. } = request
            && std::thread::current().name() == Some("spinney-commit")
        {
            let is_plain = pieces.first().is_some_and(|piece| piece.starts_with(&PLAIN));
            let mut before = self.before.lock().expect("no panic");
            before.1 |= is_plain;
            before.0 += usize::from(!before.1);
            drop(before);
            self.places.pass("write");
        }
        go_on()
    }
}

/// A look at many files ends where a commit is due.
#[test]
fn a_commit_that_is_due_does_not_wait_for_a_look() {
    let texts: Vec<_> = (0..270).map(|n| text(n, MIB / 16)).collect();
    // What is looked at is written before a commit is due, on a slow machine too.
    let found = [5, 20, 60].into_iter().find_map(|interval| before_the_commit(interval, &texts));
    let (before, there) = found.expect("this machine is too slow for this test");
    println!("{before} writes");
    assert!(there && before <= 20, "{before} writes of a look came before the commit");
}

/// How many writes of a look come before a commit that is due in so many seconds, and whether
/// that comes. `None` if it is due too early.
fn before_the_commit(seconds: u64, texts: &[Vec<u8>]) -> Option<(usize, bool)> {
    let below = SimDevice::new(blocksim::Image::zeros(512 << 20));
    btrfs_image::mkfs::make(&below, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(Hooked { below, hook: Order::default() });
    let interval = Duration::from_secs(seconds);
    let fs = BtrfsFs::open_device(device.clone(), Options { commit_interval: interval, ..mount() });
    let (fs, opened) = (fs.expect("mount"), Instant::now());
    // Nobody is to ask for a commit because of new chunks.
    fs.set_compression(None);
    let room = new_file(&fs, "room", &vec![0; 64 * MIB]);
    fs.sync().expect("sync");
    fs.set_compression(mount().compress);
    fs.setattr(&CX, room, &SetAttr { size: Some(0), ..SetAttr::default() }).expect("truncate");
    fs.sync().expect("sync");
    *device.hook.before.lock().expect("no panic") = (0, false);
    device.hook.places.arm("write");
    // Of this there is nothing to compress, so a look does not see it.
    let made = fs.mknod(&CX, fs.root(), b"plain", vfs::FileKind::File, 0o644, 0);
    let plain = made.expect("create").attr.ino;
    fs.set_flags(&CX, plain, 0x0080_0000).expect("chattr +C");
    fs.write(&CX, plain, 0, &PLAIN, Default::default()).expect("write");
    let fill = |files: std::ops::Range<usize>| {
        for n in files {
            let file = new_file(&fs, &format!("{n}"), &texts[n]);
            fs.write(&CX, file, (MIB / 16) as u64, &texts[n], Default::default()).expect("write");
        }
    };
    // One look finds them, the next one finds them at rest.
    fill(0..200);
    std::thread::sleep(Duration::from_millis(100));
    fill(200..270);
    device.hook.places.wait_until_there("write");
    let Some(rest) = interval.checked_sub(opened.elapsed()) else {
        device.hook.places.release("write");
        return None;
    };
    std::thread::sleep(rest + Duration::from_millis(50));
    device.hook.places.release("write");
    let until = Instant::now() + Duration::from_secs(20);
    let before = || *device.hook.before.lock().expect("no panic");
    while !before().1 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    let found = before();
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device, true, btrfs_check::Severity::Warning);
    Some(found)
}
