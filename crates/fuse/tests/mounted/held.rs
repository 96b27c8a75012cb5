//! Directories that somebody holds for as long as he likes: he lists them into memory that is a file of
//! a file system of his own, which does not answer. The kernel keeps the directory's lock for him
//! meanwhile, and who takes a name back waits for that. Nobody else is to feel it.

use crate::fixture::{Mount, able, with_transport};
use crate::over_both_transports;
use fuse::Transport;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use vfs::{Context, FileKind, FileSystem, Ino, Observer, WriteFlags};

over_both_transports!(
    who_holds_a_directory_keeps_nothing_else_old,
    many_held_directories_keep_nothing_else_old,
);

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };
/// How long the kernel may take to hear, beside whatever else the machine does; shorter than somebody is held.
const PATIENCE: Duration = Duration::from_secs(6);

fn becomes_true(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The file system of who holds directories. What it has not answered is answered with its end.
struct Silent(Mount);

impl Silent {
    fn new() -> Silent {
        let mount = Mount::new(&with_transport(Transport::Classic)).expect("mount");
        Silent(mount)
    }

    /// Lists `dir` to memory that is there when `let_go` was called. In another process: this one serves, and
    /// cannot wait for itself.
    fn list(&self, dir: &Path) -> Listing {
        let name = dir.file_name().unwrap().to_string_lossy();
        // Of which the kernel has nothing.
        let model = &self.0.spy.model;
        let made = model.mknod(&CX, model.root(), name.as_bytes(), FileKind::File, 0o644, 0);
        model.write(&CX, made.unwrap().attr.ino, 0, &[0; 4096], WriteFlags::default()).unwrap();
        self.0.spy.holds_reads.store(true, Ordering::Relaxed);
        let child =
            Command::new("python3").args(["-c", LIST]).arg(dir).arg(self.0.path(&name)).spawn();
        Listing(child.expect("python3"))
    }

    fn let_go(&self) {
        self.0.spy.holds_reads.store(false, Ordering::Relaxed);
        self.0.spy.reads.release();
    }
}

/// A process that ends when its memory is there.
struct Listing(Child);

impl Drop for Listing {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

const LIST: &str = "\
import ctypes, mmap, os, sys
dir, file = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDONLY)
memory = mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
room = (ctypes.c_char * 4096).from_buffer(memory)
assert ctypes.CDLL(None).getdents64(dir, room, 4096) > 0
";

impl Drop for Silent {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// A directory of which the kernel knows that `new` is not in it.
fn directory(mount: &Mount, name: &str) -> Ino {
    fs::create_dir(mount.path(name)).unwrap();
    assert!(!mount.path(name).join("new").exists());
    ino(mount, name)
}

fn ino(mount: &Mount, name: &str) -> Ino {
    let model = &mount.spy.model;
    let ino = model.lookup(&CX, model.root(), name.as_bytes()).unwrap().attr.ino;
    model.forget(ino, 1);
    ino
}

/// Without a request of the kernel's.
fn make_new(mount: &Mount, dir: Ino) {
    let made = mount.spy.model.mknod(&CX, dir, b"new", FileKind::File, 0o644, 0).unwrap();
    mount.spy.model.forget(made.attr.ino, 1);
    mount.notifier.name_changed(dir, b"new");
}

/// What changes elsewhere is heard of: content, attributes, names.
fn others_hear(mount: &Mount, free: Ino, name: &str) {
    let (file, model) = (ino(mount, "file"), &mount.spy.model);
    make_new(mount, free);
    model.write(&CX, file, 0, b"new content", WriteFlags::default()).unwrap();
    mount.notifier.data_changed(file, 0, 0);
    mount.notifier.attributes_changed(file);
    let path = mount.path("file");
    becomes_true("content is old", || fs::read(&path).unwrap() == b"new content");
    assert_eq!(fs::metadata(&path).unwrap().len(), 11);
    becomes_true("a name is missing", || mount.path(name).join("new").exists());
}

fn who_holds_a_directory_keeps_nothing_else_old(mount: &Mount) {
    held(mount, 1);
}

fn many_held_directories_keep_nothing_else_old(mount: &Mount) {
    held(mount, 7);
}

/// Another test of this machine may have the kernel forget what it knows of names: then it begins anew.
fn held(mount: &Mount, count: usize) {
    let once = |attempt: usize| is_held(mount, count, &format!("{attempt}"));
    assert!((0..4).any(once), "the kernel forgot names each time");
}

/// False if the kernel did not know any more that a name was not there, and so waited for who lists.
fn is_held(mount: &Mount, count: usize, attempt: &str) -> bool {
    let silent = Silent::new();
    let names: Vec<String> = (0..count).map(|n| format!("held-{attempt}-{n}")).collect();
    let dirs: Vec<Ino> = names.iter().map(|name| directory(mount, name)).collect();
    let free = format!("free-{attempt}");
    let free_dir = directory(mount, &free);
    fs::write(mount.path("file"), "old").unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"old");
    let _listing: Vec<Listing> = names.iter().map(|name| silent.list(&mount.path(name))).collect();
    silent.0.spy.reads.wait_for(count);
    dirs.iter().for_each(|dir| make_new(mount, *dir));
    thread::sleep(Duration::from_millis(50));
    let there = |name: &String| mount.path(name).join("new").exists();
    let looking = Instant::now();
    let seen = names.iter().any(there);
    if looking.elapsed() > PATIENCE {
        silent.let_go();
        return false;
    }
    assert!(!seen, "the kernel does not wait for who lists a directory");
    others_hear(mount, free_dir, &free);
    silent.let_go();
    becomes_true("a name is missing where nobody lists any more", || names.iter().all(there));
    true
}

/// Some of its threads may be in the kernel still, which has them wait for who lists a directory.
#[test]
fn a_session_that_is_over_keeps_no_file_system() {
    if !able() {
        return;
    }
    for transport in [Transport::Classic, Transport::Auto] {
        let mut mount = Mount::new(&with_transport(transport)).expect("mount");
        // Until `silent` goes.
        let listing;
        let silent = Silent::new();
        let dir = directory(&mount, "held");
        listing = silent.list(&mount.path("held"));
        silent.0.spy.reads.wait_for(1);
        make_new(&mount, dir);
        becomes_true("nobody waits for who lists", || waiting() > 0);
        // Beside those of other tests.
        thread::sleep(Duration::from_millis(50));
        mount.unmounter().unmount(true).unwrap();
        mount.unmounter().disconnect();
        let ended = mount.join();
        let (held, kept) = (waiting(), Arc::strong_count(&mount.spy));
        silent.let_go();
        drop(listing);
        assert_eq!((ended.is_ok(), kept), (true, 1));
        assert!(held > 0, "none was there any more");
    }
}

/// Threads that tell of names, and wait in the kernel for somebody.
fn waiting() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.filter(|stat| stat.contains("(fuse-names) D ")).count()
}
