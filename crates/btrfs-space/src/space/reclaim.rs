//! Empty chunks go back to the device when the other kind of data needs their room.
//!
//! Invariants: a chunk goes only if nothing of it is used, pinned or in flight, and if the
//! reservations of its kind are covered without it; the last one of a kind stays, since it
//! says which profile new ones get. From then on nothing can be allocated in it; the next
//! commit records that it is gone. Its room on the device is free at once: no tree of the
//! last commit refers to anything in it.

use super::chunk_alloc::Device;
use super::group::Group;
use super::{Kind, Space};
use btrfs_disk::{Logical, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of the data group that stays where there is no data: as `mkfs.btrfs` makes it.
const LAST: u64 = 8 << 20;

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

impl Space {
    /// Gives one empty chunk of another kind back, so that `kind` can have its room; false
    /// if there is none.
    pub fn reclaim_for(&self, kind: Kind) -> Result<bool> {
        let from = match kind {
            Kind::Data => Kind::Metadata,
            Kind::Metadata | Kind::System => Kind::Data,
        };
        if self.mixed() {
            return Ok(false);
        }
        let mut device = self.device.lock();
        let class = self.class(from);
        let floor = match from {
            Kind::Metadata => class.global_reserve.load(Ordering::Relaxed),
            _ => 0,
        };
        let groups = class.snapshot();
        if let [last] = &groups[..] {
            return self.exchange_last(&mut device, from, last);
        }
        // The newest first: those of mkfs are the smallest.
        for group in groups.iter().rev() {
            if !group.is_set_aside() && group.close(floor) {
                self.give_up(&mut device, group)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The last empty data group of a volume full of metadata (of small files, say) makes
    /// room, too: a smaller one takes its place, which keeps the profile.
    fn exchange_last(&self, device: &mut Device, kind: Kind, last: &Arc<Group>) -> Result<bool> {
        let worth = kind == Kind::Data && last.len >= 2 * LAST;
        // What is reserved then must fit the new group. Who looks for room meanwhile waits for
        // the chunk lock.
        if !worth || !last.close(-(LAST as i64)) {
            return Ok(false);
        }
        self.give_up(device, last)?;
        let room = LAST * self.class(kind).copies();
        self.make_chunk_of(device, kind, LAST, room).map(|_| true)
    }

    pub(super) fn give_up(&self, device: &mut Device, group: &Arc<Group>) -> Result<()> {
        let logical = Logical(group.start);
        let stripes = self.volume.chunk(logical).map_or(Vec::new(), |chunk| chunk.stripes);
        for (_, at) in &stripes {
            // A hole there already would be damage that loading has refused.
            let _ = device.holes.insert(at.0, group.len);
            device.item.bytes_used = device.item.bytes_used.saturating_sub(group.len);
        }
        if let Some(limit) = device.limit {
            device.holes.subtract(limit, device.item.total_bytes - limit);
        }
        match device.unrecorded.iter().position(|new| new.logical == logical) {
            Some(at) => {
                device.unrecorded.remove(at);
            }
            None => device.gone.push(GoneChunk {
                logical,
                len: group.len,
                stripes: stripes.iter().map(|(devid, at)| (*devid, at.0)).collect(),
            }),
        }
        group.class.remove_group(group);
        self.groups.write().remove(&group.start);
        self.volume.remove_chunk(logical)?;
        self.retune(device);
        Ok(())
    }
}
