//! Content that a stream has compressed: what a volume may have as it is it has so, what the kernel could
//! not read or the format does not know is written as content, and a crash on the way leaves nothing
//! else than one in content that was written.

use blocksim::{Image, SimDevice};
use btrfs_disk::compress::compress;
use btrfs_disk::items::Compression;
use btrfs_send::{Command, CompressedPiece, Decoder, Encoder, Origin, Protocol};
use spinney::{FormatOptions, MemDevice, ReceiveOptions, SendOptions, Volume, VolumeOptions};
use std::sync::Arc;
use testkit::oracle;

const KINDS: [(Compression, u32); 3] =
    [(Compression::Zlib, 1), (Compression::Zstd, 2), (Compression::Lzo, 3)];
const NOCOW: u64 = 1 << 1;

fn text(seed: u64, len: usize) -> Vec<u8> {
    let line = |i: u64| format!("{seed} line {i} of {}\n", i.wrapping_mul(i + seed)).into_bytes();
    (0u64..).flat_map(line).take(len).collect()
}

fn packed((kind, _): (Compression, u32), sector: usize, content: &[u8]) -> Vec<u8> {
    compress(kind, 3, sector, content, content.len()).expect("it gets smaller")
}

/// A file of which this is all, and what the file is then.
#[derive(Clone)]
struct Case {
    what: &'static str,
    offset: u64,
    piece: (u64, u64, u64, u32),
    stream: Vec<u8>,
    content: Vec<u8>,
    /// Before the piece.
    written: Vec<u8>,
    nocow: bool,
    /// Stored as it is.
    stays: bool,
}

impl Case {
    fn whole(what: &'static str, kind: (Compression, u32), content: Vec<u8>) -> Case {
        let len = content.len() as u64;
        let stream = packed(kind, 4096, &content);
        let piece = (len, len, 0, kind.1);
        let (offset, written, nocow) = (0, Vec::new(), false);
        Case { what, offset, piece, stream, content, written, nocow, stays: true }
    }

    fn plain(what: &'static str, change: impl FnOnce(&mut Case)) -> Case {
        let mut case = Case::whole(what, KINDS[1], text(3, 131_072));
        case.stays = false;
        change(&mut case);
        case
    }
}

fn allowed() -> Vec<Case> {
    let mut all = Vec::new();
    for kind in KINDS {
        all.push(Case::whole("the longest", kind, text(1, 131_072)));
        all.push(Case::whole("of parts of sectors", kind, text(2, 70_001)));
        all.push(Case::whole("in the item", kind, text(3, 60).repeat(30)));
        let part = |mut case: Case, (from, len): (usize, usize)| {
            case.content = case.content[from..from + len].to_vec();
            case.piece.0 = len as u64;
            case.piece.2 = from as u64;
            case
        };
        let long = || Case::whole("a part", kind, text(4, 131_072));
        all.push(part(long(), (8192, 40_960)));
        all.push(part(long(), (4096, 40_000)));
        all.push(part(long(), (0, 4096)));
        let mut behind = long();
        behind.written = vec![b'x'; 10_000];
        behind.offset = 12_288;
        behind.content = [&[b'x'; 10_000][..], &[0; 2288], &behind.content].concat();
        all.push(behind);
        let mut over = long();
        over.written = vec![b'x'; 300_000];
        let end = vec![b'x'; 300_000 - 131_072 - 65_536];
        over.content = [&[b'x'; 65_536][..], &over.content, &end].concat();
        over.offset = 65_536;
        all.push(over);
        let mut padded = Case::whole("with zeros behind it", kind, text(5, 100_000));
        padded.stream.resize(padded.stream.len().next_multiple_of(4096), 0);
        padded.piece.1 = 102_400;
        all.push(padded);
    }
    all
}

/// As the zstd format has it: a raw block in a frame with a window of a megabyte.
fn long_window(content: &[u8]) -> Vec<u8> {
    let block = (content.len() as u32) << 3 | 1;
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
    let rle = (100_000_u32 << 3 | 1 << 1).to_le_bytes();
    let block = &block.to_le_bytes()[..3];
    [&head[..], &rle[..3], &[0], block, content].concat()
}

fn not_allowed() -> Vec<Case> {
    let mut all = vec![
        Case::plain("not at a sector", |case| {
            case.offset = 100;
            case.content.splice(0..0, [0; 100]);
        }),
        Case::plain("a part that begins within a sector", |case| {
            case.piece = (50_000, 131_072, 1000, 2);
            case.content = case.content[1000..51_000].to_vec();
        }),
        Case::plain("an end within a sector and within the file", |case| {
            case.piece.0 = 10_000;
            case.written = vec![b'x'; 20_000];
            case.content.truncate(10_000);
            case.content.resize(20_000, b'x');
        }),
        Case::plain("without checksums", |case| case.nocow = true),
        Case::plain("for other sectors", |case| {
            case.stream = packed(KINDS[2], 16_384, &case.content);
            case.piece.3 = 5;
        }),
        Case::plain("of one sector that is no item's", |case| {
            case.content.truncate(4096);
            case.content.resize(8192, b'x');
            case.written = vec![b'x'; 8192];
            case.stream = packed(KINDS[1], 4096, &case.content[..4096]);
            case.piece = (4096, 4096, 0, 2);
        }),
        Case::plain("no shorter than its content", |case| {
            let mut noise = vec![0; 8000];
            testkit::ops::Rng::new(1).fill(&mut noise);
            case.stream = [&long_window(&[])[..6], &[0x01, 0xfa, 0][..], &noise].concat();
            case.piece = (8000, 8000, 0, 2);
            case.content = noise;
        }),
        Case::plain("a window that the kernel has no room for", |case| {
            case.stream = long_window(b"the end");
            case.content = [&[0; 100_000][..], b"the end"].concat();
            case.piece = (100_007, 100_007, 0, 2);
        }),
        Case::plain("a zlib stream that says a short window", |case| {
            case.stream = packed(KINDS[0], 4096, &case.content);
            // The check bits with it.
            case.stream[..2].copy_from_slice(&[0x18, 0x19]);
            case.piece.3 = 1;
        }),
        Case::plain("not compressed", |case| {
            case.stream = case.content.clone();
            case.piece.3 = 0;
        }),
    ];
    // Content behind its end is zeros, which an item would have to say.
    all.push(Case::plain("shorter than it says, for an item", |case| {
        case.content = text(6, 100).repeat(9);
        case.stream = packed(KINDS[0], 4096, &case.content);
        case.content.resize(2000, 0);
        case.piece = (2000, 2000, 0, 1);
    }));
    all
}

/// The stream of a new subvolume with these files.
fn stream(name: &[u8], number: u8, cases: &[Case]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V2).unwrap();
    let mut put = |command: Command<'_>| encoder.put(&command).unwrap();
    put(Command::Subvol { path: name, origin: Origin { uuid: [number; 16], ctransid: 9 } });
    for (number, case) in cases.iter().enumerate() {
        let name = format!("{number}");
        let path = name.as_bytes();
        put(Command::MkFile { path, ino: 257 + number as u64 });
        if case.nocow {
            put(Command::FileAttr { path, flags: NOCOW });
        }
        if !case.written.is_empty() {
            put(Command::Write { path, offset: 0, data: &case.written });
        }
        let (file_len, unencoded_len, unencoded_offset, compression) = case.piece;
        let piece = CompressedPiece {
            file_len,
            unencoded_len,
            unencoded_offset,
            compression,
            says_plain: true,
            data: &case.stream,
        };
        put(Command::EncodedWrite { path, offset: case.offset, piece });
    }
    put(Command::End);
    encoder.into_inner()
}

/// Which files have compressed content: what is said of it, and how long it is.
type Stored = Vec<(String, u64, (u64, u64, u64, u32), usize)>;

fn stored(volume: &Volume, path: &str) -> Stored {
    let mut bytes = Vec::new();
    let options = SendOptions::new().protocol_2(true).compressed(true);
    volume.send(&[path], &options, &mut bytes).unwrap();
    let mut decoder = Decoder::new(&*bytes);
    let mut all = Vec::new();
    while let Some(command) = decoder.next_command().unwrap() {
        if let Command::EncodedWrite { path, offset, piece } = command {
            let said =
                (piece.file_len, piece.unencoded_len, piece.unencoded_offset, piece.compression);
            all.push((String::from_utf8_lossy(path).into(), offset, said, piece.data.len()));
        }
    }
    all.sort();
    all
}

fn expected(cases: &[Case]) -> Stored {
    let mut all: Stored = Vec::new();
    for (number, case) in cases.iter().enumerate().filter(|(_, case)| case.stays) {
        let (mut said, mut len) = (case.piece, case.stream.len());
        if case.content.len() > 4096 || said.0 < said.1 {
            said.1 = said.1.next_multiple_of(4096);
            len = len.next_multiple_of(4096);
        }
        all.push((format!("{number}"), case.offset, said, len));
    }
    all.sort();
    all
}

fn assert_received(volume: &Volume, snap: &str, cases: &[Case]) {
    for (number, case) in cases.iter().enumerate() {
        let read = volume.read(format!("{snap}/{number}")).unwrap();
        assert_eq!(read.len(), case.content.len(), "{number}: {}", case.what);
        assert!(read == case.content, "{number}: {}", case.what);
    }
    assert_eq!(stored(volume, snap), expected(cases));
}

fn receive(volume: &Volume, bytes: &[u8], options: &ReceiveOptions) {
    volume.receive("/", &mut &*bytes, options, |_| {}).unwrap();
}

#[test]
fn what_the_kernel_could_not_read_is_written_as_content() {
    let device = Arc::new(MemDevice::new(256 << 20));
    FormatOptions::new().format(&*device).unwrap();
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    let cases = [allowed(), not_allowed()].concat();
    receive(&volume, &stream(b"snap", 1, &cases), &ReceiveOptions::new());
    assert_received(&volume, "snap", &cases);
    assert!(volume.check(true).unwrap().is_clean());
    let options = ReceiveOptions::new().decompress(true);
    receive(&volume, &stream(b"plain", 2, &cases), &options);
    assert_eq!(stored(&volume, "plain"), Vec::new());
    volume.close().unwrap();
    // Anew, where nothing is in memory.
    let volume = VolumeOptions::new().write(true).open_device(device).unwrap();
    assert_received(&volume, "snap", &cases);
}

/// Whatever a device may hold after a crash: each subvolume that is complete is so with all its content,
/// and nothing is damaged.
#[test]
fn a_crash_leaves_what_is_complete_or_nothing_of_it() {
    let device = Arc::new(SimDevice::new(Image::zeros(256 << 20)));
    FormatOptions::new().format(&*device).unwrap();
    let begin = device.position();
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    let all = allowed();
    let halves = [&all[..9], &all[9..]];
    let names = ["first", "second"];
    for (number, cases) in halves.iter().enumerate() {
        let bytes = stream(names[number].as_bytes(), number as u8 + 1, cases);
        receive(&volume, &bytes, &ReceiveOptions::new());
    }
    volume.close().unwrap();
    let (mut complete, mut states) = ([0; 3], 0);
    let recording = device.recording();
    for epoch in recording.epochs().filter(|epoch| epoch.end > begin) {
        for choice in epoch.choices(6, 1) {
            let copy = Arc::new(SimDevice::new(epoch.image(&choice)));
            let volume = VolumeOptions::new().write(true).open_device(copy.clone()).unwrap();
            let whole = |name: &&&str| volume.subvolume(name).is_ok_and(|found| found.read_only);
            let there: Vec<_> = names.iter().filter(whole).collect();
            for (name, cases) in there.iter().zip(&halves) {
                assert_received(&volume, name, cases);
            }
            complete[there.len()] += 1;
            states += 1;
            volume.close().unwrap();
            let volume = VolumeOptions::new().write(true).open_device(copy).unwrap();
            let report = volume.check(true).unwrap();
            // Content lands before what is in front of it.
            let new = report.findings.iter().filter(|found| found.code != "file-extent-beyond-end");
            assert_eq!(new.count(), 0, "{report:?}");
        }
    }
    println!("{states} states, {complete:?}");
    assert!(complete.iter().all(|count| *count > 0), "{complete:?}");
}

/// Of what was stored as it is, the kernel's decoders make the same.
#[test]
fn the_kernel_reads_what_was_stored_as_it_is() {
    testkit::require!(kernel_btrfs);
    let dir = oracle::TempDir::new("encoded").unwrap();
    let path = dir.join("image");
    let volume = FormatOptions::new().create(&path, 256 << 20).unwrap();
    let cases = [allowed(), not_allowed()].concat();
    receive(&volume, &stream(b"snap", 1, &cases), &ReceiveOptions::new());
    volume.close().unwrap();
    oracle::assert_clean(&path);
    let seen = oracle::with_kernel(&path, "ro", |mount| {
        let read = |number: usize| std::fs::read(mount.join(&format!("snap/{number}"))).unwrap();
        (0..cases.len()).map(read).collect::<Vec<_>>()
    });
    for (case, seen) in cases.iter().zip(seen.unwrap()) {
        assert!(seen == case.content, "{}", case.what);
    }
}
