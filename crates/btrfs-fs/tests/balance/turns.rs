//! A move of content that comes to nothing once it has its turn to commit: whoever waits for a commit is
//! not told that there was one, and what was to move stays.
//!
//! The balance is held where it reads the content first; a commit is held at its flush; then the
//! balance waits for its turn, and somebody who wants something durable behind it.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook, SimDevice};
use btrfs_disk::ids::block_group::DATA;
use btrfs_disk::items::BalanceItem;
use btrfs_fs::{BtrfsFs, Options};
use common::CX;
use common::asleep::begun;
use common::places::Places;
use std::io::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vfs::{FileKind, FileSystem};

/// No other read is of so many bytes.
const VICTIM: usize = 37 * 4096;
const NOCOW: u32 = 0x0080_0000;

type Device = Hooked<SimDevice, Watch>;

#[derive(Default)]
struct Watch {
    gate: Places,
    /// Reads of the victim by the balance, and where that lies.
    reads: AtomicU64,
    place: AtomicU64,
}

impl Watch {
    /// It reads the victim, or sector by sector what it could not read whole.
    fn has(&self, offset: u64, len: usize) -> bool {
        if len == VICTIM {
            self.place.store(offset, Ordering::SeqCst);
        }
        let place = self.place.load(Ordering::SeqCst);
        place > 0 && (place..place + VICTIM as u64).contains(&offset)
    }
}

impl RequestHook for Watch {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> Result<()> {
        match (request, std::thread::current().name()) {
            (Request::Read { len, offset }, Some("spinney-balance")) if self.has(offset, len) => {
                match self.reads.fetch_add(1, Ordering::SeqCst) {
                    0 => self.gate.pass("copying"),
                    // Amid the turn: whoever waits behind it waits now.
                    _ => return Err(Error::other("a bad sector")),
                }
            }
            (Request::Flush, Some("commit")) => self.gate.pass("flush"),
            _ => {}
        }
        go_on()
    }
}

fn a_volume() -> Arc<Device> {
    let sim = SimDevice::new(blocksim::Image::zeros(300 << 20));
    btrfs_image::mkfs::make(&sim, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    Arc::new(Hooked { below: sim, hook: Watch::default() })
}

fn mount(device: &Arc<Device>) -> BtrfsFs {
    // Without a log each fsync is a commit, or is served by another's.
    let options = Options { background: false, tree_log: false, ..Options::default() };
    BtrfsFs::open_device(device.clone(), options).expect("mount")
}

/// What a volume has that lost its power now.
fn crashed(device: &Device, name: &str) -> bool {
    let device = Arc::new(SimDevice::new(device.below.image()));
    let fs = BtrfsFs::open_device(device, Options { background: false, ..Options::default() });
    let fs = fs.expect("mount");
    fs.lookup(&CX, fs.root(), name.as_bytes()).is_ok()
}

/// Whether what was made durable behind the balance's turn is there.
fn once() -> bool {
    let device = a_volume();
    let fs = mount(&device);
    let made = fs.mknod(&CX, fs.root(), b"victim", FileKind::File, 0o644, 0).expect("create");
    let victim = made.attr.ino;
    fs.set_flags(&CX, victim, NOCOW).expect("flags");
    fs.write(&CX, victim, 0, &[7; VICTIM], Default::default()).expect("write");
    fs.sync().expect("commit");
    let gate = &device.hook.gate;
    gate.arm("copying");
    gate.arm("flush");
    fs.start_balance(BalanceItem { flags: DATA, ..BalanceItem::default() }).expect("begin");
    gate.wait_until_there("copying");
    std::thread::scope(|scope| {
        let fs = &fs;
        let commit = || {
            common::new_file(fs, "first", b"1");
            fs.sync().expect("commit");
        };
        let named = std::thread::Builder::new().name("commit".into());
        named.spawn_scoped(scope, commit).expect("a thread");
        gate.wait_until_there("flush");
        gate.release("copying");
        // Now it waits for its turn, as far as anybody can tell.
        std::thread::sleep(Duration::from_millis(100));
        let made = begun(scope, || {
            let ino = common::new_file(fs, "durable", b"2");
            fs.fsync(ino, false).expect("fsync");
        });
        gate.release("flush");
        made.join().expect("no panic");
    });
    let there = crashed(&device, "durable");
    let status = common::end_of_balance(&fs, Duration::from_secs(20));
    assert_eq!((status.failed, status.errno), (1, libc::EIO), "{status:?}");
    assert!(device.hook.reads.load(Ordering::SeqCst) > 1, "it failed amid its turn");
    assert_eq!(fs.read_only_reason(), None);
    let mut content = vec![0; VICTIM];
    fs.read(victim, 0, &mut content).expect("read");
    assert!(content == [7; VICTIM], "what was to move stays");
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device, true, btrfs_check::Severity::Note);
    there
}

/// Who comes first is not ours to say.
#[test]
fn nobody_is_served_by_a_turn_that_came_to_nothing() {
    for _ in 0..3 {
        assert!(once(), "what an fsync called durable is lost in a crash");
    }
}
