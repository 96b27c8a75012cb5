//! `spinney mount` and `spinney umount`, over both transports.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse, loops_over, mounted, server};
use common::without_stand_ins;
use common::{Image, KernelMount, assert_clean, eventually, failing, fine, json, text};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::LoopDevice;
use testkit::require;

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

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

#[test]
fn a_mount_works_and_umount_waits_for_the_end() {
    require!(fuse);
    require!(kernel_btrfs);
    each("works", |image, options| {
        let mount = Mount::new(&image, options);
        let transport =
            if options.contains("uring") { "(io_uring, read-write" } else { "(classic" };
        assert!(mount.ready.contains(transport), "{}", mount.ready);
        assert!(mount.ready.starts_with(&format!("{} is mounted", image.word())));
        assert!(mount.ready.contains("nobody keeps the kernel from mounting"), "{}", mount.ready);
        let (kind, source) = mounted(&mount.point).unwrap();
        if options.contains("plain") {
            assert_eq!((kind.as_str(), source), ("fuse.spinney", image.word()));
        } else {
            assert_eq!(kind, "fuseblk.spinney");
            assert!(source.starts_with("/dev/loop"), "{source}");
        }
        fs::create_dir(mount.join("d")).unwrap();
        fs::write(mount.join("d/a"), vec![5; 3 << 20]).unwrap();
        fs::rename(mount.join("d/a"), mount.join("b")).unwrap();
        fs::hard_link(mount.join("b"), mount.join("c")).unwrap();
        std::os::unix::fs::symlink("b", mount.join("l")).unwrap();
        for i in 0..200 {
            fs::write(mount.join(&format!("d/{i}")), format!("content {i}")).unwrap();
        }
        assert_eq!(fs::metadata(mount.join("l")).unwrap().nlink(), 2);
        let expected = TreeSnapshot::of_dir(&mount.point).unwrap();
        mount.umount();
        // At once: nothing of ours is left over.
        assert!(server(&image.path).is_none() || loops_over(&image.path).is_empty());
        assert_clean(&image.path);
        let kernel = KernelMount::new(&image.path, "ro").unwrap();
        let found = TreeSnapshot::of_dir(kernel.path()).unwrap();
        kernel.unmount().unwrap();
        let rules = Rules { attributes: false, flags: false, ..Rules::default() };
        let differences = diff(&found, &expected, &rules);
        assert!(differences.is_empty(), "{differences:#?}");
        eventually("the loop device is gone", || loops_over(&image.path).is_empty());
        eventually("the server is gone", || server(&image.path).is_none());
    });
}

#[test]
fn fstrim_gives_the_image_its_holes_back() {
    require!(fuse);
    require!(btrfs_progs);
    each("fstrim", |image, options| {
        let mount = Mount::new(&image, options);
        fs::write(mount.join("kept"), vec![7; 5 << 20]).unwrap();
        fs::write(mount.join("gone"), vec![8; 40 << 20]).unwrap();
        common::sh(&format!("sync {}", mount.join("gone").display()));
        fs::remove_file(mount.join("gone")).unwrap();
        let before = fs::metadata(&image.path).unwrap().blocks();
        let told = common::sh(&format!("fstrim -v {}", mount.point.display()));
        assert!(told.status.success(), "{}", text(&told.stderr));
        assert!(text(&told.stdout).contains("bytes) trimmed"), "{}", text(&told.stdout));
        let after = fs::metadata(&image.path).unwrap().blocks();
        assert!(before - after >= 40 << 11, "{before} blocks, then {after}");
        assert_eq!(fs::read(mount.join("kept")).unwrap(), vec![7; 5 << 20]);
        mount.umount();
        assert_clean(&image.path);
    });
}

#[test]
fn what_the_kernel_wrote_is_read_and_changed() {
    require!(fuse);
    require!(kernel_btrfs);
    each("kernel", |image, options| {
        let kernel = KernelMount::new(&image.path, "noatime").unwrap();
        testkit::oracle::kernel_populate(&kernel.join(""), 3).unwrap();
        let expected = TreeSnapshot::of_dir(kernel.path()).unwrap();
        kernel.unmount().unwrap();
        let mount = Mount::new(&image, options);
        let found = without_stand_ins(&TreeSnapshot::of_dir(&mount.point).unwrap());
        // Through FUSE there are no `statx` attributes.
        let rules = Rules { attributes: false, ..Rules::default() };
        let differences = diff(&found, &without_stand_ins(&expected), &rules);
        assert!(differences.is_empty(), "{differences:#?}");
        fs::write(mount.join("new"), "new").unwrap();
        mount.umount();
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/new")]), "new");
    });
}

#[test]
fn kill_leaves_a_commit() {
    require!(fuse);
    require!(btrfs_progs);
    each("kill", |image, options| {
        let mut mount = Mount::foreground(&image, &format!("{options},commit=3600"));
        fs::write(mount.join("kept"), vec![1; 1 << 20]).unwrap();
        // syncfs reaches only mounts over a block device.
        File::open(mount.join("kept")).unwrap().sync_all().unwrap();
        for i in 0..100 {
            fs::write(mount.join(&format!("lost{i}")), "x").unwrap();
        }
        common::mount::signal(mount.pid(), "KILL");
        let (code, _) = mount.wait();
        assert_eq!(code, None);
        // The dead mount is named, and can be removed.
        let (code, why) = failing(&["mount", &image.word(), &mount.word()]);
        assert!(code == 1 && why.contains("spinney umount"), "{why}");
        let (code, why) = failing(&["umount", &mount.word()]);
        assert!(code == 1 && why.contains("without closing"), "{why}");
        assert_eq!(mounted(&mount.point), None);
        eventually("the loop device is gone", || loops_over(&image.path).is_empty());
        assert_clean(&image.path);
        let names = fine(&["ls", &image.at("/")]);
        let mut names: Vec<&str> = names.lines().collect();
        // A commit may have come by itself, for the chunk that was made ahead: then what was
        // made before it is there, and nothing else.
        let made: Vec<String> = (0..names.len() - 1).map(|i| format!("lost{i}")).collect();
        let mut expected: Vec<&str> = made.iter().map(String::as_str).chain(["kept"]).collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "the state of a commit");
        let mount = Mount::new(&image, options);
        assert_eq!(fs::read(mount.join("kept")).unwrap(), vec![1; 1 << 20]);
        fs::write(mount.join("again"), "works").unwrap();
        mount.umount();
        assert_clean(&image.path);
    });
}

#[test]
fn failed_starts_are_told_and_leave_nothing() {
    require!(fuse);
    require!(kernel_btrfs);
    let image = Image::new("failed");
    let point = Mount::directory(&image).display().to_string();
    let word = image.word();
    let file = |name: &str, content: &[u8]| {
        let path = image.dir.join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let (zeros, short) = (file("zeros", &vec![0; 8 << 20]), file("short", b"short"));
    let mut damaged = fs::read(&image.path).unwrap();
    damaged[65536 + 100] ^= 1;
    damaged[(64 << 20) + 100] ^= 1;
    let damaged = file("damaged", &damaged);
    let none = image.dir.join("none").display().to_string();
    for (words, code, what) in [
        (&["mount", &none, &point][..], 1, "no such file"),
        (&["mount", &word, &none], 1, "mount point"),
        (&["mount", &word, &zeros], 1, "not a directory"),
        (&["mount", &zeros, &point], 1, "zeros"),
        (&["mount", &short, &point], 1, "short"),
        (&["mount", &damaged, &point], 1, "damaged"),
        (&["mount", "/dev/null", &point], 1, "neither an image nor a block device"),
        (&["mount", "-o", "subvol=none", &word, &point], 1, "none"),
        (&["mount", "-o", "subvolid=999", &word, &point], 1, "999"),
        (&["mount", "-o", "bogus", &word, &point], 2, "bogus"),
        (&["mount", "-o", "commit=never", &word, &point], 2, "commit"),
        (&["mount", &word], 2, "directory"),
        (&["mount", "--log", "/no/such/dir/log", &word, &point], 1, "/no/such/dir/log"),
    ] {
        let (got, why) = failing(words);
        assert_eq!(got, code, "{words:?}: {why}");
        assert!(why.starts_with("spinney: ") && why.contains(what), "{words:?}: {why}");
        assert_eq!(mounted(Path::new(&point)), None);
    }
    let kernel = KernelMount::new(&image.path, "").unwrap();
    for options in ["rw", "ro"] {
        let (code, why) = failing(&["mount", "-o", options, &word, &point]);
        assert!(code == 1 && why.contains("in use"), "{why}");
    }
    kernel.unmount().unwrap();
    assert!(loops_over(&image.path).is_empty() && server(&image.path).is_none());
    assert_clean(&image.path);
}

#[test]
fn one_image_has_one_writer() {
    require!(fuse);
    require!(btrfs_progs);
    each("writer", |image, options| {
        let mount = Mount::new(&image, options);
        let place = format!("in use: Spinney has it mounted on {}", mount.word());
        for words in [
            &["ls", &image.at("/")][..],
            &["mkdir", &image.at("/x")],
            &["mkfs", "-f", &image.word()],
        ] {
            let (code, why) = failing(words);
            assert!(code == 1 && why.contains(&place), "{words:?}: {why}");
        }
        let dir = image.dir.path().display();
        let told = common::sh(&format!("cd {dir} && {} ls disk.img:/", common::PROGRAM));
        assert!(text(&told.stderr).contains(&place), "by a relative path: {}", text(&told.stderr));
        mount.umount();
        fine(&["mkdir", &image.at("/x")]);
    });
}

#[test]
fn read_only_mounts_write_nothing() {
    require!(fuse);
    require!(btrfs_progs);
    each("readonly", |image, options| {
        fine(&["cp", "/etc/passwd", &image.at("/file")]);
        let before = fs::read(&image.path).unwrap();
        let mount = Mount::new(&image, &format!("{options},ro"));
        assert!(mount.ready.contains("read-only"), "{}", mount.ready);
        assert_eq!(fs::read(mount.join("file")).unwrap(), fs::read("/etc/passwd").unwrap());
        let refused = fs::write(mount.join("new"), "x").unwrap_err();
        assert_eq!(errno(&refused), libc::EROFS);
        // Readers may share.
        assert_eq!(fine(&["ls", &image.at("/")]), "file\n");
        mount.umount();
        assert!(fs::read(&image.path).unwrap() == before, "the image has changed");
    });
}

#[test]
fn subvolumes_are_mounted_by_path_and_number() {
    require!(fuse);
    require!(kernel_btrfs);
    let image = Image::new("subvol");
    let kernel = KernelMount::new(&image.path, "").unwrap();
    let sub = kernel.join("a/sub").display().to_string();
    fs::create_dir(kernel.join("a")).unwrap();
    testkit::oracle::sh("btrfs", &["subvolume", "create", &sub]).unwrap();
    fs::write(kernel.join("a/sub/inside"), "x").unwrap();
    let id = testkit::oracle::sh("btrfs", &["inspect-internal", "rootid", &sub]).unwrap();
    kernel.unmount().unwrap();
    for options in ["subvol=/a/sub".to_owned(), "subvol=a/sub".into(), format!("subvolid={id}")] {
        let mount = Mount::new(&image, &options);
        assert_eq!(fs::read_to_string(mount.join("inside")).unwrap(), "x");
        fs::write(mount.join("new"), options).unwrap();
        mount.umount();
        assert_clean(&image.path);
    }
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    assert!(kernel.join("a/sub/new").exists() && !kernel.join("new").exists());
    kernel.unmount().unwrap();
}

/// What `spinney stats` promises: operations, commits and their phases, delta size, cache
/// hits, checksum errors and repairs, lock waits, who holds how much memory.
const COUNTERS: [&str; 28] = [
    "operations.changes",
    "fuse.requests.write",
    "commit.count",
    "commit.total_ns",
    "commit.max_ns",
    "commit.flush_data_ns",
    "commit.seal_ns",
    "commit.merge_ns",
    "commit.settle_ns",
    "commit.write_ns",
    "delta.bytes",
    "delta.items",
    "delta.dirty_bytes",
    "cache.hits",
    "cache.misses",
    "device.checksum_errors",
    "device.repairs",
    "device.unrecoverable",
    "inodes.lock_waits",
    "log.waits_for_commit",
    "memory.budget",
    "memory.cache",
    "memory.cache_budget",
    "memory.delta",
    "memory.sealed",
    "memory.building",
    "memory.inodes",
    "memory.content",
];

#[test]
fn counters_are_shown() {
    require!(fuse);
    require!(btrfs_progs);
    each("stats", |image, options| {
        let mount = Mount::new(&image, options);
        fs::write(mount.join("file"), "x").unwrap();
        File::open(mount.join("file")).unwrap().sync_all().unwrap();
        let counters = json(&fine(&["stats", "--json", &mount.word()]));
        let transport = if options.contains("uring") { "io_uring" } else { "classic" };
        assert_eq!(counters["fuse.transport"], transport);
        assert_eq!(counters["fsync.count"], 1);
        assert!(counters["operations.changes"].as_u64() >= Some(2), "{counters}");
        assert!(counters["fuse.requests.write"].as_u64() >= Some(1), "{counters}");
        assert!(counters["cache.hits"].as_u64() > Some(0), "{counters}");
        // A commit may come at any time: one does soon after the first write, for the chunk
        // that was made ahead.
        let mut commits = 0;
        eventually("something uncommitted", || {
            fs::write(mount.join("more"), "x").unwrap();
            let counters = json(&fine(&["stats", "--json", &mount.word()]));
            commits = counters["commit.count"].as_u64().unwrap();
            counters["delta.bytes"].as_u64() > Some(0)
        });
        assert!(common::sh(&format!("sync -f {}; sync {0}", mount.word())).status.success());
        fine(&["stats", &mount.word()]);
        let table = fine(&["stats", &mount.word()]);
        let counters = json(&fine(&["stats", "--json", &mount.word()]));
        let of_table = |name: &str| {
            let line = table.lines().find(|line| line.split_whitespace().next() == Some(name));
            let line = line.unwrap_or_else(|| panic!("no {name}: {table}"));
            line.split_whitespace().nth(1).unwrap().parse::<u64>().expect(name)
        };
        for name in COUNTERS {
            let number = counters[name].as_u64().unwrap_or_else(|| panic!("{name}: {counters}"));
            let told = of_table(name);
            // What the delta holds comes and goes.
            let grows = !name.starts_with("delta.");
            assert!(!grows || number >= told, "{name}: {number} after {told}");
        }
        if options.contains("plain") {
            // There syncfs does not reach the server.
            mount.umount();
            return;
        }
        assert!(of_table("commit.count") > commits, "{table}");
        for phase in ["total", "seal", "merge", "settle", "write"] {
            assert!(of_table(&format!("commit.{phase}_ns")) > 0, "{phase}: {table}");
        }
        assert!(of_table("commit.nodes_written") > 0 && of_table("device.writes") > 0, "{table}");
        mount.umount();
    });
    let (code, why) = failing(&["stats", "/"]);
    assert!(code == 1 && why.contains("not in a volume"), "{why}");
}

#[test]
fn umount_tells_what_is_in_the_way() {
    require!(fuse);
    require!(btrfs_progs);
    each("umount", |image, options| {
        let mount = Mount::new(&image, options);
        let file = File::create(mount.join("open")).unwrap();
        let (code, why) = failing(&["umount", &mount.word()]);
        assert!(code == 1 && why.contains("busy") && why.contains("fuser"), "{why}");
        let waiting = std::process::Command::new(common::PROGRAM)
            .args(["umount", "-l", &mount.word()])
            .spawn()
            .unwrap();
        eventually("detached", || mounted(&mount.point).is_none());
        drop(file);
        let output = waiting.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_clean(&image.path);
        let (code, why) = failing(&["umount", &mount.word()]);
        assert!(code == 1 && why.contains("nothing is mounted"), "{why}");
    });
    let (code, why) = failing(&["umount", "/proc"]);
    assert!(code == 1 && why.contains("proc"), "{why}");
    let (code, _) = failing(&["umount", "/no/such/place"]);
    assert_eq!(code, 1);
}

#[test]
fn block_devices_are_mounted_themselves() {
    require!(fuse);
    require!(kernel_btrfs);
    let image = Image::new("block");
    let device = LoopDevice::attach(&image.path, false).unwrap();
    let word = device.path().display().to_string();
    let point = Mount::directory(&image);
    let log = image.dir.join("log").display().to_string();
    let ready = fine(&["mount", "--log", &log, &word, &point.display().to_string()]);
    let mount = Mount { point, ready, child: None };
    assert_eq!(mounted(&mount.point).unwrap(), ("fuseblk.spinney".into(), word.clone()));
    fs::write(mount.join("file"), "x").unwrap();
    for words in [
        &["ls", &format!("{word}:/")][..],
        &["mkdir", &format!("{word}:/d")],
        &["mkdir", &image.at("/d")],
    ] {
        let (code, why) = failing(words);
        assert!(code == 1 && why.contains("in use"), "{words:?}: {why}");
    }
    mount.umount();
    assert_eq!(fine(&["cat", &format!("{word}:/file")]), "x");
    fine(&["mkdir", &format!("{word}:/d")]);
    device.detach().unwrap();
    assert_clean(&image.path);
    assert_eq!(fine(&["ls", &image.at("/")]), "d\nfile\n");
}

/// Where no mount of ours holds the device, the server does: two systems would write it.
#[test]
fn the_kernel_cannot_mount_a_device_that_is_served() {
    require!(fuse);
    require!(kernel_btrfs);
    for options in ["rw", "plain"] {
        let image = Image::new("claimed");
        let device = LoopDevice::attach(&image.path, false).unwrap();
        let word = device.path().display().to_string();
        let point = Mount::directory(&image);
        let log = image.dir.join("log").display().to_string();
        let words = ["mount", "--log", &log, "-o", options, &word, &point.display().to_string()];
        let mount = Mount { ready: fine(&words), point, child: None };
        let second = image.dir.join("second");
        fs::create_dir(&second).unwrap();
        let second = second.display().to_string();
        let refused = common::sh(&format!("mount -t btrfs {word} {second}"));
        let _ = common::sh(&format!("umount {second}"));
        mount.umount();
        device.detach().unwrap();
        assert!(!refused.status.success(), "{options}: the kernel mounted it as well");
        assert_clean(&image.path);
    }
}

#[test]
fn a_failed_medium_is_told_at_the_end() {
    require!(fuse);
    require!(btrfs_progs);
    for options in ["plain", "rw"] {
        let small = Image::new("full-medium");
        let tmpfs = small.dir.join("tmpfs");
        fs::create_dir(&tmpfs).unwrap();
        let word = tmpfs.display().to_string();
        testkit::oracle::sh("mount", &["-t", "tmpfs", "-o", "size=24M", "none", &word]).unwrap();
        let image = Image { path: tmpfs.join("disk.img"), dir: small.dir };
        let made = common::mkfs_btrfs(&image.path, 512 << 20, &["-m", "single"]);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            made.unwrap();
            let mount = Mount::new(&image, options);
            fs::write(mount.join("before"), "kept").unwrap();
            File::open(mount.join("before")).unwrap().sync_all().unwrap();
            let written = fs::write(mount.join("big"), noise(64 << 20))
                .and_then(|()| File::open(mount.join("big"))?.sync_all());
            assert!(written.is_err(), "24 MiB do not hold 64");
            let refused = fs::write(mount.join("more"), "x")
                .and_then(|()| File::open(mount.join("more"))?.sync_all());
            assert!(refused.is_err(), "nothing succeeds after the medium failed");
            let (code, why) = failing(&["umount", &mount.word()]);
            assert!(code == 1 && why.contains("closing the volume failed"), "{why}");
            assert_turned_read_only(&fs::read_to_string(image.dir.join("log")).unwrap());
            assert_eq!(mounted(&mount.point), None);
            eventually("the server is gone", || server(&image.path).is_none());
            eventually("the loop device is gone", || loops_over(&image.path).is_empty());
            // What was acknowledged is whole; of the rest a commit may have taken a part.
            assert_eq!(fine(&["cat", &image.at("/before")]), "kept");
            assert!(["before", "before\nbig"].contains(&fine(&["ls", &image.at("/")]).trim()));
            assert_clean(&image.path);
        }));
        let _ = testkit::oracle::sh("umount", &["-l", &word]);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The log says once that the volume turned read-only, and why.
fn assert_turned_read_only(log: &str) {
    let turns: Vec<_> = log.lines().filter(|line| line.contains("turns read-only")).collect();
    assert_eq!(turns.len(), 1, "{log}");
    assert!(turns[0].contains(" ERROR "), "{log}");
    let (_, reason) = turns[0].split_once(" why=").expect("a reason");
    let errno = ["no space", "No space", "I/O error", "Input/output error"];
    assert!(errno.iter().any(|what| reason.contains(what)), "{log}");
}

/// Bytes that no compression makes smaller.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn the_server_leaves_the_terminal_and_logs() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("daemon");
    let log = image.dir.join("log");
    let mount = Mount::new(&image, "rw");
    let pid = server(&image.path).expect("a server");
    let proc = Path::new("/proc").join(pid.to_string());
    assert_eq!(fs::read_link(proc.join("cwd")).unwrap(), Path::new("/"));
    let stat = fs::read_to_string(proc.join("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    assert_eq!(fields[3], pid.to_string(), "a session of its own");
    for number in 0..3 {
        let target = fs::read_link(proc.join(format!("fd/{number}"))).unwrap();
        assert_eq!(target, Path::new("/dev/null"));
    }
    mount.umount();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("is mounted on") && text.contains("is closed"), "{text}");
    assert!(!text.contains("ERROR"), "{text}");
}
