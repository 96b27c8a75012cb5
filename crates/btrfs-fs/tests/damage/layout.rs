//! Device extents and chunks that contradict each other: nothing is written then, or a new
//! chunk would be laid over what somebody claims.

use btrfs_disk::items::{DevExtent, DevItem};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use btrfs_fs::{BtrfsFs, Options};
use fuzzing::hostile::base::{Base, options};
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::leaf::{Leaf, is_leaf};
use std::sync::Arc;
use vfs::{Context, FileKind, FileSystem};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };

/// The volume with another device or chunk tree, opened for writing.
fn opened(tree: TreeId, edit: impl Fn(&mut Vec<(Key, Vec<u8>)>)) -> (BtrfsFs, Arc<Layered>) {
    let base = Base::ours(1, 16384, 20);
    let device = Arc::new(Layered::new(&base.device));
    let mut edited = 0;
    for node in base.nodes.iter().filter(|node| node.tree == tree) {
        let bytes = base.node_bytes(&*device, node.logical);
        if is_leaf(&bytes) {
            let mut leaf = Leaf::of(&bytes);
            edit(&mut leaf.items);
            leaf.sort();
            base.put_node(&device, node.logical, leaf.bytes());
            edited += 1;
        }
    }
    assert_eq!(edited, 1, "the tree is one leaf");
    device.forget_writes();
    let fs = BtrfsFs::open_device(device.clone(), Options { ..options() }).expect("opens");
    (fs, device)
}

fn last(items: &[(Key, Vec<u8>)]) -> (Key, DevExtent) {
    let found = items.iter().rev().find(|(key, _)| key.kind == kind::DEV_EXTENT);
    let (key, data) = found.expect("a device extent");
    (*key, DevExtent::read(data).expect("a device extent"))
}

fn is_not_written(tree: TreeId, what: &str, edit: impl Fn(&mut Vec<(Key, Vec<u8>)>)) {
    let (fs, device) = opened(tree, edit);
    let why = fs.read_only_reason().expect("it must not be written");
    let reason = if tree == TreeId::DEV { "device extent" } else { "device 1" };
    assert!(why.contains(reason), "{what}: {why}");
    let refused = fs.mknod(&CX, fs.root(), b"x", FileKind::File, 0o644, 0).map(|_| ());
    assert_eq!(refused.expect_err("refused").errno(), libc::EROFS, "{what}");
    fs.destroy().expect("close");
    assert_eq!(device.writes(), 0, "{what}: nothing was written");
}

#[test]
fn device_extents_that_no_chunk_has_make_the_mount_read_only() {
    let (fs, _) = opened(TreeId::DEV, |_| ());
    assert_eq!(fs.read_only_reason(), None, "the volume itself is sound");
    drop(fs);
    is_not_written(TreeId::DEV, "one more", |items| {
        let (key, mut extent) = last(items);
        let at = key.offset + extent.length;
        extent.chunk_offset += 1 << 40;
        extent.length = 1 << 20;
        items.push((Key::new(key.objectid, kind::DEV_EXTENT, at), extent.to_vec()));
    });
    is_not_written(TreeId::DEV, "one less", |items| {
        let (gone, _) = last(items);
        items.retain(|(key, _)| *key != gone);
    });
    is_not_written(TreeId::DEV, "of another length", |items| {
        let (changed, mut extent) = last(items);
        extent.length += 65536;
        let item = items.iter_mut().find(|(key, _)| *key == changed).expect("it is there");
        item.1 = extent.to_vec();
    });
}

#[test]
fn a_device_item_that_the_superblock_does_not_say_makes_the_mount_read_only() {
    let device_item = |items: &mut Vec<(Key, Vec<u8>)>, edit: fn(&mut DevItem)| {
        let (_, data) = items.iter_mut().find(|(key, _)| key.kind == kind::DEV_ITEM).expect("one");
        let mut item = DevItem::read(data).expect("a device item");
        edit(&mut item);
        *data = item.to_vec();
    };
    let (fs, _) = opened(TreeId::CHUNK, |_| ());
    assert_eq!(fs.read_only_reason(), None, "the volume itself is sound");
    drop(fs);
    for total in [
        |item: &mut DevItem| item.total_bytes += 1 << 30,
        |item: &mut DevItem| {
            item.total_bytes -= 1 << 20;
        },
    ] {
        is_not_written(TreeId::CHUNK, "size", |items| device_item(items, total));
    }
    is_not_written(TreeId::CHUNK, "owner", |items| device_item(items, |item| item.fsid[3] ^= 1));
}
