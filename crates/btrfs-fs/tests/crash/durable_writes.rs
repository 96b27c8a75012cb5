//! Writes that are durable when they return, without an fsync: the caller's flag (`O_SYNC` of a
//! client that has no kernel before it) and the file's own (`chattr +S`).

use super::base::{base, mount};
use super::ops::CX;
use blocksim::SimDevice;
use std::sync::Arc;
use vfs::{FileKind, FileSystem, WriteFlags};

const SYNC_FLAG: u32 = 0x8;

/// What a mount reads after a crash at which nothing arrived that no flush covered.
fn after_a_crash(device: &SimDevice, len: usize) -> Vec<u8> {
    let epoch = device.recording().epochs().last().expect("there is always one");
    let fs = mount(Arc::new(SimDevice::new(epoch.durable))).expect("recovery");
    let Ok(entry) = fs.lookup(&CX, fs.root(), b"file") else { return Vec::new() };
    let mut found = vec![0; len];
    let read = fs.read(entry.attr.ino, 0, &mut found).expect("read");
    found.truncate(read);
    found
}

/// Inline, one extent gathered in memory, and one that goes straight to the device.
fn survives(file_flags: u32, flags: WriteFlags) -> [bool; 3] {
    [100, 5000, 300_000].map(|len| {
        let device = Arc::new(SimDevice::new(base(0).image.clone()));
        let fs = mount(device.clone()).expect("mount");
        let entry = fs.mknod(&CX, fs.root(), b"file", FileKind::File, 0o644, 0).expect("mknod");
        if file_flags != 0 {
            fs.set_flags(&CX, entry.attr.ino, file_flags).expect("flags");
        }
        let data = vec![0xa7; len];
        fs.write(&CX, entry.attr.ino, 0, &data, flags).expect("write");
        after_a_crash(&device, len) == data
    })
}

#[test]
fn a_write_that_is_to_be_durable_is() {
    let plain = WriteFlags::default();
    let sync = WriteFlags { sync: true, ..plain };
    assert_eq!(survives(0, plain), [false; 3], "or this shows nothing");
    assert_eq!(survives(0, sync), [true; 3]);
    assert_eq!(survives(SYNC_FLAG, plain), [true; 3]);
}
