//! What there is in numbers: for statfs, budgets and tests.

use super::class::Class;
use super::{Kind, Space};
use crate::Extent;
use btrfs_disk::ids::block_group;
use btrfs_disk::{Logical, Result};
use std::sync::atomic::Ordering;

/// Bytes of all block groups of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassTotals {
    /// Lengths of the groups added up; copies are not counted.
    pub total: u64,
    /// Referenced by the trees of the last settled commit.
    pub used: u64,
    /// Freed, but not yet reusable.
    pub pinned: u64,
    /// Can be allocated.
    pub free: u64,
    /// Held by reservations.
    pub reserved: u64,
    /// Taken by superblock copies.
    pub excluded: u64,
    /// How many copies a byte has on the device.
    pub copies: u64,
}

/// Numbers of the whole volume. Each is read by itself: while others write they may not add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Groups for file content.
    pub data: ClassTotals,
    /// Of a mixed volume the same as `data`.
    pub metadata: ClassTotals,
    /// Groups for the chunk tree.
    pub system: ClassTotals,
    /// Device bytes in no chunk.
    pub unallocated: u64,
    /// Bytes of the device that the volume may use (`total_bytes` of its DEV_ITEM).
    pub device: u64,
    /// Bytes of metadata that only removals and commits may take ([`Space::keep`]).
    pub global_reserve: u64,
    /// Data and metadata share their block groups (MIXED_GROUPS).
    pub mixed: bool,
}

/// One block group as of now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupInfo {
    /// Where it begins.
    pub logical: Logical,
    /// Its chunk's length in bytes, copies not counted.
    pub len: u64,
    /// `block_group` bits: its type and its profile.
    pub flags: u64,
    /// Bytes that the trees of the last settled commit reference.
    pub used: u64,
    /// (start, length) of what superblock copies take.
    pub excluded: Vec<(u64, u64)>,
    /// (start, length) of what can be allocated, ascending.
    pub free: Vec<(u64, u64)>,
}

fn totals(class: &Class) -> ClassTotals {
    let (available, free) = (class.available(), class.free());
    ClassTotals {
        total: class.total.load(Ordering::Relaxed),
        used: class.used.load(Ordering::Relaxed),
        pinned: class.pinned.load(Ordering::Relaxed),
        free: free.max(0) as u64,
        reserved: (free - available).max(0) as u64,
        excluded: class.excluded.load(Ordering::Relaxed),
        copies: class.copies(),
    }
}

impl Space {
    /// In debug builds: what block groups say is used is what their classes were told.
    pub(crate) fn assert_settled(&self) {
        self.lists.iter().for_each(|list| list.assert_settled());
    }

    /// A handful of atomic loads: cheap enough for every operation.
    pub fn totals(&self) -> Totals {
        let of = |kind| totals(self.class(kind));
        let metadata = self.class(Kind::Metadata);
        Totals {
            data: of(Kind::Data),
            metadata: of(Kind::Metadata),
            system: of(Kind::System),
            unallocated: self.unallocated.load(Ordering::Relaxed),
            device: self.device_bytes(),
            global_reserve: metadata.global_reserve.load(Ordering::Relaxed).max(0) as u64,
            mixed: self.mixed(),
        }
    }

    /// Bytes freed but not yet reusable: a commit and `unpin` would give them back.
    pub fn pinned(&self, kind: Kind) -> u64 {
        self.class(kind).pinned.load(Ordering::Relaxed)
    }

    /// Pieces that the free space of one kind is in, about.
    pub fn pieces(&self, kind: Kind) -> u64 {
        self.class(kind).pieces.load(Ordering::Relaxed).max(0) as u64
    }

    /// Nodes of all commits for which no reservation was left: 0 as long as what is
    /// reserved is an upper bound.
    pub fn unpaid_nodes(&self) -> u64 {
        self.class(Kind::Metadata).unpaid.load(Ordering::Relaxed)
    }

    /// Bytes of one kind that are free and not reserved, above what is kept for removal.
    pub fn unreserved(&self, kind: Kind) -> u64 {
        let class = self.class(kind);
        let keeps = kind != Kind::Data || self.mixed();
        let kept = if keeps { class.global_reserve.load(Ordering::Relaxed) } else { 0 };
        let more = class.overcommit.load(Ordering::Relaxed);
        (class.available() + more - kept).max(0) as u64
    }

    /// Bytes of metadata that are not reserved, with all that is kept for removals and commits.
    pub fn room_for_commits(&self) -> u64 {
        let class = self.class(Kind::Metadata);
        (class.available() + class.overcommit.load(Ordering::Relaxed)).max(0) as u64
    }

    /// Referenced bytes of one kind of block group; one atomic load.
    pub fn used_by(&self, kind: Kind) -> u64 {
        self.class(kind).used.load(Ordering::Relaxed)
    }

    /// Bytes that all trees reference: the superblock's `bytes_used`.
    pub fn used(&self) -> u64 {
        self.groups.read().values().map(|group| group.used()).sum()
    }

    /// Profile bits of the chunks that `kind` gets.
    pub fn profile_of(&self, kind: Kind) -> u64 {
        self.class(kind).profile()
    }

    /// Where each block group begins, and what of it is referenced.
    pub fn used_by_groups(&self) -> Vec<(u64, u64)> {
        self.groups.read().values().map(|group| (group.start, group.used())).collect()
    }

    /// What of the block group that begins there is referenced. `None`: there is none any more.
    pub fn used_of(&self, start: Logical) -> Option<u64> {
        #[cfg(feature = "fault-injection")]
        self.faults.come_between(super::Moment::Used, self);
        self.groups.read().get(&start.0).map(|group| group.used())
    }

    /// The addresses of each block group, and whether nodes may lie in it.
    pub fn groups(&self) -> Vec<(std::ops::Range<u64>, bool)> {
        let nodes = block_group::METADATA | block_group::SYSTEM;
        let groups = self.groups.read();
        groups.values().map(|g| (g.start..g.start + g.len, g.flags & nodes != 0)).collect()
    }

    /// All groups by ascending address. Each is asked by itself, others may write meanwhile.
    pub fn group_infos(&self) -> Vec<GroupInfo> {
        let groups = self.groups.read();
        let info = |group: &std::sync::Arc<super::Group>| GroupInfo {
            logical: Logical(group.start),
            len: group.len,
            flags: group.flags,
            used: group.used(),
            excluded: group.excluded_ranges().to_vec(),
            free: group.free_ranges(),
        };
        groups.values().map(info).collect()
    }

    /// The kind of block group that an extent lies in (mixed: data).
    pub fn kind_of(&self, extent: &Extent) -> Result<Kind> {
        Ok(self.kind_of_group(&*self.group_of(extent)?))
    }

    pub(super) fn kind_of_group(&self, group: &super::group::Group) -> Kind {
        let is = |kind: Kind| self.class(kind).type_flags == group.class.type_flags;
        [Kind::Data, Kind::Metadata].into_iter().find(|k| is(*k)).unwrap_or(Kind::System)
    }
}
