//! Content that is to be compressed is written back beside those who write: files at rest, whole, and the
//! front of long ones, in extents as long as at a sync; not what is still written, and not what vanishes.

mod common;

use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use common::{CX, Image, close_and_judge, new_file, stat};
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
