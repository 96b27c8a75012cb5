//! A stream whose sender goes while one of its commands takes long: the command ends then, too.

use btrfs_fs::{BtrfsFs, Options};
use btrfs_send::{Command, Encoder, Origin, Protocol, Verity};
use spinney::vfs::FileSystem;
use spinney::{FormatOptions, MemDevice};
use std::cell::Cell;
use std::sync::Arc;

const ORIGIN: Origin = Origin { uuid: [7; 16], ctransid: 9 };
const PIECE: u64 = 128 << 10;

/// Pieces that a clone copies, since no sector begins where they are taken from.
fn long() -> Vec<u8> {
    const PIECES: u64 = 8;
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).expect("a stream");
    let mut put = |command: Command<'_>| encoder.put(&command).expect("a command");
    put(Command::Subvol { path: b"snap", origin: ORIGIN });
    put(Command::MkFile { path: b"from", ino: 257 });
    for offset in (0..PIECES * PIECE).step_by(PIECE as usize / 4) {
        put(Command::Write { path: b"from", offset, data: &[7; PIECE as usize / 4] });
    }
    put(Command::MkFile { path: b"to", ino: 258 });
    put(Command::Clone {
        path: b"to",
        offset: 0,
        len: (PIECES - 1) * PIECE,
        from: ORIGIN,
        from_path: b"from",
        from_offset: 1,
    });
    put(Command::End);
    encoder.into_inner()
}

#[test]
fn a_long_copy_ends_when_its_sender_is_gone() {
    let device = Arc::new(MemDevice::new(256 << 20));
    FormatOptions::new().format(&*device).expect("mkfs");
    let fs = Arc::new(BtrfsFs::open_device(device, Options::default()).expect("open"));
    let (stream, asked) = (long(), Cell::new(0));
    let gone = || asked.replace(asked.get() + 1) == 3;
    let options = btrfs_receiver::Options::default();
    let done = spinney::receive_live(&fs, fs.root(), &mut &stream[..], options, &mut |_| (), &gone);
    let error = done.expect("a directory").expect_err("it is gone").to_string();
    assert!(error.contains("interrupted"), "{error}");
    let cx = vfs::Context::default();
    let snap = fs.lookup(&cx, fs.root(), b"snap").expect("as far as it came");
    let to = fs.lookup(&cx, snap.attr.ino, b"to").expect("the file");
    assert_eq!(to.attr.size, 3 * PIECE);
    for entry in [to, snap] {
        fs.forget(entry.attr.ino, 1);
    }
    fs.destroy().expect("close");
}

/// A file of more extents than one step shares, and a clone of it.
fn shared(pieces: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).expect("a stream");
    let mut put = |command: Command<'_>| encoder.put(&command).expect("a command");
    put(Command::Subvol { path: b"snap", origin: ORIGIN });
    put(Command::MkFile { path: b"from", ino: 257 });
    for piece in 0..pieces {
        put(Command::Write { path: b"from", offset: piece * 8192, data: &[7; 4096] });
    }
    put(Command::MkFile { path: b"to", ino: 258 });
    put(Command::Clone {
        path: b"to",
        offset: 0,
        len: (pieces - 1) * 8192 + 4096,
        from: ORIGIN,
        from_path: b"from",
        from_offset: 0,
    });
    put(Command::End);
    encoder.into_inner()
}

#[test]
fn a_long_clone_ends_when_its_sender_is_gone_and_is_whole_when_he_is_not() {
    const PIECES: u64 = 10_000;
    let stream = shared(PIECES);
    for leaves in [true, false] {
        let device = Arc::new(MemDevice::new(512 << 20));
        FormatOptions::new().format(&*device).expect("mkfs");
        let fs = Arc::new(BtrfsFs::open_device(device, Options::default()).expect("open"));
        let asked = Cell::new(0);
        let gone = || {
            asked.set(asked.get() + 1);
            leaves
        };
        let options = btrfs_receiver::Options::default();
        let done =
            spinney::receive_live(&fs, fs.root(), &mut &stream[..], options, &mut |_| (), &gone);
        let done = done.expect("a directory");
        assert_eq!(done.is_err(), leaves);
        assert!(asked.get() > 0, "nobody looked whether he is there");
        let cx = vfs::Context::default();
        let snap = fs.lookup(&cx, fs.root(), b"snap").expect("as far as it came");
        let to = fs.lookup(&cx, snap.attr.ino, b"to").expect("the file");
        let whole = (PIECES - 1) * 8192 + 4096;
        assert_eq!(to.attr.size == whole, !leaves, "{} bytes", to.attr.size);
        assert!(to.attr.size > 0);
        let mut content = vec![0; whole as usize];
        let read = fs.read(to.attr.ino, 0, &mut content).expect("read");
        assert_eq!(read as u64, to.attr.size);
        for (at, byte) in content[..read].iter().enumerate() {
            assert_eq!(*byte, if at / 4096 % 2 == 0 { 7 } else { 0 }, "at {at}");
        }
        for entry in [to, snap] {
            fs.forget(entry.attr.ino, 1);
        }
        fs.destroy().expect("close");
    }
}

/// A sparse file, of which all that it is made of is hashed.
fn verified(size: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V3).expect("a stream");
    let mut put = |command: Command<'_>| encoder.put(&command).expect("a command");
    put(Command::Subvol { path: b"snap", origin: ORIGIN });
    put(Command::MkFile { path: b"file", ino: 257 });
    put(Command::Truncate { path: b"file", size });
    let verity = Verity { algorithm: 1, block_size: 4096, salt: b"", signature: b"" };
    put(Command::EnableVerity { path: b"file", verity });
    put(Command::End);
    encoder.into_inner()
}

#[test]
fn who_goes_while_a_file_is_hashed_leaves_it_unverified() {
    let device = Arc::new(MemDevice::new(256 << 20));
    FormatOptions::new().format(&*device).expect("mkfs");
    let fs = Arc::new(BtrfsFs::open_device(device, Options::default()).expect("open"));
    let (stream, asked) = (verified(40 << 20), Cell::new(0));
    let gone = || asked.replace(asked.get() + 1) == 1;
    let options = btrfs_receiver::Options::default();
    let done = spinney::receive_live(&fs, fs.root(), &mut &stream[..], options, &mut |_| (), &gone);
    let error = done.expect("a directory").expect_err("it is gone").to_string();
    assert!(error.contains("verified of file") && error.contains("interrupted"), "{error}");
    let cx = vfs::Context::default();
    let snap = fs.lookup(&cx, fs.root(), b"snap").expect("as far as it came");
    let file = fs.lookup(&cx, snap.attr.ino, b"file").expect("the file");
    fs.write(&cx, file.attr.ino, 0, b"changed", Default::default()).expect("it is not verified");
    for entry in [file, snap] {
        fs.forget(entry.attr.ino, 1);
    }
    fs.destroy().expect("close");
}
