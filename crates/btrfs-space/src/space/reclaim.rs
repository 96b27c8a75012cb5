//! Empty chunks go back to the device when the other kind of data needs their room.
//!
//! Invariants: a chunk goes only if nothing of it is used, pinned or in flight, and if the
//! reservations of its kind are covered without it; the last one of a kind with the profile that
//! new ones get stays, since it alone says so. From then on nothing can be allocated in it; the next
//! commit records that it is gone. Its room on the device is free at once: no tree of the
//! last commit refers to anything in it, which is not believed: as before an allocation from it, the chunk is held
//! against the extent tree, and stays where that has something there. The device's first MiB is not: it is a boot loader's, and
//! an old mkfs put a chunk there all the same.

use super::chunk_alloc::{Device, GoneChunk};
use super::group::Group;
use super::{Kind, Space};
use btrfs_disk::{Logical, Result};
use btrfs_volume::SUPER_EXCLUDED;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of the data group that stays where there is no data: as `mkfs.btrfs` makes it.
const LAST: u64 = 8 << 20;
/// Of that, what content can have wherever it lies: copies of the superblock may be in each of two stripes.
const LAST_USABLE: u64 = LAST - 2 * SUPER_EXCLUDED;

impl Space {
    /// Gives one empty chunk of another kind back, so that `kind` can have its room; false
    /// if there is none, or if room on the device is not what `kind` lacks. Nor is one given back where chunks
    /// have come or gone since there were `seen` changes of them ([`Space::chunk_changes`]): whoever found no
    /// room then may find some now, which another has made.
    pub fn reclaim_for(&self, kind: Kind, seen: u64) -> Result<bool> {
        #[cfg(feature = "fault-injection")]
        self.faults.come_between(super::Moment::Reclaim, self);
        let from = match kind {
            Kind::Data => Kind::Metadata,
            Kind::Metadata | Kind::System => Kind::Data,
        };
        if self.mixed() {
            return Ok(false);
        }
        let mut device = self.device.lock();
        if self.chunk_changes() != seen {
            return Ok(true);
        }
        if !self.lacks_room_alone(&device, kind) {
            return Ok(false);
        }
        let class = self.class(from);
        let floor = match from {
            Kind::Metadata => class.global_reserve.load(Ordering::Relaxed),
            _ => 0,
        };
        let groups = self.list(from).snapshot();
        let last = self.last_of(&groups);
        // The newest first: those of mkfs are the smallest.
        for group in groups.iter().rev() {
            let stays = group.is_set_aside() || last.is_some_and(|last| last.start == group.start);
            if !stays && group.seems_empty() && self.is_proven(group) && group.close(floor) {
                self.give_up(&mut device, group)?;
                return Ok(true);
            }
        }
        last.map_or(Ok(false), |last| self.exchange_last(&mut device, from, last))
    }

    /// The only one of all groups, or of those with the profile that new ones get.
    fn last_of<'g>(&self, groups: &'g [Arc<Group>]) -> Option<&'g Arc<Group>> {
        if let [last] = groups {
            return Some(last);
        }
        let mut as_wanted = groups.iter().filter(|group| self.is_as_wanted(group));
        as_wanted.next().filter(|_| as_wanted.next().is_none())
    }

    /// The last empty data group of a volume full of metadata (of small files, say) makes
    /// room, too: a smaller one takes its place, which keeps the profile.
    fn exchange_last(&self, device: &mut Device, kind: Kind, last: &Arc<Group>) -> Result<bool> {
        let worth = kind == Kind::Data && last.len >= 2 * LAST && !last.is_set_aside();
        // What is reserved then must fit the new group. Who looks for room meanwhile waits for
        // the chunk lock.
        if !worth || !last.seems_empty() || !self.is_room_instead_of(device, last) {
            return Ok(false);
        }
        if !self.is_proven(last) || !last.close(-(LAST_USABLE as i64)) {
            return Ok(false);
        }
        // Behind it those that are left would say what new ones are.
        let form = self.class(kind).form();
        self.give_up(device, last)?;
        self.make_chunk_as(device, kind, form, LAST, LAST * form.1).map(|_| true)
    }

    /// Whether nothing is in a group that seems empty. Who looks for room goes on without one that may have
    /// something, so it is said here; it is looked at once, since everybody who needs a chunk waits for that.
    fn is_proven(&self, group: &Group) -> bool {
        if group.doubtful.load(Ordering::Relaxed) {
            return false;
        }
        let proven = self.prove(group);
        if let Err(why) = &proven {
            group.doubtful.store(true, Ordering::Relaxed);
            let (start, len) = (group.start, group.len);
            tracing::error!(
                group = start,
                len,
                ?why,
                "a block group that seems empty is not given back"
            );
        }
        proven.is_ok()
    }

    /// Whether a small group finds a place once this one is gone: while the device is made smaller
    /// what lies behind its end to be is none.
    fn is_room_instead_of(&self, device: &mut Device, last: &Group) -> bool {
        let before = device.holes.clone();
        let chunk = self.volume.chunk(Logical(last.start));
        for (_, at) in chunk.iter().flat_map(|chunk| &chunk.stripes) {
            device.open_hole(at.0, last.len);
        }
        let found = device.can_make(last.class.copies(), LAST);
        device.holes = before;
        found
    }

    pub(super) fn give_up(&self, device: &mut Device, group: &Arc<Group>) -> Result<()> {
        let logical = Logical(group.start);
        let stripes = self.volume.chunk(logical).map_or(Vec::new(), |chunk| chunk.stripes);
        for (_, at) in &stripes {
            device.open_hole(at.0, group.len);
            device.item.bytes_used = device.item.bytes_used.saturating_sub(group.len);
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
        self.list_of_flags(group.flags).remove(group);
        self.groups.write().remove(&group.start);
        self.volume.remove_chunk(logical)?;
        self.retune(device);
        self.chunks_changed();
        Ok(())
    }
}
