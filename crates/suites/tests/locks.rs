//! Locks on files of a mount: `flock` and `fcntl` keep two processes apart, and are gone
//! when their holder closes the file or dies.
//!
//! The other process is this program again, as the ignored test `holder`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Error, Write, stdin};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use suites::{Volume, transports};
use testkit::skip;

/// Kind of lock and path, for the holder.
const TASK: &str = "SPINNEY_LOCK";
/// Bytes that holders lock with `fcntl`.
const RANGE: (i64, i64) = (100, 50);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Flock,
    Fcntl,
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn record(kind: libc::c_int, (start, len): (i64, i64)) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Takes the lock, or tells at once why not.
fn lock(file: &File, kind: Kind, exclusive: bool, range: (i64, i64)) -> Result<(), i32> {
    let fd = file.as_raw_fd();
    let done = match kind {
        Kind::Flock => {
            let how = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
            // SAFETY: `flock` takes a descriptor, which `file` owns, and a number.
            unsafe { libc::flock(fd, how | libc::LOCK_NB) }
        }
        Kind::Fcntl => {
            let lock = record(if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }, range);
            // SAFETY: F_SETLK reads the record behind the pointer, which outlives the call.
            unsafe { libc::fcntl(fd, libc::F_SETLK, &lock) }
        }
    };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error().raw_os_error().unwrap_or(0)) }
}

/// Who holds what is in the way of an exclusive lock.
fn in_the_way(file: &File, range: (i64, i64)) -> Option<u32> {
    let mut lock = record(libc::F_WRLCK, range);
    // SAFETY: F_GETLK reads and writes the record behind the pointer, which outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
    (i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid as u32)
}

/// Holds a lock until a line comes, then closes the file and waits for the end of its input.
#[test]
#[ignore = "a part of the other tests, which start it in a process of its own"]
fn holder() {
    let Ok(task) = std::env::var(TASK) else { skip!("no other test has started this one") };
    let (kind, path) = task.split_once(':').unwrap();
    let kind = if kind == "flock" { Kind::Flock } else { Kind::Fcntl };
    let file = open(Path::new(path));
    lock(&file, kind, true, RANGE).unwrap();
    println!("\nheld");
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    drop(file);
    println!("\nclosed");
    stdin().read_line(&mut line).unwrap();
}

struct Holder {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Holder {
    /// Returns when the lock is held.
    fn new(path: &Path, kind: Kind) -> Holder {
        let word = if kind == Kind::Flock { "flock" } else { "fcntl" };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holder", "--ignored", "--nocapture"])
            .env(TASK, format!("{word}:{}", path.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Holder { child, output };
        holder.until("held");
        holder
    }

    fn until(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the holder ended: no {word}");
        }
    }

    fn close(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.until("closed");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn exclude_each_other(path: &Path, kind: Kind) {
    let file = open(path);
    let mut holder = Holder::new(path, kind);
    for exclusive in [true, false] {
        assert_eq!(lock(&file, kind, exclusive, RANGE), Err(libc::EAGAIN), "{kind:?}");
    }
    if kind == Kind::Fcntl {
        assert_eq!(in_the_way(&file, RANGE), Some(holder.child.id()));
        // Beside the range there is nothing in the way.
        assert_eq!(in_the_way(&file, (150, 0)), None);
        assert_eq!(lock(&file, kind, true, (150, 0)), Ok(()));
    }
    // Released by close, while its holder lives on.
    holder.close();
    assert_eq!(lock(&file, kind, true, RANGE), Ok(()), "{kind:?} after close");
    drop(file);
    drop(holder);
    // Released by death.
    let holder = Holder::new(path, kind);
    let file = open(path);
    assert_eq!(lock(&file, kind, true, RANGE), Err(libc::EAGAIN), "{kind:?}");
    drop(holder);
    assert_eq!(lock(&file, kind, true, RANGE), Ok(()), "{kind:?} after a kill");
}

#[test]
fn locks_keep_processes_apart() {
    for transport in transports() {
        let volume = Volume::new("locks", 256 << 20);
        let mount = volume.mount(transport, Duration::from_secs(120));
        let path = mount.join("file");
        std::fs::write(&path, vec![1; 300]).unwrap();
        for kind in [Kind::Flock, Kind::Fcntl] {
            exclude_each_other(&path, kind);
        }
        let seen = mount.unmount_with_tree();
        volume.judge(&seen);
    }
}
