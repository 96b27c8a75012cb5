//! Crashes in a balance of all groups and in a shrink, on a volume with quotas, reflinks and snapshots.
//!
//! What a device may hold then is mounted: files are those of before, our check finds nothing, and a
//! balance that was begun goes on to its end. Of a sample `btrfs check` counts the quotas, and the kernel
//! mounts, scrubs, and goes on with the balance itself.
//!
//! Invariant: moving changes no file, so each state is held against one tree; what is written
//! between the balances is durable before the second one begins.

use crate::common;
use blocksim::{Image, Lie, SimDevice};
use btrfs_disk::ids::block_group;
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter, balance_flags};
use btrfs_fs::{BalanceState, BtrfsFs, Options};
use common::kernel::{btrfs, kernel};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::compare::TreeSnapshot;
use testkit::ops::Rng;
use testkit::oracle::{self, KernelMount, TempDir};
use vfs::FileSystem;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 512 * MIB;

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

fn fill(mount: &KernelMount) {
    let write = |name: String, byte: u8, len: usize| {
        std::fs::write(mount.join(&name), vec![byte; len]).expect("write");
    };
    btrfs(mount, &["quota", "enable", "/"]);
    btrfs(mount, &["subvolume", "create", "/a"]);
    for i in 0..120 {
        write(format!("a/f{i}"), i as u8, 1000 + 700 * i);
    }
    let (from, to) = (mount.join("a/f100"), mount.join("a/clone"));
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    oracle::sh("cp", &["--reflink=always", &from, &to]).expect("reflink");
    for s in 0..4 {
        btrfs(mount, &["subvolume", "snapshot", "/a", &format!("/s{s}")]);
        write(format!("s{s}/f7"), 200, 30_000);
        write(format!("a/f{s}"), 201, 9000);
    }
    btrfs(mount, &["filesystem", "sync", "/"]);
    btrfs(mount, &["quota", "rescan", "-w", "/"]);
}

fn base(dir: &TempDir) -> Image {
    let path = dir.join("base.img");
    std::fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("an image");
    oracle::sh("mkfs.btrfs", &["-q", "-n", "4096", &path.to_string_lossy()]).expect("mkfs");
    kernel(&path, "noatime", fill);
    Image::import(&path).expect("import").flatten()
}

fn wait(fs: &BtrfsFs) {
    let status = common::end_of_balance(fs, Duration::from_secs(60));
    assert_eq!((status.errno, status.failed), (0, 0), "{status:?}");
}

fn balance(fs: &BtrfsFs) {
    let flags = block_group::DATA | block_group::METADATA | block_group::SYSTEM;
    fs.start_balance(BalanceItem { flags, ..BalanceItem::default() }).expect("begin");
    wait(fs);
}

fn quotas_are_right(path: &Path) {
    let report = oracle::sh("btrfs", &["check", "-Q", &path.to_string_lossy()]).expect("a report");
    assert!(!report.contains("different"), "btrfs check counts otherwise: {report}");
    assert!(report.contains("Counts for qgroup id: 0/5"), "it was to count: {report}");
}

/// The kernel reads the same, and with a mount that may write it goes on with a balance.
fn kernel_agrees(path: &Path, expected: Option<&TreeSnapshot>) {
    let seen = kernel(path, "ro,noatime", |mount| TreeSnapshot::of_dir(mount.path()));
    if let Some(expected) = expected {
        common::assert_same(expected, &seen.expect("walk the kernel's mount"));
    }
    kernel(path, "noatime", |mount| {
        let end = Instant::now() + Duration::from_secs(60);
        let at = mount.path().to_string_lossy().into_owned();
        // It ends with 1 as long as there is one.
        while oracle::sh("btrfs", &["balance", "status", &at]).is_err() {
            assert!(Instant::now() < end, "the kernel ends the balance");
            std::thread::sleep(Duration::from_millis(50));
        }
        // A commit of its own, after which no copy of the superblock is of the one before.
        std::fs::write(mount.join("written"), "by the kernel").expect("write");
        btrfs(mount, &["filesystem", "sync", "/"]);
        oracle::scrub(mount).expect("scrub");
    });
    common::assert_sound(path);
    quotas_are_right(path);
}

/// Answers whether a balance was left.
fn judge(image: &Image, expected: Option<&TreeSnapshot>, outside: Option<&Path>) -> bool {
    let device = Arc::new(SimDevice::new(image.clone()));
    // One copy of the superblock may be torn, and one of the commit before.
    common::check_device(device.clone(), true, btrfs_check::Severity::Error);
    if let Some(path) = outside {
        image.export(path).expect("export");
        quotas_are_right(path);
        kernel_agrees(path, expected);
    }
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("mount");
    assert_eq!(fs.read_only_reason(), None);
    let same = |fs: &BtrfsFs| {
        if let Some(expected) = expected {
            common::assert_same(expected, &common::snapshot(fs));
        }
    };
    same(&fs);
    let left = fs.balance_status().expect("status").state;
    if left == BalanceState::Paused {
        fs.resume_balance().expect("resume");
    }
    wait(&fs);
    same(&fs);
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device.clone(), true, btrfs_check::Severity::Note);
    if let Some(path) = outside {
        device.image().export(path).expect("export");
        common::assert_sound(path);
        quotas_are_right(path);
    }
    matches!(left, BalanceState::Paused | BalanceState::Running)
}

fn crash(lie: Option<Lie>) {
    let dir = TempDir::new("crash-balance").expect("a directory");
    let device = Arc::new(SimDevice::new(base(&dir)).lying(lie));
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    let first = common::snapshot(&fs);
    balance(&fs);
    let wrote_from = device.position();
    common::new_file(&fs, "between", &[9; 100_000]);
    fs.sync().expect("commit");
    let (wrote_to, second) = (device.position(), common::snapshot(&fs));
    fs.resize(SIZE - 100 * MIB).expect("shrink");
    balance(&fs);
    drop(fs);
    let every = common::number("SPINNEY_OUTSIDE", 40);
    let (mut states, mut left, mut outside) = (0, 0, 0);
    for epoch in device.recording().epochs() {
        let expected = match epoch.end {
            end if end <= wrote_from => Some(&first),
            end if end > wrote_to => Some(&second),
            _ => None,
        };
        for (number, choice) in epoch.choices(4, 1).into_iter().enumerate() {
            states += 1;
            // The kernel takes no torn superblock: what arrived whole or not at all.
            let whole = number < 2 && states % every < 4;
            let path = whole.then(|| dir.join("crashed.img"));
            outside += u64::from(path.is_some());
            left += u64::from(judge(&epoch.image(&choice), expected, path.as_deref()));
        }
    }
    println!("{states} states, {left} with a balance to go on with, {outside} judged outside");
    assert!(states >= 40 && left * 3 > states && outside > 0, "this shows little");
}

#[test]
fn a_balance_and_a_shrink_leave_a_whole_volume_at_any_time() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    crash(None);
}

/// What a balance is to do in a chain of crashes.
fn a_balance(seed: u64) -> BalanceItem {
    let flags = block_group::DATA | block_group::METADATA | block_group::SYSTEM;
    let mut item = BalanceItem { flags, ..BalanceItem::default() };
    if !seed.is_multiple_of(2) {
        let convert =
            |target| BalanceFilter { flags: balance_filter::CONVERT, target, ..Default::default() };
        (item.data, item.flags) = (convert(block_group::DUP), flags | balance_flags::FORCE);
        (item.metadata, item.system) =
            (convert(balance_filter::SINGLE), convert(balance_filter::SINGLE));
    }
    item
}

/// A moment of work, then a pause or the end of it.
fn for_a_moment(fs: &BtrfsFs, rng: &mut Rng, ends: impl FnOnce(&BtrfsFs) -> vfs::Result<()>) {
    std::thread::sleep(Duration::from_micros(rng.below(30_000)));
    // It may have come to its end.
    if let Err(error) = ends(fs) {
        assert_eq!(error.errno(), libc::ESRCH, "a pause or a cancellation");
    }
}

/// Some of the states that a crash may leave, and for each whether it is one that the kernel takes.
fn some_states(device: &SimDevice, rng: &mut Rng, count: usize) -> Vec<(Image, bool)> {
    let epochs: Vec<_> = device.recording().epochs().collect();
    let state = |_| {
        let epoch = rng.pick(&epochs);
        let choices = epoch.choices(4, rng.below(1000));
        let number = rng.below(choices.len() as u64) as usize;
        (epoch.image(&choices[number]), number < 2)
    };
    (0..count).map(state).collect()
}

/// It does not go on with what it is told to let be, and takes it away.
fn kernel_cancels(path: &Path) {
    kernel(path, "skip_balance,noatime", |mount| {
        let at = mount.path().to_string_lossy().into_owned();
        let paused = oracle::sh("btrfs", &["balance", "status", &at]).is_err();
        if paused {
            oracle::sh("btrfs", &["balance", "cancel", &at]).expect("cancel");
        }
        std::fs::write(mount.join("written"), "by the kernel").expect("write");
        btrfs(mount, &["filesystem", "sync", "/"]);
        oracle::scrub(mount).expect("scrub");
    });
    common::assert_sound(path);
    quotas_are_right(path);
}

/// Begun, paused, gone on with; a crash; gone on with, cancelled; another crash.
#[test]
fn a_chain_of_pauses_and_crashes_leaves_a_whole_volume_at_any_time() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("crash-balance").expect("a directory");
    let base = base(&dir);
    let (mut all, mut left) = (0u32, 0);
    for seed in common::seeds(0, 2) {
        let mut rng = Rng::new(seed);
        let device = Arc::new(SimDevice::new(base.clone()));
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
        let first = common::snapshot(&fs);
        fs.start_balance(a_balance(seed)).expect("begin");
        for_a_moment(&fs, &mut rng, BtrfsFs::pause_balance);
        if fs.resume_balance().is_ok() {
            for_a_moment(&fs, &mut rng, BtrfsFs::pause_balance);
        }
        drop(fs);
        for (image, whole) in some_states(&device, &mut rng, 3) {
            let device = Arc::new(SimDevice::new(image));
            let fs = BtrfsFs::open_device(device.clone(), options()).expect("mount");
            common::assert_same(&first, &common::snapshot(&fs));
            if fs.resume_balance().is_ok() {
                for_a_moment(&fs, &mut rng, BtrfsFs::cancel_balance);
            }
            drop(fs);
            for (image, also) in some_states(&device, &mut rng, 3) {
                all += 1;
                let path = dir.join("crashed.img");
                let outside = (whole && also && all.is_multiple_of(3)).then_some(path.as_path());
                left += u64::from(judge(&image, Some(&first), outside));
                if whole && also && all % 3 == 1 {
                    image.export(&path).expect("export");
                    kernel_cancels(&path);
                }
            }
        }
    }
    println!("{all} states, {left} with a balance to go on with");
    assert!(left > 0, "this shows little");
}

/// The first test would see it: nodes that are not durable before their superblock, and a
/// superblock that is not before what it frees is used again.
#[test]
fn a_device_that_drops_flushes_is_found_out() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    for number in [0, 1] {
        let lie = Lie::FlushOf { every: 2, number };
        assert!(std::panic::catch_unwind(|| crash(Some(lie))).is_err(), "{lie:?} is not seen");
    }
}
