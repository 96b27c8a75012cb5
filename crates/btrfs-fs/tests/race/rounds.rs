//! Two calls at the same moment, again and again: each pair has one wrong answer.

use super::common::{CX, Image, close_and_judge, new_file, steps};
use super::options;
use btrfs_fs::BtrfsFs;
use std::sync::Barrier;
use testkit::ops::Rng;
use vfs::{FallocateMode, FileSystem, Ino, SetAttr};

/// Both at once.
fn at_once<A: Send, B>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B) -> (A, B) {
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        let a = scope.spawn(|| {
            barrier.wait();
            a()
        });
        barrier.wait();
        let b = b();
        (a.join().expect("the other one"), b)
    })
}

fn set_size(fs: &BtrfsFs, ino: Ino, size: u64) {
    fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("truncate");
}

fn content(fs: &BtrfsFs, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; 1 << 20];
    let len = fs.read(ino, 0, &mut content).expect("read");
    content.truncate(len);
    content
}

/// A pause that meets the other call somewhere.
fn a_while(rng: &mut Rng) {
    for _ in 0..rng.below(2000) {
        std::hint::spin_loop();
    }
}

#[test]
fn what_is_written_behind_a_shared_end_stays() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &[]);
    let fs = image.open_with(options(1));
    let source = new_file(&fs, "source", &[1; 5000]);
    let target = new_file(&fs, "target", &[2; 5000]);
    let mut rng = Rng::new(1);
    for round in 0..steps(1500) {
        set_size(&fs, target, 5000);
        let copies = round % 2 == 0;
        let (shared, written) = at_once(
            || match copies {
                true => fs.copy_range(&CX, source, 0, target, 0, 5000).map(drop),
                false => fs.clone_range(&CX, source, 0, target, 0, 5000),
            },
            || {
                a_while(&mut rng);
                fs.write(&CX, target, 5000, &[3; 3192], Default::default())
            },
        );
        written.expect("write");
        if let Err(error) = shared {
            assert_eq!((copies, error.errno()), (false, libc::EINVAL), "{error:?}");
        }
        let content = content(&fs, target);
        assert_eq!(content.len(), 8192);
        assert!(content[5000..].iter().all(|byte| *byte == 3), "round {round}: what was written");
    }
    close_and_judge(&image, fs);
}

#[test]
fn a_copy_tells_how_much_it_was() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &[]);
    let fs = image.open_with(options(1));
    let source = new_file(&fs, "source", &[1; 1]);
    let target = new_file(&fs, "target", &[]);
    let mut rng = Rng::new(3);
    for round in 0..steps(300) {
        set_size(&fs, source, 0);
        set_size(&fs, target, 0);
        fs.write(&CX, source, 0, &vec![1; 90_001], Default::default()).expect("write");
        let (copied, ()) = at_once(
            || fs.copy_range(&CX, source, 1, target, 0, 90_000).expect("copy"),
            || {
                a_while(&mut rng);
                set_size(&fs, source, 0);
            },
        );
        let there = content(&fs, target);
        assert_eq!(there.len() as u64, copied, "round {round}: no more and no less");
    }
    close_and_judge(&image, fs);
}

#[test]
fn room_for_what_is_a_hole_by_now() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &[]);
    let fs = image.open_with(options(1));
    let ino = new_file(&fs, "file", &[1; 1 << 20]);
    let mut rng = Rng::new(4);
    for _ in 0..steps(600) {
        let (at, len) = (rng.below(200) * 4096, (1 + rng.below(50)) * 4096);
        at_once(
            || fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, 1 << 20).expect("allocate"),
            || fs.fallocate(&CX, ino, FallocateMode::PunchHole, at, len).expect("punch"),
        );
    }
    close_and_judge(&image, fs);
}
