//! Content that is compressed takes a bounded amount of memory, however many files are written back at a time, and
//! what does not get smaller is stored no worse for that.

mod common;
mod memory;

use blocksim::{GoOn, Hooked, Image, Request, RequestHook, SimDevice};
use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use common::{CX, new_file, stat};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use vfs::{FileSystem, Ino};

const MIB: usize = 1 << 20;
const FILES: usize = 24;
/// What one of them has to compress, and may compress at a time.
const LEN: usize = 8 * MIB;
/// Four pieces: one after the other is tried, until one does not get smaller.
const GROUP: usize = 512 << 10;
/// Content under way by all callers together, and one group by each; twice, since streams lie beside it.
const BOUND: usize = 2 * (32 * MIB + FILES * GROUP);
/// Trees, logs and what the test itself takes.
const REST: usize = 24 * MIB;

/// Holds the first write of each thread that calls fsync until all of them are there: each has compressed
/// what it may by then, and the device nothing of it.
#[derive(Default)]
struct Gathered {
    there: Mutex<Vec<String>>,
    all: Condvar,
    /// Allocated when the last one came.
    bytes: AtomicUsize,
}

impl RequestHook for Gathered {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        if matches!(request, Request::Write { .. }) && name.starts_with("fsync") {
            let mut there = self.there.lock().expect("no panic");
            if !there.contains(&name) {
                there.push(name);
                self.bytes.store(memory::now(), Ordering::Relaxed);
                self.all.notify_all();
            }
            while there.len() < FILES {
                let (now, late) =
                    self.all.wait_timeout(there, Duration::from_secs(100)).expect("no panic");
                assert!(!late.timed_out(), "{} of {FILES} came to write", now.len());
                there = now;
            }
        }
        go_on()
    }
}

fn incompressible(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    testkit::ops::Rng::new(seed).fill(&mut bytes);
    bytes
}

/// It gets smaller, but not by much.
fn compressible(seed: u64) -> Vec<u8> {
    let mut bytes = incompressible(seed);
    bytes.iter_mut().for_each(|byte| *byte &= 0x7f);
    bytes
}

/// Memory is the process's: the tests take turns.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn open(device: Arc<Hooked<SimDevice, Gathered>>) -> BtrfsFs {
    let compress =
        Some(Compress { method: Method::parse("zstd:1").expect("a method"), force: true });
    let (memory_bytes, dirty_bytes) = (2 << 30, 1 << 30);
    let background = false;
    let options = Options { background, compress, memory_bytes, dirty_bytes, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("mount")
}

/// Files of that content, all of which are synced at once.
fn all_synced(fs: &BtrfsFs, hook: &Gathered, content: fn(u64) -> Vec<u8>) -> Vec<Ino> {
    let file = |i: usize| new_file(fs, &format!("{i}"), b"x");
    let files: Vec<Ino> = (0..FILES).map(file).collect();
    fs.sync().expect("sync");
    for (i, file) in files.iter().enumerate() {
        // Short writes gather in memory.
        for (n, part) in content(i as u64).chunks(65_536).enumerate() {
            fs.write(&CX, *file, n as u64 * 65_536, part, Default::default()).expect("write");
        }
    }
    assert_eq!(compressed(fs), 0, "nothing is written back before somebody asks");
    let before = memory::now();
    std::thread::scope(|scope| {
        for (i, file) in files.iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("fsync-{i}"));
            let sync = move || fs.fsync(*file, false).expect("fsync");
            thread.spawn_scoped(scope, sync).expect("a thread");
        }
    });
    let more = hook.bytes.load(Ordering::Relaxed).saturating_sub(before);
    println!("{} MiB more, of {} allowed", more / MIB, (BOUND + REST) / MIB);
    assert!(more < BOUND + REST, "{more} bytes more than before");
    files
}

fn compressed(fs: &BtrfsFs) -> u64 {
    stat(fs, "data.compressed_content_bytes")
}

/// A new volume with such files; `look` is shown it before it is judged.
fn beside_each_other(content: fn(u64) -> Vec<u8>, look: impl FnOnce(&BtrfsFs, &[Ino])) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let below = SimDevice::new(Image::zeros(1 << 30));
    btrfs_image::mkfs::make(&below, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(Hooked { below, hook: Gathered::default() });
    let fs = open(device.clone());
    let files = all_synced(&fs, &device.hook, content);
    look(&fs, &files);
    for (i, file) in files.iter().enumerate() {
        let mut read = vec![0; LEN];
        assert_eq!(fs.read(*file, 0, &mut read).expect("read"), LEN);
        assert!(read == content(i as u64), "file {i}");
    }
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device, true, btrfs_check::Severity::Warning);
}

#[test]
fn many_files_that_are_synced_at_once_take_bounded_memory() {
    beside_each_other(compressible, |fs, _| assert_eq!(compressed(fs), (FILES * LEN) as u64));
}

/// Nor does it become short extents because others have much to compress.
#[test]
fn what_does_not_get_smaller_is_stored_in_extents_of_a_group() {
    beside_each_other(incompressible, |fs, files| {
        assert_eq!(compressed(fs), 0);
        let first = |file: &Ino| fs.stored(*file).expect("it is a file")[0].len as usize;
        let short = files.iter().map(first).filter(|len| *len < GROUP).count();
        // Some lie at the end of a block group.
        assert!(short < FILES / 4, "{short} of {FILES} begin with a short extent");
    });
}
