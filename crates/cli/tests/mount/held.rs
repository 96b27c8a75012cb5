//! The end of a mount in which somebody holds a directory for as long as he likes: he lists it into memory that is a file of
//! a file system that does not answer. A thread of the server's that tells the kernel of a name there does not end meanwhile, also
//! where the process does, and keeps open what that has open.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse, mounted, signal};
use common::{Image, eventually, fine};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use testkit::require;

/// What comes so soon behind a signal belongs to it; more than `mount/signals.rs` says.
const BESIDE: Duration = Duration::from_millis(1500);

const LIST: &str = "\
import ctypes, mmap, os, sys
dir, file = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDONLY)
memory = mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
room = (ctypes.c_char * 4096).from_buffer(memory)
print('ready', flush=True)
sys.stdin.readline()
assert ctypes.CDLL(None).getdents64(dir, room, 4096) > 0
";

/// Lists, and cannot go on until the server of its memory does.
struct Holding {
    silent: u32,
    child: Child,
    told: BufReader<ChildStdout>,
}

impl Holding {
    /// `silent` serves a file `memory` of which the kernel has nothing.
    fn new(silent: &Mount, mount: &Mount, dir: &str) -> Holding {
        let mut command = Command::new("python3");
        command.args(["-c", LIST]).arg(mount.join(dir)).arg(silent.join("memory"));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("python3");
        let told = BufReader::new(child.stdout.take().unwrap());
        let mut holding = Holding { silent: silent.pid(), child, told };
        assert_eq!(holding.says(), "ready\n");
        signal(silent.pid(), "STOP");
        holding.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        // From then on it has the directory's lock.
        let call = format!("/proc/{}/syscall", holding.child.id());
        let lists = format!("{} ", libc::SYS_getdents64);
        eventually("it lists", || fs::read_to_string(&call).is_ok_and(|c| c.starts_with(&lists)));
        holding
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line
    }

    fn goes_on(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        signal(self.silent, "CONT");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a thread that tells of names waits in the kernel for somebody.
fn is_kept(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.any(|stat| stat.contains("(fuse-names) D "))
}

/// The server of `memory`.
fn silent(image: &Image) -> Mount {
    let mount = || Mount::foreground(image, "transport=classic,plain");
    let silent = mount();
    fs::write(silent.join("memory"), [0; 4096]).unwrap();
    silent.umount();
    mount()
}

/// Two signals end a mount without waiting for open files: whoever has some hears errors.
#[test]
fn a_forced_end_beside_a_held_directory_is_one() {
    require!(fuse);
    for transport in TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        for way in ["", ",plain"] {
            forced(&format!("transport={transport}{way}"));
        }
    }
}

fn forced(options: &str) {
    let (image, other) = (Image::new("held"), Image::new("silent"));
    let silent = silent(&other);
    let mut mount = Mount::foreground(&image, options);
    fs::create_dir(mount.join("dir")).unwrap();
    let mut file = File::create(mount.join("open")).unwrap();
    file.write_all(b"before").unwrap();
    let mut holding = Holding::new(&silent, &mount, "dir");
    fine(&["subvolume", "create", &mount.join("dir/new").display().to_string()]);
    eventually("a thread is kept", || is_kept(mount.pid()));
    signal(mount.pid(), "TERM");
    eventually("detached", || mounted(&mount.point).is_none());
    thread::sleep(BESIDE);
    signal(mount.pid(), "TERM");
    // Until then the volume answers, that it is closed.
    let stat = format!("/proc/{}/stat", mount.pid());
    eventually("over", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")));
    let (tell, told) = channel();
    thread::spawn(move || {
        while file.write_all(b"lost").and(file.sync_all()).is_ok() {}
        tell.send(())
    });
    let refused = told.recv_timeout(Duration::from_secs(10));
    let held = !holding.goes_on() && is_kept(mount.pid());
    drop(holding);
    assert!(held, "{options}: nobody held it");
    assert_eq!(refused, Ok(()), "{options}: who has a file open hears nothing");
    let (code, log) = mount.wait();
    assert_eq!(code, Some(1), "{log}");
    assert!(fine(&["cat", &image.at("/open")]).starts_with("before"));
    silent.umount();
}
