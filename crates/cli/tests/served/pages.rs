//! One file of a mount, read and written by several processes in every way that a program has: with the
//! page cache, past it, as memory, by copies and holes; defragmented and committed all the while.
//! What each reads is what was written last, and no page is stale when all is over: who reads past the page
//! cache, and the kernel's own mount, see the same file.
//!
//! `SPINNEY_SECONDS`: each way for so long, all of them, from `SPINNEY_SEED` on.

use crate::common;
use common::mount::{Mount, lacks_fuse};
use common::streams::shell;
use common::{Image, assert_clean, spinney};
use std::process::{Child, Command};
use testkit::oracle::KernelMount;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/pages.py");

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Until the script has ended.
fn beside(mut script: Child, mount: &Mount) {
    let file = mount.join("file").display().to_string();
    while script.try_wait().expect("the script").is_none() {
        // It may not be there yet.
        spinney(&["filesystem", "defragment", &file]);
        spinney(&["filesystem", "defragment", "-c", "zstd", &file]);
        shell(&format!("sync -f {}", mount.word()));
    }
    assert!(script.wait().expect("the script").success(), "it says what differs");
}

fn judge(transport: &str, options: &str, kind: &str) {
    if lacks_fuse(transport) {
        return;
    }
    let (seed, seconds) = (number("SPINNEY_SEED").unwrap_or(1), number("SPINNEY_SECONDS"));
    println!("{transport}{options} {kind}, SPINNEY_SEED={seed}");
    let image = Image::new(&format!("pages-{transport}-{kind}"));
    let mount = Mount::new(&image, &format!("transport={transport}{options},commit=1"));
    let seen = image.path.with_file_name("seen").display().to_string();
    let file = mount.join("file").display().to_string();
    let (seconds, seed) = (seconds.map_or("1.5".into(), |s| s.to_string()), seed.to_string());
    let script = Command::new("python3")
        .args([SCRIPT, &file, &seconds, &seed, kind, &seen])
        .spawn()
        .expect("python3 runs");
    beside(script, &mount);
    mount.umount();
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    shell(&format!("cmp {}/file {seen}", kernel.path().display()));
    kernel.unmount().unwrap();
    assert_clean(&image.path);
}

#[test]
fn no_page_is_stale() {
    testkit::require!(kernel_btrfs);
    if number("SPINNEY_SECONDS").is_some() {
        for transport in common::mount::TRANSPORTS {
            for options in ["", ",writeback"] {
                ["owned", "any"].iter().for_each(|kind| judge(transport, options, kind));
            }
        }
        return;
    }
    judge("classic", "", "owned");
    judge("classic", ",writeback", "any");
    judge("uring", "", "any");
    judge("uring", ",writeback", "owned");
}
