//! A block device of the kernel, and what it caches.

mod common;

use blockdev::{BlockDevice, FileDevice, Sticky};
use blocksim::{GoOn, Hooked, Request, RequestHook};
use common::{MIB, Scratch, write_bytes};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use testkit::oracle::{LoopDevice, capabilities};
use testkit::require;

/// Takes no flush.
struct WornOut;

impl RequestHook for WornOut {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        match request {
            Request::Flush => Err(io::Error::from_raw_os_error(5)),
            _ => go_on(),
        }
    }
}

/// The bytes change below the kernel's cache, as if what it has had never been written.
#[test]
fn who_opens_a_device_after_a_failed_flush_reads_what_the_medium_has() {
    let machine = capabilities();
    require!(machine.root && machine.loop_devices, "needs root and loop devices");
    let scratch = Scratch::new();
    let image = scratch.file("image", 16 * MIB);
    let below = LoopDevice::attach(&image, false).expect("a loop device");
    // As long as somebody has it open the kernel keeps what it has of it.
    let other = File::open(below.path()).expect("open");
    let mut found = [0; 4096];
    let at = 64 << 10;
    for (number, fails) in [(1, true), (2, false)] {
        let open = FileDevice::open(below.path(), false, false).expect("open");
        let device = Sticky::new(Hooked { below: open, hook: WornOut });
        other.read_exact_at(&mut found, at).expect("read");
        write_bytes(&image, at, &[number; 4096]);
        if fails {
            device.flush().expect_err("worn out");
        } else {
            device.uncache(at, 4096);
        }
        drop(device);
        other.read_exact_at(&mut found, at).expect("read");
        assert_eq!(found, [number; 4096]);
    }
}
