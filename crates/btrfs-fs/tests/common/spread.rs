//! Volumes whose trees lie in several block groups, and balances of all of it.
//!
//! What it does not know: what is in the trees, and what is lost of them.

use crate::common::{CX, find};
use blockdev::MemDevice;
use btrfs_disk::Logical;
use btrfs_disk::ids::block_group::{DATA, METADATA, SYSTEM};
use btrfs_disk::items::BalanceItem;
use btrfs_fs::{BalanceStatus, BtrfsFs};
use btrfs_image::mkfs::{MkfsOptions, make};
use btrfs_space::GroupInfo;
use fuzzing::hostile::base::{Base, options};
use std::sync::Arc;
use std::time::Duration;
use vfs::{FileKind, FileSystem, Ino};

pub fn content(n: usize) -> Vec<u8> {
    let len = if n.is_multiple_of(4) { n * 677 % 9000 } else { n * 31 % 900 };
    (0..len + 1).map(|at| (at / 5 + n) as u8).collect()
}

pub fn put(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) {
    let ino = find(fs, dir, name).unwrap_or_else(|| {
        let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
        made.expect("create").attr.ino
    });
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    fs.forget(ino, 1);
}

/// From now on what is new lies in other block groups, until they are taken back.
pub fn elsewhere(fs: &BtrfsFs, aside: &mut Vec<Logical>) {
    fs.sync().expect("commit");
    for group in fs.space().group_infos().iter().filter(|group| group.flags & SYSTEM == 0) {
        if group.used > 0 && !aside.contains(&group.logical) {
            fs.space().set_aside(group.logical).expect("set aside");
            aside.push(group.logical);
        }
    }
}

/// A volume in memory with nodes of 4 KiB, and what `fill` makes in it.
pub fn volume(size: u64, fill: impl FnOnce(&BtrfsFs)) -> Base {
    let device = Arc::new(MemDevice::new(size));
    let mkfs = MkfsOptions { node_size: Some(4096), seed: Some(5), ..MkfsOptions::default() };
    make(&*device, &mkfs).expect("mkfs");
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    fill(&fs);
    fs.destroy().expect("close");
    drop(fs);
    Base::of(device)
}

pub fn balance(fs: &BtrfsFs) -> BalanceStatus {
    let flags = DATA | METADATA | SYSTEM;
    fs.start_balance(BalanceItem { flags, ..BalanceItem::default() }).expect("begin");
    crate::common::end_of_balance(fs, Duration::from_secs(90))
}

pub fn has(group: &GroupInfo, at: u64) -> bool {
    (group.logical.0..group.logical.0 + group.len).contains(&at)
}
