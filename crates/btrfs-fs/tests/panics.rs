//! Whoever panics with something half done turns the volume read-only: no commit has half of it, nobody hears that lost
//! content is durable, and nobody waits for a thread that is gone.

mod common;

use btrfs_fs::{BtrfsFs, Caller, Compress, Delete, Injection, Method, Options, Place};
use common::{CX, Image, assert_sound, find, new_file, read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{FileKind, FileSystem, RenameMode};

/// Panics at this place, once, when it is told to.
struct Armed(Arc<AtomicBool>);

impl Armed {
    fn at(place: Place) -> (Armed, Injection) {
        let armed = Arc::new(AtomicBool::new(false));
        let arm = armed.clone();
        let injection = Injection::at_places(move |now| {
            assert!(now != place || !arm.swap(false, Ordering::SeqCst), "as a test wants it");
        });
        (Armed(armed), injection)
    }

    fn arm(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn panics<T>(&self, work: impl FnOnce() -> T) {
        self.arm();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(work()))).is_err(), "it was asked to");
    }
}

fn is_poisoned(fs: &BtrfsFs) {
    fs.sync().expect_err("something is half done");
    assert!(fs.read_only_reason().is_some_and(|why| why.contains("panicked")));
    fs.destroy().expect_err("nor at the end");
}

/// By a request, and by one that has no other guard than its operation's.
#[test]
fn half_an_operation_is_in_no_commit() {
    testkit::require!(btrfs_progs);
    type Work = fn(&BtrfsFs);
    let rename: Work = |fs| {
        drop(fs.rename(&CX, fs.root(), b"old", fs.root(), b"new", RenameMode::Replace));
    };
    let subvolume: Work = |fs| drop(fs.create_subvolume(&Caller::root(), fs.root(), b"new"));
    for work in [rename, subvolume] {
        let image = Image::new(256 << 20, &[]);
        let (armed, injection) = Armed::at(Place::Edited);
        let fs = image.open_with(Options { background: false, injection, ..Options::default() });
        new_file(&fs, "old", &[5; 9000]);
        fs.sync().expect("commit");
        armed.panics(|| work(&fs));
        is_poisoned(&fs);
        drop(fs);
        assert_sound(&image.path);
        let fs = image.open();
        assert!(read(&fs, fs.root(), "old") == [5; 9000]);
        assert!(find(&fs, fs.root(), "new").is_none());
        fs.destroy().expect("close");
    }
}

/// Returns when a thread has panicked; an error: none did, or nobody was told.
fn wait_until_poisoned(fs: &BtrfsFs) {
    let until = Instant::now() + Duration::from_secs(60);
    while fs.read_only_reason().is_none() {
        assert!(Instant::now() < until, "nobody commits, and nobody knows");
        std::thread::sleep(Duration::from_millis(1));
    }
    is_poisoned(fs);
}

/// Without a commit at work: it looks at what is to be compressed.
#[test]
fn behind_a_panic_of_the_commit_thread_nothing_is_written() {
    const MIB: usize = 1 << 20;
    let image = Image::new(512 << 20, &[]);
    let (armed, injection) = Armed::at(Place::Packs);
    let method = Method::parse("zstd:1").expect("a method");
    let compress = Some(Compress { method, force: true });
    let commit_interval = Duration::from_secs(86_400);
    let options = Options { injection, compress, commit_interval, ..Options::default() };
    let fs = image.open_with(options);
    armed.arm();
    // How many come through before somebody hears of it is nobody's promise.
    let write = |name: u32| {
        let name = name.to_string();
        let made = fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0)?;
        fs.write(&CX, made.attr.ino, 0, &vec![7; MIB], Default::default()).map(drop)
    };
    (0..20).find(|name| write(*name).is_err());
    wait_until_poisoned(&fs);
}

#[test]
fn behind_a_panic_of_the_cleaner_nothing_is_written() {
    let image = Image::new(256 << 20, &[]);
    let (armed, injection) = Armed::at(Place::Sweeps);
    let fs = image.open_with(Options { injection, ..Options::default() });
    let root = Caller::root();
    fs.create_subvolume(&root, fs.root(), b"gone").expect("create");
    fs.sync().expect("commit");
    fs.delete_subvolume(&root, Delete::Name(fs.root(), b"gone")).expect("delete");
    armed.arm();
    fs.sync().expect("it is dead now");
    wait_until_poisoned(&fs);
}
