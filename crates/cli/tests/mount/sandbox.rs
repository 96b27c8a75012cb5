//! What a server can do once the mount stands, tried from inside by the threads that serve: it
//! opens no file, starts no program and makes no socket, as root and as an ordinary user, by
//! each transport, and as far as the kernel has what that takes.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse, monitor, mounted, signal};
use common::{Image, OpenToAll, PROGRAM, assert_clean, eventually, fine, sh, text};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testkit::{require, skip};

/// As `crates/cli/src/sys/attempt.rs` knows them: all must be refused.
const ATTEMPTS: &[&str] = &[
    "open",
    "open itself",
    "list",
    "make",
    "look",
    "link",
    "remove",
    "start",
    "execute",
    "fork",
    "tcp",
    "udp",
    "unix",
    "pair",
    "pipe",
    "connect",
    "send to",
    "ring",
    "code",
    "memory file",
    "trace",
    "read others",
    "signal",
    "namespace",
    "enter namespace",
    "limits",
    "real time",
    "terminal",
];
/// What it does seldom, but does.
const MEANT: &[&str] = &["thread", "uncache", "let go of a part"];
const REFUSED: &str = "1";
const NO_ACCESS: &str = "13";
const DONE: &str = "0";

#[derive(Clone, Copy, PartialEq, Debug)]
enum User {
    Root,
    Nobody,
}

impl User {
    /// What the words of a command begin with.
    fn prefix(self) -> &'static [&'static str] {
        match self {
            User::Root => &["env"],
            User::Nobody => &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"],
        }
    }

    fn sh(self, script: &str) -> String {
        let prefix = self.prefix().join(" ");
        let output = sh(&format!("{prefix} sh -euc '{script}'"));
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

/// A server in the foreground, to which a test can say what to try.
fn start(image: &Image, user: User, options: &str, fault: &str) -> Mount {
    let point = Mount::directory(image);
    // Others may not look into the directory of the build.
    let program = image.dir.join("spinney");
    if !program.exists() {
        fs::copy(PROGRAM, &program).unwrap();
    }
    let owner = if user == User::Root { "0:0" } else { "65534:65534" };
    assert!(sh(&format!("chown -R {owner} {}", image.dir.path().display())).status.success());
    let prefix = user.prefix();
    let mut child = Command::new(prefix[0])
        .args(&prefix[1..])
        .arg(&program)
        .args(["mount", "-f", "-o", &format!("map-owner,{options}"), &image.word()])
        .arg(&point)
        .env("SPINNEY_FAULT", format!("serving=try,{fault}"))
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let mount = Mount { point, ready, child: Some(child) };
    assert!(mount.ready.contains("is mounted on"), "{user:?} {options}");
    mount
}

/// Has a thread that serves try each; the error's number, or 0.
fn tried<'a>(user: User, mount: &Mount, what: &[&'a str]) -> BTreeMap<&'a str, String> {
    let list = what.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" ");
    let script = format!(
        "for what in {list}; do getfattr --absolute-names --only-values \
         -n \"user.spinney.try.$what\" {}; echo; done",
        mount.word()
    );
    let answers = user.sh(&script);
    let answers: Vec<String> = answers.lines().map(str::to_owned).collect();
    assert_eq!(answers.len(), what.len(), "{answers:?}");
    what.iter().copied().zip(answers).collect()
}

/// Of each of the server's threads, what the kernel says of `field`.
fn of_threads(pid: u32, field: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let line = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.trim().to_owned()
    };
    statuses.map(|status| (line(&status, "Name:"), line(&status, field))).collect()
}

fn assert_threads(pid: u32, field: &str, expected: impl Fn(&str) -> bool) {
    let threads = of_threads(pid, field);
    let wrong: Vec<_> = threads.iter().filter(|(_, value)| !expected(value)).collect();
    assert!(threads.len() > 5 && wrong.is_empty(), "{field} {wrong:?}");
}

/// CAP_SYS_RESOURCE alone.
fn are_few(capabilities: &str) -> bool {
    u64::from_str_radix(capabilities, 16).unwrap() & !(1 << 24) == 0
}

/// Ends it by a signal; what it logged.
fn end(mut mount: Mount) -> String {
    signal(mount.pid(), "TERM");
    let (code, log) = mount.wait();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(mounted(&mount.point), None, "{log}");
    log
}

fn has_getfattr() -> bool {
    sh("getfattr --version").status.success()
}

fn users() -> Vec<User> {
    match common::no_ordinary_users() {
        Some(why) => {
            testkit::oracle::record_skip("the sandbox of ordinary users", why);
            vec![User::Root]
        }
        None => vec![User::Root, User::Nobody],
    }
}

fn each(mut judge: impl FnMut(&Image, User, &str)) {
    let _open = OpenToAll::new();
    for transport in TRANSPORTS.into_iter().filter(|transport| !lacks_fuse(transport)) {
        // Root's mount switches io_uring on.
        for user in users() {
            judge(&Image::new("sandbox"), user, transport);
        }
    }
}

#[test]
fn a_thread_that_serves_can_do_nothing_else() {
    require!(fuse);
    require!(btrfs_progs);
    if !has_getfattr() {
        skip!("no getfattr here");
    }
    each(|image, user, transport| {
        let what = format!("{user:?} {transport}");
        let mount = start(image, user, &format!("transport={transport}"), "");
        let pid = mount.pid();
        for (attempt, answer) in tried(user, &mount, ATTEMPTS) {
            assert_eq!(answer, REFUSED, "{what}: {attempt}");
        }
        assert_threads(pid, "NoNewPrivs:", |value| value == "1");
        assert_threads(pid, "Seccomp:", |value| value == "2");
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_threads(pid, set, are_few);
        }
        // It serves all the same: threads are made, and a caller's groups looked up.
        for (attempt, answer) in tried(user, &mount, MEANT) {
            assert_eq!(answer, DONE, "{what}: {attempt}");
        }
        let word = mount.word();
        user.sh(&format!(
            "cd {word}; echo new >new; chmod 6755 new; echo more >>new; sync new; head -c 9000000 \
             /dev/zero >big; cat big big >/dev/null; rm big"
        ));
        let log = end(mount);
        assert!(log.contains("in the sandbox: "), "{what}: {log}");
        assert!(!log.contains("error:") && !log.contains("a ring"), "{what}: {log}");
        assert_clean(&image.path);
        assert_eq!(fine(&["cat", &image.at("/new")]), "new\nmore\n");
    });
}

#[test]
fn without_a_sandbox_it_can_and_the_log_says_so() {
    require!(fuse);
    require!(btrfs_progs);
    if !has_getfattr() {
        skip!("no getfattr here");
    }
    each(|image, user, transport| {
        let what = format!("{user:?} {transport}");
        let mount = start(image, user, &format!("no-sandbox,transport={transport}"), "");
        for (attempt, answer) in tried(user, &mount, ATTEMPTS) {
            assert!(answer != REFUSED && answer != NO_ACCESS, "{what}: {attempt} {answer}");
        }
        assert_threads(mount.pid(), "Seccomp:", |value| value == "0");
        if user == User::Root {
            assert!(of_threads(mount.pid(), "CapEff:").iter().all(|(_, set)| !are_few(set)));
        }
        let log = end(mount);
        assert!(log.contains("no sandbox, as no-sandbox asks"), "{what}: {log}");
    });
    let image = Image::new("no-sandbox");
    let (log, point) = (image.dir.join("log").display().to_string(), Mount::directory(&image));
    let words = [&image.word(), &point.display().to_string()].map(String::clone);
    let ready = fine(&["mount", "--no-sandbox", "--log", &log, &words[0], &words[1]]);
    Mount { point, ready, child: None }.umount();
    assert!(fs::read_to_string(&log).unwrap().contains("no sandbox, as no-sandbox asks"));
}

/// Each part holds for itself, and a mount comes about without it.
#[test]
fn what_the_kernel_lacks_is_left_away_and_told() {
    require!(fuse);
    require!(btrfs_progs);
    if !has_getfattr() {
        skip!("no getfattr here");
    }
    let landlock = fs::read_to_string("/sys/kernel/security/lsm");
    let landlock = landlock.map_or(true, |all| all.contains("landlock"));
    each(|image, user, transport| {
        let begin = |part: &str| {
            start(image, user, &format!("transport={transport}"), &format!("sandbox={part}"))
        };
        let told = |mount: Mount, part: &str| {
            let log = end(mount);
            let line = log.lines().find(|line| line.contains("as far as this kernel has it"));
            assert!(line.is_some_and(|line| line.contains(part)), "{log}");
        };
        let mount = begin("landlock");
        for (attempt, answer) in tried(user, &mount, ATTEMPTS) {
            assert_eq!(answer, REFUSED, "{attempt}");
        }
        told(mount, "Landlock");

        let mount = begin("seccomp");
        if landlock {
            let answers = tried(user, &mount, &["open", "list", "make", "start", "tcp", "unix"]);
            for attempt in ["open", "list", "make", "start", "tcp"] {
                assert_eq!(answers[attempt], NO_ACCESS, "{attempt}");
            }
            assert_eq!(answers["unix"], DONE, "Landlock does not keep from making a socket");
        }
        told(mount, "seccomp");

        let mount = begin("capabilities");
        assert_eq!(tried(user, &mount, &["open"])["open"], REFUSED);
        told(mount, "capabilities");
        assert_clean(&image.path);
    });
}

/// Bytes of the file that the machine's cache has.
fn cached(image: &Image) -> u64 {
    let told = sh(&format!("fincore -bnro RES {}", image.word()));
    text(&told.stdout).trim().parse().unwrap()
}

/// Where the machine's cache forgets what it is told to, which a tmpfs does not.
struct Disk(PathBuf);

impl Disk {
    fn with(image: &mut Image) -> Disk {
        let disk = Disk(image.dir.join("disk"));
        fs::create_dir(&disk.0).unwrap();
        let script =
            "truncate -s 700M ext4; mkfs.ext4 -q ext4; mount -o loop ext4 disk; mv disk.img disk/";
        User::Root.sh(&format!("cd {}; {script}; sync -f disk", image.dir.path().display()));
        image.path = disk.0.join("disk.img");
        disk
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        sh(&format!("umount -l {}", self.0.display()));
    }
}

/// A server whose device fails, and that is asked for what it does seldom, ends as it is to, though each call that is
/// refused would end it (`sandbox=mercy`). What it could not write nobody finds in the machine's cache.
#[test]
fn what_is_seldom_done_needs_no_call_that_is_refused() {
    require!(fuse);
    require!(btrfs_progs);
    if !has_getfattr() || !sh("prlimit --version && fincore --version").status.success() {
        skip!("no getfattr, prlimit or fincore here");
    }
    for (transport, at_once) in TRANSPORTS.into_iter().zip([false, true]) {
        if lacks_fuse(transport) {
            continue;
        }
        let mut image = Image::new("seldom");
        let _disk = Disk::with(&mut image);
        let options = format!("transport={transport}");
        let mut mount = start(&image, User::Root, &options, "sandbox=mercy");
        let word = mount.word();
        assert!(!sh(&format!("getfattr -n user.spinney.try.panic {word}")).status.success());
        let script =
            "head -c 9000000 /dev/zero >big; sync big; rm big; fstrim .; mkdir d; sync -f .";
        User::Root.sh(&format!("cd {word}; {script}"));
        let file = fs::File::create(mount.join("open")).unwrap();
        let limit = format!("prlimit --pid {} --fsize=65536", mount.pid());
        assert!(sh(&limit).status.success());
        assert!(file.sync_all().is_err(), "{transport}");
        // Others read the image meanwhile.
        fs::read(&image.path).unwrap();
        assert!(cached(&image) > 1 << 20);
        signal(mount.pid(), "TERM");
        eventually("detached", || mounted(&mount.point).is_none());
        match at_once {
            true => {
                std::thread::sleep(std::time::Duration::from_millis(1500));
                signal(mount.pid(), "TERM");
            }
            false => drop(file),
        }
        let (code, log) = mount.wait();
        assert_eq!(code, Some(1), "{transport}: {log}");
        assert!(log.contains("panicked"), "{transport}: {log}");
        // Whoever looks at the loop device that goes reads a page or two anew.
        assert!(cached(&image) <= 1 << 16, "{transport}: {} {log}", cached(&image));
    }
}

/// The process beside the server is nobody's to be left behind, and missed where it is gone.
#[test]
fn the_monitor_ends_with_the_server() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("monitor");
    let mut mount = Mount::foreground(&image, "rw");
    assert!(monitor(&image.path).is_some());
    signal(mount.pid(), "KILL");
    mount.wait();
    eventually("the monitor is gone", || monitor(&image.path).is_none());
    drop(mount);

    let mut mount = Mount::foreground(&image, "rw");
    let file = fs::File::create(mount.join("file")).unwrap();
    signal(monitor(&image.path).expect("a monitor"), "KILL");
    file.sync_all().unwrap();
    drop(file);
    signal(mount.pid(), "TERM");
    // Nobody unmounts it for the server, but everybody else may.
    fine(&["umount", &mount.word()]);
    let (code, log) = mount.wait();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("nobody is there to unmount it"), "{log}");
    assert_clean(&image.path);
}
