//! One seed is one world: with a clock of our own the same calls make the same volume, byte for
//! byte, times and the UUIDs of subvolumes included.

use crate::common;
use blockdev::BlockDevice;
use btrfs_disk::items::Timespec;
use btrfs_fs::{BtrfsFs, Caller, Clock, Delete, Options};
use common::{CX, Image};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use testkit::ops::Rng;
use vfs::{FileKind, FileSystem, Ino, RenameMode, SetAttr, SetTime, XattrMode};

/// A second passes with each look.
#[derive(Debug)]
struct Ticks(AtomicI64);

impl Clock for Ticks {
    fn now(&self) -> Timespec {
        let sec = self.0.fetch_add(1, Ordering::Relaxed);
        Timespec { sec, nsec: 7 }
    }
}

fn live(fs: &BtrfsFs, seed: u64) {
    let mut rng = Rng::new(seed);
    let root = fs.root();
    let name = |n: u64| format!("n{n}").into_bytes();
    let at = |n: u64| -> Option<Ino> { Some(fs.lookup(&CX, root, &name(n)).ok()?.attr.ino) };
    for step in 0..600u64 {
        let (a, b) = (rng.below(40), rng.below(40));
        // Refusals are part of the world.
        match rng.below(10) {
            0 | 1 => drop(fs.mknod(&CX, root, &name(a), FileKind::File, 0o644, 0)),
            2 => drop(fs.mkdir(&CX, root, &name(a), 0o755)),
            3 => drop(fs.unlink(&CX, root, &name(a))),
            4 => drop(fs.rename(&CX, root, &name(a), root, &name(b), RenameMode::Replace)),
            5 => {
                if let Some(ino) = at(a) {
                    let (offset, len) = (rng.below(300_000), 1 + rng.below(200_000));
                    let content = vec![step as u8; len as usize];
                    let _ = fs.write(&CX, ino, offset, &content, Default::default());
                }
            }
            6 => {
                if let Some(ino) = at(a) {
                    let _ = fs.setxattr(&CX, ino, b"user.a", &name(b), XattrMode::Set);
                    let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
                    let _ = fs.setattr(&CX, ino, &touch);
                }
            }
            7 => subvolumes(fs, &mut rng, [a, b].map(|n| format!("s{}", n % 16).into_bytes())),
            _ => match at(a) {
                Some(ino) => drop(fs.fsync(ino, false)),
                None => fs.sync().expect("sync"),
            },
        }
    }
}

/// One is made with a file in it, another snapshotted, a third deleted.
fn subvolumes(fs: &BtrfsFs, rng: &mut Rng, [a, b]: [Vec<u8>; 2]) {
    let (root, caller) = (fs.root(), Caller::root());
    match rng.below(5) {
        0 | 1 => {
            let Ok((_, made)) = fs.create_subvolume(&caller, root, &a) else { return };
            let file = fs.mknod(&CX, made.attr.ino, b"in it", FileKind::File, 0o644, 0);
            let ino = file.expect("it is empty").attr.ino;
            fs.write(&CX, ino, 0, &vec![7; 9000], Default::default()).expect("write");
        }
        2 | 3 => {
            let Ok(source) = fs.lookup(&CX, root, &a) else { return };
            let _ = fs.snapshot(&caller, source.attr.ino, root, &b, rng.below(2) == 0);
        }
        _ => drop(fs.delete_subvolume(&caller, Delete::Name(root, &a))),
    }
}

/// The UUIDs of all subvolumes, each its own, and how many of them are snapshots.
fn uuids(fs: &BtrfsFs) -> (BTreeSet<[u8; 16]>, usize) {
    let all = fs.subvolumes().expect("list");
    let uuids: BTreeSet<_> = all.iter().map(|one| one.uuid).collect();
    assert_eq!(uuids.len(), all.len());
    (uuids, all.iter().filter(|one| one.parent_uuid != [0; 16]).count())
}

type World = (Vec<u8>, BTreeSet<[u8; 16]>);

fn world(image: &Image, (seed, uuid_seed): (u64, Option<u64>), first: i64) -> World {
    let copy = common::crashed(image, "world.img");
    let clock = Arc::new(Ticks(AtomicI64::new(first)));
    let options = Options { clock, seed: uuid_seed, background: false, ..Options::default() };
    let fs = common::open_image(&copy, options);
    live(&fs, seed);
    let (uuids, snapshots) = uuids(&fs);
    assert!(snapshots > 3 && uuids.len() > snapshots + 3, "{snapshots} of {}", uuids.len());
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&copy);
    let device = common::open_device(&copy, true);
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("read");
    (bytes, uuids)
}

#[test]
fn the_same_calls_at_the_same_times_make_the_same_volume() {
    testkit::require!(btrfs_progs);
    let image = Image::new(128 << 20, &[]);
    let first = world(&image, (1, Some(1)), 1000);
    assert!(first == world(&image, (1, Some(1)), 1000), "the same seed, another world");
    assert!(first.0 != world(&image, (1, Some(1)), 1001).0, "the clock is nobody's");
    assert!(first.0 != world(&image, (2, Some(1)), 1000).0, "the seed is nobody's");
    // What mkfs made is the same; of what came since nothing is, without a seed not once.
    let others = [Some(2), None, None].map(|seed| world(&image, (1, seed), 1000).1);
    for (n, uuids) in others.iter().enumerate() {
        let known = others[..n].iter().chain([&first.1]);
        known.for_each(|known| assert_eq!(known.intersection(uuids).count(), 1));
    }
}
