//! What a scrub reads ahead: in few requests, and no longer than it is what the commit has.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_disk::ids::block_group;
use btrfs_disk::{Generation, Logical};
use btrfs_volume::{Ahead, OpenOptions, Scrubbed, Volume};
use common::*;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const SECTOR: u64 = 4096;
const SECTORS: u64 = 512;

/// Counts reads, and their bytes; that byte cannot be read.
#[derive(Default)]
struct Reads {
    count: AtomicU64,
    bytes: AtomicU64,
    refused: Mutex<Option<u64>>,
}

impl RequestHook for Reads {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if let Request::Read { offset, len } = request {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(len as u64, Ordering::Relaxed);
            let refused = *self.refused.lock().expect("lock");
            if refused.is_some_and(|at| (offset..offset + len as u64).contains(&at)) {
                return Err(io::Error::from_raw_os_error(5));
            }
        }
        go_on()
    }
}

struct World {
    /// Goes with its image.
    _scratch: Scratch,
    dev: Arc<Hooked<Arc<blockdev::FileDevice>, Reads>>,
    volume: Volume,
    at: Logical,
    place: u64,
}

impl World {
    /// Room for content in two copies.
    fn new() -> World {
        let scratch = Scratch::new();
        let path = scratch.mkfs("image", 256 * MIB, &["-d", "dup"]);
        let dev = Arc::new(Hooked { below: device(&path), hook: Reads::default() });
        let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
        let chunks = volume.chunks();
        let chunk = chunks.iter().find(|c| c.flags & block_group::DATA != 0).expect("data chunk");
        let (at, place) = (chunk.logical.offset(MIB), chunk.stripes[0].1.0 + MIB);
        World { _scratch: scratch, dev, volume, at, place }
    }

    fn put(&self, with: u8) {
        let content: Vec<u8> = (0..SECTORS).flat_map(|i| [i as u8 ^ with; 4096]).collect();
        self.volume.write(self.at, &[&content]).expect("write");
    }

    /// Each sector by itself, from the one of that number on; and the requests that it took.
    fn scrub(&self, from: u64, with: u8, ahead: &mut Ahead) -> (Scrubbed, u64) {
        self.scrub_each((from, 1), with, ahead)
    }

    /// The same of each `step`th.
    fn scrub_each(
        &self,
        (from, step): (u64, usize),
        with: u8,
        ahead: &mut Ahead,
    ) -> (Scrubbed, u64) {
        let (mut done, before) = (Scrubbed::default(), self.dev.hook.count.load(Ordering::Relaxed));
        let geometry = self.volume.geometry();
        for number in (from..SECTORS).step_by(step) {
            let sum = geometry.csum.digest(&[number as u8 ^ with; 4096]);
            let sums = &sum[..geometry.csum.size()];
            let at = self.at.offset(number * SECTOR);
            let read = self.volume.scrub_data(at, (sums, &[true]), false, ahead);
            done.add(&read.expect("a scrub"));
        }
        (done, self.dev.hook.count.load(Ordering::Relaxed) - before)
    }
}

fn errors(done: &Scrubbed) -> [u64; 3] {
    [done.read_errors, done.csum_errors, done.corrected_errors]
}

#[test]
fn neighbours_are_read_together_and_no_longer_than_they_are_what_the_commit_has() {
    if !have_mkfs() {
        return;
    }
    let world = World::new();
    let mut ahead = Ahead::default();
    ahead.look_at(Generation(7), MIB, false);
    world.put(1);
    let (done, requests) = world.scrub(0, 1, &mut ahead);
    assert_eq!((errors(&done), done.data_bytes_scrubbed), ([0; 3], 2 * SECTORS * SECTOR));
    // 4 KiB, 8, 16, ... 1 MiB.
    assert!(requests <= 2 * 11, "{requests} requests");
    // Another commit has something else there.
    world.put(2);
    ahead.look_at(Generation(8), MIB, false);
    assert_eq!(errors(&world.scrub(SECTORS - 9, 2, &mut ahead).0), [0; 3]);
    // Who is to be slow reads no more at once than he may.
    let mut ahead = Ahead::default();
    ahead.look_at(Generation(8), SECTOR, false);
    assert_eq!(world.scrub(0, 2, &mut ahead).1, 2 * SECTORS);
}

/// It is the error of one sector, however much was to be read with it.
#[test]
fn what_cannot_be_read_is_no_error_of_its_neighbours() {
    if !have_mkfs() {
        return;
    }
    let world = World::new();
    world.put(3);
    for bad in [0, 5, 300, SECTORS - 1] {
        *world.dev.hook.refused.lock().expect("lock") = Some(world.place + bad * SECTOR + 100);
        let mut ahead = Ahead::default();
        ahead.look_at(Generation(7), MIB, false);
        let before = world.volume.counters().read_errors;
        let (done, requests) = world.scrub(0, 3, &mut ahead);
        assert_eq!(errors(&done), [1, 0, 1], "sector {bad}");
        // One for the request, one for the sector alone.
        assert_eq!(world.volume.counters().read_errors - before, 2, "sector {bad}");
        assert!(requests < 2 * SECTORS, "{requests} requests");
    }
}

/// What lies between is of no use to it, and takes its time.
#[test]
fn who_saves_bytes_reads_no_gaps_and_what_was_asked_for_is_known() {
    if !have_mkfs() {
        return;
    }
    let world = World::new();
    world.put(4);
    for saves in [true, false] {
        let mut ahead = Ahead::default();
        ahead.look_at(Generation(7), MIB, saves);
        let before = world.dev.hook.bytes.load(Ordering::Relaxed);
        let (done, _) = world.scrub_each((0, 16), 4, &mut ahead);
        let read = world.dev.hook.bytes.load(Ordering::Relaxed) - before;
        assert_eq!(errors(&done), [0; 3]);
        assert_eq!(ahead.asked(), read);
        if saves {
            assert_eq!(read, done.bytes());
        } else {
            assert!(read > 8 * done.bytes(), "{read}: nothing is shown by that");
        }
    }
}
