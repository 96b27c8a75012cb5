//! Still for a while: nothing is written, also not what happens by itself, and then goes on.

mod common;

use btrfs_fs::Options;
use common::{CX, Image, close_and_judge, crashed, new_file, open_image};
use testkit::require;
use vfs::{FileSystem, FsError};

fn is_refused<T>(result: vfs::Result<T>) -> bool {
    matches!(result, Err(FsError::ReadOnly(why)) if why == "remounted read-only")
}

#[test]
fn nothing_is_written_until_it_is_writable_again() {
    require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let kept = new_file(&fs, "kept", &[7; 100_000]);
    let gone = new_file(&fs, "gone", &[8; 1_000_000]);
    let root = fs.root();
    fs.unlink(&CX, root, b"gone").unwrap();
    fs.still().unwrap();
    assert!(fs.is_still());
    let before = std::fs::read(&image.path).unwrap();
    // Its last user goes late: it waits.
    fs.forget(gone, 1);
    assert!(is_refused(fs.write(&CX, kept, 0, b"x", Default::default())));
    assert!(is_refused(fs.mkdir(&CX, root, b"d", 0o755)));
    assert!(is_refused(fs.unlink(&CX, root, b"kept")));
    assert!(is_refused(fs.setxattr(&CX, kept, b"user.a", b"b", vfs::XattrMode::Set)));
    assert!(is_refused(fs.trim(&CX, 0, u64::MAX, 0)));
    fs.fsync(kept, false).unwrap();
    fs.sync().unwrap();
    assert!(std::fs::read(&image.path).unwrap() == before, "the image changed");
    // As others find it now.
    let copy = crashed(&image, "now");
    testkit::oracle::assert_clean(&copy);
    let now = open_image(&copy, Options { read_only: true, ..Options::default() });
    assert!(now.lookup(&CX, now.root(), b"gone").is_err());
    drop(now);
    let free = |fs: &btrfs_fs::BtrfsFs| fs.statfs().unwrap().blocks_free;
    let waiting = free(&fs);
    fs.writable_again();
    fs.sync().unwrap();
    assert!(free(&fs) > waiting, "what waited is erased");
    fs.write(&CX, kept, 0, b"x", Default::default()).unwrap();
    close_and_judge(&image, fs);
}

/// Closed while still: not a byte is written, and the next mount erases what waited.
#[test]
fn closing_writes_nothing_either() {
    require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let gone = new_file(&fs, "gone", &[8; 1_000_000]);
    fs.unlink(&CX, fs.root(), b"gone").unwrap();
    fs.still().unwrap();
    let before = std::fs::read(&image.path).unwrap();
    fs.forget(gone, 1);
    fs.destroy().unwrap();
    drop(fs);
    assert!(std::fs::read(&image.path).unwrap() == before, "the image changed");
    let fs = image.open();
    new_file(&fs, "new", b"new");
    close_and_judge(&image, fs);
}

/// A read that finds a bad copy repairs it, but not then.
#[test]
fn bad_copies_stay_as_they_are() {
    require!(btrfs_progs);
    let image = Image::new(256 << 20, &["-d", "dup"]);
    let fs = image.open();
    let file = new_file(&fs, "file", &[7; 4096]);
    fs.still().unwrap();
    let mut bytes = std::fs::read(&image.path).unwrap();
    let at = bytes.windows(4096).position(|w| w == [7; 4096]).expect("the first copy");
    bytes[at] = 8;
    std::fs::write(&image.path, &bytes).unwrap();
    let mut content = [0; 4096];
    assert_eq!(fs.read(file, 0, &mut content).unwrap(), 4096);
    assert_eq!(content, [7; 4096]);
    assert!(std::fs::read(&image.path).unwrap() == bytes, "the image changed");
    fs.writable_again();
    fs.read(file, 0, &mut content).unwrap();
    assert_eq!(std::fs::read(&image.path).unwrap()[at], 7, "and now it is repaired");
    close_and_judge(&image, fs);
}
