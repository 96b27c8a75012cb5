//! Simple quotas in one commit: who wrote an extent first is charged for it until its last reference goes.
//!
//! The rule. An extent of the generation in which these quotas began, or of a later one, counts by the length
//! that it takes on the volume for the subvolume that owns it, whoever reaches it. Content says who that is
//! (EXTENT_OWNER_REF); of a tree block it is the tree in its header. So what a group of level 0 counts is a sum over
//! the extent tree, and what a group above counts is the sum of the subvolumes in it. What a
//! commit changes of that is what its first drain creates and frees: all that a subvolume owns comes and
//! goes there, moves included, since no edit of a subvolume comes behind it.
//!
//! Invariants: numbers and status are of the same commit as what they count. A charge has a group: where one
//! is missing it is made, since the kernel gives up where it finds none for what it frees. Numbers
//! that cannot have been right become 0, and the status says INCONSISTENT.
//!
//! What it does not know: limits, and who is refused.

use super::account::GroupId;
use super::groups::{Status, info, info_key, level, limit_key, with_ancestors};
use super::regroup::regroup_simple;
use super::settle::{
    Edits, QuotaCommit, info_with, mark_inconsistent, nothing_counted, plus, status_edit,
    without_group,
};
use crate::items::{Items, TreeItems};
use crate::refs::{Drained, ExtentKind, Owned};
use crate::settle::Settle;
use btrfs_disk::ids::incompat;
use btrfs_disk::items::{QgroupInfo, QgroupLimit};
use btrfs_disk::{Expect, FixedSize, Generation, Result, TreeId};
use btrfs_tree::{Edit, NodeReader};
use std::collections::BTreeMap;

/// Bytes by which groups change.
type Changes = BTreeMap<GroupId, i128>;

impl<R: NodeReader> Settle<'_, R> {
    /// Brings the quota tree up to what the first drain of this commit leaves, where quotas are simple.
    pub(crate) fn settle_simple_quotas(&mut self, drained: &Drained) -> Result<()> {
        let Some(mut quota) = self.quota.take() else { return Ok(()) };
        if quota.simple.is_none() {
            let all = self.subvolumes(true)?;
            quota.planted.extend(all.into_iter().map(|tree| (tree, None)));
        }
        let root = self.root(TreeId::QUOTA)?;
        let edits = {
            let reader = self.reader();
            let mut items = TreeItems::new(&reader, &root);
            let Some(mut status) = Status::read(&mut items)? else { return Ok(()) };
            let mut edits = Edits::new();
            if quota.simple.is_none() {
                // What this commit makes is not counted yet, and so needs no owner.
                status.begin_simple(self.generation().0 + 1);
                nothing_counted(&mut items, &mut edits)?;
            }
            self.simple_edits(&quota, &mut items, &mut status, (drained, &mut edits))?;
            status_edit(status, self.generation(), &mut edits);
            edits
        };
        self.set_incompat(incompat::SIMPLE_QUOTA);
        self.quota_extents = drained.owned.len() as u64;
        self.apply_tree(TreeId::QUOTA, edits)?;
        Ok(())
    }

    fn simple_edits(
        &self,
        quota: &QuotaCommit,
        items: &mut dyn Items,
        status: &mut Status,
        (drained, edits): (&Drained, &mut Edits),
    ) -> Result<()> {
        let mut changes = self.simple_relations(quota)?;
        self.new_groups(quota, items, edits)?;
        self.charged_groups(quota, items, edits)?;
        without_group(quota, items, edits)?;
        let from = quota.simple.unwrap_or(u64::MAX);
        let mut charges = BTreeMap::<TreeId, i128>::new();
        for owned in drained.owned.iter().filter(|owned| owned.generation >= from) {
            match self.charged(owned) {
                Ok(tree) if tree.is_subvolume() && level(tree.0) == 0 => {
                    let change = if owned.comes { 1 } else { -1 } * i128::from(owned.len);
                    *charges.entry(tree).or_default() += change;
                }
                Ok(_) => {}
                Err(error) if error.is_damage() => mark_inconsistent(status),
                Err(error) => return Err(error),
            }
        }
        for (tree, change) in charges {
            for group in with_ancestors(items, tree)? {
                *changes.entry(group).or_default() += change;
            }
        }
        for (group, change) in changes.into_iter().filter(|(_, change)| *change != 0) {
            self.charge(items, edits, (group, change), status)?;
        }
        self.gone_groups(quota, items, edits)
    }

    /// Groups of subvolumes that operations took away while another commit charged them, which they cannot see,
    /// are back with their charges; what they were in is as they left it.
    fn charged_groups(
        &self,
        quota: &QuotaCommit,
        items: &mut dyn Items,
        edits: &mut Edits,
    ) -> Result<()> {
        if quota.simple.is_none() || quota.destroyed.is_empty() {
            return Ok(());
        }
        let Some(tree) = self.committed_tree(TreeId::QUOTA)? else { return Ok(()) };
        let mut committed = TreeItems::new(self.store, &tree.root);
        for group in quota.destroyed.iter().filter(|group| level(**group) == 0) {
            let Some(info) = info(&mut committed, *group)? else { continue };
            if info.referenced == 0 || info_with(items, edits, *group)?.is_some() {
                continue;
            }
            edits.insert(info_key(*group), Edit::Put(info.to_vec().into()));
            let limit = committed.get(&limit_key(*group))?.map(Into::into);
            let limit = limit.unwrap_or_else(|| QgroupLimit::default().to_vec().into());
            edits.insert(limit_key(*group), Edit::Put(limit));
        }
        Ok(())
    }

    /// Whether others may have what a subvolume that is gone owns, and simple quotas do not count for being older
    /// than they are: a balance makes it new. The kernel's (6.18) gives up where it finds no group then.
    pub(super) fn may_own(&self, quota: &QuotaCommit, tree: TreeId) -> Result<bool> {
        let Some(since) = quota.simple else { return Ok(false) };
        let item = self.committed_root_item(tree)?;
        Ok(item.is_some_and(|item| item.otransid < since))
    }

    /// Whom an extent counts for. A tree block that went is on the volume still; it is read where a subvolume may
    /// have had it.
    fn charged(&self, owned: &Owned) -> Result<TreeId> {
        match (owned.owner, owned.kind) {
            (Some(tree), _) => Ok(tree),
            (None, ExtentKind::Data) => Ok(TreeId::DATA_RELOC),
            (None, ExtentKind::Node { level }) => {
                let generation = Some(Generation(owned.generation));
                let (owner, first_key) = (None, None);
                let expect = Expect { logical: owned.logical, level, generation, owner, first_key };
                Ok(self.store.node(&expect)?.owner())
            }
        }
    }

    fn charge(
        &self,
        items: &mut dyn Items,
        edits: &mut Edits,
        (group, change): (GroupId, i128),
        status: &mut Status,
    ) -> Result<()> {
        let mut info = match info_with(items, edits, group)? {
            Some(info) => info,
            None if level(group) == 0 && change > 0 => {
                let limit = QgroupLimit::default().to_vec().into();
                edits.insert(limit_key(group), Edit::Put(limit));
                QgroupInfo::default()
            }
            // What goes had no group to be charged to when it came.
            None => return Ok(()),
        };
        let new = plus(info.referenced, change);
        if new.is_none() || info.referenced != info.exclusive {
            mark_inconsistent(status);
        }
        (info.referenced, info.exclusive) = (new.unwrap_or(0), new.unwrap_or(0));
        info.generation = self.generation().0;
        edits.insert(info_key(group), Edit::Put(info.to_vec().into()));
        Ok(())
    }

    /// What groups gain and lose by who came into them and left them.
    fn simple_relations(&self, quota: &QuotaCommit) -> Result<Changes> {
        let Some(tree) = self.committed_tree(TreeId::QUOTA)? else { return Ok(Changes::new()) };
        let mut committed = TreeItems::new(self.store, &tree.root);
        let changes = quota.relations_that_changed(&mut committed)?;
        regroup_simple(&mut committed, changes)
    }
}
