//! A copy on a mount shares extents, part by part: who waits for it can be killed, and it ends behind a part.

use crate::common;
use common::mount::Mount;
use common::streams::shell;
use common::{Image, assert_clean, eventually, fine, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use testkit::require;

/// Extents of 4 KiB, each 8 KiB behind the one before.
const EXTENTS: u64 = 60_000;
const STEP: u64 = 8192;
/// Behind each extent, the last one of a part among them.
const HOLE: u64 = STEP - 4096;
/// What one part shares: 8,192 of them.
const PART: u64 = 8192 * STEP;

/// Calls copy_file_range(2) until all is copied, as cp(1) does.
fn copier(from: &Path, to: &Path) -> Child {
    let script = "import os, sys
a = os.open(sys.argv[1], os.O_RDONLY)
b = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
while os.copy_file_range(a, b, 1 << 30): pass";
    Command::new("python3").args(["-c", script]).args([from, to]).spawn().expect("python3")
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.size())
}

fn used(mount: &Mount) -> serde_json::Value {
    shell(&format!("sync -f {}", mount.word()));
    let told = json(&fine(&["filesystem", "usage", "--json", &mount.word()]));
    told[0]["groups"][0]["used"].clone()
}

#[test]
fn a_copy_whose_caller_is_killed_ends_behind_a_part() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = Image::new("killed-copy");
    let mount = Mount::new(&image, "");
    let (source, target) = (mount.join("source"), mount.join("target"));
    shell(&format!(
        "python3 -c 'if 1:
        import os
        f = os.open(\"{}\", os.O_RDWR | os.O_CREAT)
        for i in range({EXTENTS}): os.pwrite(f, i.to_bytes(4, \"big\") * 1024, i * {STEP})
        os.ftruncate(f, {EXTENTS} * {STEP})'",
        source.display()
    ));
    let before = used(&mount);
    let whole = EXTENTS * STEP;
    let mut met = 0;
    for _ in 0..10 {
        let mut child = copier(&source, &target);
        eventually("it has begun", || size(&target) > 0);
        let since = Instant::now();
        child.kill().expect("kill");
        child.wait().expect("it ends");
        // Under way was one part, and with it it has ended.
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        let copied = size(&target);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(size(&target), copied, "nobody goes on with it");
        assert!((copied + HOLE).is_multiple_of(PART) || copied == whole, "{copied}");
        met += u32::from(copied < whole);
        shell(&format!("cmp -n {copied} {} {}; rm {1}", source.display(), target.display()));
    }
    assert!(met > 0, "none was met at work");
    eventually("all room is back", || used(&mount) == before);
    mount.umount();
    assert_clean(&image.path);
}
