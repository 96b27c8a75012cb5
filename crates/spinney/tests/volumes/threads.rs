//! A volume that several have: who close it at once, and who go on while one has a transaction open.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use common::{device, seen, writable};
use spinney::{FormatOptions, MemDevice, Volume, VolumeOptions};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::ops::Rng;

/// A device whose flushes take long, once that is wanted.
type Slow = Hooked<MemDevice, Flushes>;

#[derive(Default)]
struct Flushes {
    is_slow: AtomicBool,
    /// Somebody waits for a flush.
    come: AtomicBool,
}

impl RequestHook for Flushes {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if matches!(request, Request::Flush) && self.is_slow.load(SeqCst) {
            self.come.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(300));
        }
        go_on()
    }
}

fn changed_volume() -> (Arc<Slow>, Volume) {
    let device = MemDevice::new(256 << 20);
    FormatOptions::new().format(&device).unwrap();
    let device = Arc::new(Hooked { below: device, hook: Flushes::default() });
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    volume.write("file", b"content").unwrap();
    device.hook.is_slow.store(true, SeqCst);
    (device, volume)
}

fn is_on(device: &Arc<Slow>) -> bool {
    let volume = VolumeOptions::new().open_device(device.clone()).unwrap();
    volume.exists("file").unwrap()
}

#[test]
fn who_closes_second_waits_for_the_first() {
    let (device, volume) = changed_volume();
    let other = volume.clone();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| other.close().unwrap());
        while !device.hook.come.load(SeqCst) {
            std::thread::yield_now();
        }
        volume.close().unwrap();
        assert!(is_on(&device), "what was written is there when the second returns");
        first.join().unwrap();
    });
}

#[test]
fn many_close_at_once() {
    let (device, volume) = changed_volume();
    std::thread::scope(|scope| {
        for volume in vec![volume; 8] {
            scope.spawn(|| {
                volume.close().unwrap();
                assert!(is_on(&device), "what was written is there when anybody returns");
            });
        }
    });
}

/// As `std::fs::create_dir_all`.
#[test]
fn many_make_the_same_directories() {
    let device = device();
    let volume = writable(&device);
    let together = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (volume, together) = (&volume, &together);
            scope.spawn(move || {
                // Who fails goes on: the others wait for all.
                let made = (0..2000).map(|n| {
                    together.wait();
                    volume.create_dir_all(format!("{n}/a/b/{thread}"))
                });
                let failed: Vec<_> = made.filter_map(Result::err).collect();
                assert!(failed.is_empty(), "{} times: {}", failed.len(), failed[0]);
            });
        }
    });
    volume.write("file", b"content").unwrap();
    let refused = volume.create_dir_all("file").unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EEXIST));
}

/// Changes of all kinds, until one is refused.
fn go_on(volume: &Volume, thread: u64, ends: &AtomicBool) {
    let mut rng = Rng::new(thread);
    let dir = format!("dir{thread}");
    let _there_already = volume.create_dir(&dir);
    while !ends.load(SeqCst) {
        let [one, other] = [rng.below(20), rng.below(20)].map(|n| format!("{dir}/{n}"));
        let len = 1 + rng.below(20_000) as usize;
        let done = match rng.below(7) {
            0..4 => volume.write(&one, &vec![rng.below(256) as u8; len]),
            4 => volume.rename(&one, &other),
            5 => volume.remove_file(&one),
            _ => volume.read(&one).map(drop),
        };
        match done {
            Err(error) if error.errno() != Some(libc::ENOENT) => return,
            _ => {}
        }
    }
}

fn tree(volume: &Volume) -> TreeSnapshot {
    TreeSnapshot::of(&**volume.fs()).expect("walk the volume")
}

#[test]
fn others_go_on_while_a_transaction_is_open() {
    let device = device();
    let mut volume = writable(&device);
    for round in 0..6 {
        let ends = AtomicBool::new(false);
        volume = std::thread::scope(|scope| {
            for thread in 0..4 {
                let (volume, ends) = (volume.clone(), &ends);
                scope.spawn(move || go_on(&volume, thread, ends));
            }
            std::thread::sleep(Duration::from_millis(20));
            let transaction = volume.transaction().unwrap();
            let before = tree(&seen(device.image()));
            std::thread::sleep(Duration::from_millis(30));
            let now = tree(&seen(device.image()));
            assert!(diff(&before, &now, &Rules::default()).is_empty(), "nothing is durable");
            let again = match round % 2 {
                0 => transaction.commit().map(|()| volume.clone()).unwrap(),
                _ => transaction.abort().unwrap(),
            };
            if round % 2 == 1 {
                let now = tree(&again);
                assert!(diff(&before, &now, &Rules::default()).is_empty(), "all was given up");
            }
            ends.store(true, SeqCst);
            again
        });
    }
    let last = tree(&volume);
    volume.close().unwrap();
    let again = tree(&seen(device.image()));
    assert!(diff(&last, &again, &Rules::default()).is_empty(), "what was closed is there");
}
