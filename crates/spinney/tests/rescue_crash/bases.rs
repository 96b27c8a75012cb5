//! Volumes that `rescue` is for.

use blockdev::BlockDevice;
use blocksim::{Image, SimDevice};
use btrfs_disk::checksum::ChecksumType;
use btrfs_disk::items::{DevReplace, RootItem, dev_replace};
use btrfs_disk::key::kind;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use btrfs_disk::{
    Expect, FixedSize, Key, LeafItem, Logical, NodeIdentity, Superblock, TreeId, build,
};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::{self, Features, MkfsOptions};
use btrfs_tree::{Cursor, NodeStore, TreeRoot};
use btrfs_volume::OpenOptions;
use spinney::{SnapshotOptions, Volume, VolumeOptions};
use std::sync::Arc;
use testkit::damage::{grow_device, shorten_free_extent};
use vfs::FileSystem;

/// All three copies of the superblock have a place.
pub const SIZE: u64 = (257 << 30) + 4096;

pub struct Damaged {
    pub name: &'static str,
    pub image: Image,
}

fn filled() -> (Arc<SimDevice>, Volume) {
    filled_as(MkfsOptions::default())
}

fn filled_as(options: MkfsOptions) -> (Arc<SimDevice>, Volume) {
    let device = Arc::new(SimDevice::new(Image::zeros(SIZE)));
    let options = MkfsOptions { discard: false, ..options };
    mkfs::make(&*device, &options).expect("mkfs");
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).expect("open");
    volume.create_subvolume("sub").expect("a subvolume");
    for i in 0..40usize {
        let content = vec![i as u8; 300 + 2500 * i];
        volume.write(format!("sub/f{i}"), &content).expect("write");
    }
    volume.snapshot("sub", "snap", &SnapshotOptions::new()).expect("a snapshot");
    volume.sync().expect("commit");
    volume.write("snap/own", &[7; 70_000]).expect("write");
    volume.remove_file("sub/f3").expect("remove");
    volume.sync().expect("commit");
    (device, volume)
}

fn whole() -> Image {
    let (device, volume) = filled();
    volume.close().expect("close");
    device.image().flatten()
}

/// A change of `image` by `write`, which is given a device.
fn changed(image: &Image, write: impl FnOnce(&Arc<SimDevice>)) -> Image {
    let device = Arc::new(SimDevice::new(image.clone()));
    write(&device);
    device.image().flatten()
}

pub fn superblock(image: &Image, at: u64) -> Option<Superblock> {
    let mut bytes = [0; SUPER_SIZE];
    image.read(at, &mut bytes).expect("read");
    Superblock::parse(&bytes, at).ok()
}

fn change_superblocks(device: &SimDevice, what: impl Fn(&mut Superblock)) {
    for at in COPIES {
        let mut sb = superblock(&device.image(), at).expect("a superblock");
        what(&mut sb);
        device.write_at(at, &sb.to_bytes(at).expect("a superblock")).expect("write");
    }
}

fn tear(device: &SimDevice, copy: usize) {
    device.write_at(COPIES[copy] + 512, &[0x5a; 1024]).expect("write");
}

pub fn with_logs() -> Vec<Damaged> {
    let (device, volume) = filled();
    let base = device.image().flatten();
    let mut file = volume.create("logged").expect("create");
    std::io::Write::write_all(&mut file, &[9; 50_000]).expect("write");
    file.sync_all().expect("fsync");
    let image = device.image().flatten();
    assert_ne!(superblock(&image, COPIES[0]).expect("one").fields.log_root.0, 0, "a log");
    drop(file);
    volume.close().expect("close");
    let torn = |copy| changed(&image, |device| tear(device, copy));
    let old = |copy| {
        changed(&image, |device| {
            let sb = superblock(&base, COPIES[copy]).expect("a superblock");
            device.write_at(COPIES[copy], &sb.to_bytes(COPIES[copy]).unwrap()).unwrap();
        })
    };
    vec![
        Damaged { name: "a log", image: image.clone() },
        Damaged { name: "a log, the first copy torn", image: torn(0) },
        Damaged { name: "a log, the second copy torn", image: torn(1) },
        Damaged { name: "a log that one copy alone has", image: old(1) },
        Damaged { name: "a log that the spare copies alone have", image: old(0) },
        Damaged { name: "no log", image: base },
    ]
}

pub fn with_bad_superblocks() -> Vec<Damaged> {
    let (device, volume) = filled();
    let older = device.image().flatten();
    volume.write("new", &[1; 9000]).expect("write");
    volume.close().expect("close");
    let image = device.image().flatten();
    let zeroed = |copies: &[usize]| {
        changed(&image, |device| {
            copies.iter().for_each(|copy| device.write_at(COPIES[*copy], &[0; SUPER_SIZE]).unwrap())
        })
    };
    let old = |copies: &[usize]| {
        changed(&image, |device| {
            for at in copies.iter().map(|copy| COPIES[*copy]) {
                let sb = superblock(&older, at).expect("a superblock");
                device.write_at(at, &sb.to_bytes(at).unwrap()).unwrap();
            }
        })
    };
    vec![
        Damaged { name: "the first copy wiped", image: zeroed(&[0]) },
        Damaged { name: "the spare copies wiped", image: zeroed(&[1, 2]) },
        Damaged { name: "the last copy alone", image: zeroed(&[0, 1]) },
        Damaged { name: "the first copy torn", image: changed(&image, |d| tear(d, 0)) },
        Damaged { name: "the first copy of an older commit", image: old(&[0]) },
        Damaged { name: "two copies of an older commit", image: old(&[0, 2]) },
        Damaged { name: "all copies good", image },
    ]
}

/// Writes over all copies of a node what `change` makes of it.
fn change_node(device: &Arc<SimDevice>, logical: Logical, change: impl Fn(&mut [u8])) {
    for (at, mut node) in copies_of(device, logical) {
        change(&mut node);
        ChecksumType::Crc32c.seal(&mut node);
        device.write_at(at, &node).expect("write");
    }
}

/// All copies of a node, and where they are.
fn copies_of(device: &Arc<SimDevice>, logical: Logical) -> Vec<(u64, Vec<u8>)> {
    let volume = open(device);
    let size = volume.superblock().fields.nodesize;
    let chunks = volume.chunks();
    let holds = |start: Logical, len| (start.0..start.0 + len).contains(&logical.0);
    let chunk = chunks.iter().find(|c| holds(c.logical, c.len)).expect("it is mapped");
    let copy = |stripe: u64| {
        let at = stripe + (logical.0 - chunk.logical.0);
        let mut node = vec![0; size as usize];
        device.read_at(at, &mut node).expect("read");
        (at, node)
    };
    chunk.stripes.iter().map(|(_, stripe)| copy(stripe.0)).collect()
}

fn open(device: &Arc<SimDevice>) -> Arc<btrfs_volume::Volume> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    Arc::new(btrfs_volume::Volume::open(device.clone(), options).expect("a volume"))
}

/// The device `more` bytes larger than its sectors, by all that say so.
fn larger_device(device: &Arc<SimDevice>, more: u64) {
    let chunk_root = open(device).superblock().fields.chunk_root;
    change_node(device, chunk_root, |node| {
        grow_device(node, more);
    });
    change_superblocks(device, |sb| sb.fields.dev_item.total_bytes += more);
}

pub fn with_odd_sizes() -> Vec<Damaged> {
    // With room behind it for a device that is said to be larger.
    let image = changed(&whole(), |device| {
        let options = Options { background: false, ..Options::default() };
        let fs = BtrfsFs::open_device(device.clone(), options).expect("open");
        fs.resize(SIZE - (1 << 20)).expect("shrink");
        fs.destroy().expect("close");
    });
    let total =
        |more| changed(&image, |d| change_superblocks(d, |sb| sb.fields.total_bytes += more));
    let larger = |more, total| {
        changed(&image, |device| {
            larger_device(device, more);
            change_superblocks(device, |sb| sb.fields.total_bytes += total);
        })
    };
    let other = |own: i64, total: i64| {
        changed(&image, |device| {
            change_superblocks(device, |sb| {
                let fields = &mut sb.fields;
                let item = &mut fields.dev_item.total_bytes;
                *item = item.wrapping_add_signed(own);
                fields.total_bytes = fields.total_bytes.wrapping_add_signed(total);
            });
        })
    };
    vec![
        Damaged { name: "an item in the superblock that is odd", image: other(100, 0) },
        Damaged { name: "a superblock of a smaller one", image: other(-(1 << 30), -(1 << 30)) },
        Damaged { name: "another sum", image: total(100) },
        Damaged { name: "an odd device", image: larger(100, 0) },
        Damaged { name: "an odd device and the same sum", image: larger(100, 100) },
        Damaged { name: "an odd device and another sum", image: larger(100, 300) },
        Damaged { name: "sizes that are right", image },
    ]
}

pub fn with_free_space_trees() -> Vec<Damaged> {
    let image = whole();
    let wrong = changed(&image, |device| {
        change_node(device, free_space_root(device), shorten_free_extent);
    });
    let unreadable = |image| changed(image, |device| spoil_node(device, free_space_root(device)));
    let logged = with_logs().remove(0).image;
    vec![
        Damaged { name: "a free-space tree", image: image.clone() },
        Damaged { name: "a free-space tree that is wrong", image: wrong },
        Damaged { name: "one that cannot be read", image: unreadable(&image) },
        Damaged { name: "one that cannot be read, and a log", image: unreadable(&logged) },
        Damaged { name: "a free-space tree and a log", image: logged },
    ]
}

pub fn with_block_group_trees() -> Vec<Damaged> {
    let features = Features { block_group_tree: true, ..Features::default() };
    let (device, volume) = filled_as(MkfsOptions { features, ..MkfsOptions::default() });
    volume.close().expect("close");
    let image = device.image().flatten();
    let unreadable = changed(&image, |device| spoil_node(device, free_space_root(device)));
    vec![
        Damaged { name: "a free-space tree beside block groups", image },
        Damaged { name: "one beside block groups that cannot be read", image: unreadable },
    ]
}

/// Volumes of which nobody can tell what is free; true: they can be written nevertheless.
pub fn with_what_is_in_the_way() -> Vec<(Damaged, bool)> {
    let logged = changed(&with_logs().remove(0).image, |device| {
        spoil_node(device, open(device).superblock().fields.log_root);
    });
    let extents = changed(&with_many_subvolumes(), |device| {
        spoil_node(device, leaf_of_extents(device));
    });
    vec![
        (Damaged { name: "a log that cannot be read", image: logged }, false),
        (Damaged { name: "a lost leaf of the extent tree", image: extents }, true),
    ]
}

/// Of one that is to be put in the place of its device.
pub fn being_replaced() -> Image {
    changed(&with_logs().remove(0).image, |device| {
        let (at, volume) = (root_of(device, TreeId::DEV).bytenr, open(device));
        let expect =
            Expect { logical: at, level: 0, generation: None, owner: None, first_key: None };
        let leaf = volume.read_node(&expect).expect("one leaf");
        let state = dev_replace::SUSPENDED;
        let item = DevReplace { source: 1, state, ..DevReplace::default() }.to_vec();
        let told = LeafItem { key: Key::new(0, kind::DEV_REPLACE, 0), data: &item };
        let mut items: Vec<_> = leaf.items().map(|(key, data)| LeafItem { key, data }).collect();
        items.insert(items.partition_point(|other| other.key < told.key), told);
        let (generation, owner) = (leaf.generation(), leaf.owner());
        let identity = NodeIdentity { logical: at, generation, owner };
        let built = build::leaf(volume.geometry(), &identity, &items);
        change_node(device, at, |node| {
            // The flags stay.
            node[..56].copy_from_slice(&built.bytes()[..56]);
            node[64..].copy_from_slice(&built.bytes()[64..]);
        });
    })
}

/// One that no block group is in: what opens a volume reads those.
fn leaf_of_extents(device: &Arc<SimDevice>) -> Logical {
    let root = root_of(device, TreeId::EXTENT);
    let volume = open(device);
    let node = |logical, level| {
        let expect = Expect { logical, level, generation: None, owner: None, first_key: None };
        volume.read_node(&expect).expect("a node")
    };
    assert_eq!(root.level, 1, "leaves below a root");
    let leaves = node(root.bytenr, 1).children().map(|child| child.logical).collect::<Vec<_>>();
    let fits = |leaf: &&Logical| {
        let leaf = node(**leaf, 0);
        leaf.items().all(|(key, _)| key.kind != kind::BLOCK_GROUP_ITEM)
    };
    *leaves.iter().find(fits).expect("one without block groups")
}

/// Subvolumes enough for a UUID tree of several nodes of 4 KiB.
fn with_many_subvolumes() -> Image {
    let device = Arc::new(SimDevice::new(Image::zeros(SIZE)));
    let options = MkfsOptions { node_size: Some(4096), discard: false, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("mkfs");
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).expect("open");
    for i in 0..150 {
        volume.create_subvolume(format!("sub{i}")).expect("a subvolume");
    }
    volume.write("sub7/file", &[7; 70_000]).expect("write");
    volume.close().expect("close");
    device.image().flatten()
}

pub fn with_uuid_trees() -> Vec<Damaged> {
    let (image, many) = (whole(), with_many_subvolumes());
    let uuids = |device: &Arc<SimDevice>| root_of(device, TreeId::UUID);
    // The number of a subvolume: data of the first item ends the leaf.
    let wrong = changed(&image, |device| {
        change_node(device, uuids(device).bytenr, |node| *node.last_mut().expect("a byte") ^= 1);
    });
    let unreadable = |image, what: &str| {
        changed(image, |device| {
            let root = uuids(device);
            assert_eq!(root.level > 0, what == "nodes", "a tree of {what}");
            spoil_node(device, root.bytenr);
        })
    };
    let without = changed(&image, |device| {
        assert!(spinney::rescue::clear_uuid_tree(device.clone()).expect("it is gone").there);
    });
    vec![
        Damaged { name: "a UUID tree", image: image.clone() },
        Damaged { name: "a UUID tree that is wrong", image: wrong },
        Damaged { name: "a UUID tree that cannot be read", image: unreadable(&image, "a leaf") },
        Damaged { name: "a UUID tree of several nodes", image: many.clone() },
        Damaged { name: "one whose root cannot be read", image: unreadable(&many, "nodes") },
        Damaged { name: "no UUID tree", image: without },
    ]
}

pub fn with_quotas() -> Vec<Damaged> {
    let with = |image: &Image, enable: fn(&Volume) -> spinney::Result<()>| {
        changed(image, |device| {
            let volume = VolumeOptions::new().write(true).open_device(device.clone());
            let volume = volume.expect("open");
            enable(&volume).expect("quotas");
            volume.close().expect("close");
        })
    };
    let (few, many) = (with(&whole(), Volume::enable_quotas), with_many_subvolumes());
    let many = with(&many, Volume::enable_quotas);
    let simple = with(&whole(), Volume::enable_simple_quotas);
    let unreadable = |image: &Image, what: &str| {
        changed(image, |device| {
            let root = root_of(device, TreeId::QUOTA);
            assert_eq!(root.level > 0, what == "nodes", "a tree of {what}");
            spoil_node(device, root.bytenr);
        })
    };
    vec![
        Damaged { name: "quotas", image: few.clone() },
        Damaged { name: "quotas that cannot be read", image: unreadable(&few, "a leaf") },
        Damaged { name: "quotas in several nodes", image: many.clone() },
        Damaged { name: "those whose root cannot be read", image: unreadable(&many, "nodes") },
        Damaged { name: "simple quotas", image: simple.clone() },
        Damaged { name: "simple ones that cannot be read", image: unreadable(&simple, "a leaf") },
        Damaged { name: "no quotas", image: whole() },
    ]
}

/// No copy of it has the sum that it says.
fn spoil_node(device: &Arc<SimDevice>, logical: Logical) {
    for (at, mut node) in copies_of(device, logical) {
        node[1000] ^= 1;
        device.write_at(at, &node).expect("write");
    }
}

/// Its one leaf.
fn free_space_root(device: &Arc<SimDevice>) -> Logical {
    let item = root_of(device, TreeId::FREE_SPACE);
    assert_eq!(item.level, 0);
    item.bytenr
}

fn root_of(device: &Arc<SimDevice>, id: TreeId) -> RootItem {
    let volume = open(device);
    let (sb, generation) = (volume.superblock().fields, volume.root_generation());
    let root = TreeRoot { id: TreeId::ROOT, logical: sb.root, generation, level: sb.root_level };
    let store = NodeStore::new(volume, 1 << 20);
    let mut cursor = Cursor::new(&store, &root);
    let key = Key::new(id.0, kind::ROOT_ITEM, 0);
    cursor.seek(&key).expect("seek");
    let (found, item) = cursor.item().expect("a root item");
    assert_eq!((found.objectid, found.kind), (key.objectid, key.kind));
    RootItem::parse(item).expect("a root item")
}
