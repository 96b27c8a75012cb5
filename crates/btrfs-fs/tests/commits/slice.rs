//! The thin slice through the whole house: one file, one commit, the kernel's judgement.

use crate::common;
use common::{Image, judge, snapshot};
use vfs::{Context, FileKind, FileSystem, WriteFlags};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

#[test]
fn an_empty_volume_opens_and_closes_unchanged() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let before = std::fs::read(&image.path).unwrap();
    let fs = image.open();
    let tree = snapshot(&fs);
    fs.destroy().unwrap();
    assert!(std::fs::read(&image.path).unwrap() == before, "nothing to do, nothing written");
    drop(fs);
    judge(&image.path, &tree);
}

#[test]
fn files_of_all_sizes_survive_a_commit() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let root = fs.root();
    let dir = fs.mkdir(&CX, root, b"dir", 0o755).unwrap().attr.ino;
    for (i, size) in
        [0usize, 1, 2048, 2049, 4096, 5000, 100_000, 1 << 20, 3 << 20].iter().enumerate()
    {
        let name = format!("file{i}");
        let file = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).unwrap();
        let content: Vec<u8> = (0..*size).map(|b| (b * 7 + i) as u8).collect();
        for (at, part) in content.chunks(300_000).enumerate() {
            let offset = (at * 300_000) as u64;
            let n = fs.write(&CX, file.attr.ino, offset, part, WriteFlags::default()).unwrap();
            assert_eq!(n, part.len());
        }
    }
    fs.symlink(&CX, root, b"link", b"dir/file1").unwrap();
    let expected = snapshot(&fs);
    fs.sync().unwrap();
    common::assert_same(&expected, &snapshot(&fs));
    fs.destroy().unwrap();
    drop(fs);
    judge(&image.path, &expected);
    let again = image.open();
    common::assert_same(&expected, &snapshot(&again));
}

/// A short file's content is inline, which cannot be shared: a copy of it behind its own
/// end must not find it inline again.
#[test]
fn a_short_file_is_copied_behind_its_own_end() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let content: Vec<u8> = (0..2047u32).map(|b| (b % 251 + 1) as u8).collect();
    for (name, committed) in [(b"fresh", false), (b"saved", true)] {
        let file = fs.mknod(&CX, fs.root(), name, FileKind::File, 0o644, 0).unwrap().attr.ino;
        fs.write(&CX, file, 0, &content, WriteFlags::default()).unwrap();
        if committed {
            fs.sync().unwrap();
        }
        assert_eq!(fs.copy_range(&CX, file, 0, file, 12288, 8192).unwrap(), 2047);
        let mut found = vec![1; 20_000];
        assert_eq!(fs.read(file, 0, &mut found).unwrap(), 14335);
        assert!(found[..2047] == content && found[12288..14335] == content);
        assert!(found[2047..12288].iter().all(|byte| *byte == 0));
    }
    let expected = snapshot(&fs);
    fs.destroy().unwrap();
    drop(fs);
    judge(&image.path, &expected);
}

#[test]
fn files_marked_synchronous_are_durable_at_each_write() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let make =
        |name: &[u8]| fs.mknod(&CX, fs.root(), name, FileKind::File, 0o644, 0).unwrap().attr.ino;
    let fsyncs = || fs.stats().iter().find(|stat| stat.name == "fsync.count").unwrap().value;
    let (plain, marked) = (make(b"plain"), make(b"marked"));
    fs.set_flags(&CX, marked, 0x8).unwrap();
    fs.write(&CX, plain, 0, b"soon", WriteFlags::default()).unwrap();
    assert_eq!(fsyncs(), 0);
    fs.write(&CX, marked, 0, b"now", WriteFlags::default()).unwrap();
    assert_eq!(fsyncs(), 1);
    // As a crash would leave it.
    let crashed = image.path.with_extension("crashed");
    std::fs::copy(&image.path, &crashed).unwrap();
    fs.destroy().unwrap();
    let content = testkit::oracle::with_kernel(&crashed, "", |mount| {
        std::fs::read(mount.join("marked")).unwrap()
    });
    std::fs::remove_file(&crashed).unwrap();
    assert_eq!(content.unwrap(), b"now");
}
