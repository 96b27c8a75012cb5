//! Content that the kernel has and has not sent, where the volume has a hole: pages stored through a shared map,
//! and with `-o writeback` all that is written. Holes and block counts are those that the kernel's btrfs
//! tells, and what programs copy by them is the whole content.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, assert_clean};
use std::path::Path;
use std::process::Command;
use testkit::oracle::KernelMount;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/unsent.py");

/// What the script prints of a directory.
fn told(dir: &Path) -> String {
    let output = Command::new("python3").arg(SCRIPT).arg(dir).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8(output.stdout).expect("words");
    assert!(!told.contains("LOST"), "{told}");
    told
}

fn of_a_mount(transport: &str, options: &str) -> String {
    let image = Image::new(&format!("unsent-{transport}{}", options.replace([',', '='], "-")));
    let mount = Mount::new(&image, &format!("transport={transport}{options}"));
    let told = told(&mount.point);
    mount.umount();
    assert_clean(&image.path);
    told
}

#[test]
fn holes_are_what_the_kernel_calls_so() {
    testkit::require!(kernel_btrfs);
    let image = Image::new("unsent-kernel");
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let expected = told(kernel.path());
    kernel.unmount().unwrap();
    for transport in TRANSPORTS {
        if !lacks_fuse(transport) {
            assert_eq!(of_a_mount(transport, ""), expected, "{transport}");
        }
    }
}

#[test]
fn no_content_is_left_away_with_writeback() {
    for transport in TRANSPORTS {
        if !lacks_fuse(transport) {
            of_a_mount(transport, ",writeback");
        }
    }
}
