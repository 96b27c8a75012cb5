//! Quota groups: what each says it holds, against what its subvolumes really reach.
//!
//! An extent counts for a group if any of the group's subvolumes reaches it, and as
//! exclusive if no subvolume outside of the group does. Simple quotas count an extent of after they began for
//! its first owner alone: content says it, of a tree block it is the tree in its header. Not looked at while the kernel
//! itself would not trust the numbers: quotas that are off, being rescanned or marked as
//! inconsistent; subvolumes that are half deleted; an interrupted balance.

use crate::extents::ExtentTree;
use crate::qgroup_items::QgroupItems;
use crate::reach::Reached;
use crate::refs::Usage;
use crate::source::Context;
use crate::walk::Leaf;
use crate::{Finding, FindingKind, QuotaBytes as Counts, QuotaCount, QuotaReport};
use btrfs_disk::TreeId;
use btrfs_disk::ids::incompat;
use btrfs_disk::items::simple_quotas_since;
use btrfs_disk::key::kind;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// `BTRFS_QGROUP_STATUS_FLAG_ON`: quotas are kept.
const ON: u64 = 1;
const RESCAN: u64 = 2;
const INCONSISTENT: u64 = 4;

#[derive(Default)]
pub(crate) struct Quotas {
    generation: u64,
    flags: u64,
    /// They are simple, and began in this generation.
    pub simple: Option<u64>,
    groups: BTreeMap<u64, Counts>,
    items: QgroupItems,
    /// Parents of a group.
    parents: BTreeMap<u64, Vec<u64>>,
}

impl Quotas {
    pub(crate) fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            self.items.item(key);
            let word = |i: usize| {
                let bytes = data.get(i * 8..i * 8 + 8);
                bytes.map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")))
            };
            match key.kind {
                kind::QGROUP_STATUS => {
                    (self.generation, self.flags) = (word(1), word(2));
                    self.simple = simple_quotas_since(data);
                }
                kind::QGROUP_INFO => {
                    let counts = Counts { referenced: word(1), exclusive: word(3) };
                    self.groups.insert(key.offset, counts);
                }
                // Each relation is there twice; a parent is of a higher level.
                kind::QGROUP_RELATION if key.objectid >> 48 < key.offset >> 48 => {
                    self.parents.entry(key.objectid).or_default().push(key.offset);
                }
                kind::QGROUP_RELATION | kind::QGROUP_LIMIT => {}
                _ => cx.add(Finding::new(FindingKind::ItemUnknown).tree(leaf.tree).key(key)),
            }
        }
    }

    /// What its items say of each other.
    pub(crate) fn check_items(&self, cx: &mut Context<'_>, alive: impl Iterator<Item = TreeId>) {
        // Simple quotas count what a subvolume owns: one that owns something and has no group is found there.
        let counted = self.flags & ON != 0 && self.simple.is_none();
        self.items.check(cx, alive.filter(|_| counted));
    }

    /// Whether the numbers are to be believed.
    pub(crate) fn trusted(&self, cx: &Context<'_>) -> bool {
        let newest = self.generation == cx.volume.root_generation().0;
        newest && self.flags & ON != 0 && self.flags & (RESCAN | INCONSISTENT) == 0
    }

    /// As the volume has them beside what was counted.
    pub(crate) fn report(&self, counted: &BTreeMap<u64, Counts>) -> QuotaReport {
        let group = |(id, stored): (&u64, &Counts)| {
            let counted = counted.get(id).copied().unwrap_or_default();
            QuotaCount { id: *id, stored: *stored, counted }
        };
        QuotaReport {
            inconsistent: self.flags & INCONSISTENT != 0,
            rescanning: self.flags & RESCAN != 0,
            groups: self.groups.iter().map(group).collect(),
        }
    }

    /// By who reaches what.
    pub(crate) fn count(&self, reached: &Reached) -> BTreeMap<u64, Counts> {
        let mut counted: BTreeMap<u64, Counts> = BTreeMap::new();
        let mut groups_of: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut users: HashMap<u64, usize> = HashMap::new();
        for (way, len) in reached.by_way() {
            users.clear();
            let mut trees = 0;
            for tree in reached.trees(way) {
                trees += 1;
                let groups = groups_of.entry(tree).or_insert_with(|| self.with(tree));
                for group in groups.iter() {
                    *users.entry(*group).or_default() += 1;
                }
            }
            for (group, count) in &users {
                let counts = counted.entry(*group).or_default();
                let alone = if *count == trees { len } else { 0 };
                counts.referenced = counts.referenced.saturating_add(len);
                counts.exclusive = counts.exclusive.saturating_add(alone);
            }
        }
        counted
    }

    pub(crate) fn check(&self, cx: &mut Context<'_>, counted: &BTreeMap<u64, Counts>) {
        for (group, stored) in &self.groups {
            let counted = counted.get(group).copied().unwrap_or_default();
            if counted != *stored {
                let kind = FindingKind::QgroupCount {
                    level: group >> 48,
                    id: group & ((1 << 48) - 1),
                    referenced: stored.referenced,
                    exclusive: stored.exclusive,
                    really_referenced: counted.referenced,
                    really_exclusive: counted.exclusive,
                };
                cx.add(Finding::new(kind).tree(TreeId::QUOTA));
            }
        }
    }

    /// The same of simple quotas, by extents and the blocks that were seen. What was counted.
    pub(crate) fn check_simple(
        &self,
        cx: &mut Context<'_>,
        since: u64,
        stored: &ExtentTree,
        usage: &Usage,
    ) -> BTreeMap<u64, Counts> {
        if cx.volume.superblock().fields.incompat_flags & incompat::SIMPLE_QUOTA == 0 {
            cx.add(Finding::new(FindingKind::SimpleQuotaFlag));
        }
        let mut owned = BTreeMap::<u64, u64>::new();
        for extent in stored.extents.iter().filter(|extent| extent.generation >= since) {
            let owner = match extent.is_block() {
                true => usage.blocks.get(&extent.start).map(|block| block.owner),
                false => extent.first_owner,
            };
            // In the generation itself the kernel may have been at it before they began.
            if owner.is_none() && !extent.is_block() && extent.generation > since {
                cx.add(Finding::new(FindingKind::ExtentOwnerMissing).at(extent.start));
            }
            if let Some(tree) = owner.filter(|tree| tree.is_subvolume() && tree.0 >> 48 == 0) {
                let sum = owned.entry(tree.0).or_default();
                *sum = sum.saturating_add(extent.len);
            }
        }
        let mut counted = BTreeMap::<u64, u64>::new();
        for (id, owned) in owned {
            if !self.groups.contains_key(&id) {
                cx.add(Finding::new(FindingKind::QgroupMissing { id, owned }).tree(TreeId::QUOTA));
            }
            for group in self.with(id) {
                let sum = counted.entry(group).or_default();
                *sum = sum.saturating_add(owned);
            }
        }
        self.compare_simple(cx, &counted);
        let both = |(id, owned)| (id, Counts { referenced: owned, exclusive: owned });
        counted.into_iter().map(both).collect()
    }

    fn compare_simple(&self, cx: &mut Context<'_>, counted: &BTreeMap<u64, u64>) {
        for (group, stored) in &self.groups {
            let owned = counted.get(group).copied().unwrap_or(0);
            if (stored.referenced, stored.exclusive) != (owned, owned) {
                let kind = FindingKind::QgroupOwned {
                    level: group >> 48,
                    id: group & ((1 << 48) - 1),
                    referenced: stored.referenced,
                    exclusive: stored.exclusive,
                    owned,
                };
                cx.add(Finding::new(kind).tree(TreeId::QUOTA));
            }
        }
    }

    /// A subvolume's own group and all above it.
    fn with(&self, tree: u64) -> Vec<u64> {
        let mut all = BTreeSet::from([tree]);
        let mut queue = vec![tree];
        while let Some(group) = queue.pop() {
            for parent in self.parents.get(&group).into_iter().flatten() {
                if all.insert(*parent) {
                    queue.push(*parent);
                }
            }
        }
        all.into_iter().collect()
    }
}
