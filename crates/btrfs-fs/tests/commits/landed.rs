//! Commits that leave content in memory: an fsync that has to commit takes its own file's
//! content along and no other's, and loses nobody anything.

use crate::common;
use btrfs_fs::{BtrfsFs, Options};
use common::{CX, Image, close_and_judge, crashed, new_file, snapshot, stat};
use testkit::oracle;
use vfs::{FileSystem, RenameMode, WriteFlags};

/// Makes a file too large for the data chunk of `mkfs.btrfs`, and an fsync of it: no log may
/// refer to the chunk that it continues in.
fn fsync_that_commits(fs: &dyn FileSystem, name: &str) {
    let (fallbacks, commits) = (stat(fs, "log.fallback_commits"), stat(fs, "commit.count"));
    let file = new_file(fs, name, b"");
    for part in 0..12 {
        fs.write(&CX, file, part << 20, &[2; 1 << 20], WriteFlags::default()).expect("write");
    }
    fs.fsync(file, false).expect("fsync");
    assert_eq!(stat(fs, "log.fallback_commits"), fallbacks + 1, "a chunk is new");
    assert_eq!(stat(fs, "commit.count"), commits + 1);
}

fn open(image: &Image) -> BtrfsFs {
    image.open_with(Options { background: false, ..Options::default() })
}

#[test]
fn an_fsync_that_commits_does_not_write_other_files() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &[]);
    let fs = open(&image);
    let other = new_file(&fs, "other", &[7; 100_000]);
    fsync_that_commits(&fs, "large");
    assert!(stat(&fs, "delta.dirty_bytes") >= 100_000, "it is not asked for");
    fs.fsync(other, false).expect("fsync");
    let expected = snapshot(&fs);
    let copy = crashed(&image, "crashed.img");
    drop(fs);
    let seen = common::open_image(&copy, Options::default());
    common::assert_same(&expected, &snapshot(&seen));
    drop(seen);
    common::judge(&copy, &expected);
}

#[test]
fn a_file_that_replaces_another_has_its_content_in_any_commit() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &[]);
    // By the kernel: a commit of ours would make the next chunk known.
    let put = |mount: &std::path::Path| std::fs::write(mount.join("target"), [1; 50_000]);
    oracle::with_kernel(&image.path, "noatime", |mount| put(mount.path()))
        .expect("the kernel mounts it")
        .expect("write");
    let fs = open(&image);
    let new = new_file(&fs, "new", &[9; 60_000]);
    fs.rename(&CX, fs.root(), b"new", fs.root(), b"target", RenameMode::Replace).expect("rename");
    fsync_that_commits(&fs, "large");
    let copy = crashed(&image, "crashed.img");
    let seen = common::open_image(&copy, Options::default());
    let there = seen.lookup(&CX, seen.root(), b"target").expect("a name").attr;
    assert_eq!(there.size, 60_000, "the new one, and not empty");
    let mut bytes = vec![0; 60_000];
    assert_eq!(seen.read(there.ino, 0, &mut bytes).expect("read"), 60_000);
    assert!(bytes.iter().all(|byte| *byte == 9));
    assert_eq!(there.ino, new);
}

/// Files that are written, synced and deleted, far more than the volume holds: the log keeps
/// their space until a commit, and one comes before the chunks are full and fsyncs become commits.
#[test]
fn what_was_logged_and_deleted_comes_back_in_time() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &[]);
    let fs = image.open_with(Options::default());
    for round in 0..3000 {
        let file = new_file(&fs, "file", &[round as u8; 1 << 20]);
        fs.fsync(file, false).expect("fsync");
        fs.unlink(&CX, fs.root(), b"file").expect("unlink");
        fs.forget(file, 1);
    }
    let (fallbacks, commits) = (stat(&fs, "log.fallback_commits"), stat(&fs, "commit.count"));
    println!("{fallbacks} fsyncs became commits, {commits} commits in all");
    assert!(fallbacks * 4 <= commits, "{fallbacks} fsyncs became commits, of {commits}");
    close_and_judge(&image, fs);
}

/// The kernel takes nothing away that lies behind the end of a file that grows: no commit may have anything there,
/// though it takes along what went straight to an extent, and leaves in memory what did not.
#[test]
fn a_commit_has_nothing_behind_what_it_leaves_in_memory() {
    testkit::require!(kernel_btrfs);
    const GROWN: u64 = 8 << 20;
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    // At these places, so many bytes.
    type Writes = [(u64, usize, WriteFlags)];
    let writes: [&Writes; 4] = [
        &[(0, 100, WriteFlags::default()), (100, 1 << 20, WriteFlags::default())],
        &[(0, 100, WriteFlags::default()), (2 << 20, 1 << 20, WriteFlags::default())],
        &[(0, 100, WriteFlags::default()), (8192, 65_536, direct)],
        &[
            (0, 120 << 10, WriteFlags::default()),
            (120 << 10, 120 << 10, WriteFlags::default()),
            (240 << 10, 1 << 20, WriteFlags::default()),
        ],
    ];
    let image = Image::new(1 << 30, &[]);
    let fs = open(&image);
    for (number, writes) in writes.iter().enumerate() {
        let file = new_file(&fs, &format!("file{number}"), b"");
        for &(at, len, flags) in *writes {
            fs.write(&CX, file, at, &vec![7; len], flags).expect("write");
        }
    }
    fsync_that_commits(&fs, "large");
    let copy = crashed(&image, "crashed.img");
    drop(fs);
    let grow = |mount: &oracle::KernelMount| -> std::io::Result<Vec<u64>> {
        let grown = |number| {
            let path = mount.path().join(format!("file{number}"));
            let file = std::fs::File::options().write(true).open(path)?;
            let size = file.metadata()?.len();
            file.set_len(GROWN)?;
            Ok(size)
        };
        (0..writes.len()).map(grown).collect()
    };
    let sizes = oracle::with_kernel(&copy, "noatime", grow).expect("mounts").expect("grows");
    let read = |mount: &oracle::KernelMount| {
        let read = |number| std::fs::read(mount.path().join(format!("file{number}")));
        (0..writes.len()).map(read).collect::<std::io::Result<Vec<_>>>()
    };
    let contents = oracle::with_kernel(&copy, "noatime", read).expect("mounts").expect("reads");
    for (number, (content, size)) in contents.iter().zip(sizes).enumerate() {
        assert_eq!(content.len() as u64, GROWN);
        let behind = content[size as usize..].iter().position(|byte| *byte != 0);
        assert_eq!(behind, None, "file{number} behind {size}");
    }
}
