//! Logical address -> chunk -> physical addresses of its copies.
//!
//! Invariants: chunks overlap neither logically nor physically, lie on the one device
//! wholly, and have one stripe (single) or two (DUP). A chunk may cover a superblock
//! copy, as the kernel's do: the allocators leave that range out, in whole stripes (`excluded` in
//! `btrfs-space/src/space/chunk_alloc.rs`).

use crate::features::ADDRESSES_END;
use crate::superblock::{SUPER_EXCLUDED, super_copies};
use btrfs_disk::ids::{FIRST_CHUNK_TREE_OBJECTID, SECTOR_SIZE, STRIPE_LEN, block_group, incompat};
use btrfs_disk::items::Chunk;
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Error, Key, Logical, Physical, Result, Superblock};
use std::collections::BTreeMap;

/// Chunks come in multiples of this; bounds how many a device can have.
const MIN_CHUNK: u64 = STRIPE_LEN;
const SECTOR: u64 = SECTOR_SIZE as u64;

/// A chunk as the map has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkInfo {
    /// Where it begins.
    pub logical: Logical,
    /// Its length in bytes.
    pub len: u64,
    /// `block_group` flags.
    pub flags: u64,
    /// (devid, physical start) of each copy.
    pub stripes: Vec<(u64, Physical)>,
}

impl ChunkInfo {
    /// The first logical address behind it.
    pub fn end(&self) -> u64 {
        self.logical.0 + self.len
    }

    /// Bytes of devices that its copies take together. Of all chunks of a map that is less than `ADDRESSES_END`.
    pub fn on_devices(&self) -> u64 {
        self.len * self.stripes.len() as u64
    }

    /// Logical ranges (start, length) that hold superblock copies on the device: never
    /// to be allocated. Sorted; from each copy on `SUPER_EXCLUDED` bytes, cut at the end.
    /// For tests of several crates, which judge allocators by it: those leave out more.
    pub fn super_ranges(&self) -> Vec<(Logical, u64)> {
        let mut out = Vec::new();
        for (_, start) in &self.stripes {
            for at in super_copies(u64::MAX).filter(|at| (start.0..start.0 + self.len).contains(at))
            {
                let offset = at - start.0;
                out.push((self.logical.offset(offset), SUPER_EXCLUDED.min(self.len - offset)));
            }
        }
        out.sort();
        out
    }
}

/// The one device that stripes may name.
#[derive(Clone, Copy)]
pub(crate) struct DeviceId {
    pub devid: u64,
    pub uuid: [u8; 16],
    pub total_bytes: u64,
    pub mixed: bool,
}

impl DeviceId {
    pub(crate) fn of(sb: &Superblock) -> DeviceId {
        DeviceId {
            devid: sb.fields.dev_item.devid,
            uuid: sb.fields.dev_item.uuid,
            total_bytes: sb.fields.dev_item.total_bytes,
            mixed: sb.fields.incompat_flags & incompat::MIXED_GROUPS != 0,
        }
    }
}

/// Where one range lies: the same bytes once or twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    copies: [Physical; 2],
    count: usize,
}

impl Mapping {
    pub(crate) fn copies(&self) -> &[Physical] {
        &self.copies[..self.count]
    }
}

#[derive(Clone)]
pub(crate) struct ChunkMap {
    device: DeviceId,
    chunks: BTreeMap<u64, ChunkInfo>,
    /// Physical start -> end of every stripe.
    stripes: BTreeMap<u64, u64>,
}

impl ChunkMap {
    pub(crate) fn new(device: DeviceId) -> ChunkMap {
        ChunkMap { device, chunks: BTreeMap::new(), stripes: BTreeMap::new() }
    }

    pub(crate) fn snapshot(&self) -> Vec<ChunkInfo> {
        self.chunks.values().cloned().collect()
    }

    /// The chunk that holds `logical`.
    pub(crate) fn find(&self, logical: Logical) -> Option<&ChunkInfo> {
        let (_, chunk) = self.chunks.range(..=logical.0).next_back()?;
        (logical.0 < chunk.end()).then_some(chunk)
    }

    /// Where `len` bytes at `logical` lie; they must not cross the end of their chunk.
    pub(crate) fn map(&self, logical: Logical, len: u64) -> Result<Mapping> {
        let Some(chunk) = self.find(logical) else {
            return Err(Corrupt::new("address outside of every chunk").at(logical).into());
        };
        let offset = logical.0 - chunk.logical.0;
        if len > chunk.len - offset {
            return Err(Corrupt::new(format!("{len} bytes cross a chunk's end"))
                .at(logical)
                .into());
        }
        let mut copies = [Physical(0); 2];
        for (copy, (_, start)) in copies.iter_mut().zip(&chunk.stripes) {
            *copy = Physical(start.0 + offset);
        }
        Ok(Mapping { copies, count: chunk.stripes.len() })
    }

    /// Adds a chunk. The same chunk again is no error, another at its place is.
    pub(crate) fn insert(&mut self, logical: Logical, chunk: &Chunk) -> Result<()> {
        let info = judge(&self.device, logical, chunk)?;
        if self.chunks.get(&logical.0) == Some(&info) {
            return Ok(());
        }
        self.no_overlap(&info)?;
        if self.chunks.len() as u64 >= self.device.total_bytes / MIN_CHUNK {
            return Err(corrupt(logical, "more chunks than the device can hold"));
        }
        for (_, start) in &info.stripes {
            self.stripes.insert(start.0, start.0 + info.len);
        }
        self.chunks.insert(logical.0, info);
        Ok(())
    }

    /// The device has another size.
    pub(crate) fn resize(&mut self, total_bytes: u64) -> Result<()> {
        let last = self.stripes.values().max().copied().unwrap_or(0);
        if last > total_bytes {
            return Err(Corrupt::new(format!("a chunk ends at {last} of the device")).into());
        }
        self.device.total_bytes = total_bytes;
        Ok(())
    }

    pub(crate) fn remove(&mut self, logical: Logical) -> Result<()> {
        let Some(info) = self.chunks.remove(&logical.0) else {
            return Err(corrupt(logical, "no chunk starts here"));
        };
        for (_, start) in &info.stripes {
            self.stripes.remove(&start.0);
        }
        Ok(())
    }

    fn no_overlap(&self, info: &ChunkInfo) -> Result<()> {
        let before = self.chunks.range(..info.end()).next_back();
        if before.is_some_and(|(_, other)| other.end() > info.logical.0) {
            return Err(corrupt(info.logical, "chunks overlap"));
        }
        for (i, (_, start)) in info.stripes.iter().enumerate() {
            let end = start.0 + info.len;
            let before = self.stripes.range(..end).next_back();
            let own = info.stripes[..i].iter().any(|(_, s)| s.0 < end && start.0 < s.0 + info.len);
            if own || before.is_some_and(|(_, other_end)| *other_end > start.0) {
                return Err(corrupt(info.logical, format!("stripe at {start} overlaps another")));
            }
        }
        Ok(())
    }
}

fn corrupt(logical: Logical, what: impl Into<String>) -> Error {
    let key = Key::new(FIRST_CHUNK_TREE_OBJECTID, kind::CHUNK_ITEM, logical.0);
    Corrupt::new(what).at(logical).key(key).into()
}

/// Judges one chunk by itself: profile, sizes, place on the device.
fn judge(device: &DeviceId, logical: Logical, chunk: &Chunk) -> Result<ChunkInfo> {
    let f = &chunk.fields;
    let bad = |what: String| Err(corrupt(logical, what));
    profile(device, logical, chunk)?;
    if f.sector_size != SECTOR_SIZE {
        return bad(format!("chunk with sectors of {} bytes", f.sector_size));
    }
    if f.length == 0 || !f.length.is_multiple_of(SECTOR) || !logical.0.is_multiple_of(SECTOR) {
        return bad(format!("chunk of {} bytes is not aligned", f.length));
    }
    let end = logical.0.checked_add(f.length).filter(|end| *end <= ADDRESSES_END);
    if end.is_none() || f.length > device.total_bytes {
        return bad(format!("chunk of {} bytes is too long", f.length));
    }
    for stripe in &chunk.stripes {
        if stripe.devid != device.devid {
            return bad(format!("stripe on device {}, which the volume lacks", stripe.devid));
        }
        if stripe.dev_uuid != device.uuid {
            return bad("stripe on a device of another UUID".into());
        }
        if stripe.offset % SECTOR != 0 {
            return bad(format!("stripe at {} is not aligned", stripe.offset));
        }
        let end = stripe.offset.checked_add(f.length);
        if end.is_none_or(|end| end > device.total_bytes) {
            return bad(format!("stripe at {} lies behind the device's end", stripe.offset));
        }
    }
    let stripes = chunk.stripes.iter().map(|s| (s.devid, Physical(s.offset))).collect();
    Ok(ChunkInfo { logical, len: f.length, flags: f.kind, stripes })
}

const PROFILE_NAMES: &[(u64, &str)] = &[
    (block_group::RAID0, "RAID0"),
    (block_group::RAID1, "RAID1"),
    (block_group::RAID10, "RAID10"),
    (block_group::RAID5, "RAID5"),
    (block_group::RAID6, "RAID6"),
    (block_group::RAID1C3, "RAID1C3"),
    (block_group::RAID1C4, "RAID1C4"),
];

fn profile(device: &DeviceId, logical: Logical, chunk: &Chunk) -> Result<()> {
    let flags = chunk.fields.kind;
    if let Some((_, name)) = PROFILE_NAMES.iter().find(|(bit, _)| flags & bit != 0) {
        return Err(Error::Unsupported(format!("chunk profile {name}")));
    }
    if flags & !block_group::SUPPORTED != 0 {
        return Err(corrupt(logical, format!("chunk flags {flags:#x}")));
    }
    let kinds = flags & block_group::TYPE_MASK;
    let mixed = block_group::DATA | block_group::METADATA;
    if !(kinds.is_power_of_two() || kinds == mixed && device.mixed) {
        return Err(corrupt(logical, format!("chunk of types {kinds:#x}")));
    }
    let copies = if flags & block_group::DUP != 0 { 2 } else { 1 };
    if chunk.stripes.len() != copies {
        return Err(corrupt(
            logical,
            format!("{} stripes for {copies} copies", chunk.stripes.len()),
        ));
    }
    Ok(())
}
