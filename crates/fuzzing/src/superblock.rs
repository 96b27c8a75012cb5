//! Superblock copies.

use btrfs_disk::superblock::{COPIES, MAGIC, SUPER_SIZE, SuperFields};
use btrfs_disk::{ChecksumType, FixedSize, Superblock};

pub fn superblock(data: &[u8]) -> bool {
    let _ = Superblock::parse(data, COPIES[0]);
    let mut bytes = vec![0; SUPER_SIZE];
    let len = data.len().min(SUPER_SIZE);
    bytes[..len].copy_from_slice(&data[..len]);
    let mut fields = SuperFields::read(&bytes).expect("long enough");
    (fields.magic, fields.bytenr) = (MAGIC, COPIES[0]);
    fields.write(&mut bytes);
    let Ok(csum) = ChecksumType::from_disk(fields.csum_type) else { return false };
    csum.seal(&mut bytes);
    let Ok(superblock) = Superblock::parse(&bytes, COPIES[0]) else { return false };
    let _ = (superblock.geometry(), superblock.label().len(), superblock.header_uuid());
    let again = superblock.to_bytes(COPIES[0]).expect("it was read");
    let back = Superblock::parse(&again, COPIES[0]).expect("it was written");
    // Bytes behind the used part of the system chunk array are not carried.
    assert_eq!((back.sys_chunks, back.backups), (superblock.sys_chunks, superblock.backups));
    true
}
