//! Direct and buffered writes to a device that takes no content, and takes it again: who is told,
//! that the mount goes on, that nothing is lost; beside the kernel's btrfs where it does the same.
//!
//! The device is a sparse image in a small tmpfs, as such and as a loop device. All that belongs
//! to metadata chunks is there before the tmpfs is filled up: so content is refused, nothing else.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use suites::{Mounted, Volume, assert_sound, lacking, transports};
use testkit::oracle::{KernelMount, LoopDevice, run, sh, with_kernel};
use testkit::{require, skip};

const LIMIT: Duration = Duration::from_secs(120);
static OLD: [u8; 1 << 20] = [3; 1 << 20];

/// A tmpfs until dropped.
struct Store {
    point: PathBuf,
}

impl Store {
    /// All that belongs to metadata chunks is there.
    fn new(volume: &Volume, name: &str) -> Store {
        let store = Store::sparse(volume, name);
        let image = store.image();
        for (offset, len) in structure(&image) {
            let (offset, len) = (offset.to_string(), len.to_string());
            sh("fallocate", &["-o", &offset, "-l", &len, &*image.to_string_lossy()]).unwrap();
        }
        store
    }

    /// Only what has been written is there.
    fn sparse(volume: &Volume, name: &str) -> Store {
        let point = volume.beside(name);
        fs::create_dir(&point).unwrap();
        let to = point.to_string_lossy();
        sh("mount", &["-t", "tmpfs", "-o", "size=192m", "tmpfs", &*to]).unwrap();
        let store = Store { point };
        let (from, to) = (volume.image(), store.image());
        sh("cp", &["--sparse=always", &*from.to_string_lossy(), &*to.to_string_lossy()]).unwrap();
        store
    }

    fn image(&self) -> PathBuf {
        self.point.join("image")
    }

    /// Refuses what it has no room for yet.
    fn fill(&self) {
        let filler = File::create(self.point.join("filler")).unwrap();
        let mut at = 0;
        for piece in [1 << 20, 4096] {
            while filler.write_all_at(&vec![1; piece], at).is_ok() {
                at += piece as u64;
            }
        }
    }

    fn mend(&self) {
        fs::remove_file(self.point.join("filler")).unwrap();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let report = run("umount", &["-l", &self.point.to_string_lossy()]);
        if !report.success() {
            eprintln!("{}", report.text());
        }
    }
}

/// Where the chunks lie on the device that hold no content.
fn structure(image: &Path) -> Vec<(u64, u64)> {
    let args = ["inspect-internal", "dump-tree", "-t", "chunk", &*image.to_string_lossy()];
    let text = sh("btrfs", &args).unwrap();
    let number = |line: &str, word: &str| -> Option<u64> {
        let mut words = line.split_whitespace().skip_while(|w| *w != word);
        words.nth(1)?.parse().ok()
    };
    let (mut len, mut content, mut found) = (0, false, Vec::new());
    for line in text.lines() {
        if line.contains(" stripe_len ") {
            len = number(line, "length").unwrap();
            content = line.contains("type DATA");
        }
        if line.trim_start().starts_with("stripe ") && !content {
            found.push((number(line, "offset").unwrap(), len));
        }
    }
    assert!(found.len() >= 2, "{text}");
    found
}

/// Writes with O_DIRECT; the error's number if it fails.
fn direct(path: &Path, offset: u64, byte: u8, len: usize) -> Option<i32> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false);
    let file = options.custom_flags(libc::O_DIRECT).open(path).unwrap();
    let room = vec![byte; len + 4096];
    let aligned = room.as_ptr().align_offset(4096);
    file.write_all_at(&room[aligned..aligned + len], offset).err().map(number)
}

fn number(error: io::Error) -> i32 {
    error.raw_os_error().unwrap()
}

fn asynchronous(dir: &Path) -> bool {
    let file = format!("--filename={}", dir.join("aio").display());
    let args = "--name=x --ioengine=libaio --direct=1 --rw=write --bs=16k --size=256k --iodepth=8";
    let mut args: Vec<&str> = args.split(' ').collect();
    args.push(&file);
    let report = run("fio", &args);
    let text = report.text();
    let refused = text.contains("Input/output error") || text.contains("No space left on device");
    assert!(report.success() || refused, "{text}");
    report.success()
}

fn write_old(root: &Path) {
    fs::write(root.join("old"), OLD).unwrap();
    File::open(root.join("old")).unwrap().sync_all().unwrap();
}

/// What direct writers hear on the device that refuses content.
fn refusals(root: &Path) -> [Option<i32>; 2] {
    assert!(!asynchronous(root));
    let told = [(root.join("new"), 65536), (root.join("old"), 4096)];
    told.map(|(path, len)| direct(&path, 65536, 7, len))
}

fn direct_writers(mount: &Mounted, store: &Store) {
    let root = mount.path();
    write_old(root);
    store.fill();
    for round in 0..2 {
        assert_eq!(refusals(root), [Some(libc::EIO); 2], "{round}");
        assert!(fs::read(root.join("old")).unwrap() == OLD, "{round}");
        assert!(fs::read(root.join("new")).unwrap().is_empty(), "{round}");
        fs::create_dir(root.join(format!("dir{round}"))).unwrap();
        File::open(root).unwrap().sync_all().expect("names are no content");
    }
    store.mend();
    assert_eq!(direct(&root.join("new"), 0, 7, 65536), None);
    assert!(asynchronous(root));
    assert!(fs::read(root.join("new")).unwrap() == [7; 65536]);
    File::open(root.join("new")).unwrap().sync_all().unwrap();
    sh("sync", &["-f", &*root.to_string_lossy()]).unwrap();
}

/// On each transport, on the image and on a loop device of it.
fn on_stores(name: &str, loops: bool, work: impl Fn(&Mounted, &Store)) {
    for transport in transports() {
        let volume = Volume::new(name, 256 << 20);
        let store = Store::new(&volume, "store");
        let device = loops.then(|| LoopDevice::attach(&store.image(), false).unwrap());
        let source = device.as_ref().map_or(store.image(), |device| device.path().to_owned());
        let mounted = volume.mount_from(&source, transport, LIMIT);
        work(&mounted, &store);
        let log = mounted.unmount_with_errors();
        assert!(log.contains("content was not written"), "{log}");
        drop(device);
        assert_sound(&store.image());
        let later = |mount: &KernelMount| fs::read(mount.join("old")).unwrap();
        assert!(with_kernel(&store.image(), "ro", later).unwrap() == OLD);
    }
}

fn installed(program: &str) -> bool {
    run("which", &[program]).success()
}

#[test]
fn direct_writers_to_an_image_are_told() {
    require!(installed("fio"), "no fio");
    on_stores("refused-image", false, direct_writers);
}

#[test]
fn direct_writers_to_a_device_are_told() {
    require!(installed("fio"), "no fio");
    on_stores("refused-device", true, direct_writers);
}

/// The kernel's btrfs tells them as well, or this shows what nobody promises. (It passes on what
/// the device said, which is EIO here: the volume is not full.)
#[test]
fn the_kernel_tells_direct_writers_too() {
    require!(installed("fio"), "no fio");
    if let Some(why) = lacking("classic") {
        skip!("{why}");
    }
    let volume = Volume::new("refused-kernel", 256 << 20);
    let store = Store::new(&volume, "store");
    let mount = KernelMount::new(&store.image(), "noatime").unwrap();
    write_old(mount.path());
    store.fill();
    assert_eq!(refusals(mount.path()), [Some(libc::ENOSPC); 2]);
}

/// `syncfs(2)` of the mount: the error's number.
fn syncfs(root: &Path) -> Option<i32> {
    let dir = File::open(root).unwrap();
    // SAFETY: takes a descriptor, which is open.
    let done = unsafe { libc::syncfs(dir.as_raw_fd()) };
    (done != 0).then(|| number(io::Error::last_os_error()))
}

/// A commit that the device refuses ends the volume. Who asks for a sync is told so once, and
/// from then on that it is read-only; whoever else asked before, as `sync(2)` of any process does.
fn refused_commit(root: &Path, store: &Store) {
    store.fill();
    // More than what has been written of the metadata chunks, and so is there, could take.
    for number in 0..5000 {
        let name = format!("a-directory-with-a-name-of-some-length-{number}");
        if fs::create_dir(root.join(name)).is_err() {
            break;
        }
    }
    let another = run("sync", &["-f", &*root.to_string_lossy()]);
    assert!(another.text().contains("Input/output error"), "{another:?}");
    assert_eq!(
        [(); 3].map(|()| syncfs(root)),
        [Some(libc::EIO), Some(libc::EROFS), Some(libc::EROFS)]
    );
    assert_eq!(fs::create_dir(root.join("late")).map_err(number), Err(libc::EROFS));
    assert!(fs::read(root.join("old")).unwrap() == OLD, "what was there is read");
}

#[test]
fn syncfs_tells_of_a_refused_commit_once() {
    for transport in transports() {
        let volume = Volume::new("refused-commit", 256 << 20);
        let store = Store::sparse(&volume, "store");
        let mounted = volume.mount_from(&store.image(), transport, LIMIT);
        write_old(mounted.path());
        sh("sync", &["-f", &*mounted.path().to_string_lossy()]).unwrap();
        refused_commit(mounted.path(), &store);
        let (program, root) = (suites::spinney().display().to_string(), mounted.path().to_owned());
        let report = run(&program, &["umount", &*root.to_string_lossy()]);
        assert!(
            !report.success() && report.text().contains("closing the volume failed"),
            "{report:?}"
        );
        assert!(mounted.log().contains("the volume turns read-only"), "{}", mounted.log());
        drop(mounted);
        store.mend();
        assert_sound(&store.image());
        let later = |mount: &KernelMount| fs::read(mount.join("old")).unwrap();
        assert!(with_kernel(&store.image(), "ro", later).unwrap() == OLD);
    }
}

/// Nothing of what was buffered is dropped: it is told, and it lands once it can.
fn buffered_writer(mount: &Mounted, store: &Store, len: usize) {
    let root = mount.path();
    write_old(root);
    store.fill();
    let file = File::create(root.join("new")).unwrap();
    file.write_all_at(&vec![7; len], 0).unwrap();
    for _ in 0..3 {
        assert_eq!(file.sync_all().map_err(number), Err(libc::EIO));
        fs::create_dir(root.join("dir")).unwrap();
        fs::remove_dir(root.join("dir")).unwrap();
    }
    store.mend();
    // It hears of the background's tries, if there were some, one of which may end just now.
    let heard = (0..3).find(|_| file.sync_all().is_ok());
    assert!(heard.is_some(), "it does not land");
    assert!(fs::read(root.join("new")).unwrap() == vec![7; len]);
    let _ = run("sync", &["-f", &*root.to_string_lossy()]);
    sh("sync", &["-f", &*root.to_string_lossy()]).unwrap();
}

#[test]
fn buffered_content_lands_once_an_image_takes_it() {
    // Longer writes would not be buffered.
    on_stores("refused-later", false, |mount, store| buffered_writer(mount, store, 100_000));
}

#[test]
fn buffered_content_lands_once_a_device_takes_it() {
    on_stores("refused-later-device", true, |mount, store| buffered_writer(mount, store, 3 << 20));
}

/// What each opening of a file hears by its fsyncs of content that the device refuses.
struct Listener {
    root: PathBuf,
    file: File,
    heard: Vec<(&'static str, bool)>,
}

impl Listener {
    fn open(&self) -> File {
        File::open(self.root.join("told")).unwrap()
    }

    fn asks(&mut self, who: &'static str, file: &File) {
        self.heard.push((who, file.sync_all().is_err()));
    }

    /// Each time more than there was, since that may lie where there is room.
    fn write(&self, byte: u8) {
        self.file.write_all_at(&vec![byte; 30_000 * usize::from(byte)], 0).unwrap();
    }
}

/// Refused while somebody asks, and while nobody does.
fn openings(root: &Path, store: &Store) -> Vec<(&'static str, bool)> {
    let file = File::create(root.join("told")).unwrap();
    let mut told = Listener { root: root.to_owned(), file, heard: Vec::new() };
    told.write(1);
    told.file.sync_all().unwrap();
    let (file, copy) = (told.file.try_clone().unwrap(), told.file.try_clone().unwrap());
    let (second, third) = (told.open(), told.open());
    store.fill();
    told.write(2);
    told.asks("who wrote", &file);
    store.mend();
    told.asks("who wrote", &file);
    told.asks("its copy", &copy);
    let late = told.open();
    told.asks("opened after it was told", &late);
    let copy = third.try_clone().unwrap();
    told.asks("opened before", &second);
    told.asks("a copy of one opened before", &copy);
    for file in [&third, &second, &late, &file] {
        told.asks("all again", file);
    }

    store.fill();
    told.write(3);
    let _ = syncfs(root);
    store.mend();
    let early = told.open();
    told.asks("opened after it was refused", &early);
    let late = told.open();
    told.asks("opened after it was told", &late);
    for file in [&file, &second, &third, &early, &copy] {
        told.asks("all", file);
    }
    told.heard
}

/// Each opening hears once, and who came when it was told already hears nothing: as on the kernel's
/// btrfs, where opens are messages.
#[test]
fn each_opening_of_a_file_hears_once() {
    let reference = Volume::new("told-kernel", 256 << 20);
    if let Some(why) = lacking("classic") {
        skip!("{why}");
    }
    let store = Store::new(&reference, "store");
    let kernel = KernelMount::new(&store.image(), "noatime,commit=300").unwrap();
    let expected = openings(kernel.path(), &store);
    println!("{expected:?}");
    drop(kernel);
    for (transport, options) in
        transports().iter().flat_map(|t| ["open-errors", "relatime"].map(|options| (*t, options)))
    {
        let volume = Volume::new("told", 256 << 20);
        let store = Store::new(&volume, "store");
        let options = format!("{transport},{options},commit=300");
        let mounted = volume.mount_from(&store.image(), &options, LIMIT);
        assert_eq!(openings(mounted.path(), &store), expected, "{options}");
        assert!(fs::read(mounted.path().join("told")).unwrap() == [3; 90_000]);
        mounted.unmount_with_errors();
        assert_sound(&store.image());
    }
}

/// Where opens are no messages, nobody knows who asks.
#[test]
fn by_default_the_first_fsync_hears() {
    on_stores("told-first", false, |mount, store| {
        write_old(mount.path());
        let heard = openings(mount.path(), store);
        let who: Vec<_> = heard.iter().filter(|(_, heard)| *heard).map(|(who, _)| *who).collect();
        assert_eq!(who, ["who wrote", "opened after it was refused"]);
    });
}
