//! Round trips: what is written is read back, byte for byte and member for member.

use super::*;
use crate::key::{Key, kind};
use crate::le::FixedSize;
use crate::node::Header;
use crate::superblock::{RootBackup, SuperFields};
use crate::{Generation, Logical, TreeId};

/// Every byte has its own value, so a member in the wrong place shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + 1) as u8).collect()
}

fn fixed<T: FixedSize + PartialEq + std::fmt::Debug>() {
    let bytes = pattern(T::SIZE);
    let value = T::read(&bytes).expect("long enough");
    assert_eq!(value.to_vec(), bytes, "{value:?}");
    assert_eq!(T::read(&[&bytes[..], &[9; 5]].concat()), Ok(value), "more may follow");
    assert!(T::read(&bytes[1..]).is_err(), "a byte is missing");
}

#[test]
fn fixed_structs() {
    fixed::<Header>();
    fixed::<SuperFields>();
    fixed::<RootBackup>();
    fixed::<InodeItem>();
    fixed::<Timespec>();
    fixed::<RootItem>();
    fixed::<DirFields>();
    fixed::<FileExtentFields>();
    fixed::<ExtentItemFields>();
    fixed::<ExtentDataRef>();
    fixed::<SharedDataRef>();
    fixed::<DevItem>();
    fixed::<Stripe>();
    fixed::<ChunkFields>();
    fixed::<DevExtent>();
    fixed::<DevReplace>();
    fixed::<BlockGroupItem>();
    fixed::<FreeSpaceInfo>();
}

#[test]
fn keys() {
    let bytes: [u8; 17] = pattern(17).try_into().expect("sized");
    let key = Key::read(&bytes);
    assert_eq!(key.to_bytes(), bytes);
    assert_eq!(key.kind, bytes[8]);
    assert_eq!(Key::MAX.successor(), None);
    let last = Key::new(5, 7, u64::MAX);
    assert_eq!(last.successor(), Some(Key::new(5, 8, 0)));
    assert_eq!(Key::new(5, u8::MAX, u64::MAX).successor(), Some(Key::new(6, 0, 0)));
}

#[test]
fn inode_references() {
    let refs = [InodeRef { index: 2, name: b"a" }, InodeRef { index: 1 << 40, name: &[b'n'; 255] }];
    let mut bytes = Vec::new();
    refs.iter().for_each(|r| r.append_to(&mut bytes));
    assert_eq!(InodeRef::iter(&bytes).collect::<Result<Vec<_>, _>>().expect("good"), refs);
    let refs = [
        InodeExtRef { parent: 256, index: 2, name: b"a" },
        InodeExtRef { parent: 1 << 40, index: 3, name: b"other" },
    ];
    let mut bytes = Vec::new();
    refs.iter().for_each(|r| r.append_to(&mut bytes));
    assert_eq!(InodeExtRef::iter(&bytes).collect::<Result<Vec<_>, _>>().expect("good"), refs);
}

#[test]
fn directory_entries() {
    let one = DirItem {
        location: Key::new(257, kind::INODE_ITEM, 0),
        transid: 9,
        kind: dir_type::DIR,
        name: b"name",
        value: b"",
    };
    let two = DirItem { location: Key::MIN, kind: dir_type::XATTR, value: &[3; 4000], ..one };
    let bytes = [one.to_vec(), two.to_vec()].concat();
    let back = DirItem::iter(&bytes).collect::<Result<Vec<_>, _>>().expect("good");
    assert_eq!(back, [one, two]);
    let cut: Vec<_> = DirItem::iter(&bytes[..bytes.len() - 1]).collect();
    assert!(cut.len() == 2 && cut[1].is_err());
}

#[test]
fn file_extents() {
    let inline = FileExtent::Inline {
        generation: 7,
        ram_bytes: 4000,
        compression: Compression::Zstd,
        content: b"not really zstd",
    };
    assert_eq!(FileExtent::parse(&inline.to_vec()), Ok(inline));
    let fields = FileExtentFields {
        generation: 7,
        ram_bytes: 1 << 17,
        compression: Compression::Lzo as u8,
        kind: FileExtentKind::Regular as u8,
        disk_bytenr: Logical(1 << 33),
        disk_num_bytes: 8192,
        offset: 4096,
        num_bytes: 12288,
        ..FileExtentFields::default()
    };
    let kind = FileExtentKind::Regular;
    let extent = FileExtent::Extent { kind, compression: Compression::Lzo, fields };
    let bytes = extent.to_vec();
    assert_eq!(FileExtent::parse(&bytes), Ok(extent));
    // Encryption, and two bytes of other encodings: what such content is nobody here knows.
    for at in 17..20 {
        let mut bytes = bytes.clone();
        bytes[at] = 1;
        assert!(FileExtent::parse(&bytes).is_err(), "encoded by byte {at}");
    }
}

/// What makes an item's members is held against every member of its own spelled out.
#[test]
fn members_of_file_extents() {
    let (generation, place) = (Generation(7), Logical(1 << 33));
    let all = FileExtentFields {
        generation: 7,
        ram_bytes: 12288,
        compression: 0,
        encryption: 0,
        other_encoding: 0,
        kind: 1,
        disk_bytenr: place,
        disk_num_bytes: 12288,
        offset: 0,
        num_bytes: 12288,
    };
    let stored = |kind| FileExtentFields::stored(generation, kind, place, 12288).to_vec();
    assert_eq!(stored(FileExtentKind::Regular), all.to_vec());
    assert_eq!(stored(FileExtentKind::Prealloc), FileExtentFields { kind: 2, ..all }.to_vec());
    let hole = FileExtentFields { disk_bytenr: Logical(0), disk_num_bytes: 0, ..all };
    assert_eq!(FileExtentFields::hole(generation, 12288).to_vec(), hole.to_vec());
}

/// Where the items of a file end, in files of sectors of 4 KiB and 64 KiB.
#[test]
fn ends_of_file_extents() {
    let long = u64::MAX - 5;
    let inline = |ram_bytes, compression| FileExtent::Inline {
        generation: 7,
        ram_bytes,
        compression,
        content: b"",
    };
    let lens = [(0, 0, 0), (1, 4096, 65536), (4095, 4096, 65536), (4096, 4096, 65536)];
    let more = [(4097, 8192, 65536), (131072, 131072, 131072), (long, u64::MAX, u64::MAX)];
    for (bytes, small, large) in lens.into_iter().chain(more) {
        for item in [inline(bytes, Compression::None), inline(bytes, Compression::Zstd)] {
            assert_eq!((item.file_len(4096), item.file_len(65536)), (small, large), "{item:?}");
            assert_eq!(item.file_end(0, 4096), small, "{item:?}");
        }
    }
    // A range of an extent is as long as it says, however long the extent is.
    let kind = FileExtentKind::Regular;
    let all = FileExtentFields::stored(Generation(7), kind, Logical(1 << 33), 1 << 20);
    for (num_bytes, start, end) in [(4096, 8192, 12288), (4096, long, u64::MAX), (long, 0, long)] {
        let fields = FileExtentFields { num_bytes, offset: 4096, ..all };
        let item = FileExtent::Extent { kind, compression: Compression::None, fields };
        for sector in [4096, 65536] {
            assert_eq!(item.file_len(sector), num_bytes, "{item:?}");
            assert_eq!(item.file_end(start, sector), end, "{item:?}");
        }
    }
}

#[test]
fn extent_items() {
    let data = ExtentDataRef { root: TreeId(5), objectid: 257, offset: 4096, count: 3 };
    let inline = vec![
        InlineRef::Owner { root: TreeId(300) },
        InlineRef::TreeBlock { root: TreeId(257) },
        InlineRef::Data(data),
        InlineRef::SharedBlock { parent: 1 << 20 },
        InlineRef::SharedData { parent: 1 << 21, count: 2 },
    ];
    assert_eq!(inline.iter().map(InlineRef::count).collect::<Vec<_>>(), [0, 1, 3, 1, 2]);
    let fields = ExtentItemFields { refs: 7, generation: 8, flags: extent_flags::TREE_BLOCK };
    let info = Some((Key::new(1, 2, 3), 4));
    for (item_kind, block_info) in [(kind::EXTENT_ITEM, info), (kind::METADATA_ITEM, None)] {
        let item = ExtentItem { fields, block_info, inline: inline.clone() };
        assert_eq!(ExtentItem::parse(item_kind, &item.to_vec()), Ok(item));
    }
}

#[test]
fn chunks_and_roots() {
    let fields = ChunkFields { length: 1 << 23, num_stripes: 2, ..ChunkFields::default() };
    let stripe = |offset| Stripe { devid: 1, offset, dev_uuid: [4; 16] };
    let chunk = Chunk { fields, stripes: vec![stripe(1 << 20), stripe(1 << 24)] };
    let bytes = chunk.to_vec();
    assert_eq!(bytes.len(), chunk.size());
    assert_eq!(Chunk::parse(&bytes), Ok(chunk));
    let name = RootRef { dirid: 256, sequence: 9, name: b"snapshot" };
    assert_eq!(RootRef::parse(&name.to_vec()), Ok(name));
}

#[test]
fn members_that_an_old_kernel_left_behind_read_as_zero() {
    let mut root = RootItem { level: 3, uuid: [9; 16], ..RootItem::default() };
    root.generation.0 = 50;
    root.generation_v2 = 50;
    assert_eq!(RootItem::parse(&root.to_vec()), Ok(root));
    root.generation_v2 = 49;
    let old = RootItem::parse(&root.to_vec()).expect("long enough");
    assert_eq!((old.level, old.uuid, old.generation_v2), (3, [0; 16], 0));
    let legacy = &root.to_vec()[..RootItem::LEGACY_SIZE];
    assert_eq!(RootItem::parse(legacy), Ok(old));
}
