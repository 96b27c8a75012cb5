//! Seeded damage: each case changes one thing in a sound image, with valid checksums,
//! and must be found as what it is; `btrfs check` must complain about the same image
//! where it looks at that at all.

#[path = "../common/mod.rs"]
mod common;
mod keys;

use btrfs_check::FindingKind as Kind;
use btrfs_disk::checksum::name_hash;
use btrfs_disk::ids::{EXTENT_CSUM_OBJECTID, ORPHAN_OBJECTID};
use btrfs_disk::items::{
    BlockGroupItem, DevItem, DirItem, FileExtent, FreeSpaceInfo, InlineRef, InodeItem, RootItem,
    extent_flags,
};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, Logical, TreeId};
use common::{Recipe, Scratch, assert_sound, copy, listing, make, open, ours, ready, theirs};
use fuzzing::patch::Patch;
use keys::{
    FS, data_extent, dir_item_key, edit_extent, edit_inode, file_leaf, first_csum, free_extent,
    index_key, inode_key, root_ref,
};

/// Whether `btrfs check` is expected to complain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theirs {
    Complain,
    /// It reads one good copy, or does not look.
    Silent,
}
use Theirs::{Complain, Silent};

struct Case {
    name: &'static str,
    damage: fn(&Patch),
    found: fn(&Kind) -> bool,
    theirs: Theirs,
}

macro_rules! case {
    ($name:literal, $theirs:ident, $pattern:pat, $damage:expr) => {
        Case {
            name: $name,
            damage: $damage,
            found: |kind| matches!(kind, $pattern),
            theirs: $theirs,
        }
    };
}

fn extent_cases() -> Vec<Case> {
    vec![
        case!("count of a data reference", Complain, Kind::ReferenceCount { .. }, |p| {
            edit_extent(p, data_extent(p), |item| {
                item.fields.refs += 1;
                let InlineRef::Data(data) = &mut item.inline[0] else { panic!("data") };
                data.count += 1;
            });
        }),
        case!("total of an extent item", Complain, Kind::ExtentRefTotal { .. }, |p| {
            edit_extent(p, data_extent(p), |item| item.fields.refs += 1);
        }),
        case!("owner of a data reference", Complain, Kind::ReferenceStray { .. }, |p| {
            edit_extent(p, data_extent(p), |item| {
                let InlineRef::Data(data) = &mut item.inline[0] else { panic!("data") };
                data.objectid += 100_000;
            });
        }),
        case!("owner of a data reference", Complain, Kind::ReferenceMissing { .. }, |p| {
            edit_extent(p, data_extent(p), |item| {
                let InlineRef::Data(data) = &mut item.inline[0] else { panic!("data") };
                data.offset += 4096;
            });
        }),
        case!("an extent item less", Complain, Kind::ExtentMissing { .. }, |p| {
            p.remove(TreeId::EXTENT, data_extent(p));
        }),
        case!("an extent item for nobody", Complain, Kind::ExtentUnreferenced { .. }, |p| {
            let (_, data) = p.find(TreeId::EXTENT, data_extent(p)).expect("there");
            let key = Key::new(free_extent(p).objectid + 4096, kind::EXTENT_ITEM, 65536);
            p.insert(TreeId::EXTENT, key, &data);
        }),
        case!("an extent item of another length", Complain, Kind::ExtentLength { .. }, |p| {
            let key = data_extent(p);
            p.edit_leaf(TreeId::EXTENT, key, |items| {
                let item = items.iter_mut().find(|(k, _)| *k == key).expect("there");
                item.0.offset -= 4096;
            });
        }),
        case!("a metadata item of another level", Silent, Kind::ExtentLevel { .. }, |p| {
            let (_, key) = file_leaf(p);
            p.edit_leaf(TreeId::EXTENT, key, |items| {
                items.iter_mut().find(|(k, _)| *k == key).expect("there").0.offset = 1;
            });
        }),
        case!("a leaf marked as shared", Complain, Kind::ReferenceMissing { .. }, |p| {
            let (_, key) = file_leaf(p);
            edit_extent(p, key, |item| item.fields.flags |= extent_flags::FULL_BACKREF);
        }),
        case!("a tree block without its item", Complain, Kind::ExtentMissing { .. }, |p| {
            p.remove(TreeId::EXTENT, file_leaf(p).1);
        }),
        case!("a separate reference without extent", Complain, Kind::ReferenceWithoutExtent, |p| {
            let free = free_extent(p).objectid + 8192;
            p.insert(TreeId::EXTENT, Key::new(free, kind::TREE_BLOCK_REF, 5), &[]);
        }),
        case!("bytes used of a block group", Complain, Kind::BlockGroupUsed { .. }, |p| {
            let (key, _) = p.some(TreeId::EXTENT, |key, _| key.kind == kind::BLOCK_GROUP_ITEM);
            p.edit_as(TreeId::EXTENT, key, |group: &mut BlockGroupItem| group.used += 4096);
        }),
        // It prints this one, and exits with 0.
        case!("flags of a block group", Silent, Kind::BlockGroupDiffers { .. }, |p| {
            let (key, _) = p.some(TreeId::EXTENT, |key, _| key.kind == kind::BLOCK_GROUP_ITEM);
            p.edit_as(TreeId::EXTENT, key, |group: &mut BlockGroupItem| group.flags ^= 0x20);
        }),
        case!("bytes used of the superblock", Complain, Kind::SuperBytesUsed { .. }, |p| {
            p.edit_super(|sb| sb.fields.bytes_used += 16384);
        }),
    ]
}

fn space_cases() -> Vec<Case> {
    vec![
        case!("a free extent less", Complain, Kind::FreeSpaceNotListed { .. }, |p| {
            p.remove(TreeId::FREE_SPACE, free_extent(p));
        }),
        case!("a count of free extents", Complain, Kind::FreeSpaceCount { .. }, |p| {
            let first = first_csum(p).offset; // of a group that there is
            let info = |k: Key, _: &[u8]| k.kind == kind::FREE_SPACE_INFO && k.objectid > first;
            let (key, _) = p.some(TreeId::FREE_SPACE, info);
            p.edit_as(TreeId::FREE_SPACE, key, |info: &mut FreeSpaceInfo| info.extent_count += 1);
        }),
        case!("free space that is in use", Complain, Kind::FreeSpaceInUse { .. }, |p| {
            let key = free_extent(p);
            p.edit_leaf(TreeId::FREE_SPACE, key, |items| {
                let item = items.iter_mut().find(|(k, _)| *k == key).expect("there");
                item.0.objectid -= 4096;
                item.0.offset += 4096;
            });
        }),
        case!("a free-space info less", Complain, Kind::FreeSpaceInfoMissing, |p| {
            let groups = p.items(TreeId::EXTENT);
            let groups: Vec<u64> = groups
                .iter()
                .filter(|(key, _)| key.kind == kind::BLOCK_GROUP_ITEM)
                .map(|(key, _)| key.objectid)
                .collect();
            let info = |key: Key, _: &[u8]| {
                key.kind == kind::FREE_SPACE_INFO && groups.contains(&key.objectid)
            };
            p.remove(TreeId::FREE_SPACE, p.some(TreeId::FREE_SPACE, info).0);
        }),
        case!("checksums less", Complain, Kind::CsumMissing { .. }, |p| {
            let key = first_csum(p);
            p.edit(TreeId::CSUM, key, |sums| sums.truncate(sums.len() / 8 * 4));
        }),
        case!("checksums for nobody", Complain, Kind::CsumStray { .. }, |p| {
            let free = free_extent(p).objectid + 4096;
            let key = Key::new(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, free);
            p.insert(TreeId::CSUM, key, &[0; 4]);
        }),
        case!("checksums of a file without", Complain, Kind::CsumOdd { .. }, |p| {
            edit_inode(p, "a/b/big22", |inode| inode.flags |= 1);
        }),
        case!("checksums of nothing written", Complain, Kind::CsumUnwritten { .. }, |p| {
            let ino = p.ino(FS, "alone");
            let (key, _) = p.find(FS, Key::new(ino, kind::EXTENT_DATA, 0)).expect("extent");
            p.edit(FS, key, |data| data[20] = 2);
        }),
        case!("a device extent less", Complain, Kind::DevExtentMissing { .. }, |p| {
            p.remove(TreeId::DEV, p.some(TreeId::DEV, |key, _| key.kind == kind::DEV_EXTENT).0);
        }),
        case!("a device extent of no chunk", Complain, Kind::DevExtentStray { .. }, |p| {
            let (key, data) = p.some(TreeId::DEV, |key, _| key.kind == kind::DEV_EXTENT);
            p.insert(TreeId::DEV, Key::new(key.objectid, key.kind, 900 << 20), &data);
        }),
        case!("bytes used of the device", Complain, Kind::DeviceBytesUsed { .. }, |p| {
            let key = Key::new(1, kind::DEV_ITEM, 1);
            p.edit_as(TreeId::CHUNK, key, |device: &mut DevItem| device.bytes_used += 1 << 20);
        }),
        case!(
            "a system chunk not in the superblock",
            Silent,
            Kind::SystemChunkNotInSuper { .. },
            |p| {
                p.edit_super(|sb| sb.sys_chunks[17 + 36] ^= 1); // io_align
            }
        ),
        case!("stripes in the superblock", Complain, Kind::SuperStripeSize { .. }, |p| {
            p.edit_super(|sb| sb.fields.stripesize = 12345);
        }),
        case!("free space behind all block groups", Complain, Kind::FreeSpaceStray, |p| {
            let key = Key::new(1 << 45, kind::FREE_SPACE_INFO, 1 << 20);
            p.edit_leaf(TreeId::FREE_SPACE, key, |items| {
                items.push((key, vec![0, 0, 0, 0, 0, 0, 0, 0]));
            });
        }),
        case!("a spare superblock", Silent, Kind::SuperCopyBad { .. }, |p| {
            p.write_raw((64 << 20) + 700, &[1, 2, 3]);
        }),
    ]
}

fn inode_cases() -> Vec<Case> {
    vec![
        case!("link count", Complain, Kind::LinkCount { .. }, |p| {
            edit_inode(p, "a/f5", |inode| inode.nlink += 1);
        }),
        case!("bytes of a file", Complain, Kind::FileBytes { .. }, |p| {
            edit_inode(p, "a/b/big22", |inode| inode.nbytes -= 4096);
        }),
        case!("size of a directory", Complain, Kind::DirSize { .. }, |p| {
            edit_inode(p, "a/b", |inode| inode.size += 2);
        }),
        case!("size of a symbolic link", Silent, Kind::InodeBad { .. }, |p| {
            edit_inode(p, "a/link", |inode| inode.size += 1);
        }),
        case!("a hash entry less", Complain, Kind::DirItemMissing { .. }, |p| {
            p.remove(FS, dir_item_key(p.ino(FS, "a"), "f7"));
        }),
        case!("an index entry less", Complain, Kind::DirIndexMissing { .. }, |p| {
            p.remove(FS, index_key(p, p.ino(FS, "a"), "f8"));
        }),
        case!("a reference less", Complain, Kind::InodeRefMissing { .. }, |p| {
            let (dir, ino) = (p.ino(FS, "a"), p.ino(FS, "a/f9"));
            p.remove(FS, Key::new(ino, kind::INODE_REF, dir));
        }),
        case!("one of two colliding names", Complain, Kind::DirItemMissing { .. }, |p| {
            let key = dir_item_key(p.ino(FS, "collide"), "ccaoacux");
            p.edit(FS, key, |data| {
                let entries: Vec<_> = DirItem::iter(data).flatten().collect();
                assert_eq!(entries.len(), 2, "the names collide");
                *data = entries[1].to_vec();
            });
        }),
        case!("type of a directory entry", Complain, Kind::DirEntryDiffers { .. }, |p| {
            p.edit(FS, dir_item_key(p.ino(FS, "a"), "f10"), |data| data[29] = 7);
        }),
        case!("index of a reference", Complain, Kind::DirEntryDiffers { .. }, |p| {
            let (dir, ino) = (p.ino(FS, "a"), p.ino(FS, "a/f11"));
            p.edit(FS, Key::new(ino, kind::INODE_REF, dir), |data| data[0] ^= 0x40);
        }),
        case!("target of a directory entry", Complain, Kind::DirEntryDiffers { .. }, |p| {
            let other = p.ino(FS, "a/f13");
            p.edit(FS, dir_item_key(p.ino(FS, "a"), "f12"), |data| {
                data[..8].copy_from_slice(&other.to_le_bytes());
            });
        }),
        case!("a nameless inode without orphan", Complain, Kind::OrphanItemMissing { .. }, |p| {
            let (dir, ino) = (p.ino(FS, "a"), p.ino(FS, "a/f14"));
            let index = index_key(p, dir, "f14");
            p.remove(FS, index);
            p.remove(FS, dir_item_key(dir, "f14"));
            p.remove(FS, Key::new(ino, kind::INODE_REF, dir));
            p.edit_as(FS, inode_key(ino), |inode: &mut InodeItem| inode.nlink = 0);
            edit_inode(p, "a", |inode| inode.size -= 6);
        }),
        case!("mode of a file with content", Complain, Kind::ItemOfWrongType { .. }, |p| {
            edit_inode(p, "a/f15", |inode| inode.mode = 0o010644);
        }),
        case!("an inode item less", Complain, Kind::NodeUnreadable { .. }, |p| {
            p.remove(FS, inode_key(p.ino(FS, "a/f16")));
        }),
        case!(
            "a file extent less",
            Complain,
            Kind::ReferenceStray { .. } | Kind::ExtentUnreferenced { .. },
            |p| {
                let ino = p.ino(FS, "a/b/big26");
                p.remove(FS, p.find(FS, Key::new(ino, kind::EXTENT_DATA, 0)).expect("extent").0);
            }
        ),
        case!("bytes in memory of a plain extent", Silent, Kind::RamBytes { .. }, |p| {
            let ino = p.ino(FS, "a/b/big26");
            let (key, _) = p.find(FS, Key::new(ino, kind::EXTENT_DATA, 0)).expect("extent");
            p.edit(FS, key, |data| data[9] ^= 0x40);
        }),
        case!("a symbolic link without its target", Silent, Kind::SymlinkEmpty { .. }, |p| {
            p.remove(FS, Key::new(p.ino(FS, "a/link"), kind::EXTENT_DATA, 0));
            edit_inode(p, "a/link", |inode| (inode.size, inode.nbytes) = (0, 0));
        }),
        case!("extents behind the end", Silent, Kind::FileExtentBeyondEnd { .. }, |p| {
            edit_inode(p, "a/sparse", |inode| inode.size = 4096);
        }),
    ]
}

fn tree_cases() -> Vec<Case> {
    vec![
        case!("one copy of a tree block", Silent, Kind::NodeCopyBad { .. }, |p| {
            p.write(file_leaf(p).0.offset(300), &[0xaa; 16], Some(1));
        }),
        case!("both copies of a tree block", Complain, Kind::NodeUnreadable { .. }, |p| {
            p.write(file_leaf(p).0.offset(300), &[0xaa; 16], None);
        }),
        case!(
            "a received subvolume that is writable",
            Silent,
            Kind::ReceivedWritable { .. },
            |p| {
                let fits = |key: Key, data: &[u8]| {
                    let root = || RootItem::parse(data).expect("root");
                    key.kind == kind::ROOT_ITEM
                        && key.objectid > 255
                        && key.objectid < 1 << 32
                        && root().refs != 0
                        && root().flags & 1 == 0
                };
                let (key, _) = p.some(TreeId::ROOT, fits);
                p.edit(TreeId::ROOT, key, |data| {
                    let mut root = RootItem::read(data).expect("root");
                    root.received_uuid = [7; 16];
                    root.write(data);
                });
            }
        ),
        case!("an inode in the UUID tree of an old mkfs", Silent, Kind::UuidMissing { .. }, |p| {
            p.remove(TreeId::UUID, p.some(TreeId::UUID, |_, _| true).0);
            let (_, inode) = p.find(FS, inode_key(256)).expect("inode");
            p.insert(TreeId::UUID, inode_key(256), &inode);
        }),
        case!("a subvolume's reference less", Complain, Kind::RootRefMissing { .. }, |p| {
            p.remove(TreeId::ROOT, root_ref(p, kind::ROOT_REF));
        }),
        case!(
            "a subvolume's back-reference less",
            Complain,
            Kind::RootBackrefMissing { .. },
            |p| {
                p.remove(TreeId::ROOT, root_ref(p, kind::ROOT_BACKREF));
            }
        ),
        case!("name of a subvolume", Complain, Kind::RootRefDiffers { .. }, |p| {
            p.edit(TreeId::ROOT, root_ref(p, kind::ROOT_BACKREF), |data| data[18] ^= 1);
        }),
        case!("a subvolume without an entry", Complain, Kind::RootEntryMissing { .. }, |p| {
            p.remove(FS, index_key(p, 256, "snap2"));
            p.remove(FS, dir_item_key(256, "snap2"));
        }),
        case!("a subvolume out of reach", Complain, Kind::SubvolumeUnreachable { .. }, |p| {
            let down = root_ref(p, kind::ROOT_REF);
            p.remove(TreeId::ROOT, down);
            let up = Key::new(down.offset, kind::ROOT_BACKREF, down.objectid);
            p.remove(TreeId::ROOT, up);
        }),
        case!(
            "a deleted subvolume without orphan",
            Complain,
            Kind::RootOrphanMissing { .. },
            |p| {
                let (key, _) = p.some(TreeId::ROOT, |k, data| {
                    let alive = || RootItem::parse(data).is_ok_and(|root| root.refs != 0);
                    k.kind == kind::ROOT_ITEM && (256..1 << 32).contains(&k.objectid) && alive()
                });
                p.edit(TreeId::ROOT, key, |data| {
                    let mut root = RootItem::read(data).expect("root");
                    root.refs = 0;
                    root.write(data);
                });
            }
        ),
        case!("the default subvolume", Silent, Kind::DefaultSubvolumeBad { .. }, |p| {
            let key = Key::new(6, kind::DIR_ITEM, name_hash(b"default"));
            p.edit(TreeId::ROOT, key, |data| data[..8].copy_from_slice(&999u64.to_le_bytes()));
        }),
        case!("an orphan that is none", Complain, Kind::SubvolumeUnreachable { .. }, |p| {
            // Both references gone, and the orphan item names another tree.
            let down = root_ref(p, kind::ROOT_REF);
            p.remove(TreeId::ROOT, down);
            p.remove(TreeId::ROOT, Key::new(down.offset, kind::ROOT_BACKREF, down.objectid));
            p.insert(TreeId::ROOT, Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, 777), &[]);
        }),
        case!("a UUID", Silent, Kind::UuidMissing { .. }, |p| {
            p.remove(TreeId::UUID, p.some(TreeId::UUID, |_, _| true).0);
        }),
    ]
}

fn quota_cases() -> Vec<Case> {
    vec![case!("bytes of a quota group", Complain, Kind::QgroupCount { .. }, |p| {
        let (key, _) = p.some(TreeId::QUOTA, |key, data| {
            key.kind == kind::QGROUP_INFO && data[8..16] != [0; 8]
        });
        p.edit(TreeId::QUOTA, key, |data| data[9] ^= 0x40);
    })]
}

/// Runs the cases on copies of one image; all failures are told together.
fn run(name: &str, mkfs: &str, cases: Vec<Case>) {
    run_after(name, mkfs, "", cases);
}

fn run_after(name: &str, mkfs: &str, after: &str, cases: Vec<Case>) {
    if !ready() {
        return;
    }
    let scratch = Scratch::new(name);
    let base = scratch.path("base");
    make(&base, &Recipe { mkfs, after, mount: "noatime,commit=1", ..Recipe::default() });
    assert_sound(&base, name, false);
    let mut failures = String::new();
    for case in cases {
        let image = scratch.path("case");
        copy(&base, &image);
        (case.damage)(&Patch::new(&image));
        let report = ours(&image, false);
        if !report.findings.iter().any(|f| (case.found)(&f.kind)) {
            failures += &format!("{}: not found, but\n{}", case.name, listing(&report));
        }
        let (content, said) = theirs(&image);
        if content != (case.theirs == Silent) {
            failures += &format!("{}: btrfs check content: {content}\n{said}", case.name);
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn extent_tree() {
    run("extent-tree", "-n 4096 -m dup", extent_cases());
}

#[test]
fn space_and_checksums() {
    run("space", "-n 4096 -m dup", space_cases());
}

/// Where an item lies is up to the kernel: also one that its leaf begins with goes alone.
#[test]
fn an_item_that_begins_its_leaf_is_taken_out() {
    let gone = case!("the first item of a leaf", Complain, Kind::ReferenceStray { .. }, |p| {
        let from = Key::new(p.ino(FS, "a/b/big26"), kind::EXTENT_DATA, 0);
        let (key, _) = p.find(FS, from).expect("extent");
        // What stands before it in its leaf goes first.
        let all: Vec<Key> = p.leaf(FS, key).items().map(|(key, _)| key).collect();
        all.into_iter().take_while(|before| *before < key).for_each(|key| p.remove(FS, key));
        p.remove(FS, key);
    });
    run("first", "-m dup", vec![gone]);
}

#[test]
fn inodes() {
    run("inodes", "-m dup", inode_cases());
}

#[test]
fn trees() {
    run("trees", "-m dup", tree_cases());
}

#[test]
fn quotas() {
    let settle = "btrfs subvolume sync . >/dev/null; btrfs quota enable .
        btrfs quota rescan -w . >/dev/null # enabling began one
        btrfs qgroup create 1/7 .; btrfs qgroup assign --no-rescan 0/$(btrfs inspect-internal \
            rootid snap1) 1/7 . ; btrfs qgroup assign --no-rescan 0/5 1/7 .
        btrfs quota rescan -w . >/dev/null";
    run_after("quota", "-m dup", settle, quota_cases());
}

#[test]
fn gaps_need_holes_on_old_volumes() {
    let gap = case!("a hole less", Complain, Kind::FileGap { .. }, |p| {
        let ino = p.ino(FS, "a/sparse");
        p.remove(FS, p.find(FS, Key::new(ino, kind::EXTENT_DATA, 0)).expect("hole").0);
    });
    run("gaps", "-O ^no-holes", vec![gap]);
}

/// Overlaps inside one leaf are refused by the gate, across leaves found here.
#[test]
fn overlapping_file_extents_across_leaves() {
    let overlap = case!("an overlap", Complain, Kind::FileExtentsOverlap { .. }, |p| {
        let leaves = p.leaves(FS);
        for pair in leaves.windows(2) {
            let (last, first) = (pair[0].key(pair[0].len() - 1), pair[1].key(0));
            if first.kind == kind::EXTENT_DATA && last.kind == first.kind {
                let data = pair[0].data(pair[0].len() - 1);
                let Ok(FileExtent::Extent { .. }) = FileExtent::parse(data) else { continue };
                p.edit(FS, last, |data| {
                    // num_bytes, disk_num_bytes and ram_bytes grow by a sector.
                    for at in [8, 29, 45] {
                        let word = u64::from_le_bytes(data[at..at + 8].try_into().expect("8"));
                        data[at..at + 8].copy_from_slice(&(word + 4096).to_le_bytes());
                    }
                });
                return;
            }
        }
        panic!("no file's extents go over two leaves");
    });
    let scratch = Scratch::new("overlap");
    if !ready() {
        return;
    }
    let base = scratch.path("base");
    let after = "for i in $(seq 0 2 800); do
        dd if=/dev/urandom of=a/many bs=4k count=1 seek=$i conv=notrunc status=none; done; sync -f .
        for i in $(seq 1 2 800); do
        dd if=/dev/urandom of=a/many bs=4k count=1 seek=$i conv=notrunc status=none; done";
    make(&base, &Recipe { mkfs: "-n 4096", after, ..Recipe::default() });
    (overlap.damage)(&Patch::new(&base));
    let report = ours(&base, false);
    assert!(report.findings.iter().any(|f| (overlap.found)(&f.kind)), "{}", listing(&report));
    assert!(!theirs(&base).0, "btrfs check is content");
}

#[test]
fn data_is_verified_on_every_copy() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("data");
    let image = scratch.path("image");
    make(&image, &Recipe { size: "2G", mkfs: "-d dup", ..Recipe::default() });
    let patch = Patch::new(&image);
    let at = first_csum(&patch).offset;
    patch.write(Logical(at + 5000), &[0x55; 10], Some(1));
    patch.write(Logical(at + 3 * 4096), &[0x55; 8192], None);
    assert!(ours(&image, false).findings.is_empty(), "only verify_data reads data");
    let report = ours(&image, true);
    let kinds: Vec<_> = report.findings.iter().map(|f| (f.logical, f.kind.clone())).collect();
    let lost = |why: &Kind| matches!(why, Kind::DataUnreadable { len: 8192, .. });
    assert_eq!(kinds.len(), 2, "{}", listing(&report));
    assert_eq!(kinds[0].0, Some(Logical(at + 4096)));
    assert_eq!(kinds[0].1, Kind::DataCopyBad { copy: 2, len: 4096 });
    assert!(kinds[1].0 == Some(Logical(at + 3 * 4096)) && lost(&kinds[1].1), "{kinds:?}");
    assert!(report.totals.verified_bytes >= 2 * report.totals.csum_bytes);
    drop(open(&image));
}
