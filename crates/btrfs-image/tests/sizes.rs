//! Files of this machine that do not have the size that they tell, or no more: what can be read goes into the volume.

mod common;

use btrfs_image::copy::{CopyOptions, Event, import_content, import_tree};
use common::*;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::RefFs;
use vfs::{Context, FileKind, FileSystem};

const PIECE: u64 = btrfs_image::copy::BUFFER as u64;

/// What `f` in the volume has, whole.
fn content(volume: &RefFs) -> Vec<u8> {
    let entry = volume.lookup(&Context::default(), volume.root(), b"f").expect("look up");
    let (ino, size) = (entry.attr.ino, entry.attr.size as usize);
    let mut bytes = vec![0; size + 1];
    let mut at = 0;
    loop {
        match volume.read(ino, at as u64, &mut bytes[at..]).expect("read") {
            0 => break,
            got => at += got,
        }
    }
    volume.forget(ino, 1);
    assert_eq!(at, size);
    bytes.truncate(size);
    bytes
}

fn copied(source: &Path, progress: &dyn Fn(&Event<'_>)) -> Vec<u8> {
    let options = CopyOptions { progress: Some(progress), ..CopyOptions::default() };
    let volume = RefFs::new();
    import_tree(&volume, source, volume.root(), b"f", &options).expect("import");
    content(&volume)
}

#[test]
fn files_of_proc_and_sysfs_are_copied_as_they_read() {
    let mut some = false;
    for path in [
        "/proc/version",
        "/proc/self/mountinfo",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/uevent_seqnum",
        "/sys/class/net/lo/address",
    ] {
        let path = Path::new(path);
        let Ok(told) = path.metadata().map(|meta| meta.len()) else { continue };
        // A file of sysfs is as long as a page of this machine.
        assert_eq!(told == 0, path.starts_with("/proc"), "{}", path.display());
        let (before, copy) = (fs::read(path).expect("read"), copied(path, &|_| {}));
        // Others may mount something, or plug something in.
        let after = fs::read(path).expect("read");
        assert!(copy == before || copy == after || before != after, "{}", path.display());
        assert!(!copy.is_empty() && copy.len() as u64 != told);
        some = true;
    }
    if !some {
        println!("SKIPPED: neither /proc nor /sys is there");
    }
}

/// Does something to the file when the first piece of it is there, and says what the copy is.
fn meanwhile(data: &[(u64, u64)], size: u64, act: impl Fn(&File)) -> Vec<u8> {
    let scratch = Scratch::new();
    let path = scratch.path("log");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path);
    let file = file.expect("create");
    for (at, len) in data {
        file.write_all_at(&vec![7; *len as usize], *at).expect("write");
    }
    file.set_len(size).expect("length");
    let acted = std::cell::Cell::new(false);
    copied(&path, &|event| {
        let is_time = match event {
            Event::Data { .. } => true,
            // Of a file that has no data yet.
            Event::Made { kind: FileKind::File, .. } => data.is_empty(),
            _ => false,
        };
        if is_time && !acted.replace(true) {
            act(&file);
        }
    })
}

#[test]
fn a_file_that_becomes_shorter_gets_no_tail_of_zeros() {
    let to = |len: u64| move |file: &File| file.set_len(len).expect("truncate");
    // What was read stays, whatever came later.
    for left in [0, 5, PIECE] {
        let copy = meanwhile(&[(0, 3 * PIECE)], 3 * PIECE, to(left));
        assert!(copy == vec![7; PIECE as usize], "{left}: {} bytes", copy.len());
    }
    let left = PIECE + 100;
    let copy = meanwhile(&[(0, 3 * PIECE)], 3 * PIECE, to(left));
    assert!(copy == vec![7; left as usize], "{} bytes", copy.len());
    // In the hole at its end, and in the one in front of the next data.
    for behind in [&[][..], &[(8 * PIECE, 4096)]] {
        let data = [&[(0, 4096)], behind].concat();
        let copy = meanwhile(&data, 9 * PIECE, to(2 * PIECE + 1));
        assert_eq!(copy.len() as u64, 2 * PIECE + 1);
        assert!(copy[..4096].iter().all(|b| *b == 7) && copy[4096..].iter().all(|b| *b == 0));
    }
}

#[test]
fn a_file_that_becomes_longer_is_copied_to_its_end() {
    let more = |at: u64| move |file: &File| file.write_all_at(&[9; 5000], at).expect("write");
    let copy = meanwhile(&[], 0, more(0));
    assert!(copy == [9; 5000], "{} bytes", copy.len());
    let copy = meanwhile(&[(0, 100)], 100, more(100));
    assert!(copy.len() == 5100 && copy[..100] == [7; 100] && copy[100..] == [9; 5000]);
    // Behind a new hole, of which nothing is read.
    let far = 1 << 40;
    let scratch = Scratch::new();
    let path = scratch.path("disk");
    fs::write(&path, [7; 100]).expect("write");
    let acted = std::cell::Cell::new(false);
    let grow = |event: &Event<'_>| {
        if matches!(event, Event::Data { .. }) && !acted.replace(true) {
            let file = OpenOptions::new().write(true).open(&path).expect("open");
            file.write_all_at(&[9; 10], far).expect("write");
        }
    };
    let options = CopyOptions { progress: Some(&grow), ..CopyOptions::default() };
    let volume = RefFs::new();
    let report = import_tree(&volume, &path, volume.root(), b"f", &options).expect("import");
    assert!(report.bytes < PIECE, "{} bytes were read", report.bytes);
    let entry = volume.lookup(&Context::default(), volume.root(), b"f").expect("look up");
    assert_eq!(entry.attr.size, far + 10);
    volume.forget(entry.attr.ino, 1);
}

/// A copy that followed it would never end.
#[test]
fn a_file_that_becomes_longer_as_fast_as_it_is_copied_is_copied_to_some_end() {
    let scratch = Scratch::new();
    let path = scratch.path("log");
    fs::write(&path, [7; 100]).expect("write");
    let times = std::cell::Cell::new(0);
    let grow = |event: &Event<'_>| {
        if matches!(event, Event::Data { .. }) && times.get() < 1000 {
            times.set(times.get() + 1);
            let file = OpenOptions::new().append(true).open(&path).expect("open");
            (&file).write_all(&[7; 5000]).expect("write");
        }
    };
    let copy = copied(&path, &grow);
    assert!(times.get() < 100 && copy.len() > 100, "{} times, {} bytes", times.get(), copy.len());
    assert!(copy.iter().all(|byte| *byte == 7));
    // Over one that is there, and longer.
    let cx = Context::default();
    let volume = RefFs::new();
    let made = volume.mknod(&cx, volume.root(), b"f", FileKind::File, 0o600, 0).expect("make");
    volume.write(&cx, made.attr.ino, 0, &[1; 1 << 20], Default::default()).expect("write");
    let options = CopyOptions { progress: Some(&grow), ..CopyOptions::default() };
    let file = File::open(&path).expect("open");
    times.set(0);
    import_content(&volume, &path, &file, made.attr.ino, &options).expect("import");
    volume.forget(made.attr.ino, 1);
    let over = content(&volume);
    assert!(times.get() < 100 && over.len() > copy.len() && over.len() < 1 << 20);
    assert!(over.iter().all(|byte| *byte == 7));
}
