//! Whoever panics with something half done turns the volume read-only: no commit has half of it, nobody hears that lost
//! content is durable, and nobody waits for a thread that is gone.

use crate::common;
use blockdev::{BlockDevice, FileDevice};
use btrfs_fs::{BtrfsFs, Caller, Compress, Delete, Injection, Method, Options, Place};
use common::{CX, Image, assert_sound, find, new_file, open_device, read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
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
    for counter in ["volume.failed", "volume.read_only"] {
        let found = fs.stats().into_iter().find(|stat| stat.name == counter);
        assert_eq!(found.map(|stat| stat.value), Some(1), "{counter}");
    }
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

type Work = Box<dyn FnOnce() + Send>;

/// Somebody else does something while the device is flushed.
struct Flushing(FileDevice, Arc<Mutex<Option<Work>>>);

impl BlockDevice for Flushing {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_only(&self) -> bool {
        self.0.read_only()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_medium(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, buf)
    }
    fn flush(&self) -> std::io::Result<()> {
        let work = self.1.lock().unwrap().take();
        work.map_or(Ok(()), |work| {
            std::thread::spawn(work).join().expect("it ends");
            Ok(())
        })
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.discard(offset, len)
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

/// A log write that had begun may have what somebody left half changed.
#[test]
fn behind_a_panic_no_superblock_leads_to_a_log() {
    testkit::require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let (armed, injection) = Armed::at(Place::Edited);
    let work = Arc::new(Mutex::new(None));
    let device = Arc::new(Flushing(open_device(&image.path, false), work.clone()));
    let options = Options { background: false, injection, ..Options::default() };
    let fs = Arc::new(BtrfsFs::open_device(device, options).expect("open"));
    let file = new_file(&*fs, "old", &[5; 9000]);
    fs.sync().expect("commit");
    fs.write(&CX, file, 0, &[6; 9000], Default::default()).expect("write");
    let other = fs.clone();
    let panics: Work = Box::new(move || {
        armed.panics(|| other.mknod(&CX, other.root(), b"new", FileKind::File, 0o644, 0));
    });
    *work.lock().unwrap() = Some(panics);
    fs.fsync(file, false).expect_err("something is half done");
    assert!(work.lock().unwrap().is_none(), "it was flushed");
    is_poisoned(&fs);
    drop(fs);
    assert_sound(&image.path);
    let fs = image.open();
    assert!(read(&fs, fs.root(), "old") == [5; 9000], "as of the last commit");
    fs.destroy().expect("close");
}
