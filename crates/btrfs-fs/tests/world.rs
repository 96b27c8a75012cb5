//! One seed is one world: with a clock of our own the same calls make the same volume, byte for
//! byte, times included.

mod common;

use blockdev::BlockDevice;
use btrfs_disk::items::Timespec;
use btrfs_fs::{Clock, Options};
use common::{CX, Image};
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

fn live(fs: &dyn FileSystem, seed: u64) {
    let mut rng = Rng::new(seed);
    let root = fs.root();
    let name = |n: u64| format!("n{n}").into_bytes();
    let at = |n: u64| -> Option<Ino> { Some(fs.lookup(&CX, root, &name(n)).ok()?.attr.ino) };
    for step in 0..600u64 {
        let (a, b) = (rng.below(40), rng.below(40));
        // Refusals are part of the world.
        match rng.below(8) {
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
            _ => match at(a) {
                Some(ino) => drop(fs.fsync(ino, false)),
                None => fs.sync().expect("sync"),
            },
        }
    }
}

fn world(image: &Image, seed: u64, first: i64) -> Vec<u8> {
    let copy = common::crashed(image, "world.img");
    let clock = Arc::new(Ticks(AtomicI64::new(first)));
    let fs = common::open_image(&copy, Options { clock, background: false, ..Options::default() });
    live(&fs, seed);
    fs.destroy().expect("close");
    drop(fs);
    common::assert_sound(&copy);
    let device = common::open_device(&copy, true);
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("read");
    bytes
}

#[test]
fn the_same_calls_at_the_same_times_make_the_same_volume() {
    testkit::require!(btrfs_progs);
    let image = Image::new(128 << 20, &[]);
    let first = world(&image, 1, 1000);
    assert!(first == world(&image, 1, 1000), "the same seed, another world");
    assert!(first != world(&image, 1, 1001), "the clock is nobody's");
    assert!(first != world(&image, 2, 1000), "the seed is nobody's");
}
