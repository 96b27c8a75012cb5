//! Balances with filters by what is in use: a block group that the balance itself has filled is none to be emptied any
//! more when its turn comes.
//!
//! Judge: the kernel's balance chooses again, too, with what is in use then (`btrfs-progs`: the same words on both
//! are compared in `cli/tests/balance_filters.rs`).

mod common;

use blocksim::SimDevice;
use btrfs_disk::ids::block_group::DATA;
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter};
use btrfs_fs::{BalanceState, BalanceStatus, BtrfsFs, Options};
use btrfs_space::GroupInfo;
use common::CX;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::FileSystem;

const FILE: usize = 1 << 20;
const FILES: usize = 300;

/// Where all block groups of content are filled to two fifths.
fn two_fifths() -> (Arc<SimDevice>, BtrfsFs) {
    let device = Arc::new(SimDevice::new(blocksim::Image::zeros(512 << 20)));
    btrfs_image::mkfs::make(&*device, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    for n in 0..FILES {
        let ino = common::new_file(&fs, &format!("file-{n}"), &[7; FILE]);
        fs.forget(ino, 1);
        if n % 20 == 19 {
            fs.sync().expect("commit");
        }
    }
    for n in (0..FILES).filter(|n| n % 5 > 1) {
        fs.unlink(&CX, fs.root(), format!("file-{n}").as_bytes()).expect("unlink");
    }
    common::wait_until_erased(&fs);
    fs.sync().expect("commit");
    (device, fs)
}

fn content(fs: &BtrfsFs) -> Vec<GroupInfo> {
    let mut groups = fs.space().group_infos();
    groups.retain(|group| group.flags & DATA != 0);
    groups
}

fn run(fs: &BtrfsFs, data: BalanceFilter) -> BalanceStatus {
    fs.start_balance(BalanceItem { flags: DATA, data, ..BalanceItem::default() }).expect("begin");
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let status = fs.balance_status().expect("status");
        if status.state != BalanceState::Running {
            return status;
        }
        assert!(Instant::now() < end, "the balance ends");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn by_usage(usage: u64) -> BalanceFilter {
    BalanceFilter { flags: balance_filter::USAGE, usage, ..BalanceFilter::default() }
}

#[test]
fn what_a_balance_has_filled_it_does_not_empty() {
    let (device, fs) = two_fifths();
    let before = content(&fs);
    let fit = before.iter().filter(|group| group.used > 0 && group.used < group.len / 2).count();
    let live: u64 = before.iter().map(|group| group.used).sum();
    assert!(fit > 3, "another test than its name says: {before:?}");
    let status = run(&fs, by_usage(50));
    assert_eq!((status.state, status.failed), (BalanceState::Done, 0), "{status:?}");
    assert_eq!(status.expected, status.completed, "{status:?}");
    let behind = content(&fs);
    let filled = |group: &&GroupInfo| group.used > group.len / 2;
    let stays = |group: &&GroupInfo| before.iter().any(|old| old.logical == group.logical);
    let kept = behind.iter().filter(filled).filter(stays).count();
    assert!(kept > 1, "those that were filled stay: {behind:?}");
    let extents = live / FILE as u64;
    assert!(status.report.relocated_extents < extents, "{extents} extents: {status:?}");
    fs.destroy().expect("close");
    drop(fs);
    common::judge_device(device, btrfs_check::Severity::Note);
}
