//! What a mount makes of superblock copies that a killed server left unequal: one that
//! writes makes them equal even if it has nothing to commit, any other touches nothing.

use crate::common;
use blockdev::BlockDevice;
use btrfs_fs::{BtrfsFs, Options, Subvol};
use common::{CX, Image, judge, open_device, snapshot, stat};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use testkit::oracle;
use vfs::{FileKind, FileSystem};

const FIRST: u64 = 64 << 10;
const SECOND: u64 = 64 << 20;
const SIZE: usize = 4096;

fn copy_at(path: &Path, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    std::fs::File::open(path).and_then(|f| f.read_exact_at(&mut bytes, at)).unwrap();
    bytes
}

/// Behind the checksum and without what a copy says of its own place.
fn said(path: &Path, at: u64) -> Vec<u8> {
    let mut bytes = copy_at(path, at).split_off(32);
    bytes[16..24].fill(0);
    bytes
}

/// A volume whose second superblock copy is of the commit before the last.
fn killed_between_the_copies() -> Image {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let older = copy_at(&image.path, SECOND);
    fs.mknod(&CX, fs.root(), b"new", FileKind::File, 0o644, 0).unwrap();
    fs.destroy().unwrap();
    drop(fs);
    assert!(said(&image.path, FIRST) == said(&image.path, SECOND), "a commit writes both");
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    file.write_all_at(&older, SECOND).unwrap();
    assert!(said(&image.path, FIRST) != said(&image.path, SECOND));
    image
}

fn scrub(image: &Path) -> Result<(), String> {
    oracle::with_kernel(image, "noatime", oracle::scrub).unwrap()
}

#[test]
fn a_mount_that_has_nothing_to_commit_makes_the_copies_equal() {
    testkit::require!(kernel_btrfs);
    let image = killed_between_the_copies();
    let before = copy_at(&image.path, FIRST);
    let copy = image.path.with_extension("before");
    std::fs::copy(&image.path, &copy).unwrap();
    let why = scrub(&copy).expect_err("the kernel minds the older copy");
    assert!(why.contains("super_errors"), "{why}");

    let fs = image.open();
    assert_eq!(stat(&fs, "device.superblock_repairs"), 1);
    let tree = snapshot(&fs);
    fs.destroy().unwrap();
    assert_eq!(stat(&fs, "commit.count"), 0, "another test than its name says");
    drop(fs);
    assert!(copy_at(&image.path, FIRST) == before, "the first copy was right");
    assert!(said(&image.path, FIRST) == said(&image.path, SECOND));
    judge(&image.path, &tree);
}

#[test]
fn a_mount_that_does_not_write_or_is_refused_changes_nothing() {
    testkit::require!(kernel_btrfs);
    let image = killed_between_the_copies();
    let before = std::fs::read(&image.path).unwrap();
    let unchanged = || std::fs::read(&image.path).unwrap() == before;
    let base = || Options { background: false, ..Options::default() };

    let fs = image.open_with(Options { read_only: true, ..base() });
    snapshot(&fs);
    fs.destroy().unwrap();
    drop(fs);
    assert!(unchanged(), "read-only");

    let none = Options { subvol: Subvol::Path(b"none".to_vec()), ..base() };
    let device: Arc<dyn BlockDevice> = Arc::new(open_device(&image.path, false));
    let refused = BtrfsFs::open_device(device, none).map(|_| ());
    assert!(refused.is_err(), "there is no such subvolume");
    assert!(unchanged(), "refused");
}

/// The copy that is put right leads to the log of what was fsynced since the last commit, as the others do.
#[test]
fn a_scrub_that_mends_a_copy_keeps_what_was_fsynced() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    common::new_file(&fs, "committed", b"one");
    fs.sync().unwrap();
    let logged = common::new_file(&fs, "logged", b"two");
    fs.fsync(logged, false).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    file.write_all_at(&[0x5a; 8], FIRST + 1000).unwrap();
    fs.start_scrub(false).unwrap();
    while fs.scrub_status().unwrap().state == btrfs_fs::ScrubState::Running {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(fs.scrub_status().unwrap().done.super_errors, 1);
    assert!(said(&image.path, FIRST) == said(&image.path, SECOND), "it is put right");
    let crashed = common::crashed(&image, "crashed.img");
    let again = BtrfsFs::open_device(Arc::new(open_device(&crashed, false)), Options::default());
    let again = again.unwrap();
    for (name, content) in [("committed", b"one"), ("logged", b"two")] {
        let entry = again.lookup(&CX, again.root(), name.as_bytes()).expect(name);
        let mut found = [0; 3];
        again.read(entry.attr.ino, 0, &mut found).unwrap();
        assert_eq!(&found, content, "{name}");
    }
    again.destroy().unwrap();
}

/// Power fails while the kernel writes the copies of a commit, all at once: a spare one has it, the first does not.
struct HalfCommitted {
    image: Image,
    /// What the volume has by the first one, and by the spare one.
    trees: [testkit::compare::TreeSnapshot; 2],
    copies: [Vec<u8>; 2],
}

fn shell(mount: &oracle::KernelMount, words: &str) {
    let script = format!("cd '{}' && {words}", mount.path().display());
    oracle::sh("sh", &["-c", &script]).expect("a script");
}

fn put(path: &Path, copies: [&[u8]; 2]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for (copy, at) in copies.into_iter().zip([FIRST, SECOND]) {
        file.write_all_at(copy, at).unwrap();
    }
}

fn generation(copy: &[u8]) -> u64 {
    u64::from_le_bytes(copy[72..80].try_into().unwrap())
}

/// Nothing is written over but by commits.
const STILL: &str = "noatime,nodiscard,commit=300";

fn seen(image: &Image) -> testkit::compare::TreeSnapshot {
    snapshot(&image.open_with(Options { read_only: true, ..Options::default() }))
}

fn half_committed() -> HalfCommitted {
    let image = Image::new(512 << 20, &[]);
    // The chunks that are wanted are there, so that none is made later in a commit of its own.
    let files = "head -c 60000000 /dev/zero >room; sync -f .; rm room; sync -f .; \
                 for i in $(seq 300); do head -c 3000 /dev/urandom >early-$i; done; sync -f .";
    oracle::with_kernel(&image.path, STILL, |mount| shell(mount, files)).unwrap();
    let (first, before) = (copy_at(&image.path, FIRST), seen(&image));
    let mount = oracle::KernelMount::new(&image.path, STILL).unwrap();
    let files = "for i in $(seq 20); do head -c 90000 /dev/urandom >late-$i; done; rm early-?; \
                 sync -f .";
    shell(&mount, files);
    let cut = image.copy("cut.img");
    mount.unmount().unwrap();
    let (spare, behind) = (copy_at(&cut.path, SECOND), seen(&cut));
    let ahead = generation(&spare) - generation(&first);
    assert_eq!(ahead, 1, "commits: another test than its name says");
    put(&cut.path, [&first, &spare]);
    HalfCommitted { image: cut, trees: [before, behind], copies: [first, spare] }
}

#[test]
fn a_commit_that_a_spare_copy_alone_has_counts_while_all_of_it_is_there() {
    testkit::require!(kernel_btrfs);
    let cut = half_committed();
    let fs = cut.image.open();
    common::assert_same(&cut.trees[1], &snapshot(&fs));
    fs.destroy().unwrap();
    drop(fs);
    judge(&cut.image.path, &cut.trees[1]);
}

/// The kernel has mounted the volume since, by the first copy, and written; no commit has come to its end. Of nodes
/// this says nothing: those of the next commit may all lie where those of the lost one did, and are a whole volume.
fn gone_on_with(cut: &HalfCommitted) -> Image {
    let content = "for i in $(seq 60); do dd if=/dev/zero of=new-$i bs=92k count=1 oflag=direct \
                   status=none; done";
    let mount = oracle::KernelMount::new(&cut.image.path, STILL).unwrap();
    shell(&mount, content);
    let again = cut.image.copy("again.img");
    mount.unmount().unwrap();
    assert!(copy_at(&again.path, FIRST) == cut.copies[0], "nothing was committed");
    put(&again.path, [&cut.copies[0], &cut.copies[1]]);
    again
}

#[test]
fn a_spare_copy_whose_commit_is_written_over_does_not_take_the_first_ones_place() {
    testkit::require!(kernel_btrfs);
    let cut = half_committed();
    let again = gone_on_with(&cut);
    let fs = again.open();
    let found = snapshot(&fs);
    fs.destroy().unwrap();
    drop(fs);
    common::assert_same(&cut.trees[0], &found);
    assert_eq!(generation(&copy_at(&again.path, SECOND)), generation(&cut.copies[0]));
    judge(&again.path, &cut.trees[0]);
}

/// Changes a byte of content, which must be in the image once.
fn flip(path: &Path, content: &[u8]) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut found = 0;
    let mut sector = [0; 4096];
    for at in (0..file.metadata().unwrap().len()).step_by(sector.len()) {
        file.read_exact_at(&mut sector, at).unwrap();
        if sector.starts_with(content) {
            file.write_all_at(&[!content[0]], at).unwrap();
            found += 1;
        }
    }
    assert_eq!(found, 1, "content that lies in one place");
}

/// As little as one bad sector of a file in the first copy's last commit is no reason to go by the other.
#[test]
fn nor_does_it_where_a_file_of_the_first_one_is_damaged() {
    testkit::require!(kernel_btrfs);
    let cut = half_committed();
    let again = gone_on_with(&cut);
    let content = {
        let fs = cut.image.open_with(Options { read_only: true, ..Options::default() });
        common::read(&fs, fs.root(), "early-200")
    };
    flip(&again.path, &content);
    let fs = again.open();
    assert!(common::find(&fs, fs.root(), "late-7").is_none(), "of the commit that is written over");
    common::read(&fs, fs.root(), "early-201");
    fs.destroy().unwrap();
    drop(fs);
    assert_eq!(generation(&copy_at(&again.path, SECOND)), generation(&cut.copies[0]));
}
