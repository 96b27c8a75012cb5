//! An fsync waits for the content of its own file alone: what is compressed of others, and is in the midst
//! of that, holds it up nowhere.
//!
//! Nothing goes by time: whoever compresses is held until the fsync beside him has returned.

use crate::common;
use blocksim::{GoOn, Hooked, Image, Request, RequestHook, SimDevice};
use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use common::places::Places;
use common::{CX, new_file, stat};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use vfs::{FileSystem, Ino};

const MIB: usize = 1 << 20;
/// Of so much a part is compressed and stored at a time, and the rest is still to be.
const LONG: usize = 40 * MIB;
const SHORT: usize = 300_000;

/// Holds the thread "compresses" at its first write: in the midst of a file.
#[derive(Default)]
struct Held(Places);

impl RequestHook for Held {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        let name = std::thread::current().name().map(str::to_owned);
        if matches!(request, Request::Write { .. }) && name.as_deref() == Some("compresses") {
            self.0.pass("write");
        }
        go_on()
    }
}

type Device = Arc<Hooked<SimDevice, Held>>;

fn text(seed: usize, len: usize) -> Vec<u8> {
    let line = |i: usize| format!("{seed} line {i} of {}\n", i.wrapping_mul(i + seed)).into_bytes();
    (0..).flat_map(line).take(len).collect()
}

fn open(device: &Device) -> BtrfsFs {
    let compress =
        Some(Compress { method: Method::parse("zstd:1").expect("a method"), force: true });
    let options = Options { background: false, compress, ..Options::default() };
    BtrfsFs::open_device(device.clone(), options).expect("mount")
}

fn long_and_short(fs: &BtrfsFs) -> (Ino, Ino) {
    let (long, short) = (new_file(fs, "long", b"x"), new_file(fs, "short", b"x"));
    fs.sync().expect("sync");
    for (file, len) in [(long, LONG), (short, SHORT)] {
        for (n, part) in text(len, len).chunks(50_000).enumerate() {
            fs.write(&CX, file, n as u64 * 50_000, part, Default::default()).expect("write");
        }
    }
    assert_eq!(stat(fs, "data.compressed_content_bytes"), 0, "nobody has asked for it yet");
    (long, short)
}

/// While `held` is at work on the long file, the short one is synced, by a thread of its own.
fn beside(held: impl FnOnce(&BtrfsFs, Ino) + Send) {
    let below = SimDevice::new(Image::zeros(512 << 20));
    btrfs_image::mkfs::make(&below, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let device: Device = Arc::new(Hooked { below, hook: Held::default() });
    let fs = open(&device);
    let (long, short) = long_and_short(&fs);
    let places = &device.hook.0;
    places.arm("write");
    std::thread::scope(|scope| {
        let fs = &fs;
        let compresses = std::thread::Builder::new().name("compresses".into());
        compresses.spawn_scoped(scope, move || held(fs, long)).expect("a thread");
        places.wait_until_there("write");
        let (done, is_done) = channel();
        scope.spawn(move || {
            fs.fsync(short, false).expect("fsync");
            done.send(stat(fs, "data.compressed_content_bytes")).expect("somebody listens");
        });
        let returned = is_done.recv_timeout(Duration::from_secs(60));
        places.release("write");
        // In whole sectors: its own, and nothing of what is held.
        let own = SHORT.next_multiple_of(4096) as u64;
        assert_eq!(returned, Ok(own), "it waited for another file, or wrote it");
    });
    let content = |file: Ino, len: usize| {
        let mut read = vec![0; len];
        assert_eq!(fs.read(file, 0, &mut read).expect("read"), len);
        read
    };
    assert!(content(long, LONG) == text(LONG, LONG) && content(short, SHORT) == text(SHORT, SHORT));
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device, true, btrfs_check::Severity::Warning);
}

#[test]
fn an_fsync_does_not_wait_for_what_another_compresses() {
    beside(|fs, long| fs.fsync(long, false).expect("fsync"));
}

#[test]
fn nor_for_what_a_sync_compresses() {
    beside(|fs, _| fs.sync().expect("sync"));
}
