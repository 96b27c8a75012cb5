//! `stop_writing`: what the device has when it returns is what it keeps.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_disk::ids::block_group;
use btrfs_disk::{Error, Logical, Physical};
use btrfs_volume::{OpenOptions, Volume};
use common::*;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Tells of writes that begin or end behind the stop.
#[derive(Default)]
struct Slow {
    begun: AtomicUsize,
    stopped: AtomicBool,
    late: AtomicUsize,
}

impl RequestHook for Slow {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if !request.changes() {
            return go_on();
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(5));
        let done = go_on();
        self.late.fetch_add(usize::from(self.stopped.load(Ordering::SeqCst)), Ordering::SeqCst);
        done
    }
}

#[test]
fn nothing_is_written_behind_the_stop() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 256 * MIB, &[]);
    let device = Arc::new(Hooked { below: device(&path), hook: Slow::default() });
    let slow = &device.hook;
    let volume = Volume::open(device.clone(), OpenOptions::default()).expect("opens");
    let data = volume.chunks().into_iter().find(|c| c.flags & block_group::DATA != 0);
    let data = data.expect("a data chunk").logical;
    let at = move |writer: u64| Logical(data.0 + writer * MIB);
    type Write = (&'static str, Box<dyn Fn(&Volume) -> Result<(), Error> + Sync>);
    let writes: Vec<Write> = vec![
        ("content", Box::new(move |v| v.write_content(at(0), &[&[1; 4096]], false))),
        ("direct", Box::new(move |v| v.write_content(at(1), &[&[2; 4096]], true))),
        ("nodes", Box::new(move |v| v.write(at(2), &[&[3; 4096]]))),
        ("superblocks", Box::new(|v| v.commit_superblock((*v.superblock()).clone()))),
        ("logs", Box::new(|v| v.write_log_root(Logical(0), 0))),
        ("discards", Box::new(move |v| v.discard(at(3), 4096).map(drop))),
        ("more discards", Box::new(|v| v.discard_physical(Physical(200 * MIB), 4096).map(drop))),
    ];
    std::thread::scope(|scope| {
        for (what, write) in &writes {
            let volume = &volume;
            scope.spawn(move || {
                // All of them have begun when it comes.
                while write(volume).is_ok() && slow.late.load(Ordering::SeqCst) == 0 {}
                assert!(write(volume).is_err(), "{what} go on");
            });
        }
        while slow.begun.load(Ordering::SeqCst) < 50 {
            std::thread::sleep(Duration::from_millis(1));
        }
        volume.stop_writing();
        slow.stopped.store(true, Ordering::SeqCst);
    });
    assert_eq!(slow.late.load(Ordering::SeqCst), 0);
}

/// Nor is a copy of the superblock behind what holds repairs.
#[test]
fn copies_of_the_superblock_are_mended_before_repairs_are_held() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 256 * MIB, &[]);
    let device = Arc::new(Hooked { below: device(&path), hook: Slow::default() });
    let slow = &device.hook;
    let volume = Volume::open(device.clone(), OpenOptions::default()).expect("opens");
    flip(&path, (64 << 20) + 100);
    std::thread::scope(|scope| {
        let mended = scope.spawn(|| volume.scrub_superblocks(true).expect("a scrub"));
        while slow.begun.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        volume.hold_repairs(true);
        slow.stopped.store(true, Ordering::SeqCst);
        assert_eq!(mended.join().expect("no panic").super_errors, 1);
    });
    assert_eq!(slow.late.load(Ordering::SeqCst), 0);
}
