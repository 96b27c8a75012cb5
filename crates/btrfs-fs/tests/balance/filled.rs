//! Balances with filters by what is in use: a block group that the balance itself has filled is none to be emptied any
//! more when its turn comes. So nothing that is to be converted goes there for now, and a pause is one as long as
//! another moves in its place.
//!
//! Judge: the kernel's balance chooses again, too, with what is in use then (`btrfs-progs`: the same words on both
//! are compared in `cli/tests/groups/balance_filters.rs`).

use crate::common;
use blocksim::SimDevice;
use btrfs_disk::ids::block_group::{DATA, DUP};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter};
use btrfs_fs::{BalanceState, BalanceStatus, BtrfsFs, Options};
use btrfs_space::{GroupInfo, Kind, Moment, Space};
use common::CX;
use common::places::Places;
use std::sync::Arc;
use std::time::Duration;
use vfs::FileSystem;

const FILE: usize = 1 << 20;
const FILES: usize = 300;

fn a_volume() -> (Arc<SimDevice>, BtrfsFs) {
    let device = Arc::new(SimDevice::new(blocksim::Image::zeros(512 << 20)));
    btrfs_image::mkfs::make(&*device, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    (device, fs)
}

/// That many files, in the order of their numbers.
fn write(fs: &BtrfsFs, files: usize) {
    for n in 0..files {
        let ino = common::new_file(fs, &format!("file-{n}"), &[7; FILE]);
        fs.forget(ino, 1);
        if n % 20 == 19 {
            fs.sync().expect("commit");
        }
    }
}

fn remove(fs: &BtrfsFs, files: impl Iterator<Item = usize>) {
    for n in files {
        fs.unlink(&CX, fs.root(), format!("file-{n}").as_bytes()).expect("unlink");
    }
    common::wait_until_erased(fs);
    fs.sync().expect("commit");
}

/// Where all block groups of content are filled to two fifths.
fn two_fifths() -> (Arc<SimDevice>, BtrfsFs) {
    let (device, fs) = a_volume();
    write(&fs, FILES);
    remove(&fs, (0..FILES).filter(|n| n % 5 > 1));
    (device, fs)
}

/// Where chunks of content with two copies have all room of the device, and are filled to nine twentieths.
fn full_of_copies() -> (Arc<SimDevice>, BtrfsFs) {
    let (device, fs) = a_volume();
    fs.space().convert_to(Kind::Data, Some(DUP));
    while fs.space().new_chunk(Kind::Data).is_ok() {}
    fs.space().convert_to(Kind::Data, None);
    fs.sync().expect("commit");
    let room: u64 = doubled(&fs).iter().map(|group| group.len).sum();
    let files = room as usize / FILE - 4;
    write(&fs, files);
    remove(&fs, (0..files).filter(|n| n % 20 > 8));
    (device, fs)
}

fn content(fs: &BtrfsFs) -> Vec<GroupInfo> {
    let mut groups = fs.space().group_infos();
    groups.retain(|group| group.flags & DATA != 0);
    groups
}

fn doubled(fs: &BtrfsFs) -> Vec<GroupInfo> {
    content(fs).into_iter().filter(|group| group.flags & DUP != 0).collect()
}

fn begin(fs: &BtrfsFs, data: BalanceFilter) {
    fs.start_balance(BalanceItem { flags: DATA, data, ..BalanceItem::default() }).expect("begin");
}

fn run(fs: &BtrfsFs, data: BalanceFilter) -> BalanceStatus {
    begin(fs, data);
    ended(fs)
}

fn ended(fs: &BtrfsFs) -> BalanceStatus {
    common::end_of_balance(fs, Duration::from_secs(120))
}

fn by_usage(usage: u64) -> BalanceFilter {
    BalanceFilter { flags: balance_filter::USAGE, usage, ..BalanceFilter::default() }
}

fn close(device: Arc<SimDevice>, fs: BtrfsFs) {
    fs.destroy().expect("close");
    drop(fs);
    common::judge_device(device, btrfs_check::Severity::Note);
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
    close(device, fs);
}

/// What another group has taken over might be over the limit of `usage` with that, and stay as it is.
#[test]
fn what_is_not_converted_is_told() {
    let (device, fs) = full_of_copies();
    let before = doubled(&fs);
    let fits = before.iter().filter(|group| group.used < group.len * 3 / 5).count();
    assert!(fits == before.len() && fits > 2, "another test than its name says: {before:?}");
    let target = balance_filter::SINGLE;
    let all = BalanceFilter { flags: balance_filter::CONVERT, target, ..Default::default() };
    let some = BalanceFilter { flags: all.flags | balance_filter::USAGE, usage: 60, ..all };
    let status = run(&fs, some);
    let left = doubled(&fs);
    assert_eq!(status.state, BalanceState::Done);
    assert_eq!(status.failed, left.len() as u64, "{status:?}, and {left:?}");
    let status = run(&fs, all);
    assert_eq!((status.state, status.failed), (BalanceState::Done, 0), "{status:?}");
    assert!(doubled(&fs).is_empty(), "those that are all converted go by one another");
    close(device, fs);
}

/// Who asks what is in use of a block group is held, once so many have `asked`.
fn hold(space: &Space, asked: usize, places: Arc<Places>) {
    space.meanwhile(Moment::Used, move |space| match asked {
        0 => places.pass("asks"),
        _ => hold(space, asked - 1, places),
    });
}

/// One alone may move. The one that was chosen does not when its turn comes, and so the next one is to.
#[test]
fn a_pause_ahead_of_one_that_was_not_chosen_is_a_pause() {
    let (device, fs) = two_fifths();
    let fits = |group: &GroupInfo| (group.len / 10..group.len / 2).contains(&group.used);
    let chosen = content(&fs).into_iter().rfind(fits).expect("one");
    let still = || content(&fs).iter().any(|now| now.logical == chosen.logical && fits(now));
    let behind = fs.space().group_infos().iter().filter(|g| g.logical > chosen.logical).count();
    let places = Arc::new(Places::default());
    places.arm("asks");
    hold(fs.space(), behind, places.clone());
    let flags = balance_filter::USAGE_RANGE | balance_filter::LIMIT;
    begin(&fs, BalanceFilter { flags, usage: 10 | 50 << 32, limit: 1, ..Default::default() });
    places.wait_until_there("asks");
    let mut files = (0..FILES).rev().filter(|n| n % 5 < 2);
    while still() {
        remove(&fs, files.by_ref().take(1));
    }
    std::thread::scope(|scope| {
        let paused = scope.spawn(|| fs.pause_balance());
        while !fs.balance_status().expect("status").stopping {
            std::thread::yield_now();
        }
        places.release("asks");
        paused.join().expect("no panic").expect("pause");
    });
    assert!(content(&fs).iter().any(fits), "another is to move");
    let status = fs.balance_status().expect("status");
    assert_eq!((status.state, status.completed), (BalanceState::Paused, 0), "{status:?}");
    fs.resume_balance().expect("resume");
    let status = ended(&fs);
    assert_eq!((status.state, status.completed), (BalanceState::Done, 1), "{status:?}");
    close(device, fs);
}
