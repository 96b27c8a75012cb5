//! Volumes without a UUID tree: made without, or rescued from a damaged one. All goes on without, and the
//! next mount makes another. Our check judges, which misses each UUID that is not in the tree; so does the
//! kernel, in `crates/cli/tests/damage/rescues.rs`.

use crate::common;
use blockdev::{BlockDevice, MemDevice};
use blocksim::{Hooked, Image, SimDevice};
use btrfs_check::Severity;
use btrfs_disk::{Superblock, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Delete, Options, ReceivedFrom, SubvolId};
use btrfs_image::mkfs::{self, MkfsOptions};
use btrfs_volume::{OpenOptions, Volume};
use common::unreadable::Unreadable;
use fuzzing::hostile::base::Base;
use fuzzing::hostile::leaf::Leaf;
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

fn superblock(device: &Arc<SimDevice>) -> Superblock {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    (*Volume::open(device.clone(), options).expect("a volume").superblock()).clone()
}

/// Of the UUID tree: whether the superblock says that it is up to date.
fn is_current(device: &Arc<SimDevice>) -> bool {
    let fields = superblock(device).fields;
    fields.uuid_tree_generation == fields.generation.0
}

fn judge(device: &Arc<SimDevice>) {
    common::check_device(device.clone(), false, Severity::Note);
}

fn clear(device: &Arc<SimDevice>) -> bool {
    let fs = open(device, false);
    let cleared = fs.clear_uuid_tree().expect("it is cleared");
    fs.destroy().expect("close");
    cleared
}

#[test]
fn a_mount_makes_it_anew() {
    let device = new_volume();
    let fs = open(&device, false);
    let (sub, ino) = subvolume(&fs, "sub");
    receive(&fs, sub, SENT);
    snap(&fs, ino, "again", true).expect("a snapshot");
    for i in 0..150 {
        subvolume(&fs, &format!("more{i}"));
    }
    fs.destroy().expect("close");
    let used = superblock(&device).fields.bytes_used;
    assert!(clear(&device));
    let left = superblock(&device).fields.bytes_used;
    assert!(left < used - 2 * 4096, "its space is back, which is more than a node: {used} {left}");
    assert!(!is_current(&device));
    assert!(!clear(&device), "it is gone");
    judge(&device);
    // All goes on without; and nobody makes one behind the back of who rescues.
    let fs = open(&device, false);
    let (other, ino) = subvolume(&fs, "other");
    receive(&fs, other, [0x77; 16]);
    snap(&fs, ino, "copy", false).expect("a snapshot");
    fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), b"more7")).expect("delete");
    fs.destroy().expect("close");
    assert!(!is_current(&device));
    judge(&device);
    let fs = open(&device, true);
    let (_, ino) = subvolume(&fs, "last");
    snap(&fs, ino, "last copy", true).expect("a snapshot");
    fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), b"more8")).expect("delete");
    fs.destroy().expect("close");
    assert!(is_current(&device), "or the check does not compare");
    judge(&device);
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
    assert!(clear(&device));
    let fs = open(&device, true);
    for i in [3, 509] {
        let name = format!("snap{i}").into_bytes();
        fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), &name)).expect("delete");
    }
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    assert!(is_current(&device));
    common::check_device(device.clone(), false, Severity::Warning);
}

/// What is written to what was received is not what was sent: nothing is built on it any more.
#[test]
fn what_can_be_written_again_is_not_what_was_received() {
    let device = new_volume();
    let fs = open(&device, false);
    let (sub, ino) = subvolume(&fs, "sub");
    receive(&fs, sub, SENT);
    let copy = snap(&fs, ino, "copy", true).expect("a snapshot");
    let told = |fs: &BtrfsFs, id| fs.subvolume_info(id).expect("it is there");
    let base = |fs: &BtrfsFs| {
        let all = fs.subvolumes().expect("a list");
        btrfs_fs::known_as(all, SENT, 7).map(|info| info.id)
    };
    // Also of one that no commit has seen yet.
    for id in [copy, sub] {
        assert!(base(&fs).is_some());
        fs.set_read_only(&Caller::root(), id, false).expect("writable");
        let info = told(&fs, id);
        let zeros = (info.received_uuid, info.stransid, info.rtransid, info.stime, info.rtime);
        assert_eq!(zeros, ([0; 16], 0, 0, (0, 0), (0, 0)));
        fs.set_read_only(&Caller::root(), id, true).expect("read-only");
    }
    assert_eq!(base(&fs), None);
    fs.destroy().expect("close");
    judge(&device);
    let fs = open(&device, false);
    assert_eq!(base(&fs), None);
    fs.destroy().expect("close");
}

/// Where the device has all nodes that the tree ever had.
fn nodes_of_uuid_tree(device: &SimDevice) -> Vec<u64> {
    let (mut chunk, mut nodes) = (vec![0; 1 << 20], Vec::new());
    let owner = TreeId::UUID.0.to_le_bytes();
    for at in (0..512 << 20).step_by(1 << 20) {
        device.read_at(at, &mut chunk).expect("read");
        for (node, bytes) in (at..).step_by(4096).zip(chunk.chunks_exact(4096)) {
            if bytes[88..96] == owner {
                nodes.push(node);
            }
        }
    }
    nodes
}

fn lose_uuid_tree(device: &SimDevice) -> usize {
    let nodes = nodes_of_uuid_tree(device);
    for node in &nodes {
        let mut byte = [0];
        device.read_at(node + 1000, &mut byte).expect("read");
        device.write_at(node + 1000, &[!byte[0]]).expect("write");
    }
    nodes.len()
}

/// Subvolumes come and go all the same, as what was received too.
#[test]
fn subvolumes_come_and_go_where_the_tree_is_lost() {
    let device = new_volume();
    let fs = open(&device, false);
    let (sub, ino) = subvolume(&fs, "sub");
    receive(&fs, sub, SENT);
    snap(&fs, ino, "gone", true).expect("a snapshot");
    for name in ["by number", "empty"] {
        subvolume(&fs, name);
    }
    fs.destroy().expect("close");
    assert!(lose_uuid_tree(&device) > 0);
    let fs = open(&device, false);
    let (root, top) = (Caller::root(), fs.root());
    let find = |name: &str| common::find(&fs, top, name).expect("there");
    fs.delete_subvolume(&root, Delete::Name(top, b"gone")).expect("delete");
    let (id, _) = fs.subvolume_of(find("by number")).expect("a subvolume");
    fs.delete_subvolume(&root, Delete::Id(id)).expect("delete");
    fs.rmdir(&common::CX, top, b"empty").expect("rmdir");
    subvolume(&fs, "new");
    for read_only in [false, true] {
        snap(&fs, find("sub"), &format!("copy {read_only}"), read_only).expect("a snapshot");
    }
    assert!(fs.sync_deleted(&[], None).expect("they go"));
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    assert!(clear(&device));
    open(&device, true).destroy().expect("close");
    judge(&device);
}

/// Once is enough: later commits do not call it up to date, and nor does our check find anything then.
#[test]
fn a_tree_that_could_not_be_read_for_a_moment_lags() {
    for what in ["create", "snapshot", "receive", "delete"] {
        let device = new_volume();
        // One that the superblock calls up to date.
        assert!(clear(&device));
        let fs = open(&device, true);
        subvolume(&fs, "sub");
        subvolume(&fs, "other");
        fs.destroy().expect("close");
        assert!(is_current(&device));
        let nodes = nodes_of_uuid_tree(&device).into_iter().map(|at| at..at + 4096).collect();
        let hooked = Hooked { below: device.clone(), hook: Unreadable::new(nodes) };
        let hooked = Arc::new(hooked);
        let options = Options { background: false, ..Options::default() };
        let fs = BtrfsFs::open_device(hooked.clone(), options).expect("open");
        let sub = common::find(&fs, fs.root(), "sub").expect("there");
        match what {
            "create" => drop(subvolume(&fs, "new")),
            "snapshot" => drop(snap(&fs, sub, "new", true).expect("a snapshot")),
            "receive" => receive(&fs, fs.subvolume_of(sub).expect("a subvolume").0, SENT),
            _ => {
                fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), b"sub"))
                    .expect("delete");
            }
        }
        hooked.hook.mend();
        fs.sync().expect("sync");
        subvolume(&fs, "later");
        fs.destroy().expect("close");
        assert!(!is_current(&device), "{what}: the kernel is to make it right");
        judge(&device);
        assert!(clear(&device));
        open(&device, true).destroy().expect("close");
        assert!(is_current(&device));
        judge(&device);
    }
}

/// What no commit brought to its end, and is deleted before another one, is listed nowhere.
#[test]
fn what_no_commit_made_received_goes_as_such() {
    for deleted in [false, true] {
        let device = Arc::new(MemDevice::new(256 << 20));
        let options = MkfsOptions { node_size: Some(4096), ..MkfsOptions::default() };
        mkfs::make(&*device, &options).expect("mkfs");
        let options = Options { background: false, ..Options::default() };
        let fs = BtrfsFs::open_device(device.clone(), options).expect("open");
        let (sub, _) = subvolume(&fs, "sub");
        fs.sync().expect("commit");
        fs.hold_commits().expect("hold");
        let from = ReceivedFrom { uuid: SENT, stransid: 7, stime: (1, 2) };
        let told = fs.complete_received(&Caller::root(), sub, &from);
        assert_eq!(common::errno(told), libc::EBUSY);
        if deleted {
            fs.delete_subvolume(&Caller::root(), Delete::Id(sub)).expect("delete");
        }
        fs.commit_held().expect("commit");
        assert!(fs.sync_deleted(&[], None).expect("it goes"));
        assert_eq!(fs.read_only_reason(), None);
        fs.destroy().expect("close");
        let base = Base::of(device.clone());
        let all = base.nodes.iter().filter(|node| node.tree == TreeId::UUID && node.level == 0);
        let leaves = all.map(|node| Leaf::of(&base.node_bytes(&*base.device, node.logical)));
        let is_listed = leaves.flat_map(|leaf| leaf.items).any(|(key, _)| {
            key.objectid.to_le_bytes() == SENT[..8] && key.offset.to_le_bytes() == SENT[8..]
        });
        assert_eq!(is_listed, !deleted);
        common::check_device(device, false, Severity::Note);
    }
}

/// The tree only repeats what root items say.
#[test]
fn what_was_received_can_be_written_also_where_the_tree_is_lost() {
    let device = new_volume();
    let fs = open(&device, false);
    let (sub, _) = subvolume(&fs, "sub");
    receive(&fs, sub, SENT);
    fs.destroy().expect("close");
    assert!(lose_uuid_tree(&device) > 0);
    let fs = open(&device, false);
    let read_only = |to| fs.set_read_only(&Caller::root(), sub, to).expect("set");
    let received = || fs.subvolume_info(sub).expect("it is there").received_uuid;
    assert_eq!(received(), SENT);
    read_only(false);
    assert_eq!((received(), fs.read_only_reason()), ([0; 16], None));
    receive(&fs, sub, SENT);
    assert_eq!((received(), fs.read_only_reason()), (SENT, None));
    fs.destroy().expect("close");
    assert!(clear(&device));
    open(&device, true).destroy().expect("close");
    judge(&device);
}
