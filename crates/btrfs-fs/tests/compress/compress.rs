//! Compression on write, judged by the kernel: what we compress it reads, checks and goes on with,
//! and what it compressed we change.

use crate::common;
use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use common::{CX, Image, close_and_judge, crashed, new_file, snapshot, stat};
use std::path::Path;
use testkit::oracle;
use vfs::{Errno, FallocateMode, FileKind, FileSystem, FsError, Ino, SetAttr, XattrMode};

const METHODS: [&str; 8] =
    ["zlib:1", "zlib", "zlib:9", "lzo", "zstd:-15", "zstd:1", "zstd", "zstd:15"];
const COMPRESSION: &[u8] = b"btrfs.compression";
const FS_COMPR: u32 = 0x4;
const FS_NOCOMP: u32 = 0x400;
const FS_NOCOW: u32 = 0x80_0000;

fn mount(method: &str, force: bool) -> Options {
    let method = Method::parse(method).expect("a method");
    let compress = Some(Compress { method, force });
    Options { background: false, compress, ..Options::default() }
}

/// Lines of text; each seed's own.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let line = |i: u64| format!("{seed} line {i} of {}\n", i.wrapping_mul(i + seed)).into_bytes();
    (0u64..).flat_map(line).take(len).collect()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::ops::Rng::new(seed).fill(&mut bytes);
    bytes
}

fn mixed(len: usize) -> Vec<u8> {
    let part = |i: usize| match i % 2 {
        0 => text(7, 200_000),
        _ => noise(i as u64, 150_000),
    };
    (0..).flat_map(part).take(len).collect()
}

fn read(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; fs.getattr(ino).expect("attributes").size as usize];
    let len = fs.read(ino, 0, &mut content).expect("read");
    assert_eq!(len, content.len());
    content
}

/// Files of all lengths; overwritten, cut, punched and shared inside of compressed extents.
fn work(fs: &BtrfsFs) {
    for len in [1, 40, 900, 2048, 2049, 3000, 4095, 4096, 4097, 8192, 60_000, 131_072, 131_073] {
        new_file(fs, &format!("text-{len}"), &text(len as u64, len));
        new_file(fs, &format!("noise-{len}"), &noise(len as u64, len));
    }
    new_file(fs, "long", &text(1, 9_300_001));
    new_file(fs, "mixed", &mixed(1_200_000));
    let base = text(2, 1_000_000);
    let (a, b, c) = (new_file(fs, "a", &base), new_file(fs, "b", &base), new_file(fs, "c", &base));
    fs.sync().expect("sync");
    for (at, len) in [(100, 10), (130_000, 5000), (400_000, 200_000), (999_990, 700)] {
        fs.write(&CX, a, at, &text(at + 5, len), Default::default()).expect("overwrite");
    }
    fs.fallocate(&CX, b, FallocateMode::PunchHole, 150_000, 20_000).expect("punch");
    fs.fallocate(&CX, b, FallocateMode::PunchHole, 262_144, 131_072).expect("punch");
    fs.fallocate(&CX, b, FallocateMode::ZeroRange { keep_size: false }, 700_000, 9000).expect("0");
    let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&CX, c, &set(300_001)).expect("cut");
    fs.setattr(&CX, c, &set(500_000)).expect("grow");
    let shared = new_file(fs, "shared", b"");
    fs.clone_range(&CX, a, 0, shared, 0, 0).expect("reflink");
    fs.clone_range(&CX, c, 65_536, shared, 131_072, 131_072).expect("reflink a part");
    fs.fsync(shared, false).expect("fsync");
    fs.write(&CX, shared, 140_000, &text(9, 3000), Default::default()).expect("overwrite");
    fs.sync().expect("sync");
}

#[test]
fn the_kernel_reads_what_we_compress() {
    testkit::require!(kernel_btrfs);
    for method in METHODS {
        println!("{method}");
        let image = Image::new(256 << 20, &[]);
        let fs = image.open_checked(mount(method, method == "zstd"));
        work(&fs);
        let (content, stored) =
            (stat(&fs, "data.compressed_content_bytes"), stat(&fs, "data.compressed_stored_bytes"));
        println!("{content} bytes became {stored}");
        assert!(content > 8_000_000 && stored < content * 2 / 3);
        close_and_judge(&image, fs);
        // Ours and the kernel's in one file.
        let change = |mount: &oracle::KernelMount| {
            let at = mount.join("a");
            let script = "dd if=/dev/zero of=$1 bs=5000 seek=30 count=9 conv=notrunc status=none \
                          && cat $1 >> $1.2 && truncate -s 77777 $1.2 && cat $1 >> $1.2";
            oracle::sh("sh", &["-c", script, "sh", &at.to_string_lossy()]).expect("change");
        };
        let kind = method.split(':').next().expect("a name");
        oracle::with_kernel(&image.path, &format!("compress-force={kind}"), change).expect("mount");
        let fs = image.open_checked(mount(method, false));
        work_again(&fs);
        close_and_judge(&image, fs);
    }
}

fn work_again(fs: &BtrfsFs) {
    let file = fs.lookup(&CX, fs.root(), b"a.2").expect("the kernel's").attr.ino;
    let before = read(fs, file);
    fs.write(&CX, file, 100_001, &text(3, 300_000), Default::default()).expect("overwrite");
    fs.sync().expect("sync");
    let mut expected = before;
    expected[100_001..400_001].copy_from_slice(&text(3, 300_000));
    assert!(read(fs, file) == expected);
}

#[test]
fn short_files_are_compressed_into_their_items() {
    testkit::require!(kernel_btrfs);
    for method in METHODS {
        let image = Image::new(128 << 20, &[]);
        let fs = image.open_checked(mount(method, false));
        for i in 0..20 {
            let content = text(i, 200).repeat(21);
            new_file(&fs, &format!("f{i}"), &content[..300 + 195 * i as usize]);
        }
        fs.sync().expect("sync");
        assert!(stat(&fs, "data.inline_extents") >= 20, "{method}");
        assert_eq!(stat(&fs, "data.extents_written"), 0, "{method}: all fit into their items");
        close_and_judge(&image, fs);
    }
}

/// As the kernel does: a file that does not get smaller is marked, unless forced or asked for.
#[test]
fn what_does_not_get_smaller_is_left_alone() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(128 << 20, &[]);
    let fs = image.open_checked(mount("zstd", false));
    // The sample lies between what cannot be compressed.
    let mut sly = noise(4, 131_072);
    sly.chunks_mut(256).for_each(|part| part[..16].fill(b'a'));
    let marked = new_file(&fs, "sly", &sly);
    let plain = new_file(&fs, "noise", &noise(5, 500_000));
    let asked = new_file(&fs, "asked", b"");
    fs.setxattr(&CX, asked, COMPRESSION, b"lzo", XattrMode::Set).expect("property");
    fs.write(&CX, asked, 0, &sly, Default::default()).expect("write");
    fs.sync().expect("sync");
    // 16 of 256 bytes are saved: a sector of each extent and more.
    assert_eq!(fs.flags(plain).expect("flags") & FS_NOCOMP, 0, "nobody tried");
    assert_eq!(fs.flags(asked).expect("flags") & (FS_NOCOMP | FS_COMPR), FS_COMPR);
    let saved = stat(&fs, "data.compressed_extents");
    assert_eq!(fs.flags(marked).expect("flags") & FS_NOCOMP != 0, saved == 0);
    close_and_judge(&image, fs);
}

#[test]
fn flags_and_properties_are_inherited_and_decide() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(128 << 20, &[]);
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    let dir =
        |name: &str| fs.mkdir(&CX, fs.root(), name.as_bytes(), 0o755).expect("mkdir").attr.ino;
    let written = |dir: Ino| {
        let before = stat(&fs, "data.compressed_extents");
        let made = fs.mknod(&CX, dir, b"f", FileKind::File, 0o644, 0).expect("create").attr.ino;
        fs.write(&CX, made, 0, &text(1, 400_000), Default::default()).expect("write");
        fs.fsync(made, false).expect("fsync");
        (made, stat(&fs, "data.compressed_extents") - before)
    };
    let (zstd, lzo, plus_c, plus_m, nocow) =
        (dir("zstd"), dir("lzo"), dir("c"), dir("m"), dir("nocow"));
    fs.setxattr(&CX, zstd, COMPRESSION, b"zstd", XattrMode::Set).expect("property");
    fs.setxattr(&CX, lzo, COMPRESSION, b"lzo", XattrMode::Set).expect("property");
    fs.set_flags(&CX, plus_c, FS_COMPR).expect("chattr +c");
    fs.set_flags(&CX, plus_m, FS_NOCOMP).expect("chattr +m");
    fs.set_flags(&CX, nocow, FS_NOCOW).expect("chattr +C");
    assert_eq!(written(dir("plain")).1, 0);
    for (dir, value) in [(zstd, &b"zstd"[..]), (lzo, b"lzo"), (plus_c, b"zlib")] {
        let (file, extents) = written(dir);
        assert_eq!(fs.getxattr(file, COMPRESSION).expect("inherited"), value);
        assert_eq!((fs.flags(file).expect("flags") & FS_COMPR, extents), (FS_COMPR, 4));
        fs.setxattr(&CX, file, COMPRESSION, b"no", XattrMode::Set).expect("property");
        assert_eq!(fs.flags(file).expect("flags") & (FS_COMPR | FS_NOCOMP), FS_NOCOMP);
    }
    assert_eq!(written(plus_m).1, 0);
    let (file, extents) = written(nocow);
    assert_eq!(extents, 0);
    let refused = fs.setxattr(&CX, file, COMPRESSION, b"zstd", XattrMode::Set);
    assert!(matches!(refused, Err(FsError::Posix(Errno::EINVAL))), "{refused:?}");
    close_and_judge(&image, fs);
}

/// The superblock that leads to a log with such extents says that there are some; the log says them
/// as the kernel's would: both replays find the content.
#[test]
fn a_log_says_compressed_extents_and_its_superblock_their_kind() {
    testkit::require!(kernel_btrfs);
    for (method, bit) in [("lzo", 1u64 << 3), ("zstd", 1 << 4), ("zlib", 0)] {
        let image = Image::new(128 << 20, &[]);
        let both = 1u64 << 3 | 1 << 4;
        let before = incompat(&image.path) & both;
        let fs = image.open_with(mount(method, false));
        let (file, short) = (new_file(&fs, "file", b""), new_file(&fs, "short", b""));
        fs.sync().expect("sync");
        fs.write(&CX, file, 0, &text(1, 700_000), Default::default()).expect("write");
        fs.fsync(file, false).expect("fsync");
        fs.write(&CX, file, 50_000, &text(8, 90_000), Default::default()).expect("write");
        fs.write(&CX, short, 0, &text(2, 3500), Default::default()).expect("write");
        fs.fsync(short, false).expect("fsync");
        fs.fsync(file, false).expect("fsync");
        let expected = snapshot(&fs);
        let copy = crashed(&image, "crashed.img");
        assert_eq!(incompat(&copy) & both, before | bit, "{method}");
        let kernels = crashed(&image, "kernels.img");
        drop(fs);
        let seen = oracle::with_kernel(&kernels, "noatime", |mount| {
            testkit::compare::TreeSnapshot::of_dir(mount.path()).expect("walk")
        });
        common::assert_same(&expected, &seen.expect("the kernel replays the log"));
        let fs = common::open_image(&copy, Options { background: false, ..Options::default() });
        common::assert_same(&expected, &snapshot(&fs));
        fs.destroy().expect("close");
        common::judge(&copy, &expected);
    }
}

/// Systems that do not know a kind of compression mount what has none of it.
#[test]
fn what_does_not_get_smaller_says_no_compression() {
    testkit::require!(btrfs_progs);
    let image = Image::new(128 << 20, &[]);
    let zstd = 1u64 << 4;
    assert_eq!(incompat(&image.path) & zstd, 0);
    let fs = image.open_with(mount("zstd", true));
    new_file(&fs, "long", &noise(1, 1 << 20));
    new_file(&fs, "short", &noise(2, 1500));
    fs.sync().expect("sync");
    assert_eq!(incompat(&image.path) & zstd, 0, "nothing is compressed");
    new_file(&fs, "text", &text(1, 1500));
    fs.sync().expect("sync");
    assert_eq!(incompat(&image.path) & zstd, zstd);
    fs.destroy().expect("close");
}

fn incompat(image: &Path) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut bits = [0; 8];
    let file = std::fs::File::open(image).expect("open");
    file.read_exact_at(&mut bits, 65536 + 0xbc).expect("read");
    u64::from_le_bytes(bits)
}

/// Writers change content while it is compressed, others read it, fsync and sync.
#[test]
fn content_that_changes_while_it_is_compressed() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(mount("zlib:9", true));
    let files: Vec<Ino> =
        (0..4).map(|i| new_file(&fs, &format!("f{i}"), &text(i, 500_000))).collect();
    std::thread::scope(|scope| {
        for (at, file) in files.iter().enumerate() {
            let fs = &fs;
            scope.spawn(move || {
                let mut random = testkit::ops::Rng::new(at as u64);
                for i in 0..150 {
                    let (from, len) = (random.next_u64() % 700_000, 1 + random.next_u64() % 90_000);
                    let content = text(i, len as usize);
                    fs.write(&CX, *file, from, &content, Default::default()).expect("write");
                    let mut back = vec![0; content.len()];
                    fs.read(*file, from, &mut back).expect("read");
                    assert!(back == content);
                }
            });
            scope.spawn(move || (0..8).try_for_each(|_| fs.fsync(*file, false)).expect("fsync"));
        }
        scope.spawn(|| (0..6).try_for_each(|_| fs.sync()).expect("sync"));
    });
    close_and_judge(&image, fs);
}

/// What a write promised was not for what became of it by then; the checked commits say whether
/// that was enough.
#[test]
fn what_is_compressed_changes_while_content_waits() {
    testkit::require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_checked(Options { background: false, ..Options::default() });
    let of = |text: Option<&str>| {
        let method = text.map(|text| Method::parse(text).expect("a method"));
        method.map(|method| Compress { method, force: false })
    };
    for (round, then) in [Some("zstd"), None, Some("lzo"), Some("zlib:9"), None].iter().enumerate()
    {
        let content = text(round as u64, 3_000_000);
        let ino = new_file(&fs, &format!("f{round}"), b"");
        // So short that they gather in memory, whatever is compressed now.
        for (at, part) in (0..).step_by(65_536).zip(content.chunks(65_536)) {
            fs.write(&CX, ino, at, part, Default::default()).expect("write");
        }
        let before = stat(&fs, "data.compressed_content_bytes");
        fs.set_compression(of(*then));
        fs.fsync(ino, false).expect("fsync");
        let more = stat(&fs, "data.compressed_content_bytes") - before;
        assert_eq!(more > 2_900_000, then.is_some(), "{then:?}: {more} bytes");
        assert!(then.is_some() || more == 0, "{more} bytes");
        assert!(read(&fs, ino) == content, "{then:?}");
    }
    close_and_judge(&image, fs);
}
