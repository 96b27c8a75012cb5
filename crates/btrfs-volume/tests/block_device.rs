//! A block device of the kernel: what it caches, and what is written past that.

mod common;

use blockdev::{BlockDevice, FileDevice, Sticky};
use blocksim::{GoOn, Hooked, Request, RequestHook};
use common::{MIB, Scratch, write_bytes};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testkit::oracle::{LoopDevice, capabilities};
use testkit::require;

const LEN: u64 = 256 * MIB;
/// The first part of each goes past the cache, the last through it.
const UNIT: u64 = 128 << 10;
const THROUGH: u64 = 16 << 10;

struct Race {
    device: FileDevice,
    /// Where the reader is, in units.
    at: AtomicU64,
    ended: AtomicBool,
}

impl Race {
    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// One of the units that the reader is about to come to.
    fn near(&self, random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.at.load(Ordering::Relaxed) + (*random >> 33) % 24) % (LEN / UNIT) * UNIT
    }

    fn write(&self, past: bool) {
        let bytes = vec![u8::from(past); if past { UNIT - THROUGH } else { THROUGH } as usize];
        let mut random = 1 + u64::from(past);
        while self.goes_on() {
            let at = self.near(&mut random) + if past { 0 } else { UNIT - THROUGH };
            self.device.write_apart(at, &[&bytes], past).expect("write");
        }
    }

    /// As a backup of the device does it: the kernel reads ahead, of all that is not in its cache.
    fn read(&self, other: &File) {
        let mut bytes = vec![0; UNIT as usize];
        while self.goes_on() {
            for unit in 0..LEN / UNIT {
                self.at.store(unit, Ordering::Relaxed);
                if other.read_exact_at(&mut bytes, unit * UNIT).is_err() || !self.goes_on() {
                    break;
                }
            }
            self.device.uncache(0, LEN);
        }
    }
}

/// The kernel keeps a folio that is dirtied while a part of it is written past its cache, and the next flush
/// fails: the mount would not write any more.
#[test]
fn what_is_written_past_the_cache_beside_what_goes_through_it_fails_no_flush() {
    let machine = capabilities();
    require!(machine.root && machine.loop_devices, "needs root and loop devices");
    let scratch = Scratch::new();
    let below = LoopDevice::attach(&scratch.file("image", LEN), false).expect("a loop device");
    let device = FileDevice::open(below.path(), false, false).expect("open");
    assert!(device.tells_late(), "nothing is written past the cache: another test than this");
    let other = File::open(below.path()).expect("open");
    let race = Race { device, at: AtomicU64::new(0), ended: AtomicBool::new(false) };
    let end = Instant::now() + Duration::from_secs(6);
    std::thread::scope(|scope| {
        let threads = [
            scope.spawn(|| race.write(true)),
            scope.spawn(|| race.write(false)),
            scope.spawn(|| race.read(&other)),
        ];
        let mut flushed = Ok(());
        while flushed.is_ok() && Instant::now() < end && !threads.iter().any(|t| t.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            flushed = race.device.flush();
        }
        race.ended.store(true, Ordering::Relaxed);
        flushed.expect("no write failed");
    });
}

/// Takes no flush.
struct WornOut;

impl RequestHook for WornOut {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        match request {
            Request::Flush => Err(io::Error::from_raw_os_error(5)),
            _ => go_on(),
        }
    }
}

/// The bytes change below the kernel's cache, as if what it has had never been written.
#[test]
fn who_opens_a_device_after_a_failed_flush_reads_what_the_medium_has() {
    let machine = capabilities();
    require!(machine.root && machine.loop_devices, "needs root and loop devices");
    let scratch = Scratch::new();
    let image = scratch.file("image", 16 * MIB);
    let below = LoopDevice::attach(&image, false).expect("a loop device");
    // As long as somebody has it open the kernel keeps what it has of it.
    let other = File::open(below.path()).expect("open");
    let mut found = [0; 4096];
    let at = 64 << 10;
    for (number, fails) in [(1, true), (2, false)] {
        let open = FileDevice::open(below.path(), false, false).expect("open");
        let device = Sticky::new(Hooked { below: open, hook: WornOut });
        other.read_exact_at(&mut found, at).expect("read");
        write_bytes(&image, at, &[number; 4096]);
        if fails {
            device.flush().expect_err("worn out");
        } else {
            device.uncache(at, 4096);
        }
        drop(device);
        other.read_exact_at(&mut found, at).expect("read");
        assert!(found == [number; 4096], "round {number}: {}", found[0]);
    }
}
