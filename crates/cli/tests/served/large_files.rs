//! A large file is removed, and nobody waits for that: on a mount, over each transport.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, TempDir, assert_clean, mkfs_btrfs, sh};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::PosixFs;
use vfs::FileSystem;

/// To erase them at once took a debug build a second.
const EXTENTS: u64 = 50_000;
/// Of three times the shortest, since other tests have the processors as well. What waits for nothing takes
/// a hundredth of this.
const SHORT: Duration = Duration::from_millis(250);

fn volume(name: &str, mib: u64) -> Image {
    let dir = TempDir::new(name).unwrap();
    let path = dir.join("disk.img");
    mkfs_btrfs(&path, mib << 20, &[]).unwrap();
    Image { dir, path }
}

/// Of one sector each, with holes between them.
fn in_pieces(path: &Path, extents: u64) {
    let file = File::create(path).expect("create");
    for extent in 0..extents {
        file.write_all_at(&[7; 4096], extent * 8192).expect("write");
    }
    file.sync_all().expect("fsync");
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// What is asked right behind the removal: the times of a `statfs`, of another removal and of a `syncfs`.
fn beside(mount: &Mount) -> [Duration; 3] {
    in_pieces(&mount.join("large"), EXTENTS);
    fs::write(mount.join("small"), "x").expect("write");
    let fs = PosixFs::open(&mount.point).expect("open");
    fs.sync().expect("syncfs");
    // Or the kernel first drops the pages of it.
    sh("echo 1 > /proc/sys/vm/drop_caches");
    fs::remove_file(mount.join("large")).expect("unlink");
    let statfs = timed(|| _ = fs.statfs().expect("statfs"));
    let unlink = timed(|| fs::remove_file(mount.join("small")).expect("unlink"));
    [statfs, unlink, timed(|| fs.sync().expect("syncfs"))]
}

/// What a `syncfs` takes here, where nothing large was removed before.
fn without(mount: &Mount) -> Duration {
    let fs = PosixFs::open(&mount.point).expect("open");
    fs::write(mount.join("small"), "x").expect("write");
    fs.sync().expect("syncfs");
    fs::remove_file(mount.join("small")).expect("unlink");
    timed(|| fs.sync().expect("syncfs"))
}

fn nobody_waits(transport: &str) {
    let image = volume(&format!("large-{transport}"), 1024);
    let mount = Mount::new(&image, &format!("transport={transport}"));
    let times = [(); 3].map(|()| beside(&mount));
    // This is the device's time, too.
    let usual = (0..3).map(|_| without(&mount)).min().unwrap();
    eprintln!("{transport}: {times:?}; without {usual:?}");
    for (nth, what) in ["statfs", "unlink", "syncfs"].iter().enumerate() {
        let shortest = times.iter().map(|times| times[nth]).min().unwrap();
        let most = if *what == "syncfs" { SHORT + 3 * usual } else { SHORT };
        assert!(shortest < most, "{transport}: {what} {shortest:?}");
    }
    mount.umount();
    assert_clean(&image.path);
}

#[test]
fn nobody_waits_while_a_large_file_is_removed() {
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        nobody_waits(transport);
    }
}

/// The space of what was removed is there for who writes next, also right behind it.
#[test]
fn a_full_mount_has_the_space_at_once() {
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        let image = volume(&format!("full-{transport}"), 256);
        let mount = Mount::new(&image, &format!("transport={transport}"));
        in_pieces(&mount.join("large"), 25_000);
        let rest = File::create(mount.join("rest")).expect("create");
        let mut end = 0;
        let mut write = |len: usize| {
            let written = rest.write_at(&vec![3; len], end);
            end += *written.as_ref().unwrap_or(&0) as u64;
            written
        };
        for len in [1 << 20, 64 << 10, 4096] {
            while write(len).is_ok() {}
        }
        fs::remove_file(mount.join("large")).expect("unlink");
        for mib in 0..80 {
            write(1 << 20).unwrap_or_else(|error| panic!("{transport}, MiB {mib}: {error}"));
        }
        rest.sync_all().expect("fsync");
        drop(rest);
        mount.umount();
        assert_clean(&image.path);
    }
}
