//! Writes into space that a file has already need no more of it: on a full volume, and beyond a limit of a quota
//! group, what was preallocated and what is not copied on write takes content, in whatever way it comes.

use crate::common;
use btrfs_disk::items::InodeItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, LimitChange};
use common::full::{BUFFERED, CACHED, DIRECT, MIB, NOCOW, fill};
use common::kernel::kernel;
use common::{CX, Image, close_and_judge, errno, find, new_file};
use fuzzing::patch::Patch;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vfs::{FallocateMode, FileKind, FileSystem, Ino, SetAttr};

const APPEND: u32 = 0x20;

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

fn write_in_all_ways(fs: &BtrfsFs, ino: Ino) {
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
}

fn fill_and_write(image: &Image, refusal: i32, prepare: impl Fn(&BtrfsFs)) {
    let fs = image.open();
    let files = with_space(&fs);
    prepare(&fs);
    assert_eq!(fill(&fs), refusal);
    let commits = common::stat(&fs, "commit.count");
    files.iter().for_each(|ino| write_in_all_ways(&fs, *ino));
    assert_eq!(common::stat(&fs, "commit.count"), commits, "nobody waits for room");
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

/// Where data and metadata share their block groups, what data leaves is for the nodes of these, too.
#[test]
fn on_a_full_mixed_volume_what_a_file_has_takes_content() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &["--mixed"]);
    let fs = image.open();
    let files = with_space(&fs);
    fill_with_names(&fs);
    files.iter().for_each(|ino| write_in_all_ways(&fs, *ino));
    close_and_judge(&image, fs);
}

/// Content until it is refused, and then files without any.
fn fill_with_names(fs: &BtrfsFs) {
    assert_eq!(fill(fs), libc::ENOSPC);
    let mut number = 0;
    let refused = loop {
        let name = format!("name-{number}");
        match fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0) {
            Ok(_) => number += 1,
            Err(error) => break error.errno(),
        }
    };
    assert_eq!(refused, libc::ENOSPC);
}

/// Of what is not copied on write a commit gives back all nodes: it is never too much.
#[test]
fn on_a_full_mixed_volume_content_is_written_over_again_and_again() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(80 * MIB, &["--mixed"]);
    let fs = image.open();
    let nocow = new_file(&fs, "nocow", &[]);
    fs.set_flags(&CX, nocow, NOCOW).expect("chattr +C");
    for at in 0..200 {
        fs.write(&CX, nocow, at * 65536, &[7; 65536], BUFFERED).expect("room");
        new_file(&fs, &format!("between-{at}"), &[1; 5000]);
    }
    fs.sync().expect("sync");
    fill_with_names(&fs);
    for round in 0..600_u64 {
        let flags = [BUFFERED, DIRECT, CACHED][round as usize % 3];
        let (at, len) = (round * 7919 % 3000 * 4096, [100, 4096, 200_000][round as usize / 3 % 3]);
        let written = fs.write(&CX, nocow, at, &vec![round as u8; len], flags);
        assert_eq!(written.expect("it has the space"), len, "round {round}");
        if round % 5 == 0 {
            fs.fsync(nocow, false).expect("fsync");
        }
    }
    close_and_judge(&image, fs);
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

/// Sectors of "parts" that are preallocated: behind them nothing is.
const PARTS: [(u64, u64); 2] = [(0, 5), (20, 3)];
/// Offsets and lengths of writes to it, and what the kernel writes of them; 0: ENOSPC.
const WRITES: [(u64, usize, usize); 6] = [
    (100, 30_000, 20_380),
    (0, 4096, 0),
    (19 * 4096, 8192, 0),
    (20 * 4096, 2 * 4096, 2 * 4096),
    (22 * 4096 + 7, 4096, 4089),
    (50 * 4096, 10, 0),
];

/// What the kernel's btrfs writes of each on its full volume.
fn by_kernel() -> Vec<usize> {
    let image = Image::new(256 * MIB, &[]);
    kernel(&image.path, "noatime", |mount| {
        let path = mount.path().join("parts");
        let parts = std::fs::File::create(&path).expect("create");
        parts.set_len(64 * 4096).expect("truncate");
        for (start, len) in PARTS {
            let range = format!("-o {} -l {}", start * 4096, len * 4096);
            let script = format!("fallocate -n {range} parts; sync -f .");
            script_in(mount.path(), &script);
        }
        let fill =
            "for bs in 1M 4k; do dd if=/dev/zero of=rest-$bs bs=$bs 2>/dev/null; done; sync -f .";
        script_in(mount.path(), fill);
        let write = |(at, len, _)| {
            let written = parts.write_at(&vec![5; len], at).unwrap_or(0);
            parts.sync_all().expect("fsync");
            written
        };
        WRITES.map(write).to_vec()
    })
}

fn script_in(dir: &Path, script: &str) {
    let status = std::process::Command::new("bash").args(["-c", script]).current_dir(dir).status();
    assert!(status.expect("bash").success(), "{script}");
}

/// Who waits for the answer hears how much there is space for, from the beginning on. A direct write is refused whole: the
/// kernel makes EIO of a short answer to one.
#[test]
fn of_a_write_the_front_is_written_that_has_space() {
    testkit::require!(kernel_btrfs);
    let expected = WRITES.map(|(_, _, written)| written).to_vec();
    assert_eq!(by_kernel(), expected, "the kernel's");
    for flags in [BUFFERED, DIRECT] {
        let image = Image::new(256 * MIB, &[]);
        let fs = image.open();
        let ino = new_file(&fs, "parts", &[]);
        let size = SetAttr { size: Some(64 * 4096), ..SetAttr::default() };
        fs.setattr(&CX, ino, &size).expect("truncate");
        for (start, len) in PARTS {
            let (start, len) = (start * 4096, len * 4096);
            fs.fallocate(&CX, ino, FallocateMode::KeepSize, start, len).expect("room");
        }
        assert_eq!(fill(&fs), libc::ENOSPC);
        let mut content = vec![0; 64 * 4096];
        let write = |(at, len, _)| {
            let written = fs.write(&CX, ino, at, &vec![5; len], flags).unwrap_or(0);
            content[at as usize..][..written].fill(5);
            written
        };
        let told = WRITES.map(write);
        // Where the first is refused the second has its space still.
        let whole = vec![0, 4096, 0, 8192, 0, 0];
        let expected = if flags.direct { whole } else { expected.clone() };
        assert_eq!(told.to_vec(), expected, "{flags:?}");
        assert!(common::read(&fs, fs.root(), "parts") == content);
        close_and_judge(&image, fs);
    }
}

/// A file that ends within a sector and has space behind that gets longer without any more, unless the sector
/// itself has to be written and is copied on write.
#[test]
fn behind_a_last_sector_is_what_a_file_has() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    kernel(&image.path, "noatime", |mount| {
        script_in(
            mount.path(),
            "set -e; touch nocow cow zeros; chattr +C nocow
            for name in nocow cow; do
                tr '\\0' k </dev/zero | head -c 8192 >$name
            done
            tr '\\0' k </dev/zero | head -c 5000 >zeros
            fallocate -n -o 8192 -l 1M nocow; fallocate -n -o 8192 -l 1M cow
            fallocate -n -o 8192 -l 1M zeros",
        );
    });
    // What they had behind the end is in their last sectors still.
    let (patch, tree) = (Patch::new(&image.path), TreeId::FS);
    for name in ["nocow", "cow"] {
        let key = Key::new(patch.ino(tree, name), kind::INODE_ITEM, 0);
        patch.edit_as::<InodeItem>(tree, key, |item| item.size = 5000);
    }
    let fs = image.open();
    assert_eq!(fill(&fs), libc::ENOSPC);
    let expected = |at: usize| [&[b'k'; 5000][..], &vec![0; at - 5000], &[5; 300]].concat();
    for (name, flags) in [("nocow", BUFFERED), ("zeros", DIRECT)] {
        let ino = find(&fs, fs.root(), name).expect("there");
        let written = fs.write(&CX, ino, 100_000, &[5; 300], flags);
        assert_eq!(written.expect("it has the space"), 300, "{name}");
        assert!(common::read(&fs, fs.root(), name) == expected(100_000), "{name}");
    }
    let cow = find(&fs, fs.root(), "cow").expect("there");
    assert_eq!(errno(fs.write(&CX, cow, 100_000, &[5; 300], BUFFERED)), libc::ENOSPC);
    assert!(common::read(&fs, fs.root(), "cow") == [b'k'; 5000]);
    close_and_judge(&image, fs);
}

/// As the kernel sends it: what is in front, and was refused, is a hole.
#[test]
fn behind_a_refused_last_sector_parts_stay() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let ino = new_file(&fs, "file", &[3; 5000]);
    fs.sync().expect("sync");
    fs.fallocate(&CX, ino, FallocateMode::KeepSize, 12288, MIB).expect("room");
    assert_eq!(fill(&fs), libc::ENOSPC);
    assert_eq!(errno(fs.write(&CX, ino, 4096, &[6; 12288], CACHED)), libc::ENOSPC);
    let content = common::read(&fs, fs.root(), "file");
    assert!(content == [&[3; 5000][..], &[0; 12288 - 5000], &[6; 4096]].concat());
    close_and_judge(&image, fs);
}

/// What is in memory of a file, and about to be written over, does not take the space that the write has.
#[test]
fn what_is_in_memory_takes_no_space_from_a_write_over_it() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let fs = image.open();
    let writes = [(8192, 4096), (100, 100)];
    let files = [BUFFERED, DIRECT, CACHED].map(|flags| {
        writes.map(|(len, at)| {
            let name = format!("{flags:?} {at}");
            let ino = new_file(&fs, &name, &[]);
            fs.fallocate(&CX, ino, FallocateMode::KeepSize, 0, MIB).expect("room");
            (flags, len, at, name, ino)
        })
    });
    let little = new_file(&fs, "little", &[8; 24 << 10]);
    assert_eq!(fill(&fs), libc::ENOSPC);
    // Room for the first writes, and not for the others.
    fs.unlink(&CX, fs.root(), b"little").expect("unlink");
    fs.forget(little, 1);
    fs.sync().expect("sync");
    for (flags, len, at, name, ino) in files.iter().flatten() {
        let commits = common::stat(&fs, "commit.count");
        fs.write(&CX, *ino, 0, &vec![1; *len], BUFFERED).expect("room in memory");
        let written = fs.write(&CX, *ino, *at, &vec![2; 64 << 10], *flags);
        assert_eq!(written.map_err(|error| error.errno()), Ok(64 << 10), "{name}");
        assert_eq!(common::stat(&fs, "commit.count"), commits, "{name}: it was in memory");
        let expected = [vec![1; *at as usize], vec![2; 64 << 10]].concat();
        assert!(common::read(&fs, fs.root(), name) == expected, "{name}");
    }
    close_and_judge(&image, fs);
}
