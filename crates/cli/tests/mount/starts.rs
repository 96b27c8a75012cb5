//! Starts that fail, at any step and in any way, and servers that are stopped: the command
//! ends soon with the reason, and nothing stays mounted.
//!
//! What hangs here would hang sync(2) of the machine: each test ends what is left of its
//! mount by the kernel's control files before it fails.

use crate::common;
use common::mount::{Mount, loops_over, monitor, mounted, server, signal};
use common::{Image, PROGRAM, assert_clean, eventually, fine, text};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{require, skip};

const LONG: Duration = Duration::from_secs(30);

/// Runs `script` with `spinney`, image and mount point as `$1` to `$3`; exit code and standard error.
fn run(what: &str, image: &Image, script: &str) -> (Option<i32>, String) {
    // Not looked at where it is a mount, which may be stopped.
    let point = image.dir.join("mnt");
    if mounted(&point).is_none() {
        Mount::directory(image);
    }
    let log = fs::File::create(image.dir.join("stderr")).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", script, "sh", PROGRAM, &image.word(), &point.display().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let told = fs::read(image.dir.join("stderr")).unwrap();
            return (status.code(), text(&told));
        }
        if Instant::now() > deadline {
            abort(image);
            panic!("{what}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the connections of mounts over `image`, and their server: one that is stopped would keep the name that the
/// next mount with the number listens by.
fn abort(image: &Image) {
    if let Some(server) = server(&image.path) {
        signal(server, "KILL");
    }
    for name in loops_over(&image.path) {
        let number = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
        let (major, minor) = number.trim().split_once(':').unwrap();
        let number = major.parse::<u64>().unwrap() << 20 | minor.parse::<u64>().unwrap();
        let _ = fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1");
    }
}

fn assert_nothing_left(what: &str, image: &Image) {
    let point = image.dir.join("mnt");
    let deadline = Instant::now() + LONG;
    let processes = || (server(&image.path), monitor(&image.path));
    let left = || (mounted(&point), loops_over(&image.path), processes());
    while left() != (None, Vec::new(), (None, None)) {
        if Instant::now() > deadline {
            let left = left();
            abort(image);
            panic!("{what}: {left:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    fine(&["ls", &image.at("/")]);
}

const STEPS: [&str; 13] = [
    "log",
    "opened",
    "attach",
    "open-device",
    "mounted",
    "first-request",
    "rings",
    "loops",
    "notify",
    "answer",
    "answered",
    "listening",
    "ready",
];

#[test]
fn a_start_that_fails_anywhere_ends_with_the_reason() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("starts");
    for step in STEPS {
        for (kind, reason) in [
            ("error", "asked to fail"),
            ("panic", "panicked"),
            ("kill", "signal 9"),
            ("abort", "signal 6"),
            ("stop", "was ended"),
            ("hang", "was ended"),
        ] {
            if kind == "error" && step == "rings" {
                continue;
            }
            let what = format!("{step} {kind}");
            let limit = if kind == "stop" || kind == "hang" { 1 } else { 20 };
            let script = format!(
                "SPINNEY_START_LIMIT={limit} SPINNEY_FAULT={step}={kind} \"$1\" mount --log /dev/null \"$2\" \"$3\""
            );
            let (code, told) = run(&what, &image, &script);
            assert_eq!(code, Some(1), "{what}: {told}");
            assert!(told.contains(reason), "{what}: {told}");
            assert_nothing_left(&what, &image);
        }
    }
    assert_clean(&image.path);
}

/// What takes long, and gets on, is left to it: a log to be replayed, say.
#[test]
fn work_that_gets_on_is_not_ended() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("starts-busy");
    let script = "SPINNEY_START_LIMIT=2 SPINNEY_FAULT=opened=busy \"$1\" mount --log /dev/null \"$2\" \"$3\"";
    let (code, told) = run("busy", &image, script);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(run("umount", &image, "\"$1\" umount \"$3\"").0, Some(0));
    assert_nothing_left("busy", &image);
}

/// Ctrl-C takes the waiting command, and not the server, which is in a session of its own.
#[test]
fn nobody_waits_any_more() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("starts-alone");
    for step in ["opened", "mounted", "answered", "ready"] {
        for (kind, signal) in [("hang", "INT"), ("stop", "KILL")] {
            let what = format!("{step} {kind} SIG{signal}");
            // Long enough for the command to be killed by far, and for no limit to end the start.
            let script = format!(
                "SPINNEY_START_LIMIT=600 SPINNEY_FAULT={step}={kind} \"$1\" mount --log /dev/null \
                 \"$2\" \"$3\" & sleep 1; kill -{signal} $!; wait $!"
            );
            // An interrupt is ignored by what a script starts beside itself.
            let script = script.replace("SPINNEY_START", "env --default-signal=INT SPINNEY_START");
            let (code, told) = run(&what, &image, &script);
            assert!(code.is_some_and(|code| code > 128), "{what}: {code:?} {told}");
            assert_nothing_left(&what, &image);
        }
    }
    assert_clean(&image.path);
}

/// As ordinary users, for whom `fusermount3` mounts and unmounts.
#[test]
fn starts_of_ordinary_users_fail_as_well() {
    require!(fuse);
    require!(btrfs_progs);
    if let Some(why) = common::no_ordinary_users() {
        skip!("{why}");
    }
    let _open = common::OpenToAll::new();
    let image = Image::new("starts-nobody");
    fs::copy(PROGRAM, image.dir.join("spinney")).unwrap();
    Mount::directory(&image);
    let (dir, point) = (image.dir.path().display().to_string(), image.dir.join("mnt"));
    assert!(common::sh(&format!("chown -R 65534:65534 {dir}")).status.success());
    for step in ["log", "opened", "mounted", "first-request", "answered", "listening", "ready"] {
        for (kind, reason) in [
            ("error", "asked to fail"),
            ("panic", "panicked"),
            ("kill", "signal 9"),
            ("stop", "was ended"),
            ("hang", "was ended"),
        ] {
            let what = format!("{step} {kind} as nobody");
            let limit = if kind == "stop" || kind == "hang" { 1 } else { 20 };
            let script = format!(
                "cd {dir} && SPINNEY_START_LIMIT={limit} SPINNEY_FAULT={step}={kind} \
                 PATH=/usr/local/bin:/usr/bin:/bin setpriv --reuid 65534 --regid 65534 --clear-groups \
                 ./spinney mount --log /dev/null disk.img mnt"
            );
            let (code, told) = run(&what, &image, &script);
            assert_eq!(code, Some(1), "{what}: {told}");
            assert!(told.contains(reason), "{what}: {told}");
            eventually(&what, || mounted(&point).is_none());
        }
    }
    assert_clean(&image.path);
}

/// Inside of what closes the volume, which umount(2) of a block mount waits for.
#[test]
fn servers_that_stop_or_die_while_they_close() {
    require!(fuse);
    require!(btrfs_progs);
    for options in ["rw", "plain"] {
        for (kind, ends_well) in [("stop", true), ("panic", false), ("kill", false)] {
            let what = format!("{options} closing={kind}");
            let image = Image::new("closing");
            let script = format!(
                "SPINNEY_FAULT=closing={kind} \"$1\" mount --log /dev/null -o {options} \"$2\" \"$3\" &&
                 echo x > \"$3\"/file && \"$1\" umount \"$3\""
            );
            let (code, told) = run(&what, &image, &script);
            assert_eq!(code == Some(0), ends_well, "{what}: {told}");
            assert!(kind != "stop" || told.contains("was stopped; waking it"), "{what}: {told}");
            assert!(kind != "panic" || told.contains("panicked"), "{what}: {told}");
            assert_nothing_left(&what, &image);
            assert_clean(&image.path);
        }
    }
}

#[test]
fn in_the_foreground_too() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("starts-fg");
    for step in ["opened", "mounted", "loops", "answered", "ready"] {
        for kind in ["error", "panic", "kill", "hang", "stop"] {
            let what = format!("{step} {kind} in the foreground");
            let limit = if kind == "stop" || kind == "hang" { 1 } else { 20 };
            let script = format!(
                "SPINNEY_START_LIMIT={limit} SPINNEY_FAULT={step}={kind} \"$1\" mount -f \"$2\" \"$3\""
            );
            let (code, told) = run(&what, &image, &script);
            assert_ne!(code, Some(0), "{what}: {told}");
            assert_nothing_left(&what, &image);
            let silent = kind == "kill";
            let reason = if limit == 1 { "was ended" } else { "asked to" };
            eventually("the reason is told", || {
                silent || text(&fs::read(image.dir.join("stderr")).unwrap()).contains(reason)
            });
        }
    }
}

/// Threads that could not be started left a mount that nobody served.
#[test]
fn too_little_memory_freezes_nothing() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("starts-memory");
    for kib in [60_000, 150_000, 300_000, 400_000, 500_000, 600_000, 700_000, 900_000] {
        for transport in ["auto", "classic"] {
            let what = format!("{kib} KiB, {transport}");
            let script = format!(
                "ulimit -v {kib}; \"$1\" mount --log /dev/null -o transport={transport} \"$2\" \"$3\""
            );
            let (code, told) = run(&what, &image, &script);
            if code == Some(0) {
                let (code, told) = run(&what, &image, "\"$1\" umount \"$3\"");
                // What was enough to start may be too little to close: seen in one of forty such.
                let died = told.contains("the server ended without closing the volume");
                assert!(code == Some(0) || died, "{what}: {told}");
            } else {
                assert!(!told.is_empty(), "{what}");
            }
            assert_nothing_left(&what, &image);
        }
    }
    assert_clean(&image.path);
}

#[test]
fn umount_wakes_a_stopped_server() {
    require!(fuse);
    require!(btrfs_progs);
    for options in ["rw", "plain"] {
        let image = Image::new("stopped");
        let mount = Mount::new(&image, options);
        fs::write(mount.join("file"), "x").unwrap();
        signal(server(&image.path).unwrap(), "STOP");
        let (code, told) = run(options, &image, "\"$1\" umount \"$3\"");
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("was stopped; waking it"), "{told}");
        assert_nothing_left(options, &image);
        assert_eq!(fine(&["cat", &image.at("/file")]), "x");
        assert_clean(&image.path);
    }
}

#[test]
fn so_do_a_second_mount_and_a_remount() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("stopped-again");
    let mount = Mount::new(&image, "rw");
    let second = image.dir.join("second");
    fs::create_dir(&second).unwrap();
    let at = second.display();
    for (script, undo) in [
        (format!("\"$1\" mount \"$2\" {at}"), format!("umount {at}")),
        ("\"$1\" mount -o remount,ro \"$3\"".into(), "\"$1\" mount -o remount,rw \"$3\"".into()),
    ] {
        signal(server(&image.path).unwrap(), "STOP");
        let (code, told) = run(&script, &image, &script);
        assert_eq!(code, Some(0), "{script}: {told}");
        assert!(told.contains("was stopped; waking it"), "{script}: {told}");
        assert_eq!(run(&undo, &image, &undo).0, Some(0));
    }
    mount.umount();
    assert_clean(&image.path);
}

/// Who sends SIGSTOP does not see at once that the server stops: nor does who has to wake it.
#[test]
fn whoever_is_stopped_again_and_again_answers() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("stopping");
    let mount = Mount::new(&image, "rw");
    let second = image.dir.join("second");
    fs::create_dir(&second).unwrap();
    let pid = server(&image.path).unwrap();
    // The last one stands: whoever unmounts would have to tell of it.
    let script = format!(
        "kill -STOP {pid}; (while sleep 0.002; do kill -STOP {pid} || exit 0; done) & stopping=$!
        set -e; \"$1\" mount \"$2\" {at}; umount -l {at} & \"$1\" mount -o remount,ro \"$3\"
        \"$1\" mount -o remount,rw \"$3\"; kill $stopping; wait $stopping || kill -CONT {pid}; wait",
        at = second.display()
    );
    // It is a matter of luck whether it stops while the second mount looks for the subvolume.
    for _ in 0..8 {
        let (code, told) = run("stopped again and again", &image, &script);
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("was stopped; waking it"), "{told}");
    }
    mount.umount();
    assert_clean(&image.path);
}

/// sync(2) of the whole machine waited for a server that somebody had sent to the background.
#[test]
fn a_terminal_does_not_stop_a_server() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("ctrl-z");
    let mut mount = Mount::foreground(&image, "rw");
    for name in ["TSTP", "TTIN", "TTOU"] {
        signal(mount.pid(), name);
        std::thread::sleep(Duration::from_millis(100));
        let stat = fs::read_to_string(format!("/proc/{}/stat", mount.pid())).unwrap();
        let state = stat.rsplit_once(") ").unwrap().1.chars().next().unwrap();
        signal(mount.pid(), "CONT");
        assert_ne!(state, 'T', "{name} stops it");
    }
    fs::write(mount.join("file"), "x").unwrap();
    signal(mount.pid(), "TERM");
    assert_eq!(mount.wait().0, Some(0));
    assert_clean(&image.path);
}

/// The volume stays open with its other mount: there is nothing to wait for.
#[test]
fn umount_of_one_of_two_returns() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("bound");
    let mount = Mount::new(&image, "rw");
    let second = image.dir.join("second");
    fs::create_dir(&second).unwrap();
    let word = second.display().to_string();
    testkit::oracle::sh("mount", &["--bind", &mount.word(), &word]).unwrap();
    let (code, told) = run("first", &image, "\"$1\" umount \"$3\"");
    assert_eq!(code, Some(0), "{told}");
    fs::write(second.join("file"), "x").unwrap();
    fine(&["umount", &word]);
    assert_nothing_left("both", &image);
    assert_eq!(fine(&["cat", &image.at("/file")]), "x");
    assert!(!Path::new(&mount.word()).join("file").exists());
}

/// The block device hands the error of an earlier writer to whoever opens it next.
#[test]
fn an_error_that_is_over_refuses_no_mount() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("old-error");
    let tmpfs = image.dir.join("tmpfs");
    fs::create_dir(&tmpfs).unwrap();
    let sh = |script: String| {
        let output = common::sh(&script);
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    };
    sh(format!("mount -t tmpfs -o size=24M none {}", tmpfs.display()));
    let disk = tmpfs.join("disk.img");
    let outcome = std::panic::catch_unwind(|| {
        common::mkfs_btrfs(&disk, 512 << 20, &["-m", "single"]).unwrap();
        let device = sh(format!("losetup -f --show {}", disk.display()));
        // Fills the medium, and is not there to be told so: what it wrote lies in a free part.
        let written = common::sh(&format!(
            "dd if=/dev/urandom of={device} bs=1M seek=400 count=40 conv=notrunc"
        ));
        let _ = written;
        sh(format!("fallocate -p -o 400M -l 40M {}", disk.display()));
        let point = Mount::directory(&image).display().to_string();
        let log = image.dir.join("log").display().to_string();
        let output = common::spinney(&["mount", "--log", &log, &device, &point]);
        let told = text(&output.stderr);
        let _ = common::spinney(&["umount", &point]);
        sh(format!("losetup -d {device}"));
        assert!(output.status.success(), "{told}");
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("an earlier write of another program failed"), "{log}");
    });
    let _ = common::sh(&format!("umount -l {}", tmpfs.display()));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
