//! What tests change in a tree block of an image, as damage or another program might.
//!
//! Offsets are the format's (btrfs_header, btrfs_item, btrfs_dev_item of the kernel's uapi): a header of 101 bytes,
//! then items of 25, each a key of 17, where its data begins behind the header, and how long that is.
//!
//! What it does not know: checksums. Who changes a block seals it again (`btrfs_disk::ChecksumType::seal`).

const HEADER: usize = 101;
const ITEM: usize = 25;
const KEY: usize = 17;
const EXTENT_CSUM: u8 = 128;
const FREE_SPACE_EXTENT: u8 = 199;
const SECTOR: u64 = 4096;

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// The DEV_ITEM, the first item of a chunk tree of one leaf, says `more` bytes. What it said.
pub fn grow_device(leaf: &mut [u8], more: u64) -> u64 {
    let place = leaf[HEADER + KEY..][..4].try_into().expect("four bytes");
    // Behind the number of the device.
    let at = HEADER + u32::from_le_bytes(place) as usize + 8;
    let total = number(&leaf[at..][..8]);
    leaf[at..][..8].copy_from_slice(&(total + more).to_le_bytes());
    total
}

/// The last FREE_SPACE_EXTENT of more than a sector is a sector shorter: its key's offset.
pub fn shorten_free_extent(leaf: &mut [u8]) {
    let keys = (0..usize::from(leaf[96])).map(|slot| HEADER + ITEM * slot);
    let len = |key: usize| number(&leaf[key + 9..][..8]);
    let mut extents = keys.filter(|key| leaf[key + 8] == FREE_SPACE_EXTENT && len(*key) > SECTOR);
    let key = extents.next_back().expect("one of more than a sector");
    let shorter = len(key) - SECTOR;
    leaf[key + 9..][..8].copy_from_slice(&shorter.to_le_bytes());
}

/// The last item, one of checksums of four bytes each, forgets its first: that of the sector that it begins at.
pub fn forget_checksum(leaf: &mut [u8]) {
    let item = HEADER + ITEM * (usize::from(leaf[96]) - 1);
    assert_eq!(leaf[item + 8], EXTENT_CSUM);
    let from = number(&leaf[item + 9..][..8]) + SECTOR;
    leaf[item + 9..][..8].copy_from_slice(&from.to_le_bytes());
    // Where its data begins, and how long that is: nothing lies in front of it.
    for (at, by) in [(item + KEY, 4), (item + KEY + 4, -4)] {
        let field = i32::from_le_bytes(leaf[at..][..4].try_into().expect("four bytes"));
        leaf[at..][..4].copy_from_slice(&(field + by).to_le_bytes());
    }
}
