//! Sectors that cannot be read until they are written anew, under content that has no checksum.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_disk::Logical;
use btrfs_disk::ids::block_group;
use btrfs_volume::{Ahead, OpenOptions, Volume};
use common::*;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const SECTOR: u64 = 4096;

/// Places of sectors that cannot be read; a write mends them, as a disk that has spare ones does.
#[derive(Default)]
struct Lost(Mutex<Vec<u64>>);

impl RequestHook for Lost {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let mut lost = self.0.lock().expect("lock");
        let meets = |at: u64, offset: u64, len: u64| at < offset + len && offset < at + SECTOR;
        match request {
            Request::Read { offset, len }
                if lost.iter().any(|at| meets(*at, offset, len as u64)) =>
            {
                return Err(io::Error::from_raw_os_error(5));
            }
            Request::Write { offset, pieces } => {
                let len = pieces.iter().map(|piece| piece.len() as u64).sum();
                lost.retain(|at| !meets(*at, offset, len));
            }
            _ => {}
        }
        go_on()
    }
}

struct World {
    /// Goes with its image.
    _scratch: Scratch,
    path: PathBuf,
    dev: Arc<Hooked<Arc<blockdev::FileDevice>, Lost>>,
    volume: Volume,
    at: Logical,
    copies: Vec<u64>,
    content: Vec<u8>,
}

/// 8 sectors of content in two copies.
fn world() -> World {
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 256 * MIB, &["-d", "dup"]);
    let dev = Arc::new(Hooked { below: device(&path), hook: Lost::default() });
    let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
    let chunks = volume.chunks();
    let chunk = chunks.iter().find(|c| c.flags & block_group::DATA != 0).expect("data chunk");
    let at = chunk.logical.offset(1 << 20);
    let copies = chunk.stripes.iter().map(|(_, place)| place.0 + (1 << 20)).collect();
    let content: Vec<u8> = (0..8 * SECTOR).map(|i| (i / 7 % 251) as u8).collect();
    volume.write(at, &[&content]).expect("write");
    World { _scratch: scratch, path, dev, volume, at, copies, content }
}

/// As the kernel's scrub does.
#[test]
fn a_scrub_writes_what_could_not_be_read_from_the_other_copy() {
    if !have_mkfs() {
        return;
    }
    let World { _scratch, path, dev, volume, at, copies, content } = world();
    let lose = |places: &[u64]| *dev.hook.0.lock().expect("lock") = places.to_vec();
    let scrub = |repair| {
        let done = volume
            .scrub_data(at, (&[0; 32], &[false; 8]), repair, &mut Ahead::default())
            .expect("a scrub");
        (done.read_errors, done.corrected_errors, done.uncorrectable_errors)
    };
    lose(&[copies[0] + 3 * SECTOR]);
    assert_eq!(scrub(false), (1, 1, 0), "it could be");
    assert_eq!(scrub(true), (1, 1, 0));
    assert_eq!(scrub(true), (0, 0, 0));
    assert!(read_bytes(&path, copies[0], content.len()) == content);
    // Each copy has what the other lost.
    lose(&[copies[0], copies[1] + 5 * SECTOR]);
    assert_eq!(scrub(true), (2, 2, 0));
    assert_eq!(scrub(true), (0, 0, 0));
    // And nobody has what both lost.
    lose(&[copies[0], copies[1]]);
    assert_eq!(scrub(true), (2, 0, 2));
    lose(&[]);
    // Which of two copies is right that differ nothing says.
    flip(&path, copies[1] + 7);
    assert_eq!(scrub(true), (0, 0, 0));
    assert!(read_bytes(&path, copies[1], content.len()) != content);
}

#[test]
fn a_read_does_as_well() {
    if !have_mkfs() {
        return;
    }
    let World { _scratch, path, dev, volume, at, copies, content } = world();
    let lose = |places: &[u64]| *dev.hook.0.lock().expect("lock") = places.to_vec();
    let read = || {
        let mut buf = vec![0; content.len()];
        volume.read_data(at, &mut buf, None).map(|()| assert!(buf == content))
    };
    lose(&[copies[0] + 3 * SECTOR, copies[1] + 5 * SECTOR]);
    read().expect("each copy has what the other lost");
    assert_eq!(
        *dev.hook.0.lock().expect("lock"),
        [copies[1] + 5 * SECTOR],
        "nobody asked for that one"
    );
    assert!(read_bytes(&path, copies[0], content.len()) == content);
    assert_eq!((volume.counters().repairs, volume.counters().unrecoverable), (1, 0));
    lose(&[copies[0], copies[1]]);
    read().expect_err("lost");
    assert_eq!((volume.counters().repairs, volume.counters().unrecoverable), (1, 1));
    lose(&[copies[0]]);
    volume.hold_repairs(true);
    read().expect("the other copy");
    assert_eq!(*dev.hook.0.lock().expect("lock"), [copies[0]], "nothing is written now");
}

/// What could not be tried is not said to be impossible.
#[test]
fn a_scrub_that_may_not_write_what_it_is_to_write_ends() {
    if !have_mkfs() {
        return;
    }
    let World { _scratch, dev, volume, at, copies, .. } = world();
    *dev.hook.0.lock().expect("lock") = vec![copies[0]];
    let scrub =
        |repair| volume.scrub_data(at, (&[0; 32], &[false; 8]), repair, &mut Ahead::default());
    volume.hold_repairs(true);
    assert!(matches!(scrub(true), Err(btrfs_disk::Error::ReadOnly(_))), "{:?}", scrub(true));
    assert_eq!(scrub(false).expect("a scrub").corrected_errors, 1);
    volume.hold_repairs(false);
    assert_eq!(scrub(true).expect("a scrub").corrected_errors, 1);
    *dev.hook.0.lock().expect("lock") = copies;
    volume.hold_repairs(true);
    assert_eq!(scrub(true).expect("a scrub").uncorrectable_errors, 2, "nobody has it");
}

/// Who comes to it late, by roots that were held meanwhile, writes nothing either.
#[test]
fn what_holds_repairs_holds_discards() {
    if !have_mkfs() {
        return;
    }
    let World { _scratch, path, volume, at, copies, content, .. } = world();
    volume.hold_repairs(true);
    volume.discard(at, content.len() as u64).expect("nobody is worse off");
    for copy in &copies {
        assert!(read_bytes(&path, *copy, content.len()) == content);
    }
    volume.hold_repairs(false);
    volume.discard(at, content.len() as u64).expect("a discard");
    assert!(read_bytes(&path, copies[0], content.len()) != content);
}
