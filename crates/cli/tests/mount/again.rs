//! What is mounted already: mounted a second time, or by somebody who fails at it.

use crate::common;
use common::mount::{Mount, TRANSPORTS, gone, lacks_fuse, mounted, place, server, signal};
use common::{Image, assert_clean, eventually, failing, fine, sh, spinney, text};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::oracle::LoopDevice;
use testkit::require;

/// The options of what is mounted on `point` alone.
fn options(point: &str) -> String {
    let output = sh(&format!("findmnt -fno VFS-OPTIONS --mountpoint {point}"));
    text(&output.stdout).trim().to_owned()
}

/// Not as large, for what is made anew again and again.
fn small_image(name: &str) -> Image {
    let dir = testkit::oracle::TempDir::new(name).unwrap();
    let path = dir.join("disk.img");
    common::mkfs_btrfs(&path, 128 << 20, &[]).unwrap();
    Image { dir, path }
}

/// Was refused as "in use by another program".
#[test]
fn root_gets_the_mount_that_is_there_again() {
    require!(fuse);
    require!(btrfs_progs);
    for transport in TRANSPORTS {
        for kind in ["rw", "plain"] {
            if lacks_fuse(transport) {
                continue;
            }
            let image = Image::new("again");
            let mount = Mount::new(&image, &format!("{kind},transport={transport}"));
            let (second, word) = place(&image, "second");
            let told = fine(&["mount", "-o", "nosuid,commit=5", &image.word(), &word]);
            let expected =
                format!("is mounted on {word}, too; it is the mount on {}", mount.word());
            assert!(told.contains(&expected), "{told}");
            assert_eq!(mounted(&second), mounted(&mount.point));
            assert!(
                options(&word).contains("nosuid") && !options(&mount.word()).contains("nosuid")
            );
            fs::write(mount.join("file"), "one").unwrap();
            assert_eq!(fs::read(second.join("file")).unwrap(), b"one");
            let (one, two) = (fs::metadata(mount.join("file")), fs::metadata(second.join("file")));
            assert_eq!(one.unwrap().dev(), two.unwrap().dev());
            // A third, that cannot write.
            let (third, third_word) = place(&image, "third");
            fine(&["mount", "-r", &image.word(), &third_word]);
            let refused = fs::write(third.join("x"), "x").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
            fs::write(second.join("two"), "two").unwrap();
            fine(&["umount", &mount.word()]);
            assert_eq!(fs::read(third.join("two")).unwrap(), b"two");
            fine(&["umount", &third_word]);
            fs::write(second.join("file"), "end").unwrap();
            fine(&["umount", &word]);
            assert_eq!(fine(&["cat", &image.at("/file")]), "end");
            gone(&image);
        }
    }
}

/// What covered the first mount was bound, and shown as the volume.
#[test]
fn what_covers_the_first_mount_is_not_bound_for_it() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("again-covered");
    // Below a directory that can be covered itself.
    let (outer, outer_word) = place(&image, "outer");
    let (first, first_word) = place(&image, "outer/first");
    let (second, second_word) = place(&image, "second");
    let (third, third_word) = place(&image, "third");
    let log = image.dir.join("log").display().to_string();
    fine(&["mount", "--log", &log, &image.word(), &first_word]);
    let mount = Mount { point: first, ready: String::new(), child: None };
    fs::write(mount.join("file"), "x").unwrap();
    for (covered, word) in [(&mount.point, &first_word), (&outer, &outer_word)] {
        assert!(sh(&format!("mount -t tmpfs over {word}")).status.success());
        let cover = Cover(covered.clone());
        let (code, told) = failing(&["mount", &image.word(), &second_word]);
        let why = format!("is mounted on {first_word} already, but something else is mounted over");
        assert!(code == 1 && told.contains(&why), "{told}");
        assert_eq!(mounted(&second), None);
        drop(cover);
        // What can be reached is bound, wherever else it is covered.
        fine(&["mount", &image.word(), &second_word]);
        assert!(sh(&format!("mount -t tmpfs over {word}")).status.success());
        let cover = Cover(covered.clone());
        let told = fine(&["mount", &image.word(), &third_word]);
        assert!(told.contains(&format!("it is the mount on {second_word}")), "{told}");
        assert_eq!(fs::read(third.join("file")).unwrap(), b"x");
        drop(cover);
        fine(&["umount", &second_word, &third_word]);
    }
    mount.umount();
    gone(&image);
}

/// A mount over another, for as long as this lives.
struct Cover(PathBuf);

impl Drop for Cover {
    fn drop(&mut self) {
        sh(&format!("umount -l {}", self.0.display()));
    }
}

/// It was ignored, and nobody told.
#[test]
fn links_are_not_followed_where_that_is_asked() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("nosymfollow");
    let (second, word) = place(&image, "second");
    let refused = |point: &Path| fs::read(point.join("link")).unwrap_err().raw_os_error();
    for first in ["nosymfollow", "symfollow"] {
        let mount = Mount::new(&image, first);
        fs::write(mount.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("file", mount.join("link")).unwrap();
        fine(&["mount", "-o", "nosymfollow", &image.word(), &word]);
        assert_eq!(refused(&second), Some(libc::ELOOP));
        match first {
            "nosymfollow" => assert_eq!(refused(&mount.point), Some(libc::ELOOP)),
            _ => assert_eq!(fs::read(mount.join("link")).unwrap(), b"x"),
        }
        fs::remove_file(mount.join("link")).unwrap();
        fine(&["umount", &word]);
        mount.umount();
        gone(&image);
    }
}

/// It waited without a word.
#[test]
fn who_unmounts_is_told_of_a_copy_in_another_namespace() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("namespace");
    let mount = Mount::new(&image, "rw");
    let mut holder = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let mut umount = Command::new(common::PROGRAM)
        .args(["umount", &mount.word()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    BufReader::new(umount.stderr.take().unwrap()).read_line(&mut told).unwrap();
    let who = format!("process {} (sleep) has it on {}", holder.id(), mount.word());
    let ended = umount.try_wait().unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(told.contains("waiting") && told.contains(&who) && ended.is_none(), "{told}");
    assert!(umount.wait().unwrap().success());
    gone(&image);
}

#[test]
fn block_devices_too() {
    require!(fuse);
    require!(btrfs_progs);
    for kind in ["rw", "plain"] {
        let image = Image::new("again-device");
        let device = LoopDevice::attach(&image.path, false).unwrap();
        let (disk, (first, word)) = (device.path().display().to_string(), place(&image, "mnt"));
        let log = image.dir.join("log").display().to_string();
        fine(&["mount", "--log", &log, "-o", kind, &disk, &word]);
        let mount = Mount { point: first, ready: String::new(), child: None };
        let (second, second_word) = place(&image, "second");
        fine(&["mount", &disk, &second_word]);
        fs::write(mount.join("file"), "x").unwrap();
        assert_eq!(fs::read(second.join("file")).unwrap(), b"x");
        fine(&["umount", &second_word]);
        mount.umount();
        device.detach().unwrap();
        gone(&image);
    }
}

#[test]
fn what_contradicts_the_first_mount_is_refused() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("contradicts");
    let (second, word) = place(&image, "second");
    for (first, again, why) in [
        ("ro", "rw", "already, read-only"),
        ("rw", "subvolid=256", "already, and has no subvolume with the number 256"),
        ("subvolid=5", "subvol=a", "already, and has no subvolume /a"),
    ] {
        let mount = Mount::new(&image, first);
        let (code, told) = failing(&["mount", "-o", again, &image.word(), &word]);
        let place = format!("is mounted on {} {why}", mount.word());
        assert!(code == 1 && told.contains(&place), "{first}, {again}: {told}");
        assert_eq!(mounted(&second), None);
        let (code, told) = failing(&["mount", "-o", first, &image.word(), &mount.word()]);
        assert!(code == 1 && told.contains("already"), "on itself: {told}");
        fine(&["mount", "-o", first, &image.word(), &word]);
        fine(&["umount", &word]);
        mount.umount();
        gone(&image);
    }
}

#[test]
fn a_signal_ends_all_of_them() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("again-signal");
    for first_stays in [true, false] {
        let mut mount = Mount::foreground(&image, "rw");
        let (second, word) = place(&image, "second");
        fine(&["mount", &image.word(), &word]);
        fs::write(second.join("file"), "x").unwrap();
        if !first_stays {
            assert!(sh(&format!("umount {}", mount.word())).status.success());
        }
        signal(mount.pid(), "TERM");
        let (code, log) = mount.wait();
        assert_eq!(code, Some(0), "{log}");
        assert_eq!((mounted(&second), mounted(&mount.point)), (None, None));
        gone(&image);
    }
}

/// By a loop device of its own, which nobody can refuse: two who write destroyed the volume.
#[test]
fn a_kernel_mount_of_the_image_ends_our_writing() {
    require!(fuse);
    require!(kernel_btrfs);
    for kind in ["rw", "plain"] {
        let image = Image::new("kernel-too");
        let mount = Mount::new(&image, &format!("{kind},commit=1"));
        fs::write(mount.join("synced"), "synced").unwrap();
        fs::File::open(&mount.point).unwrap().sync_all().unwrap();
        fs::File::open(mount.join("synced")).unwrap().sync_all().unwrap();
        let device = LoopDevice::attach(&image.path, false).unwrap();
        let (second, word) = place(&image, "second");
        let mounted = sh(&format!("mount -t btrfs {} {word}", device.path().display()));
        assert!(mounted.status.success(), "{}", text(&mounted.stderr));
        let refused = || match fs::write(mount.join("new"), "new") {
            Err(error) => error.raw_os_error() == Some(libc::EROFS),
            Ok(()) => false,
        };
        let outcome = std::panic::catch_unwind(|| {
            eventually("writes are refused", refused);
            for i in 0..200 {
                fs::write(second.join(format!("kernel{i}")), vec![7; 100_000]).unwrap();
            }
            assert!(sh("sleep 1.5").status.success());
        });
        let unmounted = sh(&format!("umount {word}"));
        assert!(outcome.is_ok() && unmounted.status.success(), "{}", text(&unmounted.stderr));
        device.detach().unwrap();
        let (code, why) = failing(&["umount", &mount.word()]);
        assert!(code == 1 && why.contains("closing the volume failed"), "{why}");
        let log = fs::read_to_string(image.dir.join("log")).unwrap();
        assert!(
            log.contains(&format!("the kernel has mounted the image, too, on {word}")),
            "{log}"
        );
        eventually("the server is gone", || server(&image.path).is_none());
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/synced")]), "synced");
        assert!(fine(&["ls", &image.at("/")]).contains("kernel199"));
    }
}

/// A kernel mount that is to be read only replays a log all the same, and commits: the server,
/// which took no notice, wrote its own trees over those.
#[test]
fn a_kernel_mount_that_replays_our_log_ends_our_writing() {
    require!(fuse);
    require!(kernel_btrfs);
    for (options, ends) in [("ro", true), ("ro,rescue=nologreplay", false)] {
        let image = small_image("kernel-reads");
        let mount = Mount::new(&image, "commit=1");
        fs::write(mount.join("synced"), "synced").unwrap();
        fs::File::open(mount.join("synced")).unwrap().sync_all().unwrap();
        let device = LoopDevice::attach(&image.path, false).unwrap();
        let (_, word) = place(&image, "second");
        let mounted =
            sh(&format!("mount -t btrfs -o {options} {} {word}", device.path().display()));
        let outcome = std::panic::catch_unwind(|| {
            assert!(mounted.status.success(), "{}", text(&mounted.stderr));
            let write = |i: u32| fs::write(mount.join(&format!("new{i}")), vec![7; 100_000]);
            if ends {
                let refused = || write(0).err().and_then(|e| e.raw_os_error());
                eventually("writes are refused", || refused() == Some(libc::EROFS));
            } else {
                (0..100).for_each(|i| write(i).unwrap());
            }
        });
        let unmounted = sh(&format!("umount {word}"));
        assert!(outcome.is_ok() && unmounted.status.success(), "{}", text(&unmounted.stderr));
        device.detach().unwrap();
        let closed = spinney(&["umount", &mount.word()]);
        assert!(closed.status.success() || ends, "{}", text(&closed.stderr));
        gone(&image);
        assert_eq!(fine(&["cat", &image.at("/synced")]), "synced");
    }
}

/// They were in the log, which nobody reads.
#[test]
fn options_without_effect_are_told_on_the_terminal() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("ignored");
    let (point, word) = place(&image, "mnt");
    for (words, expected) in [
        (
            &["-o", "autodefrag,ssd,noatime"][..],
            "spinney: options without effect: autodefrag, ssd\n",
        ),
        (&["-q", "-o", "autodefrag"], "spinney: option without effect: autodefrag\n"),
        (&["-o", "noatime,commit=5"], ""),
    ] {
        let log = image.dir.join("log").display().to_string();
        let disk = image.word();
        let words = [&["mount", "--log", &log], words, &[&disk, &word]].concat();
        let output = spinney(&words);
        let mount = Mount { point: point.clone(), ready: String::new(), child: None };
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), expected));
        mount.umount();
    }
}

/// A failed second mount took the running server's log away.
#[test]
fn a_mount_that_fails_leaves_the_running_server_alone() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("left-alone");
    let zeros = image.dir.join("zeros");
    fs::write(&zeros, vec![0; 8 << 20]).unwrap();
    let (point, word) = place(&image, "mnt");
    // Where there is no system log.
    let run = |words: &str| {
        let script = format!("SPINNEY_SYSLOG=/none {} {words}", common::PROGRAM);
        let output = sh(&script);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, told) = run(&format!("mount {} {word}", image.word()));
    assert_eq!(code, Some(0), "{told}");
    let mount = Mount { point, ready: told.clone(), child: None };
    let log = told.split_once(", log: ").expect("a log").1.split_once(')').unwrap().0.to_owned();
    let inode = fs::metadata(&log).unwrap().ino();
    let other = image.dir.join("other").display().to_string();
    fs::create_dir(&other).unwrap();
    for words in [
        // Another image on top of it, which fails when its log is open already.
        format!("mount {} {word}", zeros.display()),
        format!("mount -o subvol=none {} {word}", image.word()),
        format!("mount -o subvol=none {} {other}", image.word()),
        format!("mount {} {word}", image.word()),
    ] {
        let (code, told) = run(&words);
        assert_eq!(code, Some(1), "{words}: {told}");
        assert_eq!(fs::metadata(&log).expect("the log").ino(), inode, "{words}");
        assert!(fs::read_to_string(&log).unwrap().contains("is mounted on"), "{words}");
        // Its lock holds, it is served, and tells its end.
        let (_, why) = failing(&["mkdir", &image.at("/d")]);
        assert!(why.contains("in use: Spinney has it mounted"), "{words}: {why}");
        fs::write(mount.join("file"), &words).unwrap();
    }
    let _held = fs::File::open(mount.join("file")).unwrap();
    assert_eq!(spinney(&["umount", &word]).status.code(), Some(1), "busy");
    drop(_held);
    mount.umount();
    assert!(fs::read_to_string(&log).unwrap().contains("is closed"), "who waited for it heard it");
    fs::remove_file(Path::new(&log)).unwrap();
    gone(&image);
}
