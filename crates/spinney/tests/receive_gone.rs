//! A stream whose sender goes while one of its commands takes long: the command ends then, too.

use btrfs_fs::{BtrfsFs, Options};
use btrfs_send::{Command, Encoder, Origin, Protocol};
use spinney::vfs::FileSystem;
use spinney::{FormatOptions, MemDevice};
use std::cell::Cell;
use std::sync::Arc;

const ORIGIN: Origin = Origin { uuid: [7; 16], ctransid: 9 };
const PIECE: u64 = 128 << 10;

/// Half a TiB of zeros, copied piece by piece since no sector begins where they are taken from.
fn long() -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).expect("a stream");
    let commands = [
        Command::Subvol { path: b"snap", origin: ORIGIN },
        Command::MkFile { path: b"from", ino: 257 },
        Command::Truncate { path: b"from", size: 1 << 40 },
        Command::MkFile { path: b"to", ino: 258 },
        Command::Clone {
            path: b"to",
            offset: 0,
            len: 1 << 39,
            from: ORIGIN,
            from_path: b"from",
            from_offset: 1,
        },
        Command::End,
    ];
    commands.iter().for_each(|command| encoder.put(command).expect("a command"));
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
