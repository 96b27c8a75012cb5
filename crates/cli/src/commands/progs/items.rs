//! The item of a key in words: which form belongs to which type.

use super::fields::ItemContext;
use super::text::{Text, line};
use super::{extents, files, layout};
use btrfs_disk::ids::FREE_SPACE_OBJECTID;
use btrfs_disk::key::kind;

/// The lines below an item's own. What is cut short is said to be so.
pub fn tell(text: &mut Text, place: &ItemContext<'_>, data: &[u8]) {
    let told = match place.key.kind {
        0 if place.key.objectid == FREE_SPACE_OBJECTID => layout::cache(text, data),
        kind::INODE_ITEM..=kind::EXTENT_DATA => files::tell(text, place.key, data),
        kind::EXTENT_ITEM..=kind::SHARED_DATA_REF => extents::tell(text, place.key, data),
        kind::ROOT_ITEM..=kind::ROOT_REF => files::of_root_tree(text, place.key, data),
        _ => layout::tell(text, place, data),
    };
    if let Err(corrupt) = told {
        line!(text, "\t\tmalformed: {}", corrupt.what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::Wishes;
    use super::*;
    use btrfs_disk::ids::BALANCE_OBJECTID;
    use btrfs_disk::items::{BalanceFilter, BalanceItem};
    use btrfs_disk::{ChecksumType, FixedSize};
    use btrfs_disk::{Geometry, Key};

    fn told(key: Key, data: &[u8]) -> String {
        let geometry = Geometry {
            sector_size: 4096,
            node_size: 16384,
            csum: ChecksumType::Crc32c,
            metadata_uuid: [0; 16],
            chunk_tree_uuid: [0; 16],
        };
        let mut text = Text::new(Wishes::default());
        tell(&mut text, &ItemContext { geometry: &geometry, key }, data);
        String::from_utf8(text.bytes).expect("text")
    }

    /// As btrfs-progs 6.2 told a leaf that was made for it: a paused balance is rarely caught.
    #[test]
    fn a_balance() {
        let filter = BalanceFilter {
            profiles: 1,
            usage: 5 << 32 | 2,
            devid: 3,
            pstart: 4,
            pend: 5,
            vstart: 6,
            vend: 7,
            target: 8,
            flags: 2048,
            limit: 9 << 32 | 10,
            stripes_min: 11,
            stripes_max: 12,
            ..BalanceFilter::default()
        };
        let item = BalanceItem { flags: 255, data: filter, ..BalanceItem::default() };
        let key = Key::new(BALANCE_OBJECTID, kind::TEMPORARY_ITEM, 0);
        let expected = "\t\ttemporary item objectid BALANCE offset 0\n\
                        \t\tbalance status flags 255\n\
                        \t\tDATA\n\
                        \t\tprofiles 1 devid 3 target 8 flags 2048\n\
                        \t\tusage_min 2 usage_max 5 pstart 4 pend 5\n\
                        \t\tvstart 6 vend 7 limit_min 10 limit_max 9\n\
                        \t\tstripes_min 11 stripes_max 12\n\
                        \t\tMETADATA\n";
        let found = told(key, &item.to_vec());
        assert!(found.starts_with(expected), "{found}");
    }

    /// As well.
    #[test]
    fn rare_ones() {
        let cache = [Key::new(257, 1, 0).to_bytes().as_slice(), &[1; 24]].concat();
        let key = Key::new(FREE_SPACE_OBJECTID, 0, 7);
        let found = told(key, &cache);
        assert!(
            found.starts_with("\t\tlocation key (257 INODE_ITEM 0)\n\t\tcache generation 7234")
        );
        let string = told(Key::new(257, kind::STRING_ITEM, 1), b"hello\nworld\0x");
        assert_eq!(string, "\t\titem data hello\nworld\n");
        let reference = told(Key::new(1, kind::SHARED_BLOCK_REF, 8192), b"");
        assert_eq!(reference, "\t\tshared block backref\n");
        let status = [1, 2, 14, 5u64].map(u64::to_le_bytes).concat();
        let expected = "\t\tversion 1 generation 2 flags OFF|SCANNING|INCONSISTENT scan 5\n";
        assert_eq!(told(Key::new(0, kind::QGROUP_STATUS, 0), &status), expected);
        let cut = told(Key::new(0, kind::QGROUP_STATUS, 0), &status[..9]);
        assert!(cut.contains("malformed"), "{cut}");
    }
}
