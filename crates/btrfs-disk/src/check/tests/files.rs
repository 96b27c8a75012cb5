//! Inodes, names, attributes, extents, checksums.

use super::*;
use crate::checksum::extref_hash;
use crate::ids::{EXTENT_CSUM_OBJECTID, ORPHAN_OBJECTID};
use crate::items::inode_flags;

fn inodes(change: impl FnOnce(&mut InodeItem)) -> Vec<Owned> {
    vec![(key(257, kind::INODE_ITEM, 0), with(inode(), change))]
}

fn reference(names: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, name) in names.iter().enumerate() {
        InodeRef { index: index as u64, name }.append_to(&mut out);
    }
    out
}

fn extref(parent: u64, names: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        InodeExtRef { parent, index: 9, name }.append_to(&mut out);
    }
    out
}

fn data(offset: u64, change: impl FnOnce(&mut FileExtentFields)) -> Owned {
    (key(257, kind::EXTENT_DATA, offset), with(regular(), change))
}

fn inline(offset: u64, ram_bytes: u64, compression: Compression, content: &[u8]) -> Owned {
    let item = FileExtent::Inline { generation: 9, ram_bytes, compression, content };
    (key(257, kind::EXTENT_DATA, offset), item.to_vec())
}

fn csums(offset: u64, count: usize) -> Owned {
    (key(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, offset), vec![1; 4 * count])
}

#[test]
fn a_good_leaf_of_files_passes() {
    let items = [
        inode_row(257),
        (key(257, kind::INODE_REF, 256), reference(&[b"a", b"b"])),
        (key(257, kind::INODE_EXTREF, extref_hash(256, b"long")), extref(256, &[b"long"])),
        (key(257, kind::XATTR_ITEM, name_hash(b"user.x/y")), xattr(b"user.x/y", b"v").to_vec()),
        (key(257, kind::DIR_ITEM, name_hash(b"x")), entry(b"x").to_vec()),
        (key(257, kind::DIR_INDEX, 2), entry(b"x").to_vec()),
        inline(0, 9, Compression::None, b"123456789"),
        data(4096, |f| f.compression = 3),
        data(69632, |f| f.kind = 2),
        data(1 << 20, |f| f.disk_bytenr = Logical(0)),
    ];
    passes(SUBVOL, &items);
    passes(TreeId::FS, &[(key(258, 77, 5), vec![1]), (key(259, kind::STRING_ITEM, 5), vec![1])]);
    passes(SUBVOL, &[(key(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, 300), vec![])]);
    passes(SUBVOL, &[inline(0, 4000, Compression::Zlib, b"xx")]);
    passes(TreeId::LOG, &[(key(256, kind::DIR_LOG_INDEX, 3), vec![0; 8])]);
    passes(TreeId::CSUM, &[csums(0, 2), csums(8192, 1), csums(12288, 1)]);
}

/// As with the kernel's check of nodes: one leaf has items of many files.
#[test]
fn names_of_attributes_are_any_bytes() {
    passes(SUBVOL, &[hashed(kind::XATTR_ITEM, xattr(b"user.a\0b/\xff", b"v"))]);
}

#[test]
fn a_renamed_subvolume_and_a_temporary_file_pass() {
    let mut renamed = entry(b"s");
    renamed.location = key(300, kind::ROOT_ITEM, 77);
    renamed.kind = dir_type::DIR;
    passes(SUBVOL, &[hashed(kind::DIR_ITEM, renamed)]);
    passes(SUBVOL, &inodes(|i| i.nlink = 0));
    passes(SUBVOL, &inodes(|i| (i.mode, i.size) = (0o040_755, u64::MAX)));
}

#[test]
fn bad_inodes_are_refused() {
    let at = |objectid, offset| vec![(key(objectid, kind::INODE_ITEM, offset), inode().to_vec())];
    refused(vec![
        (SUBVOL, at(257, 1), "inode key with offset 1"),
        (SUBVOL, at(7, 0), "inode number 7"),
        (SUBVOL, at(-2i64 as u64, 0), "inode number"),
        (SUBVOL, vec![(key(257, kind::INODE_ITEM, 0), vec![0; 159])], "instead of 160"),
        (SUBVOL, inodes(|i| i.generation = 101), "inode of generation 101"),
        (SUBVOL, inodes(|i| i.transid = 101), "changed in generation 101"),
        (SUBVOL, inodes(|i| i.mode = 0o644), "without a file type"),
        (SUBVOL, inodes(|i| i.mode = 0o170_644), "without a file type"),
        (SUBVOL, inodes(|i| i.mode |= 1 << 20), "unknown bits"),
        (SUBVOL, inodes(|i| (i.mode, i.nlink) = (0o040_755, 2)), "2 hard links"),
        (SUBVOL, inodes(|i| i.size = 1 << 63), "file of 9223372036854775808 bytes"),
        (SUBVOL, inodes(|i| i.flags = 1 << 12), "unknown inode flags"),
        (SUBVOL, inodes(|i| i.flags = 1 << 33), "unknown inode flags"),
        (SUBVOL, vec![(key(7, kind::ORPHAN_ITEM, 9), vec![])], "orphan of owner"),
        (SUBVOL, vec![(key(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, 9), vec![0])], "instead of 0"),
        (SUBVOL, vec![(key(257, kind::VERITY_DESC_ITEM, 0), vec![0; 24])], "instead of 25"),
        (SUBVOL, vec![(key(257, kind::VERITY_MERKLE_ITEM, 0), vec![])], "without bytes"),
        (TreeId::LOG, vec![(key(257, kind::DIR_LOG_INDEX, 0), vec![0; 9])], "instead of 8"),
    ]);
}

#[test]
fn harmless_flags_pass_for_readers_only() {
    let node = leaf(SUBVOL, &inodes(|i| i.flags = inode_flags::RO_VERITY << 1));
    let bytes = || build::seal(&GEOMETRY, &node).into_boxed_slice();
    let reader = Limits { read_only: true, ..limits() };
    assert!(node_within(bytes(), &GEOMETRY, &expect(SUBVOL, 0), &reader).is_ok());
    assert!(node_within(bytes(), &GEOMETRY, &expect(SUBVOL, 0), &limits()).is_err());
}

#[test]
fn bad_references_are_refused() {
    let r = |data| vec![inode_row(257), (key(257, kind::INODE_REF, 256), data)];
    let x = |offset, data| vec![inode_row(257), (key(257, kind::INODE_EXTREF, offset), data)];
    let mut padded = reference(&[b"a"]);
    padded.push(0);
    let (slash, hash) = (extref_hash(5, b"a/b"), extref_hash(5, b"ab"));
    refused(vec![
        (SUBVOL, r(vec![]), "without a name"),
        (SUBVOL, r(reference(&[b""])), "name of 0 bytes"),
        (SUBVOL, r(reference(&[&[b'n'; 256]])), "name of 256 bytes"),
        (SUBVOL, r(reference(&[b"ok", b"a/b"])), "slash"),
        (SUBVOL, r(reference(&[b"a\0b"])), "zero byte"),
        (SUBVOL, r(padded), "inode ref is cut short"),
        (SUBVOL, r(reference(&[b"abcdef"])[..12].to_vec()), "name is cut short"),
        (
            SUBVOL,
            vec![inode_row(256), (key(257, kind::INODE_REF, 256), reference(&[b"a"]))],
            "its inode is missing",
        ),
        (SUBVOL, x(hash, vec![]), "without a name"),
        (SUBVOL, x(hash, extref(5, &[b"ba"])), "another hash"),
        (SUBVOL, x(hash, extref(6, &[b"ab"])), "another hash"),
        (SUBVOL, x(slash, extref(5, &[b"a/b"])), "slash"),
        (SUBVOL, x(hash, extref(5, &[b"ab"])[..19].to_vec()), "name is cut short"),
        (SUBVOL, x(hash, extref(5, &[b"ab", b"cd"])[..25].to_vec()), "extref is cut short"),
    ]);
}

#[test]
fn bad_directory_entries_are_refused() {
    let item = |change: fn(&mut DirItem<'_>)| {
        let mut e = entry(b"name");
        change(&mut e);
        vec![hashed(kind::DIR_ITEM, e)]
    };
    let two: Vec<u8> = [entry(b"a").to_vec(), entry(b"b").to_vec()].concat();
    let hash = name_hash(b"a");
    refused(vec![
        (SUBVOL, item(|e| e.kind = 0), "entry of type 0"),
        (SUBVOL, item(|e| e.kind = dir_type::XATTR), "entry of type 8"),
        (SUBVOL, item(|e| e.name = b""), "name of 0 bytes"),
        (SUBVOL, item(|e| e.name = &[b'x'; 256]), "name of 256 bytes"),
        (SUBVOL, item(|e| e.name = b"a/b"), "slash"),
        (SUBVOL, item(|e| e.name = b".."), "dot name"),
        (SUBVOL, item(|e| e.name = b"."), "dot name"),
        (SUBVOL, item(|e| e.value = b"v"), "with a value"),
        (SUBVOL, item(|e| e.location.kind = kind::EXTENT_DATA), "for an item of type 108"),
        (SUBVOL, item(|e| e.location = Key::MIN), "for an item of type 0"),
        (SUBVOL, item(|e| e.location.objectid = 12), "inode number 12"),
        (SUBVOL, item(|e| e.location.offset = 1), "offset 1"),
        (SUBVOL, item(|e| e.location = key(2, kind::ROOT_ITEM, 0)), "for the tree 2"),
        (SUBVOL, item(|e| e.location = key(257 | 1 << 48, kind::ROOT_ITEM, 0)), "for the tree"),
        (SUBVOL, vec![(key(256, kind::DIR_ITEM, 1), entry(b"a").to_vec())], "another hash"),
        (SUBVOL, vec![(key(256, kind::DIR_ITEM, hash), two.clone())], "another hash"),
        (SUBVOL, vec![(key(256, kind::DIR_INDEX, 2), two)], "with 2 entries"),
        (SUBVOL, vec![(key(256, kind::DIR_INDEX, 2), vec![])], "without an entry"),
        (
            SUBVOL,
            vec![(key(256, kind::DIR_ITEM, hash), entry(b"a").to_vec()[..30].to_vec())],
            "cut short",
        ),
        (SUBVOL, vec![(key(256, kind::DIR_ITEM, hash), vec![0; 29])], "needs 30 bytes"),
        (
            SUBVOL,
            vec![inode_row(255 + 1), (key(257, kind::DIR_INDEX, 2), entry(b"a").to_vec())],
            "its inode is missing",
        ),
    ]);
}

#[test]
fn bad_attributes_are_refused() {
    let item = |change: fn(&mut DirItem<'_>)| {
        let mut x = xattr(b"user.a", b"value");
        change(&mut x);
        vec![hashed(kind::XATTR_ITEM, x)]
    };
    let wrong = vec![(key(256, kind::XATTR_ITEM, 5), xattr(b"user.a", b"").to_vec())];
    refused(vec![
        (SUBVOL, item(|x| x.location.objectid = 1), "xattr with the location"),
        (SUBVOL, item(|x| x.kind = 1), "xattr of type 1"),
        (
            SUBVOL,
            vec![
                inode_row(256),
                (key(257, kind::XATTR_ITEM, name_hash(b"user.a")), xattr(b"user.a", b"").to_vec()),
            ],
            "its inode is missing",
        ),
        (SUBVOL, item(|x| x.name = b""), "name of 0 bytes"),
        (SUBVOL, wrong, "another hash"),
        (SUBVOL, vec![(key(256, kind::XATTR_ITEM, 5), vec![])], "without an entry"),
    ]);
}

#[test]
fn bad_extents_are_refused() {
    let one =
        |offset, change: fn(&mut FileExtentFields)| vec![inode_row(257), data(offset, change)];
    let raw = |bytes: Vec<u8>| vec![inode_row(257), (key(257, kind::EXTENT_DATA, 0), bytes)];
    let big = MAX + 4096;
    const MAX: u64 = crate::check::file_extent::MAX_COMPRESSED;
    refused(vec![
        (SUBVOL, one(100, |_| {}), "not sector aligned"),
        (SUBVOL, one(0, |f| f.ram_bytes += 1), "ram_bytes 65537"),
        (SUBVOL, one(0, |f| f.disk_bytenr.0 += 512), "extent address"),
        (SUBVOL, one(0, |f| f.disk_num_bytes += 1), "extent size"),
        (SUBVOL, one(0, |f| f.offset = 1), "offset in extent"),
        (SUBVOL, one(0, |f| f.num_bytes -= 1), "range of 65535"),
        (SUBVOL, one(0, |f| f.num_bytes = 0), "empty range"),
        (SUBVOL, one(0, |f| f.offset = 4096), "ends at 69632 of an extent of 65536"),
        (SUBVOL, one(0, |f| f.offset = !4095), "has no end"),
        (SUBVOL, one(!4095, |_| {}), "has no end"),
        (SUBVOL, one(0, |f| f.disk_bytenr = Logical(!4095)), "has no end"),
        (SUBVOL, one(0, |f| (f.compression, f.offset) = (1, 4096)), "ends at 69632"),
        (SUBVOL, one(0, |f| (f.compression, f.disk_num_bytes) = (1, 0)), "without bytes"),
        (
            SUBVOL,
            one(0, |f| (f.compression, f.ram_bytes) = (2, MAX + 4096)),
            "compressed extent of",
        ),
        (
            SUBVOL,
            one(0, |f| (f.compression, f.disk_num_bytes) = (2, MAX + 4096)),
            "compressed extent of",
        ),
        (SUBVOL, one(0, |f| f.compression = 4), "compression type 4"),
        (SUBVOL, one(0, |f| f.encryption = 1), "encrypted"),
        (SUBVOL, one(0, |f| f.other_encoding = 256), "encoded"),
        (SUBVOL, one(0, |f| f.kind = 3), "kind 3"),
        (SUBVOL, one(0, |f| (f.kind, f.compression) = (2, 1)), "compressed preallocation"),
        (SUBVOL, raw(vec![0; 20]), "cut short"),
        (SUBVOL, raw(regular().to_vec()[..52].to_vec()), "needs 53 bytes"),
        (SUBVOL, raw([regular().to_vec(), vec![0]].concat()), "54 bytes instead of 53"),
        (
            SUBVOL,
            vec![inode_row(257), inline(4096, 1, Compression::None, b"x")],
            "inline extent at 4096",
        ),
        (SUBVOL, vec![inode_row(257), inline(0, 2, Compression::None, b"x")], "of 1 bytes says 2"),
        (SUBVOL, vec![inode_row(257), inline(0, big, Compression::Lzo, b"x")], "compressed inline"),
        (SUBVOL, vec![inode_row(257), inline(0, 9, Compression::Lzo, b"")], "without content"),
        (SUBVOL, vec![data(0, |_| {}), data(61440, |_| {})], "in front ends at 65536"),
        (
            SUBVOL,
            vec![inline(0, 5000, Compression::Zstd, b"x"), data(4096, |_| {})],
            "in front ends at 8192",
        ),
        (SUBVOL, vec![inode_row(256), data(0, |_| {})], "its inode is missing"),
    ]);
}

#[test]
fn bad_checksum_items_are_refused() {
    let other = vec![(key(5, kind::EXTENT_CSUM, 0), vec![0; 4])];
    let odd = vec![(key(EXTENT_CSUM_OBJECTID, kind::EXTENT_CSUM, 0), vec![0; 6])];
    refused(vec![
        (TreeId::CSUM, other, "checksums of owner 5"),
        (TreeId::CSUM, odd, "6 bytes of checksums of 4"),
        (TreeId::CSUM, vec![csums(0, 0)], "0 bytes of checksums"),
        (TreeId::CSUM, vec![csums(77, 1)], "not sector aligned"),
        (TreeId::CSUM, vec![csums(!4095, 2)], "has no end"),
        (TreeId::CSUM, vec![csums(0, 3), csums(8192, 1)], "in front end at 12288"),
    ]);
}

#[test]
fn items_in_foreign_trees_are_refused() {
    let item = |kind| vec![(key(257, kind, 0), vec![])];
    refused(vec![
        (TreeId::EXTENT, item(kind::INODE_ITEM), "INODE_ITEM in tree 2"),
        (SUBVOL, item(kind::EXTENT_CSUM), "EXTENT_CSUM in tree 257"),
        (SUBVOL, item(kind::ROOT_ITEM), "ROOT_ITEM in tree 257"),
        (SUBVOL, item(kind::DIR_LOG_INDEX), "DIR_LOG_INDEX in tree 257"),
        (TreeId::FS, item(kind::EXTENT_ITEM), "EXTENT_ITEM in tree 5"),
        (TreeId::ROOT, item(kind::CHUNK_ITEM), "CHUNK_ITEM in tree 1"),
        (TreeId::CHUNK, item(kind::DEV_EXTENT), "DEV_EXTENT in tree 3"),
        (TreeId::DEV, item(kind::FREE_SPACE_INFO), "FREE_SPACE_INFO in tree 4"),
        (TreeId::UUID, item(kind::QGROUP_INFO), "QGROUP_INFO in tree 9"),
        (TreeId::QUOTA, item(kind::UUID_KEY_SUBVOL), "UUID_KEY_SUBVOL in tree 8"),
        (TreeId::CSUM, item(kind::BLOCK_GROUP_ITEM), "BLOCK_GROUP_ITEM in tree 7"),
        (TreeId::FS, item(kind::RAID_STRIPE), "RAID_STRIPE in tree 5"),
    ]);
}
