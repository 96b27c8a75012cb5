//! Block groups of several profiles, and where chunks lie: conversions, what a half one leaves, which balances
//! are none, and what of the device nobody may touch.
//!
//! Judges: what the kernel does with the same volume, its mount, `btrfs check` and our own.

use crate::common;
use btrfs_disk::ids::BALANCE_OBJECTID;
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, RAID0, SYSTEM};
use btrfs_disk::items::{
    BalanceFilter, BalanceItem, ChunkFields, balance_filter as f, balance_flags,
};
use btrfs_disk::key::{KEY_SIZE, kind};
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BalanceState, BtrfsFs, Options};
use btrfs_space::{GroupInfo, Kind};
use common::kernel::{btrfs, kernel};
use common::{CX, Image, close_and_judge, new_file};
use fuzzing::patch::Patch;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use testkit::oracle::{self, KernelMount};
use vfs::FileSystem;

const MIB: u64 = 1 << 20;

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; len];
    testkit::ops::Rng::new(seed).fill(&mut content);
    content
}

fn groups(fs: &BtrfsFs, kind: u64) -> Vec<GroupInfo> {
    let infos = fs.space().group_infos().into_iter();
    infos.filter(|group| group.flags & kind != 0).collect()
}

/// Bytes in use where there is one copy.
fn single(fs: &BtrfsFs, kind: u64) -> u64 {
    let of_one = groups(fs, kind).into_iter().filter(|group| group.flags & DUP == 0);
    of_one.map(|group| group.used).sum()
}

fn doubled(fs: &BtrfsFs, kind: u64) -> u64 {
    let of_two = groups(fs, kind).into_iter().filter(|group| group.flags & DUP != 0);
    of_two.map(|group| group.used).sum()
}

/// Files that live in nodes.
fn small_files(mount: &KernelMount) {
    for i in 0..6000 {
        let dir = mount.join(&format!("d{}", i % 50));
        std::fs::create_dir_all(&dir).expect("mkdir");
        std::fs::write(dir.join(i.to_string()), random(1900, i)).expect("write");
    }
    btrfs(mount, &["filesystem", "sync", "/"]);
}

/// What `df` calls DUP has two copies: nothing new comes into groups of one.
#[test]
fn nothing_new_has_fewer_copies_than_the_volume_is_said_to_have() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &["-m", "single"]);
    kernel(&image.path, "noatime", |mount| {
        small_files(mount);
        btrfs(mount, &["balance", "start", "-f", "-mconvert=dup,limit=1", "/"]);
        // Room in the groups of one copy.
        for dir in 0..25 {
            std::fs::remove_dir_all(mount.join(&format!("d{dir}"))).expect("remove");
        }
        btrfs(mount, &["filesystem", "sync", "/"]);
    });
    let fs = image.open();
    let mut before = single(&fs, METADATA | SYSTEM);
    assert!(before > MIB && doubled(&fs, METADATA) > MIB, "half of it: {before}");
    for round in 0..5 {
        let touched = fs.lookup(&CX, fs.root(), format!("d{}", 30 + round).as_bytes());
        let dir = touched.expect("there").attr.ino;
        for n in 0..300 {
            let name = format!("new-{round}-{n}");
            let made = fs.mknod(&CX, dir, name.as_bytes(), vfs::FileKind::File, 0o644, 0);
            let ino = made.expect("create").attr.ino;
            fs.write(&CX, ino, 0, &random(1900, n), Default::default()).expect("write");
        }
        fs.sync().expect("commit");
        let now = single(&fs, METADATA | SYSTEM);
        assert!(now <= before, "{now} bytes have one copy, and had {before}");
        before = now;
    }
    close_and_judge(&image, fs);
}

fn run(fs: &BtrfsFs, item: BalanceItem) -> btrfs_fs::BalanceStatus {
    fs.start_balance(item).expect("begin");
    common::end_of_balance(fs, Duration::from_secs(120))
}

fn converts(target: u64, limit: u64) -> BalanceFilter {
    BalanceFilter { flags: f::CONVERT | f::LIMIT, target, limit, ..BalanceFilter::default() }
}

/// Of one group, beside others with room: all that was in it has the new profile then.
#[test]
fn a_conversion_of_one_group_converts_what_is_in_it() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(1 << 30, &["-m", "dup"]);
    kernel(&image.path, "noatime", |mount| {
        for i in 0..40 {
            std::fs::write(mount.join(&format!("f{i}")), random(6 << 20, i)).expect("write");
        }
        btrfs(mount, &["filesystem", "sync", "/"]);
        (0..40).step_by(2).for_each(|i| {
            std::fs::remove_file(mount.join(&format!("f{i}"))).expect("remove");
        });
        btrfs(mount, &["filesystem", "sync", "/"]);
    });
    let fs = image.open();
    for (flags, to) in [(DATA, DUP), (METADATA, f::SINGLE), (METADATA, DUP), (DATA, f::SINGLE)] {
        for round in 0..2 {
            let before = groups(&fs, flags);
            let mut item =
                BalanceItem { flags: flags | balance_flags::FORCE, ..Default::default() };
            (item.data, item.metadata) = (converts(to, 1), converts(to, 1));
            let in_profile =
                |fs: &BtrfsFs| if to == DUP { doubled(fs, flags) } else { single(fs, flags) };
            let were = in_profile(&fs);
            let status = run(&fs, item);
            assert_eq!((status.state, status.failed), (BalanceState::Done, 0), "{status:?}");
            let after = groups(&fs, flags);
            let gone: Vec<_> = before
                .iter()
                .filter(|group| !after.iter().any(|now| now.logical == group.logical))
                .collect();
            assert_eq!(gone.len(), 1);
            if flags == DATA {
                let was = if (gone[0].flags & DUP != 0) == (to == DUP) { gone[0].used } else { 0 };
                assert_eq!(in_profile(&fs), were - was + gone[0].used, "{round}");
            }
        }
    }
    close_and_judge(&image, fs);
}

/// The kernel says which balances of a volume are none.
#[test]
fn what_is_no_balance_of_a_mixed_volume_is_none_here() {
    testkit::require!(kernel_btrfs);
    let usage = |usage| BalanceFilter { flags: f::USAGE, usage, ..BalanceFilter::default() };
    let (both, none) = (DATA | METADATA, BalanceFilter::default());
    let (one, two) = (converts(f::SINGLE, 1), converts(DUP, 1));
    let cases: [(&[&str], u64, BalanceFilter, BalanceFilter); 9] = [
        (&["-d"], DATA, none, none),
        (&["-m"], both | SYSTEM, none, none),
        (&["-d", "-m"], both | SYSTEM, none, none),
        (&["-dusage=50", "-musage=50"], both | SYSTEM, usage(50), usage(50)),
        (&["-dusage=50", "-musage=60"], both | SYSTEM, usage(50), usage(60)),
        (&["-f", "-s"], SYSTEM | balance_flags::FORCE, none, none),
        (&["-dconvert=dup,limit=1", "-mconvert=dup,limit=1"], both | SYSTEM, two, two),
        (&["-dconvert=single,limit=1", "-mconvert=single,limit=1"], both | SYSTEM, one, one),
        (
            &["-f", "-dconvert=single,limit=1", "-mconvert=single,limit=1"],
            both | SYSTEM | balance_flags::FORCE,
            one,
            one,
        ),
    ];
    let image = Image::new(600 << 20, &["--mixed", "-d", "dup", "-m", "dup"]);
    for (words, flags, data, metadata) in cases {
        // Nodes alone are METADATA and SYSTEM.
        let flags = if words == ["-m"] { METADATA | SYSTEM } else { flags };
        let theirs = oracle::with_kernel(&image.copy("theirs.img").path, "noatime", |mount| {
            let place = mount.path().to_string_lossy().into_owned();
            let words = [&["balance", "start"], words, &[place.as_str()]].concat();
            oracle::sh("btrfs", &words).is_ok()
        });
        let ours = image.copy("ours.img");
        let fs = ours.open();
        let item = BalanceItem { flags, data, metadata, system: metadata, ..Default::default() };
        let begun = fs.start_balance(item);
        assert_eq!(theirs.expect("the kernel mounts it"), begun.is_ok(), "{words:?}: {begun:?}");
        fs.destroy().expect("close");
        drop(fs);
        common::assert_sound(&ours.path);
    }
}

/// The kernel goes on with it, or whoever cancels it ends it.
#[test]
fn a_balance_to_a_profile_that_we_do_not_make_stays_paused() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(600 << 20, &[]);
    let item = BalanceItem { flags: DATA, data: converts(RAID0, 1), ..Default::default() };
    let key = Key::new(BALANCE_OBJECTID, kind::TEMPORARY_ITEM, 0);
    Patch::new(&image.path).insert(TreeId::ROOT, key, &item.to_vec());
    for background in [true, false] {
        let fs = image.open_with(Options { background, ..Options::default() });
        assert_eq!(fs.balance_status().expect("status").state, BalanceState::Paused);
        let again = fs.resume_balance().expect_err("not to be had");
        assert_eq!(again.errno(), libc::EOPNOTSUPP, "{again}");
        assert!(again.to_string().contains("stays paused"), "{again}");
        new_file(&fs, &format!("{background}"), &[7; 10000]);
        fs.destroy().expect("close");
        drop(fs);
        let found = Patch::new(&image.path).find(TreeId::ROOT, key).expect("an item");
        assert_eq!(found, (key, item.to_vec()), "as it was");
    }
    let fs = image.open();
    fs.cancel_balance().expect("forgotten");
    close_and_judge(&image, fs);
}

/// What no commit has is not the size.
#[test]
fn a_resize_without_its_commit_leaves_the_old_size() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(600 << 20, &["-b", "400M"]);
    let fs = image.open();
    new_file(&fs, "file", &random(5 << 20, 1));
    fs.sync().expect("commit");
    let size = fs.space().device_bytes();
    for total in [500 * MIB, 300 * MIB] {
        let before = fs.space().totals();
        let next = fs.space().allocations();
        fs.space().fail_allocations(next..u64::MAX);
        let done = fs.resize(total);
        fs.space().fail_allocations(0..0);
        assert!(done.is_err(), "{total}: {done:?}");
        assert_eq!(fs.read_only_reason(), None);
        assert_eq!(fs.space().device_bytes(), size, "{total}");
        assert_eq!(fs.space().totals().unallocated, before.unallocated, "{total}");
        new_file(&fs, &format!("at-{total}"), &random(5 << 20, total));
        fs.sync().expect("commit");
    }
    close_and_judge(&image, fs);
    assert_eq!(image.open().space().device_bytes(), size);
    let fs = image.open();
    fs.resize(500 * MIB).expect("with its commit");
    assert_eq!(fs.space().device_bytes(), 500 * MIB);
    close_and_judge(&image, fs);
}

/// Nor where chunks have come to lie behind the old end meanwhile.
#[test]
fn a_grow_without_its_commit_leaves_no_chunk_behind_the_old_end() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(2 << 30, &["-b", "400M"]);
    let fs = image.open();
    let size = fs.space().device_bytes();
    new_file(&fs, "file", &random(5 << 20, 1));
    let next = fs.space().allocations();
    // Each commit makes chunks ahead, and finds no place for its nodes.
    fs.space().fail_allocations(next..u64::MAX);
    let done = fs.resize(2 << 30);
    fs.space().fail_allocations(0..0);
    assert_eq!(done.expect_err("without a commit").errno(), libc::ENOSPC);
    assert_eq!(fs.read_only_reason(), None);
    assert_eq!((fs.space().device_bytes(), fs.space().behind(size).len()), (size, 0));
    new_file(&fs, "behind", &random(5 << 20, 2));
    close_and_judge(&image, fs);
    let fs = image.open();
    assert_eq!(fs.space().device_bytes(), size);
    fs.resize(2 << 30).expect("with its commit");
    assert_eq!(fs.space().totals().unallocated >> 30, 1, "what is new can be used");
    close_and_judge(&image, fs);
}

/// As mkfs put it before it kept the first MiB free.
fn with_the_system_chunk_at_the_front(image: &Image) {
    // The chunk tree's node comes to lie at the chunk's front.
    let fs = image.open();
    new_file(&fs, "file", &random(30 << 20, 1));
    fs.destroy().expect("close");
    drop(fs);
    let patch = Patch::new(&image.path);
    let items = patch.items(TreeId::DEV);
    let found = items.iter().find(|(key, _)| key.kind == kind::DEV_EXTENT).expect("extents");
    let (extent, data) = found.clone();
    assert_eq!(extent.offset, MIB, "the first chunk");
    let device = std::fs::File::options().read(true).write(true).open(&image.path).expect("open");
    let extent_item = btrfs_disk::items::DevExtent::read(&data).expect("an extent");
    let (logical, len) = (extent_item.chunk_offset, extent_item.length);
    let at_front = |stripe: &mut [u8]| stripe[8..16].fill(0);
    let chunk = Key::new(btrfs_disk::ids::FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM, logical);
    patch.edit(TreeId::CHUNK, chunk, |item| at_front(&mut item[ChunkFields::SIZE..]));
    patch.edit_leaf(TreeId::DEV, extent, |items| {
        let item = items.iter_mut().find(|(key, _)| *key == extent).expect("there");
        item.0.offset = 0;
    });
    patch.edit_super(|sb| at_front(&mut sb.sys_chunks[KEY_SIZE + ChunkFields::SIZE..]));
    let mut all = vec![0; len as usize];
    device.read_exact_at(&mut all, MIB).expect("read");
    let (front, behind) = (64 << 10, 68 << 10);
    let there = logical + front as u64..logical + behind as u64;
    let nodes = patch.items(TreeId::EXTENT);
    assert!(nodes.iter().all(|(key, _)| !there.contains(&key.objectid)), "the superblock's");
    device.write_all_at(&vec![0; len as usize], MIB).expect("write");
    device.write_all_at(&all[..front], 0).expect("write");
    device.write_all_at(&all[behind..], behind as u64).expect("write");
}

/// A chunk that an old mkfs put there goes; a boot loader's bytes, which came since, do not.
#[test]
fn the_first_mebibyte_is_nobodys() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(400 << 20, &["-m", "single"]);
    with_the_system_chunk_at_the_front(&image);
    common::assert_sound(&image.path);
    let fs = image.open();
    fs.balance_groups(|flags| flags & SYSTEM != 0).expect("it moves");
    let device = std::fs::File::options().read(true).write(true).open(&image.path).expect("open");
    let parts = [(0, 64 << 10), (68 << 10, MIB as usize - (68 << 10))];
    for (at, len) in parts {
        device.write_all_at(&vec![0xAA; len], at).expect("write");
    }
    let untouched = || {
        for (at, len) in parts {
            let mut found = vec![0; len];
            device.read_exact_at(&mut found, at).expect("read");
            assert!(found.iter().all(|byte| *byte == 0xAA), "from {at} on");
        }
    };
    fs.trim(&CX, 0, u64::MAX, 0).expect("trim");
    untouched();
    let ino = new_file(&fs, "all", &[]);
    let full = (0..400).any(|i| {
        let piece = random(MIB as usize, i);
        fs.write(&CX, ino, i * MIB, &piece, Default::default()).and_then(|_| fs.sync()).is_err()
    });
    assert!(full, "the whole device");
    untouched();
    close_and_judge(&image, fs);
    untouched();
}

/// Halves of both kinds: what was acknowledged is there, commits have room, and nearly all of the device is used.
#[test]
fn a_volume_of_two_profiles_is_filled_and_emptied() {
    testkit::require!(kernel_btrfs);
    for (data, metadata) in [(DUP, 0), (0, 0), (DUP, DUP)] {
        let image = Image::new(256 << 20, &["-m", if metadata == DUP { "single" } else { "dup" }]);
        let fs = image.open();
        for (kind, profile) in [(Kind::Data, data), (Kind::Metadata, metadata)] {
            fs.space().convert_to(kind, Some(profile));
            fs.space().new_chunk(kind).expect("room");
            fs.space().convert_to(kind, None);
        }
        let rng = &mut testkit::ops::Rng::new(data + 3 * metadata);
        for round in 0..3 {
            fill(&fs, round, rng);
            fs.sync().expect("what was acknowledged has room");
            let totals = fs.space().totals();
            assert_eq!(common::stat(&fs, "commit.over_promise"), 0);
            assert!(totals.unallocated < 8 * MIB, "{totals:?}");
            assert!(totals.data.free < 8 * MIB || round > 0, "{totals:?}");
            for n in (round..400).step_by(3) {
                let name = format!("{round}-{n}");
                _ = fs.unlink(&CX, fs.root(), name.as_bytes());
            }
            fs.sync().expect("commit");
        }
        close_and_judge(&image, fs);
    }
}

/// Until there is room for neither.
fn fill(fs: &BtrfsFs, round: u64, rng: &mut testkit::ops::Rng) {
    let mut refused = 0;
    for n in 0..20_000 {
        let len = if n % 3 == 0 { rng.below(2 * MIB) } else { rng.below(2000) };
        let name = format!("{round}-{n}");
        let made = fs.mknod(&CX, fs.root(), name.as_bytes(), vfs::FileKind::File, 0o644, 0);
        let done = made.and_then(|entry| {
            let ino = entry.attr.ino;
            fs.write(&CX, ino, 0, &random(len as usize, n), Default::default())
        });
        if let Err(error) = done {
            assert_eq!(error.errno(), libc::ENOSPC, "{error}");
            refused += 1;
            if refused == 200 {
                return;
            }
        }
    }
    panic!("it is not full");
}
