//! Files with fs-verity: what is made of them, read of them, and left of them by crashes and damage.
//!
//! Judges: the tool `fsverity` for digests, `btrfs check`, our own check, and the kernel's mount, which
//! shows such files whether or not it was built to read them.

#[path = "../common/mod.rs"]
mod common;

mod check;
mod life;
mod steps;

use blocksim::SimDevice;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, Options, VerityWish};
use common::{CX, new_file};
use fs_verity::{HashAlgorithm, Params};
use fuzzing::patch::Patch;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::oracle::{self, TempDir};
use vfs::{FallocateMode, FileSystem, Ino, SetAttr, WriteFlags};

const TOP: TreeId = TreeId::FS;

fn content(len: usize) -> Vec<u8> {
    let mix = |i: u64| {
        let x = (i ^ i >> 7 ^ 0x5bd1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 40
    };
    (0..len as u64).map(|i| mix(i) as u8).collect()
}

fn wish(algorithm: HashAlgorithm, block: u32, salt: &[u8]) -> VerityWish {
    let params = Params::new(algorithm, block, salt).expect("allowed");
    VerityWish { params, signature: Vec::new() }
}

fn plain() -> VerityWish {
    wish(HashAlgorithm::Sha256, 4096, &[])
}

fn ours() -> (TempDir, std::path::PathBuf) {
    let dir = TempDir::new("verity").expect("a directory");
    let path = dir.join("disk.img");
    let device = blockdev::FileDevice::create(&path, 512 << 20).expect("an image");
    btrfs_image::mkfs::make(&device, &Default::default()).expect("mkfs");
    (dir, path)
}

fn open(path: &Path) -> BtrfsFs {
    common::open_image(path, Options { background: false, ..Options::default() })
}

fn errno<T: std::fmt::Debug>(result: vfs::Result<T>) -> i32 {
    result.expect_err("refused").errno()
}

fn read(fs: &BtrfsFs, ino: Ino, at: u64, len: usize) -> vfs::Result<Vec<u8>> {
    let mut buf = vec![0xdd; len];
    let read = fs.read(ino, at, &mut buf);
    if read.is_err() {
        let untouched = |byte: &u8| [0, 0xdd].contains(byte);
        assert!(buf.iter().all(untouched), "bytes of a read that failed");
    }
    buf.truncate(read?);
    Ok(buf)
}

fn by_tool(dir: &Path, content: &[u8], wish: &VerityWish) -> Option<String> {
    let path = dir.join("same");
    std::fs::write(&path, content).expect("a file");
    let mut tool = Command::new("fsverity");
    tool.args(["digest", "--compact"]).arg(&path);
    tool.arg(format!("--hash-alg={}", wish.params.algorithm().name()));
    tool.arg(format!("--block-size={}", wish.params.block_size()));
    let salt: String = wish.params.salt().iter().map(|byte| format!("{byte:02x}")).collect();
    if !salt.is_empty() {
        tool.arg(format!("--salt={salt}"));
    }
    let output = tool.output().ok()?;
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).expect("hexadecimal").trim().to_string())
}

#[test]
fn files_are_measured_as_the_tool_measures_them_and_read_as_they_were() {
    let (dir, path) = ours();
    let fs = open(&path);
    let wishes = [
        plain(),
        wish(HashAlgorithm::Sha512, 1024, b"salt"),
        wish(HashAlgorithm::Sha256, 1024, &[9; 32]),
        wish(HashAlgorithm::Sha512, 4096, &[]),
        wish(HashAlgorithm::Sha256, 2048, b"x"),
    ];
    let mut files = Vec::new();
    let sizes = [0, 1, 1023, 4096, 4097, 100_000, 600_000, 3_000_001];
    for (at, size) in sizes.into_iter().enumerate() {
        for (way, wish) in wishes.iter().enumerate() {
            let content = content(size);
            let ino = new_file(&fs, &format!("{at}-{way}"), &content);
            fs.enable_verity(None, ino, wish).expect("enable");
            match by_tool(dir.path(), &content, wish) {
                Some(digest) => {
                    let ours = fs.measure_verity(ino).expect("measure").digest();
                    assert_eq!(ours.to_string(), digest, "{size} bytes, {wish:?}");
                }
                None => testkit::oracle::record_skip("verity", "fsverity-utils is missing"),
            }
            files.push((ino, content));
        }
    }
    let look = |fs: &BtrfsFs| {
        for (ino, content) in &files {
            let size = content.len();
            assert_eq!(&read(fs, *ino, 0, size + 100).expect("read"), content);
            for (at, len) in [(0, 1), (4095, 2), (size / 2, 5000), (size.saturating_sub(3), 9)] {
                let end = (at + len).min(size);
                let expected = content.get(at..end).unwrap_or(&[]);
                assert_eq!(read(fs, *ino, at as u64, len).expect("read"), expected);
            }
            assert_eq!(fs.getattr(*ino).expect("attr").attributes, vfs::attributes::VERITY);
            assert_eq!(fs.flags(*ino).expect("flags") & 0x10_0000, 0x10_0000);
        }
    };
    look(&fs);
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&path);
    let fs = open(&path);
    assert_eq!(fs.read_only_reason(), None, "volumes with such files are written");
    look(&fs);
    // All of it goes with the file.
    for (at, _) in sizes.iter().enumerate() {
        for (way, _) in wishes.iter().enumerate() {
            fs.unlink(&CX, fs.root(), format!("{at}-{way}").as_bytes()).expect("unlink");
        }
    }
    for (ino, _) in &files {
        fs.forget(*ino, 1);
    }
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&path);
    assert_eq!(verity_items(&path), 0, "items of files that are gone");
}

fn assert_sound(path: &Path) {
    common::check_ourselves(path);
    if oracle::capabilities().btrfs_progs {
        oracle::assert_clean(path);
    }
}

fn verity_items(path: &Path) -> usize {
    let kinds = [kind::VERITY_DESC_ITEM, kind::VERITY_MERKLE_ITEM];
    Patch::new(path).items(TOP).iter().filter(|(key, _)| kinds.contains(&key.kind)).count()
}

#[test]
fn content_stays_and_everything_else_may_change() {
    let (_dir, path) = ours();
    let fs = open(&path);
    let old = content(300_000);
    let ino = new_file(&fs, "file", &old);
    let other = new_file(&fs, "other", &content(9000));
    fs.enable_verity(None, ino, &plain()).expect("enable");
    assert_eq!(errno(fs.enable_verity(None, ino, &plain())), libc::EEXIST);
    let no_flags = WriteFlags::default();
    assert_eq!(errno(fs.write(&CX, ino, 0, b"x", no_flags)), libc::EPERM);
    let direct = WriteFlags { direct: true, ..no_flags };
    assert_eq!(errno(fs.write(&CX, ino, 0, &[1; 4096], direct)), libc::EPERM);
    for size in [0, 10, 1 << 20] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(errno(fs.setattr(&CX, ino, &set)), libc::EPERM);
    }
    for mode in [FallocateMode::Allocate, FallocateMode::KeepSize, FallocateMode::PunchHole] {
        assert_eq!(errno(fs.fallocate(&CX, ino, mode, 0, 1 << 20)), libc::EPERM);
    }
    assert_eq!(errno(fs.clone_range(&CX, other, 0, ino, 0, 4096)), libc::EPERM);
    assert_eq!(errno(fs.copy_range(&CX, other, 0, ino, 0, 4096)), libc::EPERM);
    // What of it goes elsewhere is an ordinary file.
    let copy = new_file(&fs, "copy", b"");
    fs.clone_range(&CX, ino, 0, copy, 0, 0).expect("reflink");
    assert_eq!(read(&fs, copy, 0, 400_000).expect("read"), old);
    assert_eq!(errno(fs.measure_verity(copy)), libc::ENODATA);
    fs.write(&CX, copy, 0, b"x", no_flags).expect("write");
    // Its other sides change as any file's.
    fs.setattr(&CX, ino, &SetAttr { perm: Some(0o400), uid: Some(7), ..SetAttr::default() })
        .expect("chmod, chown");
    fs.setxattr(&CX, ino, b"user.a", b"b", vfs::XattrMode::Set).expect("xattr");
    fs.set_flags(&CX, ino, fs.flags(ino).expect("flags") | 0x40).expect("chattr +d");
    fs.rename(&CX, fs.root(), b"file", fs.root(), b"new", vfs::RenameMode::Replace)
        .expect("rename");
    fs.forget(fs.link(&CX, ino, fs.root(), b"link").expect("link").attr.ino, 1);
    fs.defragment(ino, &Default::default()).expect("defragment");
    assert_eq!(errno(fs.set_flags(&CX, copy, 0x10_0000)), libc::EOPNOTSUPP);
    assert_eq!(read(&fs, ino, 0, 400_000).expect("read"), old);
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&path);
}

#[test]
fn what_cannot_become_one_is_refused() {
    let (_dir, path) = ours();
    let fs = open(&path);
    assert_eq!(errno(fs.enable_verity(None, fs.root(), &plain())), libc::EISDIR);
    let ino = new_file(&fs, "file", &content(5000));
    assert_eq!(errno(fs.measure_verity(ino)), libc::ENODATA);
    let large = wish(HashAlgorithm::Sha256, 65536, &[]);
    assert_eq!(errno(fs.enable_verity(None, ino, &large)), libc::EINVAL);
    let signed = VerityWish { signature: vec![0; 16129], ..plain() };
    assert_eq!(errno(fs.enable_verity(None, ino, &signed)), libc::EMSGSIZE);
    fs.set_flags(&CX, ino, 0x20).expect("chattr +a");
    assert_eq!(errno(fs.enable_verity(None, ino, &plain())), libc::EPERM);
    fs.set_flags(&CX, ino, 0).expect("chattr -a");
    let signed = VerityWish { signature: vec![3; 16128], ..plain() };
    fs.enable_verity(None, ino, &signed).expect("enable");
    assert_eq!(fs.measure_verity(ino).expect("measure").signature, vec![3; 16128]);
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&path);
    let fs = open(&path);
    assert_eq!(fs.measure_verity(ino).expect("measure").signature, vec![3; 16128]);
}

/// A volume with a file of 40 hashes and more, on which checksums say nothing of the content.
fn unsummed(path: &Path) -> (Ino, Vec<u8>) {
    let fs = open(path);
    let old = content(1_000_000);
    let ino = new_file(&fs, "file", b"");
    fs.set_flags(&CX, ino, 0x80_0000).expect("chattr +C");
    fs.write(&CX, ino, 0, &old, WriteFlags::default()).expect("write");
    fs.enable_verity(None, ino, &plain()).expect("enable");
    fs.destroy().expect("close");
    (ino, old)
}

#[test]
fn a_changed_byte_of_content_is_an_error_there_and_nowhere_else() {
    let (_dir, path) = ours();
    let (ino, old) = unsummed(&path);
    let bytes = std::fs::read(&path).expect("the image");
    let at = 500_000;
    let block = at as u64 / 4096 * 4096;
    let content = &old[block as usize..][..4096];
    let found: Vec<_> =
        (0..).zip(bytes.chunks(4096)).filter(|(_, part)| *part == content).collect();
    assert_eq!(found.len(), 1, "it is stored once");
    let place = found[0].0 * 4096 + at as u64 % 4096;
    Patch::new(&path).write_raw(place, &[old[at] ^ 1]);
    let fs = open(&path);
    for (from, len) in [(at as u64, 1), (block, 4096), (block + 4095, 1), (block - 1, 2)] {
        assert_eq!(errno(read(&fs, ino, from, len)), libc::EIO, "{len} bytes from {from}");
    }
    assert_eq!(errno(read(&fs, ino, 0, 1 << 20)), libc::EIO);
    let before = read(&fs, ino, 0, block as usize).expect("what is in front");
    assert_eq!(before, old[..block as usize]);
    let behind = block as usize + 4096;
    assert_eq!(read(&fs, ino, behind as u64, 1 << 20).expect("what is behind"), old[behind..]);
}

#[test]
fn a_changed_byte_of_the_tree_is_an_error() {
    // Of the top, and of the leaf level, which is behind it.
    for (number, offset) in [0u64, 4096].into_iter().enumerate() {
        let (_dir, path) = ours();
        let (ino, _) = unsummed(&path);
        let objectid = Patch::new(&path).ino(TOP, "file");
        let key = Key::new(objectid, kind::VERITY_MERKLE_ITEM, offset);
        Patch::new(&path).edit(TOP, key, |data| data[5] ^= 0x10);
        let fs = open(&path);
        assert_eq!(errno(read(&fs, ino, 0, 4096)), libc::EIO, "level {number} from the top");
        // The checksums of all nodes are right.
        assert_eq!(fs.read_only_reason(), None);
    }
}

fn found_by_check(path: &Path) -> bool {
    let device = Arc::new(common::open_device(path, true));
    let options = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let volume = btrfs_volume::Volume::open(device, options).expect("open the volume");
    let report = btrfs_check::check(Arc::new(volume), &Default::default()).expect("check");
    report.findings.iter().any(|finding| finding.kind.code() == "verity-bad")
}

/// Whatever a descriptor says: an error, and memory that the file's size explains.
#[test]
fn hostile_descriptors_are_errors() {
    let (_dir, path) = ours();
    let (ino, old) = unsummed(&path);
    let objectid = Patch::new(&path).ino(TOP, "file");
    let first = Key::new(objectid, kind::VERITY_DESC_ITEM, 0);
    let bytes = Key::new(objectid, kind::VERITY_DESC_ITEM, 1);
    let changes: &[(Key, usize, &[u8])] = &[
        (first, 0, &[0xff; 8]),
        (first, 0, &[255, 0, 0, 0]),
        (first, 0, &[1, 64, 0, 0]),
        (first, 0, &[0, 2, 0, 0]),
        (first, 24, &[1]),
        (bytes, 0, &[2]),
        (bytes, 1, &[2]),
        (bytes, 1, &[9]),
        (bytes, 2, &[10]),
        (bytes, 2, &[16]),
        (bytes, 2, &[63]),
        (bytes, 3, &[200]),
        (bytes, 4, &[0xff; 4]),
        (bytes, 8, &[0xff; 8]),
        (bytes, 8, &[0; 8]),
        (bytes, 3, &[32]),
        (bytes, 16, &[0; 32]),
    ];
    // What the last two say can be: the hashes alone tell.
    let tells = |place: usize| place + 2 < changes.len();
    for (place, (key, at, with)) in changes.iter().enumerate() {
        let mut kept = Vec::new();
        let patch = Patch::new(&path);
        patch.edit(TOP, *key, |data| {
            kept = data.clone();
            data[*at..at + with.len()].copy_from_slice(with);
        });
        assert_eq!(found_by_check(&path), tells(place), "{with:?} at {at} of {key}");
        let fs = open(&path);
        for from in [0, 999_999] {
            let refused = errno(read(&fs, ino, from, 4096));
            assert!(
                [libc::EIO, libc::EUCLEAN].contains(&refused),
                "{refused}: {with:?} at {at} of {key}"
            );
        }
        assert!(fs.read_only_reason().is_none());
        drop(fs);
        Patch::new(&path).edit(TOP, *key, |data| *data = kept);
    }
    let merkle = Key::new(objectid, kind::VERITY_MERKLE_ITEM, 0);
    for key in [merkle, bytes, first] {
        Patch::new(&path).remove(TOP, key);
        assert!(found_by_check(&path), "{key} is gone");
        let fs = open(&path);
        assert_eq!(errno(read(&fs, ino, 0, 4096)), libc::EUCLEAN);
        drop(fs);
    }
    assert_eq!(old.len(), 1_000_000);
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

/// A volume on a device whose crash images can be had.
fn simulated() -> (TempDir, Arc<SimDevice>, BtrfsFs) {
    let (dir, path) = ours();
    let image = blocksim::Image::import(&path).expect("import");
    let device = Arc::new(SimDevice::new(image));
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    (dir, device, fs)
}

/// In each state that a crash can leave, the file is as it was, or a whole one with fs-verity; what was
/// made of a tree is gone behind the next mount.
#[test]
fn a_crash_leaves_the_file_with_all_of_it_or_nothing() {
    let (dir, device, fs) = simulated();
    let old = content(24_000_000);
    let ino = new_file(&fs, "file", &old);
    fs.sync().expect("sync");
    let from = device.position();
    let small = wish(HashAlgorithm::Sha512, 1024, b"crash");
    // With commits between its steps.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                fs.sync().expect("sync");
            }
        });
        let made = fs.enable_verity(None, ino, &small);
        done.store(true, Ordering::Release);
        made.expect("enable");
    });
    fs.fsync(ino, false).expect("fsync");
    let to = device.position();
    fs.sync().expect("sync");
    drop(fs);
    let (mut states, mut whole, mut half) = (0, 0, 0);
    for epoch in device.recording().epochs() {
        if epoch.end < from {
            continue;
        }
        for choice in epoch.choices(3, 1) {
            let image = epoch.image(&choice);
            let left = dir.join("left.img");
            image.export(&left).expect("export");
            let before = verity_items(&left);
            let device = Arc::new(SimDevice::new(image));
            common::check_device(device.clone(), true, btrfs_check::Severity::Error);
            let fs = BtrfsFs::open_device(device.clone(), options()).expect("mount");
            assert_eq!(fs.read_only_reason(), None);
            let there = fs.measure_verity(ino).is_ok();
            assert_eq!(read(&fs, ino, 0, 25 << 20).expect("read"), old, "verity: {there}");
            if epoch.end > to {
                assert!(there, "it was synced");
            }
            fs.destroy().expect("close");
            drop(fs);
            common::check_device(device.clone(), true, btrfs_check::Severity::Note);
            device.image().export(&left).expect("export");
            let items = verity_items(&left);
            assert_eq!(items > 0, there, "{items} items");
            (states, whole) = (states + 1, whole + u64::from(there));
            half += u64::from(!there && before > 0);
        }
    }
    println!("{states} states, {whole} with fs-verity, {half} with a part of it");
    assert!(states > 5 && whole > 0 && half > 0);
}

/// A kernel without CONFIG_FS_VERITY shows such files, opens none, and keeps and deletes them as others;
/// one with it reads them.
#[test]
fn the_kernel_mounts_the_volume_and_keeps_them() {
    testkit::require!(kernel_btrfs);
    let (_dir, path) = ours();
    let fs = open(&path);
    let old = content(400_000);
    let kept = new_file(&fs, "kept", &old);
    for (name, wish) in [("kept", plain()), ("gone", wish(HashAlgorithm::Sha512, 1024, b"s"))] {
        let ino = match name {
            "kept" => kept,
            _ => new_file(&fs, name, &old),
        };
        fs.enable_verity(None, ino, &wish).expect("enable");
    }
    fs.destroy().expect("close");
    drop(fs);
    oracle::with_kernel(&path, "noatime", |mount| {
        assert_eq!(std::fs::metadata(mount.join("kept")).expect("stat").len(), 400_000);
        match std::fs::read(mount.join("kept")) {
            Ok(content) => {
                println!("the kernel reads it");
                assert_eq!(content, old);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
        std::fs::rename(mount.join("kept"), mount.join("moved")).expect("rename");
        std::fs::remove_file(mount.join("gone")).expect("unlink");
        std::fs::write(mount.join("other"), b"by the kernel").expect("write");
    })
    .expect("the kernel mounts it");
    assert_sound(&path);
    let fs = open(&path);
    assert_eq!(fs.read_only_reason(), None);
    assert_eq!(read(&fs, kept, 0, 1 << 20).expect("read"), old);
    assert!(fs.lookup(&CX, fs.root(), b"moved").is_ok());
    drop(fs);
    let objectid = Patch::new(&path).ino(TOP, "moved");
    let kinds = [kind::VERITY_DESC_ITEM, kind::VERITY_MERKLE_ITEM];
    let items = Patch::new(&path).items(TOP);
    assert!(items.iter().all(|(key, _)| !kinds.contains(&key.kind) || key.objectid == objectid));
}
