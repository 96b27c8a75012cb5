//! Balances beside a rescan of quotas: what moves across the place that the rescan has come to is counted once.
//!
//! A fresh rescan and `btrfs check` count the same numbers behind it.

use crate::common;
use btrfs_disk::ids::block_group::DATA;
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter};
use btrfs_fs::{BalanceState, BtrfsFs, Options, Qgroup, QgroupId};
use common::{CX, Image};
use testkit::oracle;
use vfs::FileSystem;

/// What each step of a rescan counts is a part of this.
const FILES: u32 = 24_000;

fn numbers(fs: &BtrfsFs) -> Vec<Qgroup> {
    fs.qgroups_from(QgroupId(0), 100).expect("groups")
}

/// A rescan that has counted some of the content, and room for the rest of it in front of that.
fn begun(image: &Image) -> BtrfsFs {
    let fs = image.open_with(Options { background: false, ..Options::default() });
    for n in 0..FILES {
        common::new_file(&fs, &format!("file-{n}"), &[7; 8192]);
    }
    fs.sync().expect("commit");
    for n in (0..FILES / 4).step_by(2) {
        fs.unlink(&CX, fs.root(), format!("file-{n}").as_bytes()).expect("unlink");
    }
    fs.sync().expect("commit");
    fs.enable_quotas().expect("quotas");
    let status = fs.quota_status().expect("a status").expect("quotas");
    assert!(status.rescan.is_some(), "a part of it is counted: {status:?}");
    fs
}

fn judge(image: &Image, fs: BtrfsFs) {
    fs.wait_for_rescan().expect("a rescan");
    let counted = numbers(&fs);
    fs.rescan_quotas().expect("begun");
    fs.wait_for_rescan().expect("a rescan");
    assert_eq!(counted, numbers(&fs), "a rescan was to change nothing");
    fs.destroy().expect("close");
    drop(fs);
    testkit::require!(btrfs_progs);
    let report = oracle::sh("btrfs", &["check", "-Q", &image.path.to_string_lossy()]);
    let report = report.expect("a report");
    assert!(!report.contains("different"), "btrfs check counts otherwise: {report}");
    common::assert_sound(&image.path);
}

/// The first groups come first: what is counted goes where nothing is.
#[test]
fn what_is_counted_moves_on_and_is_counted_once() {
    let image = Image::new(1 << 30, &[]);
    let fs = begun(&image);
    let done = fs.balance_groups(|flags| flags & DATA != 0).expect("a balance");
    assert!(done.groups > 1, "{done:?}");
    judge(&image, fs);
}

/// The last group alone: what is not counted goes where all is.
#[test]
fn what_is_not_counted_moves_back_and_is_counted() {
    let image = Image::new(1 << 30, &[]);
    let fs = begun(&image);
    let last = BalanceFilter { flags: balance_filter::LIMIT, limit: 1, ..BalanceFilter::default() };
    fs.start_balance(BalanceItem { flags: DATA, data: last, ..BalanceItem::default() })
        .expect("begins");
    loop {
        let status = fs.balance_status().expect("a status");
        match status.state {
            BalanceState::Running => std::thread::sleep(std::time::Duration::from_millis(5)),
            state => {
                assert_eq!((state, status.completed), (BalanceState::Done, 1), "{status:?}");
                break;
            }
        }
    }
    judge(&image, fs);
}

/// Who waits for the counting is cancelled as at any other time.
#[test]
fn a_balance_that_waits_for_a_rescan_can_be_cancelled() {
    let image = Image::new(1 << 30, &[]);
    let fs = begun(&image);
    fs.start_balance(BalanceItem { flags: DATA, ..BalanceItem::default() }).expect("begins");
    let cancelled = common::errno(fs.cancel_balance());
    assert!([0, libc::ESRCH].contains(&cancelled), "at work, paused, or at its end: {cancelled}");
    judge(&image, fs);
}
