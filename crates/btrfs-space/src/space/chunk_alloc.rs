//! New chunks: how large, where on the device, and what a commit records of them.
//!
//! Facts of the format: chunks and their stripes come in multiples of 64 KiB; the
//! device's first MiB is never allocated (superblock copies further up may lie in a
//! chunk: the block group keeps them out). Logical addresses go up from the last chunk.
//!
//! Invariants: `holes` is the device less its first MiB and all stripes. A chunk is
//! known to the volume before anything can be allocated in it, and stays in `unrecorded`
//! until a commit takes it. The device's item says of chunks what they have, whatever it said before.

use super::group::Group;
use super::reserve::Kept;
use super::{Kind, Space};
use crate::Extent;
use crate::free_space::Ranges;
use btrfs_disk::ids::block_group::{METADATA, SYSTEM};
use btrfs_disk::ids::{DEVICE_RESERVED, STRIPE_LEN};
use btrfs_disk::items::{Chunk, ChunkFields, DevItem, Stripe};
use btrfs_disk::key::KEY_SIZE;
use btrfs_disk::superblock::SYS_CHUNK_ARRAY_SIZE;
use btrfs_disk::{Error, FixedSize, Generation, Logical, Physical, Result};
use btrfs_volume::{ADDRESSES_END, ChunkInfo, SUPER_EXCLUDED, Volume, super_copies};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A chunk is made ahead when less than this part of one is left. Data comes fast: the commit
/// that records the chunk has to be done before the old one is full.
/// With 32 writers an eighth of a chunk was full before that commit was done; with half of one no fsync waited.
const AHEAD_OF_DATA: u64 = 2;
/// Chosen, not measured.
const AHEAD_OF_METADATA: u64 = 8;
/// Smaller data and metadata chunks are not worth their items.
/// Chosen, not measured.
const SMALLEST: u64 = MIB;

/// A chunk that no commit has recorded yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewChunk {
    /// Where it begins: the offset of its CHUNK_ITEM's key, and its block group's start.
    pub logical: Logical,
    /// The CHUNK_ITEM that a commit will write.
    pub chunk: Chunk,
}

/// A chunk that is gone and that commits still have on record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoneChunk {
    /// Where it began in the logical space.
    pub logical: Logical,
    /// Bytes of the logical space that it had, each copy not counted.
    pub len: u64,
    /// Where its stripes began: (device, physical address).
    pub stripes: Vec<(u64, u64)>,
}

/// The device's side of chunk allocation; behind the chunk lock.
pub(super) struct Device {
    pub holes: Ranges,
    /// While the device is made smaller: where it will end. Nothing behind that is in `holes`.
    pub limit: Option<u64>,
    pub next_logical: u64,
    pub item: DevItem,
    pub unrecorded: Vec<NewChunk>,
    /// Given up, which no commit has recorded yet.
    pub gone: Vec<GoneChunk>,
    /// What the global reserve is to be.
    pub kept: Option<Kept>,
}

/// Takes what chunks have out of the device's holes.
pub(super) fn without_chunks(holes: &mut Ranges, chunks: &[ChunkInfo]) {
    for chunk in chunks {
        chunk.stripes.iter().for_each(|(_, start)| holes.subtract(start.0, chunk.len));
    }
}

impl Device {
    pub(super) fn load(volume: &Volume) -> Device {
        let mut item = volume.superblock().fields.dev_item;
        let mut holes = Ranges::new();
        if item.total_bytes > DEVICE_RESERVED {
            let whole = holes.insert(DEVICE_RESERVED, item.total_bytes - DEVICE_RESERVED);
            debug_assert!(whole.is_ok(), "one range in an empty set");
        }
        let chunks = volume.chunks();
        without_chunks(&mut holes, &chunks);
        // What the superblock says of that nobody judges, and the kernel does not look at it.
        item.bytes_used = chunks.iter().map(ChunkInfo::on_devices).sum();
        let next_logical = chunks.iter().map(ChunkInfo::end).max().unwrap_or(DEVICE_RESERVED);
        Device {
            holes,
            limit: None,
            next_logical,
            item,
            unrecorded: Vec::new(),
            gone: Vec::new(),
            kept: None,
        }
    }

    /// No chunk has these bytes any more: a hole, as far as another may come to lie there.
    pub(super) fn open_hole(&mut self, at: u64, len: u64) {
        // A hole there already would be damage that loading has refused.
        let _ = self.holes.insert(at, len);
        self.holes.subtract(0, DEVICE_RESERVED);
        if let Some(limit) = self.limit {
            self.holes.subtract(limit, self.item.total_bytes - limit);
        }
    }

    /// Whether there is a place for a chunk of just so many bytes.
    pub(super) fn can_make(&self, copies: u64, len: u64) -> bool {
        let end = self.next_logical.next_multiple_of(STRIPE_LEN) + len;
        end <= ADDRESSES_END && self.place(copies, len, len).is_some()
    }

    /// Whole 64 KiB pieces that no chunk has.
    pub(super) fn unallocated(&self) -> u64 {
        self.holes.iter().map(|(start, len)| fit(start, len).1).sum()
    }

    /// Of that, what chunks of `copies` stripes can be made of: a small hole is of no use.
    fn placeable(&self, copies: u64) -> u64 {
        let rooms = self.holes.iter().map(|(start, len)| fit(start, len).1);
        rooms.filter(|room| *room >= copies * SMALLEST).sum()
    }

    /// Room for `copies` stripes of up to `len` bytes each; the shorter the fuller.
    fn place(&self, copies: u64, len: u64, min: u64) -> Option<(Vec<Physical>, u64)> {
        let mut holes: Vec<(u64, u64)> = self.holes.iter().map(|(s, l)| fit(s, l)).collect();
        // The first hole that is large enough for all, else the largest.
        let chosen = holes
            .iter()
            .find(|(_, room)| *room >= copies * len)
            .or_else(|| holes.iter().max_by_key(|(_, room)| *room))
            .copied()?;
        let one_hole = (chosen.1 / copies / STRIPE_LEN * STRIPE_LEN).min(len);
        let together = |n| Physical(chosen.0 + n * one_hole);
        if one_hole == len || copies == 1 {
            return (one_hole >= min).then(|| ((0..copies).map(together).collect(), one_hole));
        }
        holes.sort_by_key(|(_, room)| std::cmp::Reverse(*room));
        let apart = holes.get(copies as usize - 1).map_or(0, |(_, room)| *room).min(len);
        if apart > one_hole && apart >= min {
            let starts = holes[..copies as usize].iter().map(|(start, _)| Physical(*start));
            return Some((starts.collect(), apart));
        }
        (one_hole >= min).then(|| ((0..copies).map(together).collect(), one_hole))
    }
}

/// The part of a hole that whole stripes can have.
fn fit(start: u64, len: u64) -> (u64, u64) {
    let low = start.next_multiple_of(STRIPE_LEN);
    (low, ((start + len) / STRIPE_LEN * STRIPE_LEN).saturating_sub(low))
}

/// Logical ranges of a chunk under superblock copies, in whole 64 KiB pieces.
pub(super) fn excluded(chunk: &ChunkInfo) -> Vec<(u64, u64)> {
    let mut out = Ranges::new();
    let (first, end) = (chunk.logical.0, chunk.end());
    let mut add = |from: u64, to: u64| {
        let mut piece = from;
        while piece < to.min(end) {
            let len = STRIPE_LEN.min(end - piece);
            // Copies of DUP may exclude the same piece twice.
            let _ = out.insert(piece, len);
            piece += STRIPE_LEN;
        }
    };
    for (_, stripe) in &chunk.stripes {
        for at in super_copies(u64::MAX).filter(|at| *at + SUPER_EXCLUDED > stripe.0) {
            let low = at.saturating_sub(stripe.0) / STRIPE_LEN * STRIPE_LEN;
            let high = (at + SUPER_EXCLUDED - stripe.0).next_multiple_of(STRIPE_LEN);
            add(first + low, first + high);
        }
    }
    if first < STRIPE_LEN {
        add(first, STRIPE_LEN);
    }
    out.iter().collect()
}

/// The size that the kernel would give a chunk, before it looks for room.
fn wanted_len(flags: u64, total: u64) -> u64 {
    let largest = if flags & SYSTEM != 0 {
        32 * MIB
    } else if flags & METADATA != 0 && total <= 50 * GIB {
        256 * MIB
    } else {
        GIB
    };
    let tenth = (total / 10 / STRIPE_LEN * STRIPE_LEN).max(SMALLEST);
    largest.min(tenth)
}

impl Space {
    /// Makes one chunk more for `kind` unless chunks have come or gone since there were `seen`
    /// changes of them: what the caller looked for in vain may be there now. `NoSpace` where the
    /// device is full.
    pub(super) fn chunk_for(&self, kind: Kind, seen: u64) -> Result<Option<NewChunk>> {
        let mut device = self.device.lock();
        if self.chunk_changes() != seen {
            return Ok(None);
        }
        self.make_chunk(&mut device, kind).map(Some)
    }

    /// Makes chunks before they are needed, as long as the device has plenty: a tree log must
    /// not refer to chunks that its commit does not know, so a commit is to come first. True
    /// if there are new ones.
    pub fn make_ahead(&self) -> bool {
        let kinds = [Kind::Data, Kind::Metadata];
        if self.mixed() || !kinds.iter().any(|kind| self.is_scarce(*kind)) {
            return false;
        }
        let mut device = self.device.lock();
        let mut make = |kind: &Kind| {
            // Not where reservations leave room for a small one alone. Whoever needs one finds out.
            let least = wanted_len(self.class(*kind).type_flags, self.device_bytes());
            let room = *kind != Kind::Data || self.data_room(&device) >= least;
            room && self.is_scarce(*kind) && self.make_chunk(&mut device, *kind).is_ok()
        };
        // Both, not the first.
        kinds.iter().filter(|kind| make(kind)).count() > 0
    }

    /// Little is left of a kind, and half of the device is in no chunk.
    fn is_scarce(&self, kind: Kind) -> bool {
        let plenty = self.unallocated.load(Ordering::Relaxed) >= self.device_bytes() / 2;
        plenty && self.class(kind).available() < self.low_mark(kind) as i64
    }

    fn low_mark(&self, kind: Kind) -> u64 {
        let part = if kind == Kind::Data { AHEAD_OF_DATA } else { AHEAD_OF_METADATA };
        wanted_len(self.class(kind).type_flags, self.device_bytes()) / part
    }

    /// If room for data runs short in the chunks that there are: below how many bytes that is.
    pub fn low_on_data(&self) -> Option<u64> {
        let mark = self.low_mark(Kind::Data);
        (self.class(Kind::Data).available() < mark as i64).then_some(mark)
    }

    /// Makes a chunk for `kind`. It can be allocated from at once; the next commit
    /// records it.
    pub fn new_chunk(&self, kind: Kind) -> Result<NewChunk> {
        self.make_chunk(&mut self.device.lock(), kind)
    }

    /// True if chunks came or went that no commit has recorded, or the device has another size.
    pub fn has_unrecorded(&self) -> bool {
        let device = self.device.lock();
        let size = self.volume.superblock().fields.dev_item.total_bytes;
        let chunks = !device.unrecorded.is_empty() || !device.gone.is_empty();
        chunks || device.item.total_bytes != size
    }

    /// New and gone chunks that commits have not recorded yet; from now on the caller's to
    /// record.
    pub fn take_chunks(&self) -> (Vec<NewChunk>, Vec<GoneChunk>, DevItem) {
        let mut device = self.device.lock();
        let gone = std::mem::take(&mut device.gone);
        (std::mem::take(&mut device.unrecorded), gone, device.item)
    }

    /// The commit `generation` has these chunks in its trees.
    pub(crate) fn recorded(&self, chunks: &[NewChunk], generation: Generation) {
        let device = self.device.lock();
        for group in chunks.iter().filter_map(|new| self.group_at(new.logical)) {
            group.recorded.store(generation.0, Ordering::Release);
        }
        if device.unrecorded.is_empty() {
            self.all_recorded.store(generation.0, Ordering::Release);
        }
    }

    /// Whether the commit `generation` knows all chunks that there are.
    pub fn is_all_recorded(&self, generation: Generation) -> bool {
        self.all_recorded.load(Ordering::Acquire) <= generation.0
    }

    /// Whether the commit `generation` knows the chunk at `logical`.
    pub fn is_recorded(&self, logical: Logical, generation: Generation) -> bool {
        let known = |group: Arc<Group>| group.recorded.load(Ordering::Acquire) <= generation.0;
        self.group_at(logical).is_some_and(known)
    }

    fn make_chunk(&self, device: &mut Device, kind: Kind) -> Result<NewChunk> {
        let class = self.class(kind);
        let len = wanted_len(class.type_flags | class.profile(), device.item.total_bytes);
        let room = match kind {
            Kind::Data => self.data_room(device),
            _ => device.unallocated(),
        };
        self.make_chunk_of(device, kind, len, room)
    }

    /// A chunk of up to `len` bytes that takes no more than `room` of the device.
    pub(super) fn make_chunk_of(
        &self,
        device: &mut Device,
        kind: Kind,
        len: u64,
        room: u64,
    ) -> Result<NewChunk> {
        let form = self.class(kind).form();
        self.make_chunk_as(device, kind, form, len, room)
    }

    /// The same of these flags and so many copies.
    pub(super) fn make_chunk_as(
        &self,
        device: &mut Device,
        kind: Kind,
        (flags, copies): (u64, u64),
        len: u64,
        room: u64,
    ) -> Result<NewChunk> {
        let min = if kind == Kind::System { STRIPE_LEN } else { SMALLEST.min(len) };
        let len = len.min(room / copies / STRIPE_LEN * STRIPE_LEN);
        if kind == Kind::System && !self.can_have_system_chunk(copies) {
            return Err(Error::NoSpace);
        }
        let placed = if len >= min { device.place(copies, len, min) } else { None };
        let (stripes, len) = placed.ok_or(Error::NoSpace)?;
        let new = self.describe(device, flags, len, &stripes);
        if new.logical.0 + len > ADDRESSES_END {
            return Err(Error::NoSpace);
        }
        self.volume.add_chunk(new.logical, &new.chunk)?;
        for start in &stripes {
            device.holes.subtract(start.0, len);
        }
        device.item.bytes_used += len * copies;
        device.next_logical = new.logical.0 + len;
        device.unrecorded.push(new.clone());
        self.all_recorded.store(u64::MAX, Ordering::Release);
        self.publish_group(&new, flags, len)?;
        self.retune(device);
        self.chunks_changed();
        Ok(new)
    }

    /// Chunks that have come and gone so far. Who reads it before he looks for room, and again when he found
    /// none, knows whether to look once more.
    pub fn chunk_changes(&self) -> u64 {
        self.chunk_changes.load(Ordering::Acquire)
    }

    /// The chunk lock is held, and what reservations may count on is known already.
    pub(super) fn chunks_changed(&self) {
        self.chunk_changes.fetch_add(1, Ordering::Release);
    }

    /// The superblock has to name it beside all others: one too many, and no commit succeeds any more.
    fn can_have_system_chunk(&self, copies: u64) -> bool {
        let size = |stripes: usize| KEY_SIZE + ChunkFields::SIZE + stripes * Stripe::SIZE;
        let chunks = self.volume.chunks();
        let named = chunks.iter().filter(|chunk| chunk.flags & SYSTEM != 0);
        let bytes: usize = named.map(|chunk| size(chunk.stripes.len())).sum();
        bytes + size(copies as usize) <= SYS_CHUNK_ARRAY_SIZE
    }

    /// Room on the device is all that a chunk of this kind can lack: the superblock could name it, and there are
    /// addresses for it.
    pub(super) fn lacks_room_alone(&self, device: &Device, kind: Kind) -> bool {
        let (_, copies) = self.class(kind).form();
        let named = kind != Kind::System || self.can_have_system_chunk(copies);
        named && device.next_logical < ADDRESSES_END - SMALLEST
    }

    /// Device bytes that a data chunk may take: metadata reservations keep theirs.
    pub(super) fn data_room(&self, device: &Device) -> u64 {
        self.data_room_without(device, 0)
    }

    /// The same if `forgone` bytes of metadata reservations were given back.
    fn data_room_without(&self, device: &Device, forgone: u64) -> u64 {
        let metadata = self.class(Kind::Metadata);
        let owed = if self.mixed() { 0 } else { metadata.owed(forgone) };
        if owed == 0 {
            return device.unallocated();
        }
        // Chunks of metadata lie in holes that are large enough, and what a chunk of data leaves of one may
        // not be any more.
        let lost = SMALLEST * metadata.copies();
        device.placeable(metadata.copies()).saturating_sub(owed + lost)
    }

    /// Whether data could have a chunk, or one of metadata, if only `forgone` bytes of
    /// metadata reservations were given back.
    pub fn reservations_block_data(&self, forgone: u64) -> bool {
        if self.mixed() {
            return false;
        }
        let device = self.device.lock();
        let least = SMALLEST * self.class(Kind::Data).copies();
        let room = |forgone| self.data_room_without(&device, forgone) >= least;
        let metadata = self.class(Kind::Metadata);
        let kept = metadata.global_reserve.load(Ordering::Relaxed);
        let spare = metadata.available() - kept;
        let closes = |group: &Arc<Group>| {
            let usable = group.empty().unwrap_or(u64::MAX) as i64;
            usable > spare && usable <= spare.saturating_add(forgone as i64)
        };
        let groups = self.list(Kind::Metadata).snapshot();
        (!room(0) && room(forgone)) || (groups.len() > 1 && groups.iter().any(closes))
    }

    fn describe(&self, device: &Device, flags: u64, len: u64, at: &[Physical]) -> NewChunk {
        let fields = ChunkFields {
            length: len,
            owner: btrfs_disk::TreeId::EXTENT.0,
            stripe_len: STRIPE_LEN,
            kind: flags,
            io_align: STRIPE_LEN as u32,
            io_width: STRIPE_LEN as u32,
            sector_size: self.volume.geometry().sector_size,
            num_stripes: at.len() as u16,
            sub_stripes: 1,
        };
        let (devid, dev_uuid) = (device.item.devid, device.item.uuid);
        let stripes = at.iter().map(|at| Stripe { devid, offset: at.0, dev_uuid }).collect();
        let logical = Logical(device.next_logical.next_multiple_of(STRIPE_LEN));
        NewChunk { logical, chunk: Chunk { fields, stripes } }
    }

    fn publish_group(&self, new: &NewChunk, flags: u64, len: u64) -> Result<()> {
        let info = ChunkInfo {
            logical: new.logical,
            len,
            flags,
            stripes: new.chunk.stripes.iter().map(|s| (s.devid, Physical(s.offset))).collect(),
        };
        let span = Extent { logical: new.logical, len };
        let list = self.list_of_flags(flags);
        let class = Arc::clone(list.class());
        let group = Arc::new(Group::new(span, flags, class, excluded(&info), 0));
        // Made by this mount: there is nothing to hold it against.
        group.proof.needless();
        group.recorded.store(u64::MAX, Ordering::Release);
        self.groups.write().insert(new.logical.0, Arc::clone(&group));
        list.add(vec![Arc::clone(&group)]);
        group.add_free(std::iter::once((span.logical.0, len)))
    }

    /// What reservations may count on, from what the device and the groups have now.
    pub(super) fn retune(&self, device: &Device) {
        let unallocated = device.unallocated();
        // Behind what new chunks have free: see `could_hold`.
        self.unallocated.store(unallocated, Ordering::Release);
        let class = self.class(Kind::Metadata);
        let placeable = device.placeable(class.copies());
        class.count_on(if self.mixed() { 0 } else { placeable });
        let total = class.total.load(Ordering::Relaxed);
        let used = class.used.load(Ordering::Relaxed);
        let (reserve, last, commit) = match device.kept {
            Some(Kept { commit, removal, in_place, wish }) => {
                let least = (commit + removal).min(total / 2);
                // What commits need is whole where both fit, and half of it where they do not.
                let of_commits = least.saturating_sub(removal).max(least / 2).min(commit);
                let in_place = if self.mixed() { in_place } else { 0 };
                let all = (least + in_place).min(total / 2);
                (wish.min(total / 8).max(all), least, of_commits)
            }
            None => {
                let reserve = (used / 8).clamp(4 * MIB, 512 * MIB).min(total / 8);
                (reserve, reserve, 0)
            }
        };
        class.global_reserve.store(reserve as i64, Ordering::Relaxed);
        class.last_reserve.store(last as i64, Ordering::Relaxed);
        class.commit_reserve.store(commit as i64, Ordering::Relaxed);
    }
}
