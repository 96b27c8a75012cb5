//! Whoever connects to the socket of a mount's server: its name has no owner and no mode, so anybody
//! can, as often as he likes.

use crate::common;
use common::mount::{Mount, lacks_fuse, place};
use common::{Image, PROGRAM, assert_clean, eventually, fine, sh, text};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use testkit::require;

/// More than the server keeps.
const MANY: usize = 600;
/// What it keeps, and what of that it listens to.
const KEPT: usize = 256;
const HEARD: usize = 32;

/// Connects again and again, and tells for each line it gets how many connections were ended; the
/// last word is an answer to a question on one more.
const STRANGER: &str = r#"
import socket, sys
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0spinney/mount/" + sys.argv[1])
    return s
def has_ended(s):
    try: return s.recv(1) == b""
    except BlockingIOError: return False
    except ConnectionResetError: return True
all = [connect() for _ in range(int(sys.argv[2]))]
for s in all: s.setblocking(False)
for line in sys.stdin:
    if line == "go\n": break
    all = [s for s in all if not has_ended(s)]
    print(len(all), flush=True)
for s in all: s.close()
s = connect()
s.settimeout(20)
s.send(b"status\n")
print(s.recv(100).decode().strip(), flush=True)
"#;

const AS: [&str; 7] =
    ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "python3"];
const SEEN_BY_ALL: &str = "/usr/bin:/bin";

struct Stranger {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stranger {
    fn new(device: &str) -> Stranger {
        let mut command = Command::new("setpriv");
        command.args(&AS[1..]).args(["-c", STRANGER, device, &MANY.to_string()]);
        command
            .env("PATH", SEEN_BY_ALL)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Stranger { child, input, output }
    }

    fn says(&mut self, word: &str) -> String {
        writeln!(self.input, "{word}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

fn count(pid: u32, what: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count()
}

#[test]
fn many_connections_of_strangers_cost_little_and_hold_up_nobody() {
    require!(fuse);
    require!(btrfs_progs);
    if lacks_fuse("classic") {
        return;
    }
    let program = format!("cd / && PATH={SEEN_BY_ALL} {} -c ''", AS.join(" "));
    if !sh(&program).status.success() {
        testkit::skip!("no setpriv here, or no python3 for everybody");
    }
    let image = Image::new("strangers");
    let mount = Mount::foreground(&image, "rw,allow_other");
    let server = mount.pid();
    let device = fs::metadata(&mount.point).unwrap().dev();
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    let before = (count(server, "fd"), count(server, "task"));
    let mut stranger = Stranger::new(&device);
    eventually("the others are sent away", || {
        let left: usize = stranger.says("?").parse().unwrap();
        assert!(left >= KEPT, "{left} are left");
        left == KEPT
    });
    let more = (count(server, "fd") - before.0, count(server, "task") - before.1);
    println!("{more:?} descriptors and threads more");
    assert!(more.0 <= KEPT + HEARD + 8 && more.1 <= HEARD + 4, "{more:?}");
    // Who may ask is answered all the same, for as long as they stay.
    for options in ["remount,ro", "remount,rw"] {
        assert_eq!(fine(&["mount", "-o", options, &mount.word()]), "");
    }
    fs::write(mount.join("x"), "x").unwrap();
    // And they themselves, where fewer of them are connected.
    assert_eq!(stranger.says("go"), "rw");
    drop(stranger.input);
    assert!(stranger.child.wait().unwrap().success());
    eventually("they are forgotten", || count(server, "fd") <= before.0 + 4);
    mount.umount();
    assert_clean(&image.path);
    assert_eq!(fine(&["cat", &image.at("/x")]), "x");
}

/// Takes the abstract name of a mount that is to come, and keeps it until its input ends.
const SQUATTER: &str = r#"
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind("\0spinney/mount/" + sys.argv[1])
s.listen(1)
print("has it", flush=True)
sys.stdin.read()
"#;

/// He kept everybody from remounting it, from a second mount and from waiting for its end.
#[test]
fn a_stranger_has_the_name_of_roots_mount_before_it_comes() {
    require!(fuse);
    require!(btrfs_progs);
    let program = format!("cd / && PATH={SEEN_BY_ALL} {} -c ''", AS.join(" "));
    if !sh(&program).status.success() {
        testkit::skip!("no setpriv here, or no python3 for everybody");
    }
    let image = Image::new("strangers-name");
    let made = sh(&format!("losetup --find --show {}", image.word()));
    if !made.status.success() {
        testkit::skip!("no loop device here");
    }
    let device = text(&made.stdout).trim().to_owned();
    let number = fs::metadata(&device).unwrap().rdev();
    let number = format!("{}:{}", libc::major(number), libc::minor(number));
    let mut command = Command::new("setpriv");
    command.args(&AS[1..]).args(["-c", SQUATTER, &number]).env("PATH", SEEN_BY_ALL);
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut squatter = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(squatter.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "has it\n");
    let ((point, word), (_, second)) = (place(&image, "point"), place(&image, "second"));
    fine(&["mount", "--log", &image.dir.join("log").display().to_string(), &device, &word]);
    let found = fs::metadata(&point).unwrap().dev();
    assert_eq!(format!("{}:{}", libc::major(found), libc::minor(found)), number);
    for options in ["remount,ro", "remount,rw"] {
        assert_eq!(fine(&["mount", "-o", options, &word]), "");
    }
    fine(&["mount", &device, &second]);
    fs::write(point.join("x"), "x").unwrap();
    fine(&["umount", &second, &word]);
    assert_eq!(fine(&["cat", &format!("{device}:/x")]), "x");
    drop(squatter.stdin.take());
    assert!(squatter.wait().unwrap().success());
    assert!(sh(&format!("losetup --detach {device}")).status.success());
    assert_clean(&image.path);
}

/// It is made by whichever mount is first, and stays.
#[test]
fn the_directory_of_roots_sockets_is_open_to_all_whatever_the_umask() {
    require!(fuse);
    if !sh("unshare -m true").status.success() {
        testkit::skip!("no mount namespaces here");
    }
    let image = Image::new("strangers-umask");
    let (_, word) = place(&image, "point");
    // A directory of its own: the machine's is in use.
    let script = format!(
        "mount -t tmpfs none /run && umask 077 && {PROGRAM} mount --log /dev/null {} {word} >&2 &&
         stat -c %a /run/spinney && {PROGRAM} umount {word}",
        image.word()
    );
    let output = sh(&format!("unshare -m sh -c '{script}'"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "755\n");
}
