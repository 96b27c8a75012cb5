//! `stop_writing`: what the device has when it returns is what it keeps.

mod common;

use blockdev::BlockDevice;
use btrfs_disk::ids::block_group;
use btrfs_disk::{Error, Logical, Physical};
use btrfs_volume::{OpenOptions, Volume};
use common::*;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Tells of writes that begin or end behind the stop.
struct Slow {
    inner: Arc<dyn BlockDevice>,
    begun: AtomicUsize,
    stopped: AtomicBool,
    late: AtomicUsize,
}

impl Slow {
    fn slowly<T>(&self, work: impl FnOnce() -> T) -> T {
        self.begun.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(5));
        let done = work();
        self.late.fetch_add(usize::from(self.stopped.load(Ordering::SeqCst)), Ordering::SeqCst);
        done
    }
}

impl BlockDevice for Slow {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.slowly(|| self.inner.write_at(offset, buf))
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.slowly(|| self.inner.discard(offset, len))
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}

#[test]
fn nothing_is_written_behind_the_stop() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 256 * MIB, &[]);
    let slow = Arc::new(Slow {
        inner: device(&path),
        begun: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        late: AtomicUsize::new(0),
    });
    let volume = Volume::open(slow.clone(), OpenOptions::default()).expect("opens");
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
        ("discards", Box::new(move |v| v.discard(at(3), 4096))),
        ("more discards", Box::new(|v| v.discard_physical(Physical(200 * MIB), 4096))),
    ];
    std::thread::scope(|scope| {
        for (what, write) in &writes {
            let (volume, slow) = (&volume, &slow);
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
