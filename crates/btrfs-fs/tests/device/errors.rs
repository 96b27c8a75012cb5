//! What the device refuses is counted over its life: in memory at once, on the volume with the next
//! commit that somebody asks for, and never by itself a reason to write.

#![allow(dead_code)]

use crate::harness;
use base::base;
use blocksim::{Access, Fault, SimDevice, Span};
use btrfs_fs::BtrfsFs;
use harness::{base, ops, state};
use ops::CX;
use std::sync::Arc;
use vfs::{FileKind, FileSystem, Ino, WriteFlags};

const DIRECT: WriteFlags =
    WriteFlags { kill_priv: false, sync: false, direct: true, cached: false };

fn mounted(device: &Arc<SimDevice>) -> BtrfsFs {
    BtrfsFs::open_device(device.clone(), base::options()).expect("mount")
}

/// The next access of the kind fails.
fn refuse(device: &SimDevice, access: Access) {
    let counts = device.counts();
    let nth = match access {
        Access::Read => counts.reads,
        Access::Write => counts.writes,
        Access::Flush => counts.flushes,
    };
    device.set_faults(&[Fault { access, nth, span: Span::Once }]);
}

fn make(fs: &BtrfsFs, name: &str) -> Ino {
    let root = fs.root();
    fs.mknod(&CX, root, name.as_bytes(), FileKind::File, 0o644, 0).expect("create").attr.ino
}

#[test]
fn what_is_refused_is_counted_and_kept() {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let fs = mounted(&device);
    let before = fs.device_errors().expect("errors");
    assert_eq!(before, [0; 5]);
    let ino = make(&fs, "file");
    fs.write(&CX, ino, 0, &[1; 65_536], DIRECT).expect("write");
    refuse(&device, Access::Write);
    fs.write(&CX, ino, 0, &[2; 65_536], DIRECT).expect_err("it was refused");
    let written = fs.device_errors().expect("errors");
    assert_eq!(written, [1, 0, 0, 0, 0]);
    fs.sync().expect("content is kept and written again");
    refuse(&device, Access::Read);
    let mut content = [0; 4096];
    let _may_be_read_again = fs.read(ino, 0, &mut content);
    let read = fs.device_errors().expect("errors");
    assert!(read[0] == 1 && read[1] >= 1 && read[2..] == [0; 3], "{read:?}");
    // A volume of which nobody wants anything is not written for them.
    let writes = device.counts().writes;
    assert_eq!(fs.device_errors().expect("errors"), read);
    assert_eq!(device.counts().writes, writes);
    fs.destroy().expect("close");
    drop(fs);
    state::check(&device.image()).expect("check");

    let fs = mounted(&device);
    assert_eq!(fs.device_errors().expect("errors"), read);
    // Nothing has changed: the item stays as it is.
    let generation = fs.usage().expect("usage").generation;
    fs.sync().expect("sync");
    assert_eq!(fs.usage().expect("usage").generation, generation);
    assert_eq!(fs.reset_device_errors().expect("reset"), read);
    assert_eq!(fs.device_errors().expect("errors"), [0; 5]);
    fs.destroy().expect("close");
    drop(fs);
    let fs = mounted(&device);
    assert_eq!(fs.device_errors().expect("errors"), [0; 5]);
    // A refused flush ends writing: the number is told, and lost.
    let ino = make(&fs, "other");
    fs.write(&CX, ino, 0, &[3; 5000], DIRECT).expect("write");
    refuse(&device, Access::Flush);
    fs.sync().expect_err("it was refused");
    assert_eq!(fs.device_errors().expect("errors")[2], 1);
    fs.reset_device_errors().expect_err("nothing is written any more");
    let _is_poisoned = fs.destroy();
    drop(fs);
    device.set_faults(&[]);
    state::check(&device.image()).expect("check");
    let fs = mounted(&device);
    assert_eq!(fs.device_errors().expect("errors"), [0; 5]);
    fs.destroy().expect("close");
}
