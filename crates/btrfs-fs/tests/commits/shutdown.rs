//! A shutdown while content is on its way to where it was before (nodatacow): when it returns
//! nothing comes to the device any more.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
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
#[derive(Default)]
struct Gate {
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

impl RequestHook for Gate {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        if matches!(request, Request::Read { .. }) {
            self.reads.fetch_add(1, Ordering::SeqCst);
            drop(self.opened.wait_while(self.shut.lock().unwrap(), |shut| *shut).unwrap());
        }
        self.writes.fetch_add(usize::from(request.changes()), Ordering::SeqCst);
        go_on()
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
    let below = common::Cached(common::open_device(&image.path, false));
    let device = Arc::new(Hooked { below, hook: Gate::default() });
    let gate = &device.hook;
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("open volume");
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
