//! Roots, extents and their references, chunks, devices, free space, quota.

use super::*;
use crate::ids::{BALANCE_OBJECTID, FREE_INO_OBJECTID, FREE_SPACE_OBJECTID, block_group as bg};

const KIB64: u64 = 65536;

fn root_item() -> RootItem {
    RootItem {
        inode: inode(),
        generation: NOW,
        root_dirid: 256,
        bytenr: AT,
        refs: 1,
        generation_v2: NOW.0,
        ..RootItem::default()
    }
}

fn root(change: impl FnOnce(&mut RootItem)) -> Vec<Owned> {
    vec![(key(257, kind::ROOT_ITEM, 0), with(root_item(), change))]
}

fn extent(refs: u64, flags: u64, info: Option<u8>, inline: Vec<InlineRef>) -> Vec<u8> {
    let fields = ExtentItemFields { refs, generation: 99, flags };
    let block_info = info.map(|level| (Key::MIN, level));
    ExtentItem { fields, block_info, inline }.to_vec()
}

fn data_ref(objectid: u64, count: u32) -> ExtentDataRef {
    ExtentDataRef { root: TreeId::FS, objectid, offset: 0, count }
}

fn chunk_item() -> Chunk {
    let fields = ChunkFields {
        length: 8 << 20,
        owner: 2,
        stripe_len: KIB64,
        kind: bg::METADATA | bg::DUP,
        sector_size: 4096,
        num_stripes: 2,
        ..ChunkFields::default()
    };
    let stripe = |offset| Stripe { devid: 1, offset, dev_uuid: [1; 16] };
    Chunk { fields, stripes: vec![stripe(1 << 20), stripe(1 << 24)] }
}

fn chunks(change: impl FnOnce(&mut Chunk)) -> Vec<Owned> {
    let mut chunk = chunk_item();
    change(&mut chunk);
    vec![(key(256, kind::CHUNK_ITEM, 1 << 22), chunk.to_vec())]
}

fn group(change: impl FnOnce(&mut BlockGroupItem)) -> Vec<Owned> {
    let good = BlockGroupItem { used: 4096, chunk_objectid: 256, flags: bg::DATA };
    vec![(key(1 << 22, kind::BLOCK_GROUP_ITEM, 8 << 20), with(good, change))]
}

fn device(change: impl FnOnce(&mut DevItem)) -> Vec<Owned> {
    let good = DevItem { devid: 1, total_bytes: 9, bytes_used: 5, ..DevItem::default() };
    vec![(key(1, kind::DEV_ITEM, 1), with(good, change))]
}

fn dev_extent(offset: u64, change: impl FnOnce(&mut DevExtent)) -> Owned {
    let good = DevExtent {
        chunk_tree: 3,
        chunk_objectid: 256,
        chunk_offset: 1 << 22,
        length: KIB64,
        chunk_tree_uuid: [8; 16],
    };
    (key(1, kind::DEV_EXTENT, offset), with(good, change))
}

const DATA: u64 = extent_flags::DATA;
const BLOCK: u64 = extent_flags::TREE_BLOCK;

#[test]
fn good_leaves_pass() {
    let legacy = root_item().to_vec()[..RootItem::LEGACY_SIZE].to_vec();
    let name = RootRef { dirid: 256, sequence: 2, name: b"snap" }.to_vec();
    passes(TreeId::ROOT, &[(key(-11i64 as u64, 0, 1 << 22), vec![0; 41])]);
    passes(
        TreeId::ROOT,
        &[
            (key(256, kind::ROOT_ITEM, 0), legacy),
            (key(256, kind::ROOT_BACKREF, 5), name),
            (key(BALANCE_OBJECTID, kind::TEMPORARY_ITEM, 0), vec![0; 448]),
        ],
    );
    let shared = InlineRef::SharedData { parent: AT.0, count: 2 };
    passes(
        TreeId::EXTENT,
        &[
            (
                key(4096, kind::EXTENT_ITEM, 8192),
                extent(9, DATA, None, vec![InlineRef::Data(data_ref(257, 1)), shared]),
            ),
            (key(4096, kind::EXTENT_DATA_REF, 1), data_ref(258, 3).to_vec()),
            (key(4096, kind::SHARED_DATA_REF, AT.0), vec![1, 0, 0, 0]),
            (
                key(16384, kind::METADATA_ITEM, 1),
                extent(1, BLOCK, None, vec![InlineRef::TreeBlock { root: SUBVOL }]),
            ),
            (
                key(32768, kind::EXTENT_ITEM, 16384),
                extent(
                    2,
                    BLOCK | extent_flags::FULL_BACKREF,
                    Some(0),
                    vec![InlineRef::SharedBlock { parent: AT.0 }],
                ),
            ),
            (key(32768, kind::TREE_BLOCK_REF, 5), vec![]),
            (key(32768, kind::SHARED_BLOCK_REF, AT.0), vec![]),
        ],
    );
    passes(TreeId::CHUNK, &chunks(|_| {}));
    passes(TreeId::CHUNK, &device(|_| {}));
    passes(TreeId::BLOCK_GROUP, &group(|_| {}));
    passes(TreeId::EXTENT, &group(|g| g.flags = bg::DATA | bg::METADATA | bg::RAID1));
    let stats = (key(0, kind::PERSISTENT_ITEM, 1), vec![0; 40]);
    passes(
        TreeId::DEV,
        &[stats, dev_extent(1 << 20, |_| {}), dev_extent((1 << 20) + KIB64, |_| {})],
    );
}

#[test]
fn good_small_items_pass() {
    passes(
        TreeId::FREE_SPACE,
        &[
            (key(1 << 22, kind::FREE_SPACE_INFO, 1 << 24), vec![0; 8]),
            (key(1 << 22, kind::FREE_SPACE_EXTENT, 4096), vec![]),
            (key((1 << 22) + 8192, kind::FREE_SPACE_EXTENT, 4096), vec![]),
            (key(1 << 25, kind::FREE_SPACE_BITMAP, 4096 * 9), vec![1; 2]),
        ],
    );
    let status = |len| {
        let mut bytes = vec![0; len];
        bytes[0] = 1;
        vec![(key(0, kind::QGROUP_STATUS, 0), bytes)]
    };
    passes(TreeId::QUOTA, &status(32));
    passes(TreeId::QUOTA, &[status(40).remove(0), (key(0, kind::QGROUP_INFO, 5), vec![0; 40])]);
    passes(TreeId::QUOTA, &[(key(1 << 48, kind::QGROUP_RELATION, 5), vec![])]);
    passes(TreeId::UUID, &[(key(5, kind::UUID_KEY_SUBVOL, 5), vec![0; 16])]);
}

#[test]
fn bad_roots_are_refused() {
    let at =
        |objectid, offset| vec![(key(objectid, kind::ROOT_ITEM, offset), root_item().to_vec())];
    let reloc = TreeId::RELOC.0;
    let named = |name| {
        let bytes = RootRef { dirid: 256, sequence: 1, name }.to_vec();
        vec![(key(5, kind::ROOT_REF, 257), bytes)]
    };
    let cut = vec![(key(5, kind::ROOT_REF, 257), vec![0; 17])];
    refused(vec![
        (TreeId::ROOT, at(0, 0), "root item of tree 0"),
        (TreeId::ROOT, at(reloc, 2), "relocation of the tree 2"),
        (TreeId::ROOT, vec![(key(5, kind::ROOT_ITEM, 0), vec![0; 300])], "of 300 bytes"),
        (TreeId::ROOT, root(|r| r.generation.0 += 1), "root of generation 101"),
        (TreeId::ROOT, root(|r| r.last_snapshot.0 = 101), "last snapshot in generation 101"),
        (TreeId::ROOT, root(|r| r.bytenr.0 += 1), "not sector aligned"),
        (TreeId::ROOT, root(|r| r.level = 8), "root of level 8"),
        (TreeId::ROOT, root(|r| r.drop_level = 8), "dropped at level 8"),
        (TreeId::ROOT, root(|r| r.flags = 2), "unknown root flags 0x2"),
        (TreeId::ROOT, named(b""), "name of 0 bytes"),
        (TreeId::ROOT, named(b"a/b"), "slash"),
        (TreeId::ROOT, cut, "cut short"),
        (
            TreeId::ROOT,
            vec![(key(BALANCE_OBJECTID, kind::TEMPORARY_ITEM, 0), vec![0; 447])],
            "instead of 448",
        ),
        (TreeId::ROOT, vec![(key(FREE_SPACE_OBJECTID, 0, 4096), vec![0; 40])], "instead of 41"),
        (
            TreeId::UUID,
            vec![(key(5, kind::UUID_KEY_SUBVOL, 5), vec![])],
            "0 bytes of subvolume ids",
        ),
        (
            TreeId::UUID,
            vec![(key(5, kind::UUID_KEY_SUBVOL, 5), vec![0; 9])],
            "9 bytes of subvolume ids",
        ),
    ]);
}

#[test]
fn bad_extent_items_are_refused() {
    let at = |start, kind, len, data| vec![(key(start, kind, len), data)];
    let (e, m) = (kind::EXTENT_ITEM, kind::METADATA_ITEM);
    let mut padded = extent(1, DATA, None, vec![]);
    padded.push(0);
    refused(vec![
        (TreeId::EXTENT, at(100, e, 4096, extent(1, DATA, None, vec![])), "not sector aligned"),
        (TreeId::EXTENT, at(4096, e, 100, extent(1, DATA, None, vec![])), "not sector aligned"),
        (TreeId::EXTENT, at(4096, e, 0, extent(1, DATA, None, vec![])), "empty extent"),
        (TreeId::EXTENT, at(!4095, e, 8192, extent(1, DATA, None, vec![])), "has no end"),
        (TreeId::EXTENT, at(4096, m, 0, extent(1, DATA, None, vec![])), "metadata item for data"),
        (TreeId::EXTENT, at(4096, m, 8, extent(1, BLOCK, None, vec![])), "block of level 8"),
        (TreeId::EXTENT, at(4096, e, 16384, extent(1, BLOCK, Some(8), vec![])), "block of level 8"),
        (
            TreeId::EXTENT,
            at(4096, e, 8192, extent(1, BLOCK, Some(0), vec![])),
            "tree block of 8192",
        ),
        (TreeId::EXTENT, at(4096, e, 16384, extent(1, BLOCK, None, vec![])), "info is cut short"),
        (
            TreeId::EXTENT,
            at(4096, e, 4096, extent(1, 0, None, vec![])),
            "neither data nor tree block",
        ),
        (
            TreeId::EXTENT,
            at(4096, e, 4096, extent(1, 3, Some(0), vec![])),
            "neither data nor tree block",
        ),
        (
            TreeId::EXTENT,
            at(4096, e, 4096, extent(1, DATA | 256, None, vec![])),
            "full back references",
        ),
        (TreeId::EXTENT, at(4096, e, 4096, vec![0; 23]), "needs 24 bytes"),
        (TreeId::EXTENT, at(4096, e, 4096, padded), "inline reference of type 0"),
    ]);
}

fn data(refs: u64, inline: Vec<InlineRef>) -> Vec<(Key, Vec<u8>)> {
    vec![(key(4096, kind::EXTENT_ITEM, 4096), extent(refs, DATA, None, inline))]
}

fn block(refs: u64, inline: Vec<InlineRef>) -> Vec<(Key, Vec<u8>)> {
    vec![(key(4096, kind::METADATA_ITEM, 0), extent(refs, BLOCK, None, inline))]
}

/// The reference of a file, changed like this.
fn of(change: fn(&mut ExtentDataRef)) -> Vec<InlineRef> {
    let mut one = data_ref(257, 1);
    change(&mut one);
    vec![InlineRef::Data(one)]
}

#[test]
fn extent_items_with_bad_references_are_refused() {
    let tree = || InlineRef::TreeBlock { root: SUBVOL };
    let shared = |parent, count| InlineRef::SharedData { parent, count };
    refused(vec![
        (TreeId::EXTENT, data(0, vec![]), "without references"),
        (TreeId::EXTENT, data(1, of(|r| r.count = 2)), "2 inline references of 1"),
        (TreeId::EXTENT, data(1, of(|r| r.count = 0)), "counts nothing"),
        (TreeId::EXTENT, data(1, of(|r| r.root = TreeId::CSUM)), "from tree 7"),
        (TreeId::EXTENT, data(1, of(|r| r.objectid = 3)), "from inode 3"),
        (
            TreeId::EXTENT,
            data(1, of(|r| (r.root, r.objectid) = (TreeId::ROOT, FREE_INO_OBJECTID))),
            "from inode",
        ),
        (TreeId::EXTENT, data(1, of(|r| r.offset = 5)), "not sector aligned"),
        (TreeId::EXTENT, data(1, vec![tree()]), "wrong kind of extent"),
        (TreeId::EXTENT, block(1, of(|_| {})), "wrong kind of extent"),
        (TreeId::EXTENT, data(1, vec![shared(1, 1)]), "not sector aligned"),
        (TreeId::EXTENT, data(1, vec![shared(4096, 0)]), "counts nothing"),
        (TreeId::EXTENT, data(2, vec![shared(4096, 1), shared(8192, 1)]), "out of order"),
        (TreeId::EXTENT, data(2, [vec![shared(4096, 1)], of(|_| {})].concat()), "out of order"),
        (
            TreeId::EXTENT,
            block(1, vec![InlineRef::SharedBlock { parent: 5 }]),
            "not sector aligned",
        ),
        (
            TreeId::EXTENT,
            block(1, vec![tree(), InlineRef::SharedBlock { parent: 4096 }]),
            "2 inline references of 1",
        ),
        (
            TreeId::EXTENT,
            [data(1, vec![]).remove(0), block(1, vec![]).remove(0)].to_vec(),
            "in front ends at 8192",
        ),
    ]);
}

#[test]
fn a_young_extent_is_refused() {
    let fields = ExtentItemFields { refs: 1, generation: 101, flags: DATA };
    let item = ExtentItem { fields, block_info: None, inline: vec![] }.to_vec();
    let rows = vec![(key(4096, kind::EXTENT_ITEM, 4096), item)];
    refused(vec![(TreeId::EXTENT, rows, "extent of generation 101")]);
}

#[test]
fn bad_separate_references_are_refused() {
    let one = |kind, offset, data| vec![(key(4096, kind, offset), data)];
    let d = |change: fn(&mut ExtentDataRef)| {
        one(kind::EXTENT_DATA_REF, 1, with(data_ref(257, 1), change))
    };
    refused(vec![
        (TreeId::EXTENT, vec![(key(1, kind::TREE_BLOCK_REF, 5), vec![])], "not sector aligned"),
        (TreeId::EXTENT, one(kind::TREE_BLOCK_REF, 5, vec![0]), "instead of 0"),
        (TreeId::EXTENT, one(kind::SHARED_BLOCK_REF, 4096, vec![0]), "instead of 0"),
        (TreeId::EXTENT, one(kind::SHARED_BLOCK_REF, 5, vec![]), "not sector aligned"),
        (TreeId::EXTENT, one(kind::SHARED_DATA_REF, 4096, vec![]), "instead of 4"),
        (TreeId::EXTENT, one(kind::SHARED_DATA_REF, 4096, vec![0; 4]), "counts nothing"),
        (TreeId::EXTENT, one(kind::SHARED_DATA_REF, 5, vec![1, 0, 0, 0]), "not sector aligned"),
        (TreeId::EXTENT, one(kind::EXTENT_DATA_REF, 5, vec![1; 27]), "instead of 28"),
        (TreeId::EXTENT, d(|r| r.count = 0), "counts nothing"),
        (TreeId::EXTENT, d(|r| r.root = TreeId::DEV), "from tree 4"),
        (TreeId::EXTENT, d(|r| r.objectid = 0), "from inode 0"),
        (TreeId::EXTENT, d(|r| r.offset = 1), "not sector aligned"),
    ]);
}

#[test]
fn bad_chunks_are_refused() {
    let c = |change: fn(&mut Chunk)| (TreeId::CHUNK, chunks(change));
    let row = |(owner, items): (TreeId, Vec<Owned>), reason| (owner, items, reason);
    let bytes = chunk_item().to_vec();
    let at = |objectid, offset, data: &[u8]| {
        (TreeId::CHUNK, vec![(key(objectid, kind::CHUNK_ITEM, offset), data.to_vec())])
    };
    refused(vec![
        row(at(255, 1 << 22, &bytes), "chunk of owner 255"),
        row(at(256, 100, &bytes), "not sector aligned"),
        row(at(256, !4095, &bytes), "has no end"),
        row(at(256, 1 << 22, &bytes[..79]), "needs 32 bytes"),
        row(at(256, 1 << 22, &[&bytes[..], &[0]].concat()), "113 bytes instead of 112"),
        row(c(|c| (c.fields.num_stripes, c.stripes) = (0, vec![])), "without stripes"),
        row(c(|c| c.fields.length = 0), "chunk of 0 bytes"),
        row(c(|c| c.fields.length += 1), "chunk of 8388609 bytes"),
        row(c(|c| c.fields.length = 1 << 50), "chunk of 1125899906842624 bytes"),
        row(c(|c| c.fields.stripe_len = 4096), "stripes of 4096"),
        row(c(|c| c.fields.sector_size = 512), "sectors of 512"),
        row(c(|c| c.fields.kind |= 1 << 20), "unknown chunk type"),
        row(c(|c| c.fields.kind |= bg::RAID1), "two profiles"),
        row(c(|c| c.fields.kind = bg::DUP), "chunk type 0x20"),
        row(c(|c| c.fields.kind |= bg::SYSTEM), "chunk type 0x26"),
        row(c(|c| c.fields.kind = bg::DATA), "2 stripes by 0 do not make"),
        row(c(|c| c.fields.kind = bg::DATA | bg::RAID1C3), "2 stripes by 0 do not make"),
        row(c(|c| c.fields.kind = bg::DATA | bg::RAID10), "2 stripes by 0 do not make"),
        row(c(|c| c.fields.kind = bg::DATA | bg::RAID6), "2 stripes by 0 do not make"),
        row(c(|c| c.stripes[1].offset += 1), "not sector aligned"),
        row(c(|c| c.stripes[1].offset = !4095), "has no end"),
    ]);
}

#[test]
fn bad_block_groups_and_devices_are_refused() {
    let g = |change: fn(&mut BlockGroupItem)| group(change);
    let b = |objectid, offset, data| vec![(key(objectid, kind::BLOCK_GROUP_ITEM, offset), data)];
    let good = || group(|_| {}).remove(0).1;
    let x = |change: fn(&mut DevExtent)| vec![dev_extent(1 << 20, change)];
    refused(vec![
        (TreeId::EXTENT, g(|g| g.used = 9 << 20), "used of 8388608"),
        (TreeId::EXTENT, g(|g| g.chunk_objectid = 1), "chunk owner 1"),
        (TreeId::EXTENT, g(|g| g.flags = 0), "chunk type 0x0"),
        (TreeId::EXTENT, g(|g| g.flags |= bg::RAID5 | bg::RAID6), "two profiles"),
        (TreeId::EXTENT, b(4096, 0, good()), "empty block group"),
        (TreeId::EXTENT, b(1, 8 << 20, good()), "not sector aligned"),
        (TreeId::EXTENT, b(!4095, 8 << 20, good()), "has no end"),
        (TreeId::EXTENT, b(4096, 4096, vec![0; 23]), "instead of 24"),
        (TreeId::CHUNK, device(|d| d.devid = 2), "says that it is 2"),
        (TreeId::CHUNK, device(|d| d.bytes_used = 10), "10 used of 9"),
        (TreeId::CHUNK, vec![(key(2, kind::DEV_ITEM, 1), vec![0; 98])], "device of owner 2"),
        (TreeId::CHUNK, vec![(key(1, kind::DEV_ITEM, 1), vec![0; 97])], "instead of 98"),
        (TreeId::DEV, x(|e| e.chunk_tree = 2), "chunk 256 in tree 2"),
        (TreeId::DEV, x(|e| e.chunk_objectid = 2), "chunk 2 in tree 3"),
        (TreeId::DEV, x(|e| e.chunk_offset += 1), "not sector aligned"),
        (TreeId::DEV, x(|e| e.chunk_offset = !4095), "has no end"),
        (TreeId::DEV, x(|e| e.length += 1), "not sector aligned"),
        (TreeId::DEV, x(|e| e.length = 0), "empty device extent"),
        (TreeId::DEV, x(|e| e.length = !4095), "has no end"),
        (TreeId::DEV, vec![dev_extent(9, |_| {})], "not sector aligned"),
        (
            TreeId::DEV,
            vec![dev_extent(0, |_| {}), dev_extent(4096, |_| {})],
            "in front ends at 65536",
        ),
        (
            TreeId::DEV,
            vec![(key(0, kind::PERSISTENT_ITEM, 1), vec![0; 41])],
            "41 bytes of device counters",
        ),
    ]);
}

#[test]
fn bad_free_space_and_quota_are_refused() {
    let f = |start, kind, len, data| vec![(key(start, kind, len), data)];
    let (info, extent, bitmap) =
        (kind::FREE_SPACE_INFO, kind::FREE_SPACE_EXTENT, kind::FREE_SPACE_BITMAP);
    let two = |second| vec![(key(4096, extent, 8192), vec![]), second];
    let q = |kind, len: usize| vec![(key(0, kind, 0), vec![0; len])];
    refused(vec![
        (TreeId::FREE_SPACE, f(1, extent, 4096, vec![]), "not sector aligned"),
        (TreeId::FREE_SPACE, f(4096, extent, 1, vec![]), "not sector aligned"),
        (TreeId::FREE_SPACE, f(4096, extent, 0, vec![]), "empty range"),
        (TreeId::FREE_SPACE, f(!4095, extent, 8192, vec![]), "has no end"),
        (TreeId::FREE_SPACE, f(4096, extent, 4096, vec![0]), "instead of 0"),
        (TreeId::FREE_SPACE, f(4096, info, 4096, vec![0; 7]), "instead of 8"),
        (TreeId::FREE_SPACE, f(4096, info, 4096, vec![2; 8]), "free space flags"),
        (TreeId::FREE_SPACE, f(4096, bitmap, 4096 * 9, vec![0; 1]), "1 bytes of bitmap for 9"),
        (TreeId::FREE_SPACE, two((key(8192, extent, 4096), vec![])), "in front ends at 12288"),
        (TreeId::FREE_SPACE, two((key(8192, bitmap, 4096), vec![0])), "in front ends at 12288"),
        (TreeId::FREE_SPACE, two((key(8192, info, 4096), vec![0; 8])), "in front ends at 12288"),
        (TreeId::QUOTA, q(kind::QGROUP_STATUS, 33), "quota status of 33"),
        (TreeId::QUOTA, q(kind::QGROUP_STATUS, 32), "status of version 0"),
        (TreeId::QUOTA, q(kind::QGROUP_INFO, 39), "instead of 40"),
        (TreeId::QUOTA, q(kind::QGROUP_LIMIT, 41), "instead of 40"),
        (TreeId::QUOTA, q(kind::QGROUP_RELATION, 1), "instead of 0"),
        (TreeId::RAID_STRIPE, vec![(key(1, kind::RAID_STRIPE, 1), vec![])], "not sector aligned"),
    ]);
}
