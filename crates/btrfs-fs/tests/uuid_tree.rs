//! What the UUID tree has room for. Our check judges.

mod common;

use blocksim::{Image, SimDevice};
use btrfs_check::Severity;
use btrfs_fs::{BtrfsFs, Caller, Options, ReceivedFrom, SubvolId};
use btrfs_image::mkfs::{self, MkfsOptions};
use std::sync::Arc;
use vfs::{FileSystem, Ino};

const SENT: [u8; 16] = [0x5e; 16];

fn new_volume() -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(Image::zeros(512 << 20)));
    let options = MkfsOptions { node_size: Some(4096), discard: false, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("mkfs");
    device
}

fn open(device: &Arc<SimDevice>, background: bool) -> BtrfsFs {
    let options = Options { background, ..Options::default() };
    BtrfsFs::open_device(device.clone(), options).expect("open")
}

fn subvolume(fs: &BtrfsFs, name: &str) -> (SubvolId, Ino) {
    let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
    made.map(|(id, entry)| (id, entry.attr.ino)).expect("create a subvolume")
}

fn snap(fs: &BtrfsFs, source: Ino, name: &str, read_only: bool) -> vfs::Result<SubvolId> {
    fs.snapshot(&Caller::root(), source, fs.root(), name.as_bytes(), read_only).map(|made| made.0)
}

fn receive(fs: &BtrfsFs, id: SubvolId, uuid: [u8; 16]) {
    let from = ReceivedFrom { uuid, stransid: 7, stime: (1, 2) };
    fs.complete_received(&Caller::root(), id, &from).expect("received");
}

/// An item has room for so many subvolumes that were received as the same.
#[test]
fn more_received_alike_than_an_item_has_room_for() {
    let device = new_volume();
    let fs = open(&device, false);
    let (sub, ino) = subvolume(&fs, "sub");
    receive(&fs, sub, SENT);
    for i in 0..510 {
        snap(&fs, ino, &format!("snap{i}"), true).unwrap_or_else(|e| panic!("snapshot {i}: {e}"));
    }
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    common::check_device(device.clone(), false, Severity::Warning);
}
