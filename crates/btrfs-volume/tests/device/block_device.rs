//! A block device of the kernel: what it caches, and what is written past that.

use crate::common;
use blockdev::{BlockDevice, FileDevice, Sticky};
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_disk::ids::block_group;
use btrfs_disk::{Expect, Logical, TreeId};
use btrfs_volume::{Ahead, OpenOptions, Scrubbed, Volume};
use common::{MIB, Scratch, flip, read_bytes, write_bytes};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
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

const SPARE: u64 = 64 * MIB;

fn opened(device: &Path, read_only: bool) -> Volume {
    let device = FileDevice::open(device, read_only, false).expect("open");
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    Volume::open(Arc::new(device), options).expect("a volume")
}

/// Content and its checksums, and a node; both in two copies.
struct Stored {
    at: Logical,
    sums: Vec<u8>,
    node: Expect,
}

impl Stored {
    const LEN: u64 = 64 << 10;

    fn on(volume: &Volume) -> Stored {
        let is_data = |flags: u64| flags & block_group::DATA != 0;
        let chunks = volume.chunks();
        let chunk = chunks.iter().find(|c| is_data(c.flags)).expect("a chunk of content");
        let at = chunk.logical.offset(MIB);
        let content: Vec<u8> = (0..Self::LEN).map(|i| (i / 5 % 251) as u8).collect();
        volume.write(at, &[&content]).expect("write");
        volume.flush().expect("flush");
        let geometry = volume.geometry();
        let sum = |sector: &[u8]| geometry.csum.digest(sector)[..geometry.csum.size()].to_vec();
        let sums = content.chunks(4096).flat_map(sum).collect();
        let sb = volume.superblock();
        let node = Expect {
            logical: sb.fields.root,
            level: sb.fields.root_level,
            generation: Some(sb.generation()),
            owner: Some(TreeId::ROOT),
            first_key: None,
        };
        Stored { at, sums, node }
    }

    /// One byte of each, in the first copies, and of a spare superblock.
    fn places(&self, volume: &Volume) -> [u64; 3] {
        let place = |at: Logical| {
            let chunk = volume.chunk(at).expect("it is there");
            assert_eq!(chunk.stripes.len(), 2);
            chunk.stripes[0].1.0 + at.0 - chunk.logical.0
        };
        [place(self.at) + 8192 + 7, place(self.node.logical) + 300, SPARE + 300]
    }

    fn scrub(&self, volume: &Volume, repair: bool) -> Scrubbed {
        let (mut ahead, known) = (Ahead::default(), [true; Self::LEN as usize / 4096]);
        let mut done = volume.scrub_superblocks(repair).expect("a scrub");
        done.add(&volume.scrub_node(&self.node, repair, &mut ahead).expect("a scrub"));
        let content = volume.scrub_data(self.at, (&self.sums, &known), repair, &mut ahead);
        done.add(&content.expect("a scrub"));
        done
    }
}

fn found(done: &Scrubbed) -> [u64; 5] {
    let node = done.verify_errors / 4;
    [done.super_errors, node, done.csum_errors, done.corrected_errors, done.uncorrectable_errors]
}

/// All of it is in the kernel's cache, and right there.
#[test]
fn a_scrub_finds_and_mends_what_is_bad_below_the_cache_of_the_machine() {
    let machine = capabilities();
    require!(machine.root && machine.loop_devices && common::have_mkfs(), "needs loop devices");
    let scratch = Scratch::new();
    let image = scratch.mkfs("image", 256 * MIB, &["-d", "dup", "-m", "dup"]);
    let below = LoopDevice::attach(&image, false).expect("a loop device");
    let volume = opened(below.path(), false);
    let stored = Stored::on(&volume);
    assert_eq!(found(&stored.scrub(&volume, true)), [0; 5]);
    let other = File::open(below.path()).expect("open");
    let places = stored.places(&volume);
    let good: Vec<_> = places.map(|at| (at, read_bytes(&image, at, 1))).into();
    let cached = |at: u64| {
        let mut byte = vec![0];
        other.read_exact_at(&mut byte, at).expect("read");
        byte
    };
    for (at, byte) in &good {
        assert_eq!(cached(*at), *byte);
        flip(&image, *at);
        assert_eq!(cached(*at), *byte, "the machine knows nothing of it");
    }
    let reader = opened(below.path(), true);
    assert_eq!(found(&stored.scrub(&reader, false)), [1, 1, 1, 5, 0], "opened read-only");
    assert_eq!(found(&stored.scrub(&volume, false)), [1, 1, 1, 5, 0], "without mending");
    assert_eq!(found(&stored.scrub(&volume, true)), [1, 1, 1, 5, 0]);
    assert_eq!(found(&stored.scrub(&volume, true)), [0; 5]);
    drop(volume);
    for (at, byte) in good {
        assert_eq!(read_bytes(&image, at, 1), byte, "at {at}");
    }
}

/// What a mount writes through the cache at that moment is seen, whether it is on the medium or not.
#[test]
fn what_is_still_to_be_written_is_read_from_the_medium_as_well() {
    let machine = capabilities();
    require!(machine.root && machine.loop_devices, "needs root and loop devices");
    let scratch = Scratch::new();
    let image = scratch.file("image", 16 * MIB);
    let below = LoopDevice::attach(&image, false).expect("a loop device");
    let device = FileDevice::open(below.path(), false, false).expect("open");
    let mut found = vec![0; 3 << 20];
    device.read_at(0, &mut found).expect("read");
    for round in 1..50 {
        device.write_at(16 << 10, &[round; 16 << 10]).expect("write");
        device.read_medium(0, &mut found).expect("read");
        assert!(found[16 << 10..32 << 10].iter().all(|byte| *byte == round), "round {round}");
        device.flush().expect("it disturbs no flush");
    }
}

/// As the kernel holds the device of a mount that it knows the server of.
fn held(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_EXCL);
    options.open(path).expect("nobody holds it")
}

/// The kernel drops no folio that is dirty, and one that it has read ahead holds what is beside, too: it told the
/// device of nothing then (EBUSY).
#[test]
fn what_is_free_beside_what_is_being_written_is_discarded() {
    let machine = capabilities();
    require!(machine.root && machine.loop_devices, "needs root and loop devices");
    const NODE: u64 = 16 << 10;
    let scratch = Scratch::new();
    let image = scratch.file("image", 64 * MIB);
    write_bytes(&image, 0, &vec![7; 64 << 20]);
    let below = LoopDevice::attach(&image, false).expect("a loop device");
    let holder = held(below.path());
    let device = FileDevice::open(below.path(), false, true).expect("open");
    let mut bytes = vec![0; NODE as usize];
    let mut byte_at = |at| device.read_at(at, &mut bytes).map(|()| bytes[0]).expect("read");
    device.discard(0, NODE).expect("discard");
    require!(byte_at(0) == 0, "the folder of the image cannot have holes");
    (0..64 * MIB).step_by(NODE as usize).for_each(|at| assert!(byte_at(at) < 8));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0.. {
                let at = n % 64 * MIB + 2 * NODE;
                device.write_at(at, &[2; NODE as usize]).expect("write");
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut done = Ok(());
        for at in (MIB..64 * MIB).step_by(MIB as usize) {
            device.write_at(at, &[1; NODE as usize]).expect("write");
            done = done.and(device.discard(at + NODE, NODE));
        }
        ended.store(true, Ordering::Relaxed);
        writer.join().expect("no panic");
        done.expect("told");
    });
    for at in (MIB..64 * MIB).step_by(MIB as usize) {
        assert_eq!([0, NODE, 3 * NODE].map(|by| byte_at(at + by)), [1, 0, 7], "at {at}");
    }
    device.flush().expect("flush");
    drop(holder);
}
