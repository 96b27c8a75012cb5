//! fsx: random reads, writes, maps, truncations, holes and copies of one file, every
//! byte checked at every read.
//!
//! `FSX_OPS` makes it longer (scripts/soak.sh), `FSX_SEED` chooses another sequence.
//!
//! fsx 0.3.2 never unmaps what it maps for reading: at 65,530 maps (about 415,000 operations)
//! the kernel gives it no more, and each map makes each of its truncations slower. So many
//! operations are several runs of it on one mount, each with a seed of its own.

use std::time::Duration;

use suites::{Limited, Tool, Volume, lacking, number, tool};
use testkit::skip;

const FSX: Tool = Tool { name: "fsx", version: "0.3.2" };

/// Every operation that Linux has, none aligned to anything.
const EVERYTHING: &str = "\
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 3
punch_hole = 5
sendfile = 3
posix_fadvise = 1
copy_file_range = 5
";

/// Operations of one process.
const ONE_RUN: u64 = 50_000;

/// Sizes of the file and of one operation. The engine gathers short writes and stores long
/// ones at once, from 128 KiB on.
struct Sizes {
    file: u64,
    most: u64,
}

const SHORT: Sizes = Sizes { file: 1 << 20, most: 128 << 10 };
const LONG: Sizes = Sizes { file: 16 << 20, most: 1 << 20 };

impl Sizes {
    fn config(&self) -> String {
        let Sizes { file, most } = self;
        format!("flen = {file}\n[opsize]\nmin = 1\nmax = {most}\nalign = 1\n{EVERYTHING}")
    }
}

fn exercise(transport: &str, sizes: &Sizes, operations: u64) {
    if let Some(why) = lacking(transport) {
        skip!("{why}");
    }
    let fsx = match tool(&FSX) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let seconds = |operations| 120 + u32::try_from(operations / 100).unwrap();
    let volume = Volume::new("fsx", 1 << 30);
    let config = volume.beside("fsx.toml");
    std::fs::write(&config, sizes.config()).unwrap();
    let limit = Duration::from_secs(u64::from(seconds(operations)) + 60);
    let mount = volume.mount(transport, limit);
    let (mut seed, mut left) = (number("FSX_SEED", 20_240_611), operations);
    while left > 0 {
        let now = left.min(ONE_RUN);
        println!("fsx: {now} operations, seed {seed}");
        Limited::new(seconds(now), fsx.clone())
            .args(["-N", &now.to_string()])
            .args(["-S", &seed.to_string()])
            .arg("-P")
            .arg(volume.beside(""))
            .arg("-f")
            .arg(&config)
            .arg(mount.join("file"))
            .ok();
        (seed, left) = (seed + 1, left - now);
    }
    let seen = mount.unmount_with_tree();
    volume.judge_mount(&seen, transport);
}

fn short(transport: &str) {
    exercise(transport, &SHORT, number("FSX_OPS", 20_000));
}

fn long(transport: &str) {
    exercise(transport, &LONG, number("FSX_OPS", 20_000) / 10);
}

#[test]
fn short_over_uring() {
    short("uring");
}

#[test]
fn short_over_classic() {
    short("classic");
}

#[test]
fn short_with_writeback() {
    short("uring,writeback");
}

#[test]
fn long_over_uring() {
    long("uring");
}

#[test]
fn long_over_classic() {
    long("classic");
}
