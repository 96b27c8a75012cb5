//! Requests to defragment through a mount are understood as by the kernel.

use crate::common;
use btrfs_fs::control::wire;
use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use common::{CX, Image, close_and_judge, errno, new_file, stat};
use vfs::{Asker, Control, FallocateMode, FileSystem, Ino, Who, WriteFlags};

/// The superuser, through a mount.
struct Root;

impl Asker for Root {
    fn who(&self) -> vfs::Result<Who> {
        Ok(Who {
            uid: 0,
            gid: 0,
            unknown: false,
            groups: Vec::new(),
            exempt: vfs::Exempt::ALL,
            umask: 0o22,
            admin: true,
        })
    }

    fn fetch(&self, _: Ino) -> vfs::Result<()> {
        Ok(())
    }
}

const SECTORS: u64 = 32;
const SIZE: u64 = SECTORS * 4096;
const COMPRESS: u64 = 1;
const NOCOMPRESS: u64 = 8;

/// A file in as many extents as it has sectors.
fn fragmented(fs: &BtrfsFs, name: &str) -> Ino {
    let (ino, other) = (new_file(fs, name, &[]), new_file(fs, &format!("{name}-other"), &[]));
    for at in (0..SIZE).step_by(4096) {
        for (file, byte) in [(ino, 7), (other, 8)] {
            fs.write(&CX, file, at, &[byte; 4096], Default::default()).expect("write");
            fs.fsync(file, false).expect("fsync");
        }
    }
    ino
}

fn extents(fs: &BtrfsFs, ino: Ino) -> usize {
    fs.sync().expect("sync");
    fs.stored(ino).expect("it is a file").len()
}

fn asked(fs: &BtrfsFs, ino: Ino, (start, len): (u64, u64), flags: u64) -> i32 {
    let mut record = [start, len, flags, 0].map(u64::to_le_bytes).concat();
    record.resize(48, 0);
    errno(fs.control(&Root, ino, wire::DEFRAG_RANGE, &record))
}

#[test]
fn a_record_of_zeros_asks_for_all() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    for (name, range, left) in [
        ("zeros", (0, 0), 1),
        ("overflow", (4096, u64::MAX), 2),
        ("half", (0, SIZE / 2), SECTORS as usize / 2 + 1),
    ] {
        let ino = fragmented(&fs, name);
        assert_eq!(extents(&fs, ino), SECTORS as usize);
        assert_eq!(asked(&fs, ino, range, 0), 0);
        assert_eq!(extents(&fs, ino), left, "{name}");
        assert_eq!(asked(&fs, ino, (SIZE, 0), 0), libc::EINVAL);
        assert_eq!(asked(&fs, ino, (SIZE - 1, 0), 0), 0);
    }
    let empty = new_file(&fs, "empty", &[]);
    assert_eq!(asked(&fs, empty, (5, 0), 0), 0);
    close_and_judge(&image, fs);
}

/// Whatever the mount compresses.
#[test]
fn what_is_to_be_plain_is_stored_as_it_is() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let method = Method::parse("zstd").expect("a method");
    let compress = Some(Compress { method, force: false });
    let fs = image.open_with(Options { background: false, compress, ..Options::default() });
    let ino = new_file(&fs, "text", &[b'a'; 1 << 20]);
    assert_eq!(extents(&fs, ino), 8);
    let compressed = || stat(&fs, "data.compressed_extents");
    assert_eq!(compressed(), 8);
    assert_eq!(asked(&fs, ino, (0, 0), NOCOMPRESS), 0);
    assert_eq!((extents(&fs, ino), compressed()), (1, 8));
    fs.write(&CX, ino, 0, &[b'b'; 1 << 20], Default::default()).expect("write");
    assert_eq!((extents(&fs, ino), compressed()), (8, 16), "what is written later is compressed");
    close_and_judge(&image, fs);
}

/// What a mount compresses by itself leaves space that was set aside as it is; who asks does not.
#[test]
fn what_lies_in_preallocated_space_is_compressed_when_asked_for() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let method = Method::parse("zstd").expect("a method");
    let compress = Some(Compress { method, force: true });
    let fs = image.open_with(Options { background: false, compress, ..Options::default() });
    let ino = new_file(&fs, "set aside", &[]);
    fs.fallocate(&CX, ino, FallocateMode::KeepSize, 0, 1 << 20).expect("room");
    for at in [0, 512 << 10] {
        fs.write(&CX, ino, at, &[b'a'; 64 << 10], Default::default()).expect("write");
    }
    fs.sync().expect("sync");
    let compressed = || stat(&fs, "data.compressed_extents");
    assert_eq!(compressed(), 0, "it lies in its own space");
    assert_eq!(asked(&fs, ino, (0, 0), COMPRESS), 0);
    assert_eq!(compressed(), 2);
    let mut content = vec![0; 64 << 10];
    assert_eq!(fs.read(ino, 512 << 10, &mut content).expect("read"), 64 << 10);
    assert!(content.iter().all(|byte| *byte == b'a'));
    close_and_judge(&image, fs);
}

/// What is left of the space takes content when the volume has no other.
fn space_takes_content(fs: &BtrfsFs, ino: Ino) {
    fs.sync().expect("sync");
    assert!(!fs.stored(ino).expect("it is a file").is_empty(), "it is in the item");
    let rest = new_file(fs, "rest", &[]);
    let mut at = 0;
    for len in [1 << 20, 4096] {
        while fs.write(&CX, rest, at, &vec![9; len], DIRECT).is_ok() {
            at += len as u64;
        }
    }
    fs.write(&CX, ino, 4096, &[5; 4096], DIRECT).expect("it has space of its own");
    let cached = WriteFlags { cached: true, ..WriteFlags::default() };
    fs.write(&CX, ino, 8192, &[6; 4096], cached).expect("it has space of its own");
    fs.sync().expect("sync");
    let mut content = [0; 3 * 4096];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), content.len());
    assert_eq!(content[..100], [b'a'; 100]);
    assert!(
        [(4096, 5), (8192, 6)].iter().all(|(at, byte)| content[*at..at + 4096] == [*byte; 4096])
    );
}

const DIRECT: WriteFlags =
    WriteFlags { direct: true, cached: false, kill_priv: false, sync: false };

/// Behind an item nothing could be written into the space that the file has.
#[test]
fn the_short_content_of_a_file_with_space_of_its_own_stays_out_of_the_item() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(128 << 20, &["-m", "single"]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let ino = new_file(&fs, "set aside", &[]);
    fs.fallocate(&CX, ino, FallocateMode::KeepSize, 0, 1 << 20).expect("room");
    fs.write(&CX, ino, 0, &[b'a'; 100], Default::default()).expect("write");
    fs.sync().expect("sync");
    assert_eq!(asked(&fs, ino, (0, 0), COMPRESS), 0);
    space_takes_content(&fs, ino);
    close_and_judge(&image, fs);
}

/// Nobody gains by a copy of the same.
#[test]
fn a_lone_short_extent_that_is_plain_stays_where_it_is() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(128 << 20, &["-m", "single"]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let ino = new_file(&fs, "short", &[b'a'; 4096]);
    let at = || {
        fs.sync().expect("sync");
        format!("{:?}", fs.stored(ino).expect("it is a file"))
    };
    let before = at();
    assert_eq!(asked(&fs, ino, (0, 0), NOCOMPRESS), 0);
    assert_eq!(at(), before);
    close_and_judge(&image, fs);
}
