//! Content that comes faster than a device takes it, from many at once: memory has a bound all the same.

use super::{CX, create};
use crate::{BtrfsFs, Options};
use blockdev::MemDevice;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vfs::{FileSystem, Ino};

const MIB: u64 = 1 << 20;
const MOST: u64 = 8 * MIB;
const WRITE: usize = 64 << 10;

/// A device on which content takes its time.
struct Slow;

impl RequestHook for Slow {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if let Request::Write { pieces, .. } = request
            && pieces.iter().map(|piece| piece.len()).sum::<usize>() >= WRITE
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        go_on()
    }
}

fn on_slow_device(background: bool) -> BtrfsFs {
    let device = Arc::new(Hooked { below: MemDevice::new(1 << 30), hook: Slow });
    btrfs_image::mkfs::make(&*device, &Default::default()).expect("mkfs");
    let options = Options { dirty_bytes: MOST, background, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("open")
}

fn piece(at: u64) -> [u8; WRITE] {
    [(at / WRITE as u64 + 1) as u8; WRITE]
}

/// Appends `bytes` to an empty file; `seen` is the most content that was in memory.
fn stream(fs: &BtrfsFs, ino: Ino, bytes: u64, seen: &AtomicU64) {
    for at in (0..bytes).step_by(WRITE) {
        let written = fs.write(&CX, ino, at, &piece(at), Default::default());
        assert_eq!(written.expect("write"), WRITE);
        seen.fetch_max(fs.engine.core.memory.dirty(), Ordering::Relaxed);
    }
}

/// While one who lands is at one file, the others have been taken out of the queue and go on growing: who finds
/// nothing to land himself waits.
#[test]
fn many_streams_have_no_more_in_memory_than_one() {
    for background in [true, false] {
        let (fs, most) = (on_slow_device(background), AtomicU64::new(0));
        let inos: Vec<Ino> = (0..8).map(|number| create(&fs, number)).collect();
        std::thread::scope(|scope| {
            let (fs, most) = (&fs, &most);
            inos.iter().for_each(|ino| _ = scope.spawn(move || stream(fs, *ino, 12 * MIB, most)));
        });
        let most = most.into_inner();
        assert!(most <= 3 * MOST, "{most} bytes in memory");
        fs.sync().expect("sync");
        assert_eq!(fs.engine.core.memory.dirty(), 0);
        let mut last = [0; WRITE];
        for ino in inos {
            let at = 12 * MIB - WRITE as u64;
            fs.read(ino, at, &mut last).expect("read");
            assert!(last == piece(at));
            fs.forget(ino, 1);
        }
        fs.destroy().expect("close");
    }
}

/// What those who are under way may leave is counted, too, and nobody lands it: who waited for it would wait for
/// one who may wait for him.
#[test]
fn what_is_only_reserved_is_not_waited_for() {
    let fs = on_slow_device(false);
    let ino = create(&fs, 0);
    let others = fs.engine.reservations.hold_dirty(4 * MOST, None);
    stream(&fs, ino, MIB, &AtomicU64::new(0));
    drop(others);
    fs.forget(ino, 1);
    fs.destroy().expect("close");
}
