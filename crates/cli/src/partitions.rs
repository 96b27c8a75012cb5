//! What an image that is no volume may be: a whole disk, one of whose partitions is one.
//!
//! Reads primary partitions of an MBR, and a GPT with sectors of 512 bytes (UEFI specification 2.10, 5.2.1
//! and 5.3). Nothing is believed of them but where to look for a superblock.

use btrfs_disk::superblock::{COPIES, MAGIC, MAGIC_AT};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SECTOR: u64 = 512;
/// So many entries does a GPT have that programs make.
const ENTRIES: u64 = 128;

/// Where in the image a partition with a volume lies, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Partition {
    number: u64,
    start: u64,
    len: u64,
}

/// What to do with an image or a device that is no volume.
pub fn remedy(image: &Path) -> String {
    let name = image.display();
    match File::open(image).ok().and_then(|file| first_with_volume(&file)) {
        Some(Partition { number, start, len }) if image.is_file() => format!(
            "it is a whole disk, and partition {number} is a btrfs volume: `losetup --find --show \
             --offset {start} --sizelimit {len} {name}` answers a device to use (as root); `dd \
             if={name} of=FILE iflag=skip_bytes,count_bytes skip={start} count={len} bs=1M` copies it"
        ),
        Some(Partition { number, .. }) => {
            format!("it is a whole disk: its partition {number} is a btrfs volume, use that device")
        }
        None => format!(
            "`spinney dump-super --all {name}` looks for what is left of one; `blkid -p {name}` tells \
             what else it is"
        ),
    }
}

fn first_with_volume(disk: &File) -> Option<Partition> {
    let found = gpt(disk).or_else(|| mbr(disk))?;
    found.into_iter().find(|partition| has_superblock(disk, partition.start))
}

fn read<const N: usize>(disk: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    disk.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
}

fn has_superblock(disk: &File, start: u64) -> bool {
    let at = start.checked_add(COPIES[0] + MAGIC_AT as u64);
    at.and_then(|at| read(disk, at)).map(u64::from_le_bytes) == Some(MAGIC)
}

/// `None`: sectors without a sum of bytes, or none at all.
fn partition(number: u64, first: u64, sectors: u64) -> Option<Partition> {
    let (start, len) = (first.checked_mul(SECTOR)?, sectors.checked_mul(SECTOR)?);
    (len > 0).then_some(Partition { number, start, len })
}

fn mbr(disk: &File) -> Option<Vec<Partition>> {
    let sector: [u8; 512] = read(disk, 0)?;
    if sector[510..] != [0x55, 0xaa] {
        return None;
    }
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).ok().map(u64::from);
    let entries = sector[446..510].chunks_exact(16).zip(1..);
    Some(entries.filter_map(|(e, n)| partition(n, number(&e[8..12])?, number(&e[12..])?)).collect())
}

fn gpt(disk: &File) -> Option<Vec<Partition>> {
    let header: [u8; 92] = read(disk, SECTOR)?;
    if !header.starts_with(b"EFI PART") {
        return None;
    }
    let table = u64::from_le_bytes(header[72..80].try_into().ok()?).checked_mul(SECTOR)?;
    let count = u64::from(u32::from_le_bytes(header[80..84].try_into().ok()?)).min(ENTRIES);
    let size = u64::from(u32::from_le_bytes(header[84..88].try_into().ok()?));
    let entry = |n: u64| {
        let entry: [u8; 48] = read(disk, table.checked_add(size.checked_mul(n)?)?)?;
        let number = |at: usize| entry[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (first, last) = (number(32)?, number(40)?);
        partition(n + 1, first, last.checked_sub(first)?.checked_add(1)?)
    };
    Some((0..count).filter_map(entry).collect())
}
