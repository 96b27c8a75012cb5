//! What a read of a file takes of the device, and what it leaves of the caller's memory.

use crate::common;
use btrfs_fs::BtrfsFs;
use common::kernel::kernel;
use common::{CX, Image, close_and_judge, copies, errno, find};
use std::os::unix::fs::FileExt;
use vfs::{FileKind, FileSystem, Ino};

const SECTOR: usize = 4096;

fn device_reads(fs: &BtrfsFs) -> u64 {
    let stats = fs.stats();
    stats.iter().find(|stat| stat.name == "device.reads").expect("a counter").value
}

/// A file of `len` bytes, none of them 0.
fn file(fs: &BtrfsFs, name: &str, len: usize) -> Ino {
    let root = fs.root();
    let ino = fs.mknod(&CX, root, name.as_bytes(), FileKind::File, 0o644, 0).expect("mknod");
    let content: Vec<u8> = (0..len).map(|n| n as u8 | 1).collect();
    fs.write(&CX, ino.attr.ino, 0, &content, Default::default()).expect("write");
    ino.attr.ino
}

fn is_read(fs: &BtrfsFs, ino: Ino, len: usize, room: usize) {
    let mut buf = vec![0xaa; room];
    let read = fs.read(ino, 0, &mut buf).expect("read");
    assert_eq!(read, len.min(room), "{len} bytes into {room}");
    assert!((0..read).all(|n| buf[n] == n as u8 | 1), "{len} bytes into {room}");
    assert!(buf[read..].iter().all(|byte| matches!(byte, 0 | 0xaa)), "{len} bytes into {room}");
}

/// The last sector of a file, of which the file has a part, comes with those in front of it.
#[test]
fn a_file_is_read_at_once() {
    testkit::require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let lens = [SECTOR - 1, SECTOR, SECTOR + 1, 3 * SECTOR + 700, 9 * SECTOR + 4000];
    let made: Vec<(Ino, usize)> =
        lens.iter().map(|len| (file(&fs, &format!("f{len}"), *len), *len)).collect();
    fs.sync().expect("sync");
    for (ino, len) in made {
        let whole = len.next_multiple_of(SECTOR);
        // Nodes are in memory behind this.
        is_read(&fs, ino, len, whole);
        for room in [whole, whole + 1, whole + 5 * SECTOR] {
            let before = device_reads(&fs);
            is_read(&fs, ino, len, room);
            assert_eq!(device_reads(&fs) - before, 1, "{len} bytes into {room}");
        }
        for room in [1, len / 2, len - 1, len, len + 1] {
            is_read(&fs, ino, len, room);
        }
        let mut part = vec![0xaa; whole];
        let read = fs.read(ino, 100, &mut part).expect("read");
        assert_eq!(read, len - 100);
        assert!((0..read).all(|n| part[n] == (n + 100) as u8 | 1), "{len} from 100 on");
    }
    close_and_judge(&image, fs);
}

/// The volume of a file of so many bytes whose first sector is bad, and the same for the kernel.
fn with_bad_sector(len: usize) -> [Image; 2] {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ino = file(&fs, "file", len);
    fs.sync().expect("sync");
    let first = fs.stored(ino).expect("it is a file")[0].extent;
    fs.destroy().expect("close");
    drop(fs);
    let device = std::fs::File::options().write(true).open(&image.path).expect("open");
    for at in copies(&image, first) {
        device.write_all_at(b"bad", at).expect("write");
    }
    let copy = image.copy("kernel.img");
    [image, copy]
}

/// Nobody asks the device for what is written over in memory, whatever lies there.
#[test]
fn what_lies_below_unwritten_content_is_not_read() {
    testkit::require!(kernel_btrfs);
    let [image, copy] = with_bad_sector(2 * SECTOR);
    kernel(&copy.path, "noatime", |mount| {
        let path = mount.join("file");
        let over = std::fs::File::options().write(true).open(&path).expect("open");
        over.write_all_at(&[9; SECTOR], 0).expect("write");
        let seen = std::fs::read(path).expect("the kernel reads it");
        assert!(seen.len() == 2 * SECTOR && seen[..SECTOR] == [9; SECTOR]);
    });
    let fs = image.open();
    let ino = find(&fs, fs.root(), "file").expect("there");
    fs.write(&CX, ino, 0, &[9; SECTOR], Default::default()).expect("write");
    let mut content = vec![0; 2 * SECTOR];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), content.len());
    let is_right = |n: usize| content[n] == if n < SECTOR { 9 } else { n as u8 | 1 };
    assert!((0..content.len()).all(is_right));
    assert_eq!(fs.device_errors().expect("errors"), [0; 5]);
    fs.destroy().expect("close");
}

/// Also where it is in so many pieces that all is read at once first; what is bad beside them is not hidden.
#[test]
fn what_lies_below_many_pieces_is_nobodys() {
    testkit::require!(btrfs_progs);
    let sectors = 400;
    let [image, _] = with_bad_sector(sectors * SECTOR);
    let fs = image.open();
    let ino = find(&fs, fs.root(), "file").expect("there");
    for n in (0..sectors).step_by(2) {
        fs.write(&CX, ino, (n * SECTOR) as u64, &[9; SECTOR], Default::default()).expect("write");
    }
    let mut content = vec![0; sectors * SECTOR];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), content.len());
    let is_right =
        |n: usize| content[n] == if (n / SECTOR).is_multiple_of(2) { 9 } else { n as u8 | 1 };
    assert!((0..content.len()).all(is_right));
    fs.destroy().expect("close");

    let [image, _] = with_bad_sector(sectors * SECTOR);
    let fs = image.open();
    let ino = find(&fs, fs.root(), "file").expect("there");
    for n in (1..sectors).step_by(2) {
        fs.write(&CX, ino, (n * SECTOR) as u64, &[9; SECTOR], Default::default()).expect("write");
    }
    assert_eq!(errno(fs.read(ino, 0, &mut content)), libc::EIO);
}
