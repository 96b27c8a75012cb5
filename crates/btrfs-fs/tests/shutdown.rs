//! A shutdown while content is on its way to where it was before (nodatacow): when it returns
//! nothing comes to the device any more.

mod common;

use blockdev::BlockDevice;
use btrfs_fs::{BtrfsFs, Options};
use common::Image;
use common::kernel::kernel;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use testkit::require;
use vfs::{Durable, FileSystem, WriteFlags};

/// Holds reads up while it is shut, and counts writes.
struct Gate {
    inner: common::Cached,
    shut: Mutex<bool>,
    opened: Condvar,
    reads: AtomicUsize,
    writes: AtomicUsize,
}

impl Gate {
    fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }
}

impl BlockDevice for Gate {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        drop(self.opened.wait_while(self.shut.lock().unwrap(), |shut| *shut).unwrap());
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.inner.discard(offset, len)
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}

fn image() -> Image {
    let image = Image::new(256 << 20, &[]);
    kernel(&image.path, "noatime", |mount| {
        let path = mount.join("in-place");
        std::fs::write(&path, b"").expect("create");
        testkit::oracle::sh("chattr", &["+C", &path.display().to_string()]).expect("chattr");
        std::fs::write(&path, vec![1; 1 << 20]).expect("write");
    });
    image
}

#[test]
fn a_write_that_had_begun_does_not_come_to_the_device() {
    require!(kernel_btrfs);
    let image = image();
    let gate = Arc::new(Gate {
        inner: common::Cached(common::open_device(&image.path, false)),
        shut: Mutex::new(false),
        opened: Condvar::new(),
        reads: AtomicUsize::new(0),
        writes: AtomicUsize::new(0),
    });
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(gate.clone(), options).expect("open volume");
    let file = fs.lookup(&common::CX, fs.root(), b"in-place").expect("lookup").attr.ino;
    let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
    let reads = count(&gate.reads);
    gate.shut(true);
    // Of a block in part: the rest of it is read first.
    let flags = WriteFlags { direct: true, ..WriteFlags::default() };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs.write(&common::CX, file, 4096 * 7 + 100, &[2; 50], flags));
        while count(&gate.reads) == reads && !writer.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!writer.is_finished(), "it reads nothing");
        fs.shut_down(Durable::Synced).expect("shut down");
        let writes = count(&gate.writes);
        gate.shut(false);
        assert!(writer.join().expect("no panic").is_err(), "it was written, or not durable");
        assert!(fs.write(&common::CX, file, 0, &[3; 4096], flags).is_err());
        let _ = fs.destroy();
        assert_eq!(count(&gate.writes), writes, "something was written when it had returned");
    });
}
