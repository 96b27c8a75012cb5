//! Writes into space that a file has already need no more of it: on a full volume, and beyond a limit of a quota
//! group, what was preallocated and what is not copied on write takes content, in whatever way it comes.

mod common;

use btrfs_fs::{BtrfsFs, LimitChange};
use common::{CX, Image, close_and_judge, errno, new_file};
use vfs::{FallocateMode, FileSystem, Ino, WriteFlags};

const MIB: u64 = 1 << 20;
const APPEND: u32 = 0x20;
const NOCOW: u32 = 0x0080_0000;
const BUFFERED: WriteFlags =
    WriteFlags { direct: false, cached: false, kill_priv: false, sync: false };
const DIRECT: WriteFlags = WriteFlags { direct: true, ..BUFFERED };
const CACHED: WriteFlags = WriteFlags { cached: true, ..BUFFERED };

/// A preallocated file, and one of content that is not copied on write.
fn with_space(fs: &BtrfsFs) -> [Ino; 2] {
    let preallocated = new_file(fs, "preallocated", &[]);
    fs.fallocate(&CX, preallocated, FallocateMode::Allocate, 0, 50 * MIB).expect("room");
    let nocow = new_file(fs, "nocow", &[]);
    fs.set_flags(&CX, nocow, NOCOW).expect("chattr +C");
    for at in 0..20 {
        fs.write(&CX, nocow, at * MIB, &vec![7; MIB as usize], BUFFERED).expect("room");
    }
    fs.sync().expect("sync");
    [preallocated, nocow]
}

/// Writes until nothing more has room, and what that said.
fn fill(fs: &BtrfsFs) -> i32 {
    let (ino, mut at) = (new_file(fs, "rest", &[]), 0);
    for len in [MIB, 65536, 4096] {
        let refused = loop {
            match fs.write(&CX, ino, at, &vec![1; len as usize], BUFFERED) {
                Ok(written) => at += written as u64,
                Err(error) => break error.errno(),
            }
        };
        assert!([libc::ENOSPC, libc::EDQUOT].contains(&refused), "errno {refused}");
    }
    let again = errno(fs.write(&CX, ino, at, &[1; 4096], BUFFERED));
    fs.sync().expect("sync");
    again
}

fn write_in_all_ways(fs: &BtrfsFs, ino: Ino) {
    let commits = common::stat(fs, "commit.count");
    let mut at: u64 = 0;
    for flags in [BUFFERED, DIRECT, CACHED] {
        for (skip, len) in [(0, MIB), (100, 3000), (0, 4096), (5000, 300_000), (4096, 128 << 10)] {
            at = at.next_multiple_of(4096) + skip;
            let content = vec![(at >> 12) as u8 | 1; len as usize];
            let written = fs.write(&CX, ino, at, &content, flags);
            assert_eq!(written.expect("it has the space"), len as usize, "{flags:?} at {at}");
            let mut back = vec![0; len as usize];
            fs.read(ino, at, &mut back).expect("read");
            assert!(back == content, "{flags:?} at {at}");
            at += len;
        }
    }
    assert_eq!(common::stat(fs, "commit.count"), commits, "nobody waits for room");
}

fn fill_and_write(image: &Image, refusal: i32, prepare: impl Fn(&BtrfsFs)) {
    let fs = image.open();
    let files = with_space(&fs);
    prepare(&fs);
    assert_eq!(fill(&fs), refusal);
    files.iter().for_each(|ino| write_in_all_ways(&fs, *ino));
    // What was written there is copied on write by now.
    let [preallocated, _] = files;
    for (flags, end) in [(BUFFERED, 30 * MIB), (DIRECT, 31 * MIB)] {
        assert_eq!(errno(fs.write(&CX, preallocated, 0, &[3; 4096], flags)), refusal);
        // From there into what is preallocated still.
        fs.write(&CX, preallocated, end, &[4; 4096], flags).expect("preallocated");
        let both = fs.write(&CX, preallocated, end, &[5; 8192], flags);
        assert_eq!(errno(both), refusal);
    }
    // What comes out of the kernel's cache is not there any more if it is refused: what has space stays.
    let both = fs.write(&CX, preallocated, 40 * MIB - 4096, &[4; 4096], CACHED);
    both.expect("preallocated");
    assert_eq!(errno(fs.write(&CX, preallocated, 40 * MIB - 4096, &[6; 8192], CACHED)), refusal);
    let mut back = [0; 8192];
    fs.read(preallocated, 40 * MIB - 4096, &mut back).expect("read");
    assert!(back[..4096] == [4; 4096] && back[4096..] == [6; 4096]);
    fs.fsync(preallocated, false).expect("fsync");
    close_and_judge(image, fs);
}

#[test]
fn on_a_full_volume_what_a_file_has_takes_content() {
    testkit::require!(kernel_btrfs);
    fill_and_write(&Image::new(256 * MIB, &[]), libc::ENOSPC, |_| {});
}

#[test]
fn beyond_a_limit_what_a_file_has_takes_content() {
    testkit::require!(kernel_btrfs);
    fill_and_write(&Image::new(512 * MIB, &[]), libc::EDQUOT, |fs| {
        fs.enable_quotas().expect("quotas");
        fs.rescan_quotas().err();
        fs.sync().expect("commit");
        let limit = LimitChange { referenced: Some(Some(80 * MIB)), ..LimitChange::default() };
        fs.limit_qgroup("0/5".parse().expect("a group"), &limit).expect("limit");
    });
}

/// A snapshot has the space as well: then it is not to be written into.
#[test]
fn what_a_snapshot_has_is_not_written_over() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let files = with_space(&fs);
    let root = fs.root();
    fs.snapshot(&btrfs_fs::Caller::root(), root, root, b"snapshot", true).expect("a snapshot");
    assert_eq!(fill(&fs), libc::ENOSPC);
    for ino in files {
        for flags in [BUFFERED, DIRECT, CACHED] {
            assert_eq!(errno(fs.write(&CX, ino, 0, &[3; 4096], flags)), libc::ENOSPC);
        }
    }
    close_and_judge(&image, fs);
}

/// Of a write that makes a file longer by parts, what has no space is a hole between them.
#[test]
fn between_parts_that_stay_are_holes() {
    testkit::require!(kernel_btrfs);
    for mkfs in [&[][..], &["-O", "^no-holes"]] {
        let image = Image::new(256 * MIB, mkfs);
        let fs = image.open();
        let ino = new_file(&fs, "parts", &[]);
        for at in [0, 8192, 20480] {
            fs.fallocate(&CX, ino, FallocateMode::KeepSize, at, 4096).expect("room");
        }
        assert_eq!(fill(&fs), libc::ENOSPC);
        assert_eq!(errno(fs.write(&CX, ino, 0, &[6; 24576], CACHED)), libc::ENOSPC);
        let content = common::read(&fs, fs.root(), "parts");
        let expected = [6, 0, 6, 0, 0, 6].map(|byte| [byte; 4096]);
        assert!(content == expected.concat());
        close_and_judge(&image, fs);
    }
}

/// Of what was appended by parts the rest may come still.
#[test]
fn what_was_refused_between_parts_is_a_gap() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let ino = new_file(&fs, "log", &[]);
    for at in [0, 2 * MIB] {
        fs.fallocate(&CX, ino, FallocateMode::KeepSize, at, MIB).expect("room");
    }
    fs.set_flags(&CX, ino, APPEND).expect("chattr +a");
    assert_eq!(fill(&fs), libc::ENOSPC);
    let cached = |at, byte| errno(fs.write(&CX, ino, at, &[byte; MIB as usize], CACHED));
    assert_eq!(cached(3 * MIB / 2, 2), libc::ENOSPC);
    assert_eq!(cached(0, 1), 0);
    let half = MIB as usize / 2;
    let content = common::read(&fs, fs.root(), "log");
    assert!(content == [1, 1, 0, 0, 2].map(|byte| vec![byte; half]).concat());
    close_and_judge(&image, fs);
}
