//! What ends a server in an orderly way: SIGTERM, SIGINT and SIGHUP, alone, together, and once more.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse, mounted, signal};
use common::{Image, assert_clean, eventually, fine, sh};
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use testkit::require;

/// What comes so soon behind a signal belongs to it; more than `mount/signals.rs` says.
const BESIDE: Duration = Duration::from_millis(1500);

/// Every transport, and with and without a loop device.
fn each(name: &str, test: impl Fn(Image, &str)) {
    for transport in TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        test(Image::new(name), &format!("transport={transport}"));
        test(Image::new(name), &format!("transport={transport},plain"));
    }
}

#[test]
fn sigterm_commits_and_unmounts() {
    require!(fuse);
    require!(btrfs_progs);
    each("sigterm", |image, options| {
        for name in ["TERM", "INT", "HUP"] {
            let mut mount = Mount::foreground(&image, options);
            fs::write(mount.join(name), name).unwrap();
            signal(mount.pid(), name);
            let (code, log) = mount.wait();
            assert_eq!(code, Some(0), "{log}");
            assert!(log.contains(&format!("SIG{name}")), "{log}");
            assert_eq!(mounted(&mount.point), None);
            assert_clean(&image.path);
            assert_eq!(fine(&["cat", &image.at(&format!("/{name}"))]), name);
        }
    });
}

#[test]
fn signals_with_open_files() {
    require!(fuse);
    require!(btrfs_progs);
    each("busy", |image, options| {
        let mut mount = Mount::foreground(&image, options);
        let mut file = File::create(mount.join("open")).unwrap();
        file.write_all(b"before").unwrap();
        signal(mount.pid(), "TERM");
        eventually("detached", || mounted(&mount.point).is_none());
        file.write_all(b" and after").unwrap();
        drop(file);
        let (code, log) = mount.wait();
        assert_eq!(code, Some(0), "{log}");
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/open")]), "before and after");
        // The second signal does not wait.
        let mut mount = Mount::foreground(&image, options);
        let mut file = File::create(mount.join("second")).unwrap();
        file.write_all(b"before").unwrap();
        signal(mount.pid(), "TERM");
        eventually("detached", || mounted(&mount.point).is_none());
        thread::sleep(BESIDE);
        signal(mount.pid(), "TERM");
        let (code, log) = mount.wait();
        assert_eq!(code, Some(1), "{log}");
        assert!(file.write_all(b"lost").and(file.sync_all()).is_err());
        drop(file);
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/second")]), "before");
    });
}

#[test]
fn signals_do_not_unmount_what_is_below() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("below");
    let point = Mount::directory(&image);
    let word = point.display().to_string();
    testkit::oracle::sh("mount", &["-t", "tmpfs", "none", &word]).unwrap();
    let mut mount = Mount::foreground(&image, "rw");
    let file = File::create(mount.join("open")).unwrap();
    testkit::oracle::sh("umount", &["-l", &word]).unwrap();
    assert_eq!(mounted(&point).unwrap().0, "tmpfs");
    signal(mount.pid(), "TERM");
    drop(file);
    let (code, log) = mount.wait();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(mounted(&point).unwrap().0, "tmpfs");
    assert_clean(&image.path);
}

/// As who stops a session sends them, and a terminal that goes.
#[test]
fn signals_that_come_together_are_one() {
    require!(fuse);
    require!(btrfs_progs);
    each("together", |image, options| {
        for signals in [&["TERM", "HUP"][..], &["HUP", "TERM"], &["HUP", "HUP", "INT", "TERM"]] {
            let mut mount = Mount::foreground(&image, options);
            let mut file = File::create(mount.join("open")).unwrap();
            file.write_all(b"before").unwrap();
            let pid = mount.pid();
            let all = signals.iter().map(|name| format!("kill -{name} {pid};"));
            assert!(sh(&all.collect::<String>()).status.success());
            eventually("detached", || mounted(&mount.point).is_none());
            thread::sleep(BESIDE);
            file.write_all(b" and after").unwrap();
            file.sync_all().unwrap();
            drop(file);
            let (code, log) = mount.wait();
            assert_eq!(code, Some(0), "{signals:?}: {log}");
            assert_clean(&image.path);
            assert_eq!(fine(&["cat", &image.at("/open")]), "before and after");
        }
    });
}

/// A mount of which a step takes 4 seconds.
fn slow(image: &Image, options: &str, fault: &str) -> Mount {
    let point = Mount::directory(image);
    let mut child = Command::new(common::PROGRAM);
    child.env("SPINNEY_FAULT", fault);
    child.args(["mount", "-f", "-o", options, "--log"]).arg(image.dir.join("log"));
    child.arg(image.word()).arg(&point);
    let child = child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mount = Mount { point, ready: String::new(), child: child.ok() };
    eventually("mounted", || mounted(&mount.point).is_some());
    eventually("served", || fs::write(mount.join("served"), "").is_ok());
    mount
}

fn log_of(image: &Image) -> String {
    fs::read_to_string(image.dir.join("log")).unwrap_or_default()
}

/// A signal, and another behind what comes beside the first, counted from when the server has heard of that.
fn signal_twice(mount: &Mount, image: &Image) {
    signal(mount.pid(), "TERM");
    eventually("heard", || log_of(image).contains("committing and unmounting"));
    thread::sleep(BESIDE);
    signal(mount.pid(), "TERM");
}

/// A second signal while the volume is being closed: the close is what it is, and who waits hears of it.
#[test]
fn a_close_under_way_ends_as_one() {
    require!(fuse);
    require!(btrfs_progs);
    each("under-way", |image, options| {
        let mut mount = slow(&image, options, "closing=busy");
        fs::write(mount.join("file"), "new").unwrap();
        signal(mount.pid(), "TERM");
        eventually("unmounted", || mounted(&mount.point).is_none());
        thread::sleep(BESIDE);
        signal(mount.pid(), "TERM");
        let (code, log) = (mount.wait().0, log_of(&image));
        assert_eq!(code, Some(0), "{options}: {log}");
        assert!(log.contains("is closed"), "{options}: {log}");
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/file")]), "new");
    });
}

/// A second signal while the first one's commit takes its time: it counts when the tree is detached.
#[test]
fn a_signal_during_the_commit_does_not_wait_for_open_files() {
    require!(fuse);
    require!(btrfs_progs);
    each("during", |image, options| {
        let mut mount = slow(&image, options, "ending=slow");
        let mut file = File::create(mount.join("open")).unwrap();
        file.write_all(b"before").unwrap();
        signal_twice(&mount, &image);
        assert!(mounted(&mount.point).is_some(), "the commit is under way");
        let (code, log) = (mount.wait().0, log_of(&image));
        assert_eq!(code, Some(1), "{options}: {log}");
        assert!(log.contains("again"), "{options}: {log}");
        assert!(file.write_all(b"lost").and(file.sync_all()).is_err());
        drop(file);
        assert_eq!(mounted(&mount.point), None);
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/open")]), "before");
    });
}

/// The same where nothing is open: the tree is unmounted, and the server on its way to its end.
#[test]
fn a_signal_during_the_commit_does_not_spoil_the_end() {
    require!(fuse);
    require!(btrfs_progs);
    each("way", |image, options| {
        let mut mount = slow(&image, options, "ending=slow");
        fs::write(mount.join("file"), "new").unwrap();
        signal_twice(&mount, &image);
        let (code, log) = (mount.wait().0, log_of(&image));
        assert_eq!(code, Some(0), "{options}: {log}");
        assert!(log.contains("again") && log.contains("is closed"), "{options}: {log}");
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/file")]), "new");
    });
}
