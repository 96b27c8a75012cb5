//! What system calls answer, and whose times, sizes, links and modes they change: on a mount as on the kernel's
//! btrfs, call by call (`calls.py`).

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, assert_clean};
use std::path::Path;
use std::process::Command;
use testkit::oracle::KernelMount;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/calls.py");

fn told(dir: &Path) -> Vec<String> {
    let output = Command::new("python3").arg(SCRIPT).arg(dir).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8(output.stdout).expect("words");
    told.lines().map(str::to_owned).collect()
}

#[test]
fn calls_answer_and_change_what_they_do_in_the_kernel() {
    testkit::require!(kernel_btrfs);
    let image = Image::new("calls-kernel");
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let expected = told(kernel.path());
    kernel.unmount().unwrap();
    assert!(expected.len() > 140, "{} calls", expected.len());
    for transport in TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        let image = Image::new(&format!("calls-{transport}"));
        let mount = Mount::new(&image, &format!("transport={transport}"));
        let found = told(&mount.point);
        mount.umount();
        assert_clean(&image.path);
        let pairs = expected.iter().zip(&found);
        let other: Vec<_> = pairs.filter(|(kernel, ours)| kernel != ours).collect();
        assert!(other.is_empty(), "{transport}: the kernel, and here: {other:#?}");
        assert_eq!(expected.len(), found.len(), "{transport}");
    }
}
