//! `FS_IOC_SHUTDOWN`, by which applications' crash tests stop a file system: as much is there
//! afterwards as each mode promises, not a byte is written after the call, and every call fails.
//! The kernel's btrfs 6.18 has no such command; the judges are `btrfs check` and its mount.

use std::fs::{self, File};
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use suites::{TRANSPORTS, Volume, assert_sound, transports};
use testkit::oracle::run;
use testkit::skip;

const SHUTDOWN: libc::c_ulong = 0x8004_587d;

fn shut_down(root: &Path, mode: u32) -> Result<(), i32> {
    let directory = File::open(root).unwrap();
    // SAFETY: the command reads four bytes behind the pointer, which outlives the call.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), SHUTDOWN, &mode) };
    if result < 0 { Err(Error::last_os_error().raw_os_error().unwrap()) } else { Ok(()) }
}

fn number<T>(result: Result<T, Error>) -> i32 {
    result.err().map_or(0, |error| error.raw_os_error().unwrap())
}

/// What is synced, what is named, and what is only written.
fn work(root: &Path) -> File {
    // The first content brings a chunk and with it a commit, which is not to come later.
    fs::write(root.join("old"), vec![1; 300_000]).unwrap();
    assert!(run("sync", &["-f", root.to_str().unwrap()]).success());
    let mut synced = File::create(root.join("synced")).unwrap();
    synced.write_all(b"synced").unwrap();
    synced.sync_all().unwrap();
    fs::create_dir(root.join("named")).unwrap();
    fs::write(root.join("named/written"), vec![7; 50_000]).unwrap();
    synced
}

/// Every call fails, but for what the kernel has in its caches.
fn assert_ended(root: &Path, synced: &File) {
    assert_eq!(number(File::create(root.join("new"))), libc::EIO);
    assert_eq!(number(fs::create_dir(root.join("dir"))), libc::EIO);
    assert_eq!(number(fs::rename(root.join("synced"), root.join("moved"))), libc::EIO);
    assert_eq!(number(fs::metadata(root.join("nothing"))), libc::EIO);
    assert_eq!(number(synced.write_at(b"more", 0)), libc::EIO);
    assert_eq!(number(synced.sync_all()), libc::EIO);
    let root = root.to_str().unwrap();
    let report = run("sync", &["-f", root]);
    assert!(report.stderr.contains("Input/output error"), "{report:?}");
}

fn shut_down_and_look(transport: &str, mode: u32) {
    let volume = Volume::new("shutdown", 256 << 20);
    let mount = volume.mount(transport, Duration::from_secs(60));
    let synced = work(mount.path());
    assert_eq!(shut_down(mount.path(), 3), Err(libc::EINVAL));
    shut_down(mount.path(), mode).unwrap();
    let at_once = fs::read(volume.image()).unwrap();
    assert_ended(mount.path(), &synced);
    drop(synced);
    let start = Instant::now();
    mount.unmount_with_errors();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(fs::read(volume.image()).unwrap() == at_once, "mode {mode}: it wrote on");
    let kernel = volume.mount_by_kernel();
    assert_eq!(fs::read(kernel.join("synced")).unwrap(), b"synced");
    assert_eq!(kernel.join("named").exists(), mode < 2, "mode {mode}");
    let written = fs::read(kernel.join("named/written")).unwrap_or_default();
    assert_eq!(written == vec![7; 50_000], mode == 0, "mode {mode}");
    kernel.unmount().unwrap();
    assert_sound(&volume.image());
}

#[test]
fn each_mode_leaves_what_it_promises() {
    for transport in transports() {
        (0..3).for_each(|mode| shut_down_and_look(transport, mode));
    }
}

/// The tool that crash tests use, and one who may not.
#[test]
fn xfs_io_shuts_down_for_administrators() {
    for program in ["xfs_io", "setpriv"] {
        if !run("which", &[program]).success() {
            skip!("no {program}");
        }
    }
    let transport = TRANSPORTS[TRANSPORTS.len() - 1];
    let volume = Volume::new("shutdown-tool", 256 << 20);
    let mount = volume.mount(transport, Duration::from_secs(60));
    let synced = work(mount.path());
    let root = mount.path().to_str().unwrap();
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let refused = run("setpriv", &[&nobody[..], &["xfs_io", "-rxc", "shutdown -f", root]].concat());
    assert!(format!("{refused:?}").contains("not permitted"), "{refused:?}");
    fs::create_dir(mount.join("still")).unwrap();
    let done = run("xfs_io", &["-rxc", "shutdown -f", root]);
    assert!(done.success() && done.stderr.is_empty(), "{done:?}");
    assert_ended(mount.path(), &synced);
    drop(synced);
    mount.unmount_with_errors();
    let kernel = volume.mount_by_kernel();
    assert!(kernel.join("still").is_dir());
    kernel.unmount().unwrap();
}
