//! Loop devices of this machine whose file lies on a file system that does not answer: whoever mounts something else does
//! not wait for it.

use crate::common;
use common::mount::{Mount, mounted, signal};
use common::{Image, assert_clean, fine, sh, text};
use std::fs::{self, File};
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};
use testkit::require;

/// A server that is stopped until this is dropped: others on this machine may wait for it.
struct Stopped(u32);

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        sh(&format!("losetup -d {}", self.0));
    }
}

#[test]
fn a_mount_ends_beside_a_loop_device_that_hangs() {
    require!(fuse);
    require!(btrfs_progs);
    let (image, other) = (Image::new("loops"), Image::new("silent"));
    let silent = Mount::foreground(&other, "transport=classic,plain");
    let (file, place) = (silent.join("file"), image.dir.join("place"));
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let attached = sh(&format!("losetup -f --show {}", file.display()));
    let device = Loop(text(&attached.stdout).trim().to_owned());
    assert!(device.0.starts_with("/dev/loop"), "{attached:?}");
    let mut mount = Mount::foreground(&image, "transport=classic");
    fs::create_dir(&place).unwrap();
    // The kernel is to ask for its attributes.
    thread::sleep(Duration::from_millis(500));
    File::options().write(true).open(&file).unwrap().write_all(b"x").unwrap();
    signal(silent.pid(), "STOP");
    let stopped = Stopped(silent.pid());
    // The table of mounts changes: each server looks for mounts of the kernel's.
    let place = place.display();
    assert!(sh(&format!("mount -t tmpfs none {place} && umount {place}")).status.success());
    thread::sleep(Duration::from_millis(300));
    signal(mount.pid(), "TERM");
    let begun = Instant::now();
    while mounted(&mount.point).is_some() && begun.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(20));
    }
    let unmounted = mounted(&mount.point).is_none();
    // Nor does who looks whether something has an image.
    let told = unmounted.then(|| fine(&["ls", &image.at("/")]));
    drop(stopped);
    assert!(unmounted, "it waits for who does not answer");
    assert_eq!(told.as_deref(), Some(""));
    let (code, log) = mount.wait();
    assert_eq!(code, Some(0), "{log}");
    assert_clean(&image.path);
    drop(device);
    silent.umount();
}
