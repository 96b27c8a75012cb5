//! What changes of an inode leave on the volume: its version, where the content of files
//! without copy-on-write lies, which parts are holes, what frozen inodes refuse.

use crate::common;
use btrfs_fs::{BtrfsFs, Options};
use common::dump::{extents, sequence};
use common::kernel::{btrfs, kernel};
use common::{CX, Image, close_and_judge, errno};
use std::path::Path;
use std::sync::Arc;
use testkit::PosixFs;
use testkit::ops::Rng;
use testkit::oracle;
use vfs::{
    FallocateMode, FileKind, FileSystem, Ino, RenameMode, SeekWhence, SetAttr, SetTime, Timestamp,
    XattrMode,
};

const NOCOW: u32 = 0x80_0000;
const APPEND: u32 = 0x20;
const IMMUTABLE: u32 = 0x10;
const KIB: u64 = 1 << 10;

fn file(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).expect("create").attr.ino
}

fn write(fs: &dyn FileSystem, ino: Ino, at: u64, bytes: &[u8]) {
    assert_eq!(fs.write(&CX, ino, at, bytes, Default::default()).expect("write"), bytes.len());
}

fn random(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// `sequence` is the `i_version` that NFS servers and IMA go by: each kind of change that
/// the kernel counts raises it, of each inode that it changes.
#[test]
fn each_change_raises_the_version() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let root = fs.root();
    let dir = fs.mkdir(&CX, root, b"dir", 0o755).expect("mkdir").attr.ino;
    let other = fs.mkdir(&CX, root, b"other", 0o755).expect("mkdir").attr.ino;
    let ino = file(&fs, dir, "file");
    write(&fs, ino, 0, &random(1, 40_000));
    fs.sync().expect("commit");
    let now = || [ino, dir, other].map(|ino| sequence(&image.path, ino.0));
    let mut before = now();
    let mut step = |what: &str, rises: [bool; 3], change: &dyn Fn() -> vfs::Result<()>| {
        change().unwrap_or_else(|error| panic!("{what}: {error}"));
        fs.sync().expect("commit");
        let after = now();
        let rose = [0, 1, 2].map(|n| after[n] > before[n]);
        assert_eq!(rose, rises, "{what}: {before:?} {after:?}");
        before = after;
    };
    const FILE: [bool; 3] = [true, false, false];
    const NAME: [bool; 3] = [true, true, false];
    let attributes = |set: SetAttr| fs.setattr(&CX, ino, &set).map(drop);
    let set = SetAttr::default();
    let time = Some(SetTime::At(Timestamp { secs: 1_000_000, nanos: 5 }));
    let allocate = |mode| fs.fallocate(&CX, ino, mode, 8192, 9000);
    let content = |at, len| fs.write(&CX, ino, at, &random(at, len), Default::default()).map(drop);
    step("a short write", FILE, &|| content(100, 50));
    step("a long write", FILE, &|| content(4096, 300 * KIB));
    step("truncate", FILE, &|| attributes(SetAttr { size: Some(20_000), ..set }));
    step("growing", FILE, &|| attributes(SetAttr { size: Some(400_000), ..set }));
    step("punching", FILE, &|| allocate(FallocateMode::PunchHole));
    step("allocating", FILE, &|| allocate(FallocateMode::Allocate));
    step("chmod", FILE, &|| attributes(SetAttr { perm: Some(0o600), ..set }));
    step("chown", FILE, &|| attributes(SetAttr { uid: Some(7), ..set }));
    step("utimes", FILE, &|| attributes(SetAttr { mtime: time, ..set }));
    let name = b"user.x";
    step("setxattr", FILE, &|| fs.setxattr(&CX, ino, name, b"1", XattrMode::Set));
    step("replacing it", FILE, &|| fs.setxattr(&CX, ino, name, b"2", XattrMode::Replace));
    step("removexattr", FILE, &|| fs.removexattr(&CX, ino, name));
    step("chattr", FILE, &|| fs.set_flags(&CX, ino, 0x40));
    step("create", [false, true, false], &|| {
        fs.mknod(&CX, dir, b"new", FileKind::Fifo, 0o644, 0).map(drop)
    });
    step("link", NAME, &|| fs.link(&CX, ino, dir, b"link").map(drop));
    step("unlink", NAME, &|| fs.unlink(&CX, dir, b"link"));
    step("rename", [true; 3], &|| {
        fs.rename(&CX, dir, b"file", other, b"file", RenameMode::Replace)
    });
    step("reading", [false; 3], &|| fs.read(ino, 0, &mut [0; 100]).map(drop));
    fs.fsync(ino, false).expect("fsync");
    close_and_judge(&image, fs);
}

/// `chattr +C`: content is written where it lies, and beside it where a snapshot has it too.
#[test]
fn without_copy_on_write() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 << 20, &[]);
    let mut content = random(1, 512 * KIB);
    let overwrite = |fs: &BtrfsFs, ino, content: &mut Vec<u8>, seed| {
        // Short and long, at borders of sectors and not.
        for (n, (at, len)) in
            [(8 * KIB, 4 * KIB), (50_001, 9_000), (128 * KIB, 256 * KIB)].into_iter().enumerate()
        {
            let bytes = random(seed + n as u64, len);
            content[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            write(fs, ino, at, &bytes);
        }
        fs.sync().expect("commit");
    };
    let fs = image.open();
    let ino = file(&fs, fs.root(), "file");
    fs.set_flags(&CX, ino, NOCOW).expect("chattr +C");
    write(&fs, ino, 0, &content);
    fs.sync().expect("commit");
    let objectid = ino.0;
    let first = spans(&image.path, 5, objectid);
    overwrite(&fs, ino, &mut content, 10);
    assert_eq!(spans(&image.path, 5, objectid), first, "in place");
    close_and_judge(&image, fs);
    kernel(&image.path, "noatime", |mount| {
        assert!(std::fs::read(mount.join("file")).expect("read") == content);
        btrfs(mount, &["subvolume", "snapshot", "-r", "/", "/snap"]);
    });
    let frozen = content.clone();
    let fs = image.open();
    let ino = fs.lookup(&CX, fs.root(), b"file").expect("lookup").attr.ino;
    assert_eq!(fs.flags(ino).expect("flags"), NOCOW);
    overwrite(&fs, ino, &mut content, 20);
    let beside = spans(&image.path, 5, objectid);
    let moved = |at: u64| at_byte(&beside, at) != at_byte(&first, at);
    let expected = |at: u64| {
        (8 * KIB..12 * KIB).contains(&at)
            || (48 * KIB..60 * KIB).contains(&at)
            || (128 * KIB..384 * KIB).contains(&at)
    };
    for at in (0..512 * KIB).step_by(4096) {
        assert_eq!(moved(at), expected(at), "only what was written lies elsewhere: {at}");
    }
    assert_eq!(spans(&image.path, 256, objectid), first, "the snapshot's stays");
    overwrite(&fs, ino, &mut content, 30);
    assert_eq!(spans(&image.path, 5, objectid), beside, "the new place is the file's alone");
    close_and_judge(&image, fs);
    kernel(&image.path, "noatime", |mount| {
        assert!(std::fs::read(mount.join("file")).expect("read") == content);
        assert!(std::fs::read(mount.join("snap/file")).expect("read") == frozen);
        btrfs(mount, &["subvolume", "delete", "-c", "/snap"]);
        btrfs(mount, &["subvolume", "sync", "/"]);
    });
    oracle::assert_clean(&image.path);
}

/// (first byte in the file, first on the volume, length) of what lies together.
fn spans(image: &Path, tree: u64, objectid: u64) -> Vec<(u64, u64, u64)> {
    let mut spans: Vec<(u64, u64, u64)> = Vec::new();
    for (at, disk, len) in extents(image, tree, objectid) {
        match spans.last_mut() {
            Some(last) if last.0 + last.2 == at && last.1 + last.2 == disk => last.2 += len,
            _ => spans.push((at, disk, len)),
        }
    }
    assert!(!spans.is_empty());
    spans
}

/// Where on the volume a byte of the file lies.
fn at_byte(spans: &[(u64, u64, u64)], at: u64) -> Option<u64> {
    let found = spans.iter().find(|(start, _, len)| (*start..start + len).contains(&at));
    found.map(|(start, disk, _)| disk + at - start)
}

/// `chattr +i` and `+a`: what they refuse and what not, now and by whoever opens next.
#[test]
fn frozen_inodes() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let said = freeze(&fs);
    close_and_judge(&image, fs);
    let fs = image.open();
    for (name, flag) in [("fixed", IMMUTABLE), ("log", APPEND), ("dir", IMMUTABLE)] {
        let ino = fs.lookup(&CX, fs.root(), name.as_bytes()).expect("lookup").attr.ino;
        assert_eq!(fs.flags(ino).expect("flags"), flag, "{name}");
        assert_eq!(errno(fs.unlink(&CX, fs.root(), name.as_bytes())), libc::EPERM);
        fs.set_flags(&CX, ino, 0).expect("thaw");
    }
    drop(fs);
    let other = Image::new(256 << 20, &[]);
    let by_kernel = kernel(&other.path, "noatime", |mount| {
        freeze(&PosixFs::open(mount.path()).expect("open the kernel's mount"))
    });
    assert_eq!(said, by_kernel);
}

/// Preallocated behind the end: a truncation to the size that the file has gives it back, and so
/// does a hole that reaches there. What is answered are blocks.
fn behind_the_end(fs: &dyn FileSystem) -> Vec<u64> {
    let reserved = |name: &str, content: &[u8]| {
        let ino = file(fs, fs.root(), name);
        write(fs, ino, 0, content);
        fs.fallocate(&CX, ino, FallocateMode::KeepSize, 0, 1 << 20).expect("reserve");
        ino
    };
    let all = [
        reserved("cut", &[1; 5000]),
        reserved("empty", b""),
        reserved("punched", &[2; 5000]),
        reserved("punched behind", &[3; 5000]),
    ];
    fs.sync().expect("commit");
    for (ino, size) in [(all[0], 5000), (all[1], 0)] {
        fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("size");
    }
    for (ino, from) in [(all[2], 0), (all[3], 200_000)] {
        fs.fallocate(&CX, ino, FallocateMode::PunchHole, from, 400_000).expect("punch");
    }
    fs.sync().expect("commit");
    all.iter().map(|ino| fs.getattr(*ino).expect("stat").blocks).collect()
}

/// What becomes of attributes of which the kernel knows more than their names.
fn attributes(fs: &dyn FileSystem) -> Vec<i32> {
    const PROPERTY: &[u8] = b"btrfs.compression";
    const CAPABILITY: &[u8] = b"security.capability";
    let ino = file(fs, fs.root(), "attributes");
    let dir = fs.mkdir(&CX, fs.root(), b"directory", 0o755).expect("mkdir").attr.ino;
    let set = |value: &[u8], mode| errno(fs.setxattr(&CX, ino, PROPERTY, value, mode));
    let mut said = vec![
        errno(fs.removexattr(&CX, ino, PROPERTY)),
        set(b"zstd", XattrMode::Replace),
        set(b"", XattrMode::Replace),
        set(b"zstd", XattrMode::Create),
        set(b"zlib", XattrMode::Create),
        set(b"lzo", XattrMode::Replace),
        set(b"nonsense", XattrMode::Create),
        set(b"", XattrMode::Set),
        errno(fs.removexattr(&CX, ino, PROPERTY)),
    ];
    let capability = [1, 0, 0, 2, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for ino in [ino, dir] {
        fs.setxattr(&CX, ino, CAPABILITY, &capability, XattrMode::Set).expect("setcap");
        let owner = SetAttr { uid: Some(1000), ..SetAttr::default() };
        fs.setattr(&CX, ino, &owner).expect("chown");
        said.push(errno(fs.getxattr(ino, CAPABILITY)));
    }
    said
}

#[test]
fn small_things_are_the_kernels() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let ours = (behind_the_end(&fs), attributes(&fs));
    close_and_judge(&image, fs);
    let other = Image::new(256 << 20, &[]);
    let by_kernel = kernel(&other.path, "noatime", |mount| {
        let fs = PosixFs::open(mount.path()).expect("open the kernel's mount");
        (behind_the_end(&fs), attributes(&fs))
    });
    assert_eq!(ours, by_kernel);
}

/// FS_IOC_FSSETXATTR cannot name compression, and in the kernel leaves its property, which
/// FS_IOC_SETFLAGS with the same bits would make zlib.
#[test]
fn common_flags_leave_compression() {
    const PROPERTY: &[u8] = b"btrfs.compression";
    let image = Image::with_block_group_tree(256 << 20);
    let fs = image.open();
    for value in [b"lzo".as_slice(), b"no"] {
        let ino = file(&fs, fs.root(), std::str::from_utf8(value).expect("UTF-8"));
        fs.setxattr(&CX, ino, PROPERTY, value, XattrMode::Set).expect("property");
        let before = fs.flags(ino).expect("flags");
        fs.set_common_flags(&CX, ino, before | 0x40).expect("chattr +d");
        assert_eq!(fs.flags(ino).expect("flags"), before | 0x40);
        assert_eq!(fs.getxattr(ino, PROPERTY).expect("property"), value);
    }
}

/// An open with O_TRUNC sets the times of an empty file: `: > stamp` is how many say "now".
#[test]
fn a_truncation_to_the_same_size_sets_times() {
    let image = Image::with_block_group_tree(256 << 20);
    let fs = image.open();
    let ino = file(&fs, fs.root(), "stamp");
    let old = Some(SetTime::At(Timestamp { secs: 1000, nanos: 0 }));
    fs.setattr(&CX, ino, &SetAttr { mtime: old, ..SetAttr::default() }).expect("touch");
    let before = fs.getattr(ino).expect("stat");
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let after = fs.setattr(&CX, ino, &cut).expect("truncate");
    assert!(after.mtime.secs > 1000 && after.ctime > before.ctime, "{after:?}");
}

/// Freezes a file, a log and a directory, and answers what came of touching them.
fn freeze(fs: &dyn FileSystem) -> Vec<i32> {
    let root = fs.root();
    let (fixed, log) = (file(fs, root, "fixed"), file(fs, root, "log"));
    let dir = fs.mkdir(&CX, root, b"dir", 0o755).expect("mkdir").attr.ino;
    file(fs, dir, "inside");
    for ino in [fixed, log] {
        write(fs, ino, 0, &[7; 5000]);
    }
    for (ino, flag) in [(fixed, IMMUTABLE), (log, APPEND), (dir, IMMUTABLE)] {
        fs.set_flags(&CX, ino, flag).expect("chattr");
    }
    let mut said = Vec::new();
    let set = SetAttr::default();
    for (ino, name) in [(fixed, b"fixed".as_slice()), (log, b"log"), (dir, b"dir")] {
        said.push(errno(fs.setattr(&CX, ino, &SetAttr { perm: Some(0o777), ..set })));
        said.push(errno(fs.setxattr(&CX, ino, b"user.x", b"1", XattrMode::Set)));
        said.push(errno(fs.rename(&CX, root, name, root, b"moved", RenameMode::Replace)));
    }
    for (ino, name) in [(fixed, b"fixed".as_slice()), (log, b"log")] {
        said.push(errno(fs.setattr(&CX, ino, &SetAttr { size: Some(100), ..set })));
        said.push(errno(fs.write(&CX, ino, 10, b"no", Default::default())));
        said.push(errno(fs.write(&CX, ino, 5000, b"more", Default::default())));
        said.push(errno(fs.link(&CX, ino, root, b"link")));
        said.push(errno(fs.unlink(&CX, root, name)));
    }
    said.push(errno(fs.mknod(&CX, dir, b"new", FileKind::File, 0o644, 0)));
    said.push(errno(fs.unlink(&CX, dir, b"inside")));
    said
}

/// The spans of data that SEEK_DATA and SEEK_HOLE tell.
fn data_spans(fs: &dyn FileSystem, ino: Ino) -> Vec<(u64, u64)> {
    let mut spans = Vec::new();
    let mut at = 0;
    loop {
        match fs.seek(ino, at, SeekWhence::Data) {
            Ok(start) => {
                at = fs.seek(ino, start, SeekWhence::Hole).expect("data has an end");
                spans.push((start, at));
            }
            Err(error) => {
                assert_eq!(error.errno(), libc::ENXIO);
                return spans;
            }
        }
    }
}

/// Files with holes of all origins, and where their data is.
fn with_holes(fs: &dyn FileSystem) -> Vec<(&'static str, Vec<(u64, u64)>)> {
    let root = fs.root();
    let make = |name: &'static str, work: &dyn Fn(Ino)| work(file(fs, root, name));
    let punch = |ino, at, len| {
        fs.fallocate(&CX, ino, FallocateMode::PunchHole, at, len).expect("punch");
    };
    let resize = |ino, size| {
        fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("size");
    };
    make("sparse", &|ino| {
        for at in [16 * KIB, 64 * KIB, 1 << 20] {
            write(fs, ino, at, &random(at, 4 * KIB));
        }
        resize(ino, 2 << 20);
    });
    make("punched", &|ino| {
        write(fs, ino, 0, &random(1, 256 * KIB));
        punch(ino, 16 * KIB, 8 * KIB);
        // Of parts of sectors there is content left.
        punch(ino, 100 * KIB + 100, 20 * KIB);
        punch(ino, 200 * KIB, 56 * KIB);
    });
    make("preallocated", &|ino| {
        fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, 128 * KIB).expect("allocate");
        write(fs, ino, 32 * KIB, &random(2, 4 * KIB));
    });
    make("grown", &|ino| {
        write(fs, ino, 0, &random(3, 8 * KIB));
        resize(ino, 100_000);
    });
    make("cut", &|ino| {
        write(fs, ino, 0, &random(4, 64 * KIB));
        resize(ino, 10_000);
        resize(ino, 64 * KIB);
    });
    make("inline", &|ino| write(fs, ino, 0, b"short"));
    make("empty", &|_| {});
    make("nothing but a size", &|ino| resize(ino, 64 << 20));
    vec![
        ("sparse", vec![(16, 20), (64, 68), (1024, 1028)]),
        ("punched", vec![(0, 16), (24, 104), (120, 200)]),
        ("preallocated", vec![(32, 36)]),
        ("grown", vec![(0, 8)]),
        ("cut", vec![(0, 12)]),
        ("empty", vec![]),
        ("nothing but a size", vec![]),
    ]
}

/// Holes are told to the sector, before and after the content has landed, as the kernel
/// tells them of the same volume.
#[test]
fn holes_are_told_exactly() {
    testkit::require!(kernel_btrfs);
    for mkfs in [&[][..], &["-O", "^no-holes"]] {
        let image = Image::new(256 << 20, mkfs);
        let fs = image.open();
        let expected = with_holes(&fs);
        let see = |fs: &dyn FileSystem| {
            let names = expected.iter().map(|(name, _)| *name).chain(["inline"]);
            let look = |name: &str| {
                let entry = fs.lookup(&CX, fs.root(), name.as_bytes()).expect("lookup");
                data_spans(fs, entry.attr.ino)
            };
            names.map(|name| (name, look(name))).collect::<Vec<_>>()
        };
        let mut exactly: Vec<(&str, Vec<(u64, u64)>)> = expected.clone();
        for (_, spans) in &mut exactly {
            spans.iter_mut().for_each(|(a, b)| (*a, *b) = (*a * KIB, *b * KIB));
        }
        exactly.push(("inline", vec![(0, 5)]));
        assert_eq!(see(&fs), exactly, "{mkfs:?}: in memory");
        fs.sync().expect("commit");
        assert_eq!(see(&fs), exactly, "{mkfs:?}: landed");
        close_and_judge(&image, fs);
        assert_eq!(see(&image.open()), exactly, "{mkfs:?}: opened again");
        let by_kernel = kernel(&image.path, "ro,noatime", |mount| {
            see(&PosixFs::open(mount.path()).expect("open the kernel's mount"))
        });
        assert_eq!(by_kernel, exactly, "{mkfs:?}: the kernel");
    }
}

/// Without NO_HOLES each gap between what is preallocated behind the end is an item, however many
/// there are, once the file is longer, whichever call makes it so. (Debug builds hold what is changed against what
/// was reserved for it.)
#[test]
fn gaps_between_what_is_preallocated_become_holes() {
    const GAPS: u64 = 300;
    let image = Image::new(256 << 20, &["-O", "^no-holes"]);
    let fs = image.open();
    let end = (2 * GAPS + 1) * 4 * KIB;
    let preallocated = |name: &str| {
        let ino = file(&fs, fs.root(), name);
        for n in 0..GAPS {
            let at = (2 * n + 1) * 4 * KIB;
            fs.fallocate(&CX, ino, FallocateMode::KeepSize, at, 4 * KIB).expect("preallocate");
        }
        fs.sync().expect("commit");
        ino
    };
    let cut = preallocated("truncated");
    fs.setattr(&CX, cut, &SetAttr { size: Some(end), ..SetAttr::default() }).expect("truncate");
    write(&fs, preallocated("written"), end, b"x");
    let longer = preallocated("allocated");
    fs.fallocate(&CX, longer, FallocateMode::Allocate, end, 4 * KIB).expect("allocate");
    let source = file(&fs, fs.root(), "source");
    write(&fs, source, 0, &random(1, 4 * KIB));
    fs.clone_range(&CX, source, 0, preallocated("shared"), end, 4 * KIB).expect("share");
    close_and_judge(&image, fs);
}

fn open_inodes(fs: &dyn FileSystem) -> u64 {
    fs.stats().iter().find(|stat| stat.name == "inodes.open").expect("it is counted").value
}

/// Callers hold 20,000 files, memory few of them: who asks again gets what was there, what was
/// written is written, and who has no name any more stays as long as somebody holds it.
#[test]
fn callers_hold_more_inodes_than_memory() {
    let image = Image::new(256 << 20, &[]);
    let inode_bytes = 1 << 20;
    let options = btrfs_fs::Options { background: false, inode_bytes, ..Default::default() };
    let fs = image.open_with(options);
    let dir = fs.mkdir(&CX, fs.root(), b"many", 0o755).expect("mkdir").attr.ino;
    let files: Vec<Ino> = (0..20_000).map(|n| file(&fs, dir, &format!("f{n}"))).collect();
    assert!(open_inodes(&fs) < 4000, "{} inodes in memory", open_inodes(&fs));
    let unnamed: Vec<usize> = (0..files.len()).step_by(3000).collect();
    for n in &unnamed {
        write(&fs, files[*n], 0, format!("content of {n}").as_bytes());
        fs.unlink(&CX, dir, format!("f{n}").as_bytes()).expect("unlink");
    }
    for (n, ino) in files.iter().enumerate() {
        write(&fs, *ino, 100, format!("{n}").as_bytes());
        fs.setattr(&CX, *ino, &SetAttr { uid: Some(n as u32), ..SetAttr::default() }).unwrap();
    }
    // What is dirty cannot leave; a commit lets it, without anybody else coming.
    fs.sync().expect("commit");
    assert!(open_inodes(&fs) < 4000, "{} inodes in memory", open_inodes(&fs));
    for (n, ino) in files.iter().enumerate().rev() {
        let attr = fs.getattr(*ino).expect("it is held");
        let named = u32::from(!unnamed.contains(&n));
        assert_eq!((attr.ino, attr.uid, attr.nlink), (*ino, n as u32, named));
        let mut found = vec![0; 100 + n.to_string().len()];
        assert_eq!(fs.read(*ino, 0, &mut found).expect("read"), found.len());
        assert_eq!(found[100..], *n.to_string().as_bytes());
        let first = if named == 0 { format!("content of {n}") } else { String::new() };
        assert_eq!(found[..first.len()], *first.as_bytes());
    }
    assert!(open_inodes(&fs) < 4000, "{} inodes in memory", open_inodes(&fs));
    files.iter().for_each(|ino| fs.forget(*ino, 1));
    for n in unnamed {
        let gone = errno(fs.getattr(files[n]));
        assert!([libc::ENOENT, libc::ESTALE].contains(&gone), "file {n} was forgotten: {gone}");
    }
    close_and_judge(&image, fs);
}

/// A default ACL with one named user (linux/posix_acl_xattr.h).
fn default_acl() -> Vec<u8> {
    const ANY: u32 = u32::MAX;
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, id) in [(0x01u16, ANY), (0x02, 1000), (0x04, ANY), (0x10, ANY), (0x20, ANY)] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(6u16.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// That a directory has no default ACL is remembered, until it gets one or loses it.
#[test]
fn a_default_acl_counts_from_when_it_is_set_until_it_goes() {
    testkit::require!(kernel_btrfs);
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    let image = Image::new(128 << 20, &[]);
    let fs = image.open();
    let inherits =
        |name: &str| fs.getxattr(file(&fs, fs.root(), name), b"system.posix_acl_access").is_ok();
    assert!(!inherits("before"));
    for round in 0..2 {
        let set = |mode| fs.setxattr(&CX, fs.root(), DEFAULT, &default_acl(), mode);
        set(XattrMode::Set).expect("set");
        assert!(inherits(&format!("with-{round}")));
        fs.sync().expect("commit");
        assert!(inherits(&format!("committed-{round}")));
        fs.removexattr(&CX, fs.root(), DEFAULT).expect("remove");
        assert!(!inherits(&format!("without-{round}")));
        fs.sync().expect("commit");
    }
    close_and_judge(&image, fs);
}

/// A copy of more extents than one call shares comes in parts, each of whole sectors; so does one of bytes
/// that cannot be shared.
#[test]
fn long_copies_come_in_parts_that_make_the_whole() {
    const PIECES: u64 = 10_000;
    let device = Arc::new(blockdev::MemDevice::new(1 << 30));
    btrfs_image::mkfs::make(&*device, &Default::default()).expect("mkfs");
    let fs = BtrfsFs::open_device(device, Options::default()).expect("open");
    let from = common::new_file(&fs, "from", b"");
    for piece in 0..PIECES {
        let content = [piece as u8 | 1; 4096];
        fs.write(&CX, from, piece * 8192, &content, Default::default()).expect("write");
    }
    let size = (PIECES - 1) * 8192 + 4096;
    for (name, shift, at_most) in [("shared", 0, size / 2), ("copied", 1, 1 << 27)] {
        let to = common::new_file(&fs, name, b"");
        let (mut at, mut parts) = (shift, 0);
        while at < size {
            let copied = fs.copy_range(&CX, from, at, to, at - shift, size - at).expect("copy");
            assert!(copied > 0, "{name}: nothing at {at} of {size}");
            assert!(shift > 0 || at + copied == size || copied.is_multiple_of(4096));
            (at, parts) = (at + copied, parts + 1);
        }
        assert_eq!(fs.copy_range(&CX, from, at, to, at - shift, 1).expect("the end"), 0);
        println!("{name}: {parts} parts");
        assert!(size < at_most || parts > 1, "{name}: all at once");
        let (mut expected, mut found) = (vec![0; size as usize], vec![0; size as usize]);
        assert_eq!(fs.read(from, 0, &mut expected).expect("read") as u64, size);
        assert_eq!(fs.read(to, 0, &mut found).expect("read") as u64, size - shift);
        assert!(found[..(size - shift) as usize] == expected[shift as usize..], "{name}");
    }
    fs.destroy().expect("close");
}
