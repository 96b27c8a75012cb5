//! What the replay of a log takes in memory, by the sectors of content that it has.

mod common;
mod memory;

use btrfs_fs::Options;
use common::{CX, Image, crashed, new_file, stat};
use std::path::Path;
use vfs::{FileSystem, WriteFlags};

const MIB: u64 = 1 << 20;
const LOGGED: u64 = 96 * MIB;
/// The checksum in the log's node that is read, and in what the replay leaves, is four each. A map
/// with an entry a sector took 75 beside that.
const MOST_PER_SECTOR: u64 = 24;

/// The most that a mount without writing takes.
fn peak_of_mount(image: &Path, ignore_log: bool) -> u64 {
    let options = Options { read_only: true, background: false, ignore_log, ..Options::default() };
    let before = memory::now();
    memory::restart();
    let fs = common::open_image(image, options);
    let most = memory::peak() - before;
    assert_eq!(stat(&fs, "replay.extents") == 0, ignore_log);
    most as u64
}

#[test]
fn a_replay_takes_little_more_than_the_checksums_that_it_finds() {
    let image = Image::new(1 << 30, &[]);
    let options = Options { background: false, tree_log: true, ..Options::default() };
    let fs = image.open_with(options);
    let fill = |name: &str, len: u64| {
        let file = new_file(&fs, name, b"");
        for at in (0..len).step_by(MIB as usize) {
            fs.write(&CX, file, at, &[3; MIB as usize], WriteFlags::default()).expect("write");
        }
        file
    };
    // A log refers to no chunk that its commit does not know: so there is free space in old ones.
    let first = fill("first", LOGGED + 64 * MIB);
    fs.sync().expect("sync");
    fs.unlink(&CX, fs.root(), b"first").expect("unlink");
    fs.forget(first, 1);
    fs.sync().expect("sync");
    let file = fill("file", LOGGED);
    let before = stat(&fs, "log.fallback_commits");
    fs.fsync(file, false).expect("fsync");
    assert_eq!(stat(&fs, "log.fallback_commits"), before, "it is logged");
    let copy = crashed(&image, "crashed.img");
    drop(fs);
    peak_of_mount(&copy, true);
    let (without, with) = (peak_of_mount(&copy, true), peak_of_mount(&copy, false));
    let each = with.saturating_sub(without) as f64 / (LOGGED / 4096) as f64;
    println!("{without} bytes without the log, {with} with: {each:.1} a sector");
    assert!(each <= MOST_PER_SECTOR as f64, "{each:.1} bytes a sector");
}
