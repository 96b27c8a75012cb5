//! Streams in the library: what is received is what was sent; and streams that nobody should
//! send: nothing outside the subvolume that they begin is changed, and that one stays unfinished.

use btrfs_send::{Command, CompressedPiece, Encoder, Origin, Protocol, Special, Verity};
use spinney::{
    Cause, FormatOptions, MemDevice, ReceiveOptions, SendOptions, SnapshotOptions, VerityHash,
    VerityParams, VerityWish, Volume, VolumeOptions,
};
use std::io::ErrorKind;
use std::sync::Arc;

fn volume() -> Volume {
    let device = Arc::new(MemDevice::new(256 << 20));
    FormatOptions::new().format(&*device).unwrap();
    VolumeOptions::new().write(true).open_device(device).unwrap()
}

const ORIGIN: Origin = Origin { uuid: [7; 16], ctransid: 9 };

/// A stream of a new subvolume `snap` with these commands.
fn stream(commands: &[Command<'_>]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V3).unwrap();
    encoder.put(&Command::Subvol { path: b"snap", origin: ORIGIN }).unwrap();
    commands.iter().for_each(|command| encoder.put(command).unwrap());
    encoder.put(&Command::End).unwrap();
    encoder.into_inner()
}

fn play(volume: &Volume, bytes: &[u8]) -> spinney::Result<()> {
    volume.receive("in", &mut &*bytes, &ReceiveOptions::new(), |_| {}).map(drop)
}

/// A volume with things that a stream must not reach.
fn guarded() -> Volume {
    let volume = volume();
    volume.create_dir("in").unwrap();
    volume.create_dir("dir").unwrap();
    volume.write("file", b"untouched").unwrap();
    volume.write("dir/file", b"untouched").unwrap();
    volume.write("in/file", b"untouched").unwrap();
    volume.create_subvolume("in/other").unwrap();
    volume.write("in/other/file", b"untouched").unwrap();
    volume.sync().unwrap();
    volume
}

fn assert_untouched(volume: &Volume, what: &str) {
    for file in ["file", "dir/file", "in/file", "in/other/file"] {
        assert_eq!(volume.read(file).unwrap(), b"untouched", "{what}");
        let meta = volume.metadata(file).unwrap();
        assert_eq!((meta.nlink(), meta.permissions()), (1, 0o644), "{what}: {file}");
    }
    let names = |dir: &str| {
        let names = volume.read_dir(dir).unwrap().into_iter();
        names.map(|entry| entry.file_name().to_owned()).filter(|name| name != "snap").count()
    };
    assert_eq!((names("/"), names("dir"), names("in/other")), (3, 1, 1), "{what}");
    assert!(!volume.subvolume("in/other").unwrap().read_only, "{what}");
}

/// Who makes room, or waits, and tries again must know which of it would help.
#[test]
fn what_fails_of_receiving_is_said_so_that_it_can_be_acted_on() {
    let device = Arc::new(MemDevice::new(32 << 20));
    FormatOptions::new().mixed().format(&*device).unwrap();
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    volume.create_dir("in").unwrap();
    let fails = |bytes: &[u8]| {
        let told = play(&volume, bytes).unwrap_err();
        if volume.exists("in/snap").unwrap() {
            volume.delete_subvolume("in/snap").unwrap();
        }
        told
    };
    let data = vec![7; 48 << 10];
    let pieces =
        (0..900).map(|n| Command::Write { path: b"f", offset: n * (48 << 10), data: &data });
    let commands: Vec<_> =
        [Command::MkFile { path: b"f", ino: 257 }].into_iter().chain(pieces).collect();
    let large = stream(&commands);
    let full = fails(&large);
    assert_eq!((full.errno(), full.kind()), (Some(libc::ENOSPC), ErrorKind::StorageFull), "{full}");
    assert!(full.subject().contains("in/snap: at byte ") && full.volume() == Some(volume.name()));
    assert!(full.to_string().contains(" of the stream: writing to f"), "{full}");
    let transaction = volume.transaction().unwrap();
    let busy = fails(&stream(&[]));
    assert_eq!(busy.errno(), Some(libc::EBUSY), "{busy}");
    transaction.commit().unwrap();
    // It is the stream, and not the volume.
    let good = stream(&[Command::MkFile { path: b"f", ino: 257 }]);
    let cut_off = fails(&good[..good.len() - 12]);
    assert_eq!(cut_off.kind(), ErrorKind::UnexpectedEof, "{cut_off}");
    let mut damaged = good.clone();
    damaged[60] ^= 1;
    let damaged = fails(&damaged);
    assert_eq!(damaged.kind(), ErrorKind::InvalidData, "{damaged}");
    assert!(matches!(damaged.cause(), Cause::Stream { .. }));
    let refused = fails(&stream(&[Command::MkFile { path: b"../f", ino: 257 }]));
    assert!(matches!(refused.cause(), Cause::Refused { .. }), "{refused}");
    volume.close().unwrap();
    let volume = VolumeOptions::new().open_device(device).unwrap();
    for told in [play(&volume, &good).unwrap_err(), volume.transaction().unwrap_err()] {
        assert_eq!(told.errno(), Some(libc::EROFS), "{told}");
    }
}

#[test]
fn what_a_stream_must_not_do_is_refused() {
    let (link, up): (&[u8], &[u8]) = (b"link", b"../other");
    let made = [
        Command::Symlink { path: link, ino: 257, target: up },
        Command::Symlink { path: b"abs", ino: 258, target: b"/dir" },
        Command::Symlink { path: b"tofile", ino: 259, target: b"../file" },
        Command::MkFile { path: b"own", ino: 260 },
        Command::MkDir { path: b"d", ino: 261 },
    ];
    let none = Origin { uuid: [3; 16], ctransid: 1 };
    let nothing: &[u8] = b"";
    let time = (0, 0);
    let piece = CompressedPiece {
        file_len: 4096,
        unencoded_len: 4096,
        unencoded_offset: 0,
        compression: 2,
        says_plain: true,
        data: b"no such thing",
    };
    let bad = [
        Command::MkFile { path: b"../new", ino: 300 },
        Command::MkFile { path: b"/new", ino: 300 },
        Command::MkFile { path: b"d/../../new", ino: 300 },
        Command::MkFile { path: b"link/new", ino: 300 },
        Command::MkFile { path: b"abs/new", ino: 300 },
        Command::MkFile { path: nothing, ino: 300 },
        Command::MkFile { path: b"own/new", ino: 300 },
        Command::MkFile { path: b"own", ino: 300 },
        Command::MkDir { path: b"link/new", ino: 300 },
        Command::Symlink { path: b"abs/new", ino: 300, target: b"x" },
        Command::MkSpecial { kind: Special::Node, path: b"n", ino: 300, mode: 0o100_644, rdev: 0 },
        Command::MkSpecial { kind: Special::Node, path: b"n", ino: 300, mode: 0o040_755, rdev: 0 },
        Command::MkSpecial { kind: Special::Fifo, path: b"link/n", ino: 300, mode: 0, rdev: 0 },
        Command::Rename { path: b"own", to: b"../own" },
        Command::Rename { path: b"own", to: b"link/own" },
        Command::Rename { path: b"link/file", to: b"stolen" },
        Command::Rename { path: b"../file", to: b"stolen" },
        Command::Rename { path: b"d", to: b"d/d" },
        Command::Rename { path: nothing, to: b"d/d" },
        Command::Link { path: b"stolen", old: b"../file" },
        Command::Link { path: b"stolen", old: b"link/file" },
        Command::Link { path: b"link/new", old: b"own" },
        Command::Unlink { path: b"../file" },
        Command::Unlink { path: b"link/file" },
        Command::Unlink { path: b"d" },
        Command::RmDir { path: b"../dir" },
        Command::RmDir { path: b"own" },
        Command::RmDir { path: b"link" },
        Command::Write { path: b"tofile", offset: 0, data: b"taken" },
        Command::Write { path: b"link/file", offset: 0, data: b"taken" },
        Command::Write { path: b"../file", offset: 0, data: b"taken" },
        Command::Write { path: b"d", offset: 0, data: b"taken" },
        Command::Write { path: b"own", offset: u64::MAX - 2, data: b"taken" },
        Command::EncodedWrite { path: b"own", offset: 0, piece },
        Command::EncodedWrite {
            path: b"own",
            offset: 0,
            piece: CompressedPiece { unencoded_len: 1 << 40, ..piece },
        },
        Command::EncodedWrite {
            path: b"own",
            offset: 0,
            piece: CompressedPiece { unencoded_offset: u64::MAX, ..piece },
        },
        Command::EncodedWrite {
            path: b"own",
            offset: 0,
            piece: CompressedPiece { compression: 99, ..piece },
        },
        Command::Truncate { path: b"tofile", size: 0 },
        Command::Truncate { path: b"link/file", size: 0 },
        Command::Truncate { path: b"own", size: u64::MAX },
        Command::Fallocate { path: b"tofile", mode: 3, offset: 0, len: 9 },
        Command::Fallocate { path: b"own", mode: 0, offset: 0, len: 1 << 50 },
        Command::Fallocate { path: b"own", mode: 77, offset: 0, len: 1 },
        Command::Clone {
            path: b"own",
            offset: 0,
            len: 9,
            from: ORIGIN,
            from_path: b"tofile",
            from_offset: 0,
        },
        Command::Clone {
            path: b"own",
            offset: 0,
            len: 9,
            from: ORIGIN,
            from_path: b"../file",
            from_offset: 0,
        },
        Command::Clone {
            path: b"own",
            offset: 0,
            len: 9,
            from: none,
            from_path: b"file",
            from_offset: 0,
        },
        Command::Clone {
            path: b"own",
            offset: 0,
            len: 1 << 40,
            from: ORIGIN,
            from_path: b"own",
            from_offset: 0,
        },
        Command::Clone {
            path: b"tofile",
            offset: 0,
            len: 9,
            from: ORIGIN,
            from_path: b"own",
            from_offset: 0,
        },
        Command::Chmod { path: b"link/file", mode: 0 },
        Command::Chmod { path: b"..", mode: 0 },
        Command::Chown { path: b"link/file", uid: 5, gid: 5 },
        Command::Chown { path: b"own", uid: 1 << 32, gid: 5 },
        Command::Utimes { path: b"link/file", atime: time, mtime: time, ctime: time, otime: None },
        Command::Utimes {
            path: b"own",
            atime: (0, 1_000_000_000),
            mtime: time,
            ctime: time,
            otime: None,
        },
        Command::Utimes {
            path: b"own",
            atime: time,
            mtime: time,
            ctime: time,
            otime: Some((0, 1_000_000_000)),
        },
        Command::SetXattr { path: b"link/file", name: b"user.x", value: b"y" },
        Command::SetXattr { path: b"own", name: b"", value: b"y" },
        Command::RemoveXattr { path: b"own", name: b"user.x" },
        Command::FileAttr { path: b"link/file", flags: 1 << 5 },
        Command::UpdateExtent { path: b"own", offset: 0, len: 5 },
        Command::Subvol { path: b"../snap2", origin: none },
        Command::Subvol { path: b"a/b", origin: none },
        Command::Subvol { path: b"other", origin: none },
        Command::Snapshot { path: b"snap2", origin: none, parent: none },
        Command::Snapshot { path: b"snap2", origin: none, parent: Origin::default() },
    ];
    for command in &bad {
        let volume = guarded();
        let all: Vec<Command<'_>> = made.iter().copied().chain([*command]).collect();
        let error = play(&volume, &stream(&all)).err();
        let error = error.unwrap_or_else(|| panic!("{command:?} was played")).to_string();
        assert!(error.contains("at byte ") || error.contains("in/snap"), "{command:?}: {error}");
        assert_untouched(&volume, &format!("{command:?}"));
        let begins = matches!(command, Command::Subvol { .. } | Command::Snapshot { .. });
        let left = volume.subvolume("in/snap").unwrap();
        assert_eq!(left.read_only, begins, "{command:?}");
        assert_eq!(left.received_uuid == ORIGIN.uuid, begins, "{command:?}");
        volume.sync().unwrap();
        let report = volume.check(true).unwrap();
        assert!(report.is_clean(), "{command:?}: {:?}", report.findings);
    }
}

/// Nothing but the last command makes it complete.
#[test]
fn a_stream_that_is_cut_off_leaves_it_unfinished() {
    let whole = stream(&[
        Command::MkFile { path: b"file", ino: 257 },
        Command::Write { path: b"file", offset: 0, data: &[1; 5000] },
        Command::MkDir { path: b"d", ino: 258 },
        Command::Rename { path: b"file", to: b"d/file" },
    ]);
    let volume = guarded();
    for len in (0..whole.len()).step_by(37).chain(whole.len() - 12..whole.len()) {
        let error = play(&volume, &whole[..len]).unwrap_err().to_string();
        assert!(error.contains("at byte"), "{len}: {error}");
        if let Ok(left) = volume.subvolume("in/snap") {
            assert!(!left.read_only && left.received_uuid == [0; 16], "{len}");
            volume.delete_subvolume("in/snap").unwrap();
        }
    }
    assert_untouched(&volume, "cut off");
    play(&volume, &whole).unwrap();
    let done = volume.subvolume("in/snap").unwrap();
    assert!(done.read_only);
    assert_eq!((done.received_uuid, done.stransid), (ORIGIN.uuid, ORIGIN.ctransid));
    assert_eq!(volume.read("in/snap/d/file").unwrap(), [1; 5000]);
}

/// The kernel refuses it, and a copy in its place read what it had just written, to no end.
#[test]
fn a_clone_does_not_feed_on_itself() {
    const LEN: u64 = 128 << 10;
    let content: Vec<u8> = (0..LEN).map(|n| (n * 7 + n / 4096) as u8).collect();
    let play_clone = |from_path: &'static [u8], from_offset, offset, len| {
        let volume = guarded();
        let clone =
            Command::Clone { path: b"f", offset, len, from: ORIGIN, from_path, from_offset };
        let done = play(
            &volume,
            &stream(&[
                Command::MkFile { path: b"f", ino: 257 },
                Command::Write { path: b"f", offset: 0, data: &content },
                Command::MkFile { path: b"other", ino: 258 },
                Command::Write { path: b"other", offset: 0, data: &content },
                clone,
            ]),
        );
        (done.map_err(|error| error.to_string()), volume.read("in/snap/f").unwrap())
    };
    for (from_offset, offset, len) in [
        (0, LEN, 1 << 60),
        (0, LEN, LEN + 1),
        (0, 1 << 61, 1 << 60),
        (0, 4096, 8192),
        (4096, 0, 8192),
        (0, 0, LEN),
        (1, 4000, 8000),
        (LEN, 0, 4096),
        (u64::MAX - 1, 0, 4),
    ] {
        let (done, left) = play_clone(b"f", from_offset, offset, len);
        let error = done.unwrap_err();
        assert!(error.contains("cloning to f"), "{from_offset} {offset} {len}: {error}");
        assert!(left == content, "{from_offset} {offset} {len}: {} bytes", left.len());
    }
    for (from, from_offset, offset, len) in [
        (&b"f"[..], 0, LEN, LEN),
        (b"f", LEN - 4096, 0, 4096),
        (b"f", 1, 9, 8),
        (b"other", 1, 0, 9),
    ] {
        let (done, left) = play_clone(from, from_offset, offset, len);
        done.unwrap();
        let range = |at: u64| at as usize..(at + len) as usize;
        assert_eq!(left[range(offset)], content[range(from_offset)], "{from_offset} {offset}");
    }
}

const HUGE: u64 = 1 << 50;

/// Of `from`, which has `content` in these places, and nothing else up to `HUGE`.
const PLACES: [u64; 3] = [0, HUGE / 4 + 5, HUGE - 64 * 1024];

/// `to` has `content`, and gets `len` bytes of `from`.
fn with_clone(content: &[u8], from_offset: u64, offset: u64, len: u64) -> spinney::Result<Volume> {
    let volume = guarded();
    let write = |path, offset| Command::Write { path, offset, data: content };
    let mut commands = vec![
        Command::MkFile { path: b"from", ino: 257 },
        Command::Truncate { path: b"from", size: HUGE },
        Command::MkFile { path: b"to", ino: 258 },
        write(b"to", 0),
    ];
    commands.extend(PLACES.map(|at| write(b"from", at)));
    let from_path = b"from";
    commands.push(Command::Clone {
        path: b"to",
        offset,
        len,
        from: ORIGIN,
        from_path,
        from_offset,
    });
    play(&volume, &stream(&commands)).map(|()| volume)
}

/// No sector begins where it is taken from, so nothing is shared: zeros were written for all that has nothing.
#[test]
fn a_clone_of_a_huge_hole_is_one_wherever_it_begins() {
    let content: Vec<u8> = (0..64 << 10).map(|n| (n * 7 + n / 4096) as u8 | 1).collect();
    let byte = |at: u64| {
        let found = PLACES.iter().find_map(|place| content.get(at.checked_sub(*place)? as usize));
        found.copied().unwrap_or(0)
    };
    for (from_offset, offset, len) in [
        (1, 0, HUGE - 1),
        (4097, 8191, HUGE / 2),
        (100 << 10, 17, HUGE - (100 << 10)),
        // Over what is there, which reaches further.
        (100 << 10, 5000, 20_000),
        (100 << 10, 5000, 60_000),
    ] {
        let what = format!("{len} bytes from {from_offset} to {offset}");
        let volume = with_clone(&content, from_offset, offset, len);
        let volume = volume.unwrap_or_else(|error| panic!("{what}: {error}"));
        let meta = volume.metadata("in/snap/to").unwrap();
        assert_eq!(meta.len(), (offset + len).max(content.len() as u64), "{what}");
        // All that has content, and some sectors at its ends.
        let stored = meta.stored_bytes();
        assert!(stored <= 4 * (64 << 10) + 10 * 4096, "{what}: {stored}");
        let to = volume.open_path("in/snap/to").unwrap();
        let moved = [1, 2].map(|n: usize| PLACES[n] + offset - from_offset);
        for place in [offset, offset + len, moved[0], moved[1]] {
            let start = place.saturating_sub(100_000);
            let mut found = vec![0xdd; 200_000];
            let read = to.read_at(start, &mut found).unwrap();
            for (at, found) in (start..).zip(&found[..read]) {
                let expected = match at.checked_sub(offset).filter(|n| *n < len) {
                    Some(n) => byte(from_offset + n),
                    None => content.get(at as usize).copied().unwrap_or(0),
                };
                assert_eq!(*found, expected, "{what}: at {at}");
            }
        }
    }
}

/// Differences go from volume to volume by what was received, over three of them.
#[test]
fn what_was_received_can_be_sent_on() {
    let volumes = [volume(), volume(), volume()];
    let first = &volumes[0];
    first.create_subvolume("v").unwrap();
    first.write("v/a", &[5; 300_000]).unwrap();
    let read_only = SnapshotOptions::new().read_only(true);
    first.snapshot("v", "s0", &read_only).unwrap();
    first.rename("v/a", "v/b").unwrap();
    first.write("v/c", b"new").unwrap();
    first.snapshot("v", "s1", &read_only).unwrap();
    for pair in volumes.windows(2) {
        for (name, options) in [("s0", SendOptions::new()), ("s1", SendOptions::new().parent("s0"))]
        {
            let mut stream = Vec::new();
            pair[0].send(&[name], &options, &mut stream).unwrap();
            assert!(name == "s0" || stream.len() < 3000, "{} bytes", stream.len());
            let options = ReceiveOptions::new();
            pair[1].receive("/", &mut &*stream, &options, |_| {}).unwrap();
        }
    }
    let [one, three] = [&volumes[0], &volumes[2]].map(|volume| volume.subvolume("s1").unwrap());
    assert_eq!(three.received_uuid, one.uuid);
    assert_eq!(volumes[2].read("s1/b").unwrap(), [5; 300_000]);
    assert_eq!(volumes[2].read("s1/c").unwrap(), b"new");
    assert!(!volumes[2].exists("s1/a").unwrap());
    for volume in &volumes {
        volume.sync().unwrap();
        assert!(volume.check(true).unwrap().is_clean());
    }
}

fn verified(algorithm: u8, block_size: u32, salt: &[u8], signature: &[u8]) -> Vec<u8> {
    let verity = Verity { algorithm, block_size, salt, signature };
    stream(&[
        Command::MkFile { path: b"file", ino: 257 },
        Command::Write { path: b"file", offset: 0, data: &[7; 50_000] },
        Command::EnableVerity { path: b"file", verity },
        Command::Chmod { path: b"file", mode: 0o600 },
    ])
}

/// Protocol 3 says of a file that it is verified; what comes behind that may change all but its content.
#[test]
fn a_file_that_is_sent_as_verified_is_verified() {
    let volume = guarded();
    play(&volume, &verified(2, 1024, b"salt", b"signature")).unwrap();
    let received = volume.measure_verity("in/snap/file").unwrap();
    volume.write("same", &[7; 50_000]).unwrap();
    let params = VerityParams::new(VerityHash::Sha512, 1024, b"salt").unwrap();
    let wish = VerityWish { params, signature: b"signature".to_vec() };
    volume.enable_verity("same", &wish).unwrap();
    assert_eq!(volume.measure_verity("same").unwrap(), received);
    assert_eq!(volume.read("in/snap/file").unwrap(), [7; 50_000]);
    assert!(volume.subvolume("in/snap").unwrap().read_only);
}

/// Whole and as a difference, compressed content among it; what protocols 1 and 2 have no word for is sent as
/// an ordinary file.
#[test]
fn verified_files_are_sent_as_such_where_there_is_a_word_for_it() {
    let volume = guarded();
    let wish = |salt: &[u8], signature: &[u8]| VerityWish {
        params: VerityParams::new(VerityHash::Sha512, 1024, salt).unwrap(),
        signature: signature.to_vec(),
    };
    let read_only = SnapshotOptions::new().read_only(true);
    volume.create_subvolume("v").unwrap();
    volume.write("v/first", &[7; 50_000]).unwrap();
    volume.write("v/later", &[8; 150_000]).unwrap();
    volume.write("v/plain", &[9; 100]).unwrap();
    // A descriptor of several items.
    volume.enable_verity("v/first", &wish(b"salt", &[5; 9000])).unwrap();
    volume.snapshot("v", "s0", &read_only).unwrap();
    volume.enable_verity("v/later", &wish(b"", b"")).unwrap();
    volume.rename("v/first", "v/moved").unwrap();
    volume.snapshot("v", "s1", &read_only).unwrap();
    let measured = |volume: &Volume, path: &str| volume.measure_verity(path).ok();
    for (options, is_told) in [
        (SendOptions::new(), false),
        (SendOptions::new().protocol_2(true).compressed(true), false),
        (SendOptions::new().protocol_3(true), true),
        (SendOptions::new().protocol_3(true).compressed(true), true),
    ] {
        let other = guarded();
        let (mut whole, mut difference) = (Vec::new(), Vec::new());
        volume.send(&["s0"], &options, &mut whole).unwrap();
        volume.send(&["s1"], &options.clone().parent("s0"), &mut difference).unwrap();
        assert!(difference.len() < 10_000, "{} bytes", difference.len());
        for stream in [whole, difference] {
            other.receive("/", &mut &*stream, &ReceiveOptions::new(), |_| {}).unwrap();
        }
        for path in ["s0/first", "s1/moved", "s1/later"] {
            let expected = measured(&volume, path).filter(|_| is_told);
            assert!(expected.is_some() == is_told);
            assert_eq!(measured(&other, path), expected, "{path}");
            assert_eq!(other.read(path).unwrap(), volume.read(path).unwrap());
        }
        assert!(measured(&other, "s0/later").is_none() && measured(&other, "s1/plain").is_none());
        assert!(other.subvolume("s1").unwrap().read_only);
        other.sync().unwrap();
        assert!(other.check(true).unwrap().is_clean());
    }
}

#[test]
fn what_nobody_hashes_so_is_refused_and_the_subvolume_stays_unfinished() {
    let streams = [
        verified(3, 4096, b"", b""),
        verified(0, 4096, b"", b""),
        verified(1, 0, b"", b""),
        verified(1, 4097, b"", b""),
        verified(1, 65536, b"", b""),
        verified(1, 4096, &[1; 33], b""),
        verified(1, 4096, b"", &[1; 16129]),
    ];
    for bytes in streams {
        let volume = guarded();
        let error = play(&volume, &bytes).unwrap_err().to_string();
        assert!(error.contains("having reads verified of file"), "{error}");
        assert!(!volume.subvolume("in/snap").unwrap().read_only, "it is not complete");
        assert!(volume.measure_verity("in/snap/file").is_err());
    }
    let volume = guarded();
    let verity = Verity { algorithm: 1, block_size: 4096, salt: b"", signature: b"" };
    for path in [&b"../file"[..], b"/in/file", b"dir", b"link", b"gone"] {
        let bytes = stream(&[
            Command::MkDir { path: b"dir", ino: 257 },
            Command::Symlink { path: b"link", ino: 258, target: b"../file" },
            Command::EnableVerity { path, verity },
        ]);
        play(&volume, &bytes).expect_err("no file of the subvolume");
        assert!(
            volume.measure_verity("file").is_err() && volume.measure_verity("in/file").is_err()
        );
        volume.delete_subvolume("in/snap").ok();
    }
}
