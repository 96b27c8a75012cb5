//! A change of whether a subvolume is read-only that fails leaves it as it was, in memory as on the
//! volume: who was shut out comes in again.
//! One that does not fail shuts out whoever is not inside yet.

#![allow(dead_code)]

use crate::harness;
use base::base;
use blocksim::{Access, Fault, SimDevice, Span};
use btrfs_fs::{BtrfsFs, Caller, Options, ReceivedFrom, SubvolId};
use harness::{base, ops, state};
use ops::CX;
use std::sync::Arc;
use vfs::{FileKind, FileSystem, Ino};

/// A volume with a subvolume, all of it durable, and nothing of it in memory. Its nodes are there once.
fn mounted() -> (Arc<SimDevice>, BtrfsFs, SubvolId, Ino) {
    let device = Arc::new(SimDevice::new(base(1).image.clone()));
    let fs = BtrfsFs::open_device(device.clone(), base::options()).expect("mount");
    let made = fs.create_subvolume(&Caller::root(), fs.root(), b"sub");
    let id = made.expect("create a subvolume").0;
    fs.destroy().expect("close");
    drop(fs);
    let (fs, root) = again(&device);
    (device, fs, id, root)
}

fn again(device: &Arc<SimDevice>) -> (BtrfsFs, Ino) {
    // So little that nodes are read again all the time.
    let options = Options { cache_bytes: 64 << 10, ..base::options() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    let root = fs.lookup(&CX, fs.root(), b"sub").expect("lookup").attr.ino;
    (fs, root)
}

/// What a new file in the subvolume is answered.
fn create(fs: &BtrfsFs, root: Ino, name: &str) -> i32 {
    match fs.mknod(&CX, root, name.as_bytes(), FileKind::File, 0o644, 0) {
        Ok(entry) => {
            fs.forget(entry.attr.ino, 1);
            0
        }
        Err(error) => error.errno(),
    }
}

/// Whether the volume itself says that the subvolume is read-only.
fn read_only_on_the_volume(device: &Arc<SimDevice>, fs: BtrfsFs) -> bool {
    fs.destroy().expect("close");
    drop(fs);
    state::check(&device.image()).expect("sound");
    let (fs, root) = again(device);
    create(&fs, root, "later") == libc::EROFS
}

#[test]
fn what_could_not_be_received_can_be_written_still() {
    let mut borne = 0;
    for nth in 0.. {
        let (device, fs, id, root) = mounted();
        let from = ReceivedFrom { uuid: [7; 16], stransid: 3, stime: (1, 2) };
        let nth = device.counts().reads + nth;
        device.set_faults(&[Fault { access: Access::Read, nth, span: Span::Once }]);
        let failed_before = device.counts().failed;
        let received = fs.complete_received(&Caller::root(), id, &from);
        let met = device.counts().failed > failed_before;
        device.set_faults(&[]);
        if received.is_ok() {
            assert_eq!(create(&fs, root, "new"), libc::EROFS);
            assert!(read_only_on_the_volume(&device, fs));
            if !met {
                break;
            }
            // Of the tree of UUIDs, which only repeats what root items say.
            borne += 1;
            continue;
        }
        if fs.read_only_reason().is_none() {
            assert_eq!(create(&fs, root, "new"), 0, "read {nth} failed: {received:?}");
            fs.complete_received(&Caller::root(), id, &from).expect("it is whole");
            assert_eq!(create(&fs, root, "newer"), libc::EROFS);
            assert!(read_only_on_the_volume(&device, fs));
        }
    }
    assert!(borne > 0, "no read failed without ending the volume");
}

#[test]
fn what_no_commit_took_is_as_before() {
    for read_only in [true, false] {
        let (device, fs, id, root) = mounted();
        let set = |to| fs.set_read_only(&Caller::root(), id, to);
        set(!read_only).expect("set");
        let before = create(&fs, root, "before");
        fs.hold_commits().expect("hold");
        assert_eq!(set(read_only).expect_err("held").errno(), libc::EBUSY);
        assert_eq!(create(&fs, root, "between"), before, "to be {read_only}");
        fs.commit_held().expect("commit");
        assert_eq!(create(&fs, root, "behind"), before, "to be {read_only}");
        assert_eq!(read_only_on_the_volume(&device, fs), !read_only);
    }
}

/// Making it writable would have taken from it what it was received as.
#[test]
fn what_stays_read_only_stays_what_was_received() {
    let (device, fs, id, root) = mounted();
    let from = ReceivedFrom { uuid: [7; 16], stransid: 3, stime: (1, 2) };
    fs.complete_received(&Caller::root(), id, &from).expect("received");
    let told = |fs: &BtrfsFs| {
        let info = fs.subvolume_info(id).expect("it is there");
        (info.received_uuid, info.stransid, info.rtransid, info.stime, info.rtime)
    };
    let before = told(&fs);
    assert!(before.0 == from.uuid && before.2 > 0);
    fs.hold_commits().expect("hold");
    let held = fs.set_read_only(&Caller::root(), id, false);
    assert_eq!(held.expect_err("held").errno(), libc::EBUSY);
    fs.commit_held().expect("commit");
    assert_eq!(told(&fs), before);
    assert_eq!(create(&fs, root, "later"), libc::EROFS);
    assert!(read_only_on_the_volume(&device, fs));
}

/// Of each file what it holds.
fn all_content(fs: &BtrfsFs, files: &[Ino]) -> Vec<[u8; 8]> {
    let content = |file: &Ino| {
        let mut bytes = [0; 8];
        fs.read(*file, 0, &mut bytes).expect("read");
        bytes
    };
    files.iter().map(content).collect()
}

/// Who asked before whether he may write, and comes to it behind.
#[test]
fn what_is_read_only_does_not_change_any_more() {
    let (_device, fs, id, root) = mounted();
    let make = |n: usize| {
        let name = format!("file-{n}").into_bytes();
        fs.mknod(&CX, root, &name, FileKind::File, 0o644, 0).expect("create").attr.ino
    };
    let files: Vec<Ino> = (0..16).map(make).collect();
    for round in 0..100 {
        fs.set_read_only(&Caller::root(), id, false).expect("writable");
        std::thread::scope(|threads| {
            for file in &files {
                threads.spawn(|| {
                    let write =
                        |n: u64| fs.write(&CX, *file, 0, &n.to_le_bytes(), Default::default());
                    let refused = (1u64..).find_map(|n| write(n << 32 | round).err());
                    assert_eq!(refused.expect("at last").errno(), libc::EROFS);
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            fs.set_read_only(&Caller::root(), id, true).expect("read-only");
            let before = all_content(&fs, &files);
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(all_content(&fs, &files), before, "round {round}");
        });
    }
    fs.destroy().expect("close");
}
