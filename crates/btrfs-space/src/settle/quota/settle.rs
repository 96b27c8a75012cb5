//! Quotas in one commit: between the last edit of a file tree and the drain of references.
//!
//! There both states are at hand. Before: the trees of the last commit, with its extent tree.
//! After: the trees as edited, with the same extent tree and the reference changes over it. Nothing that
//! comes later (checksums, the trees that keep account of space, the quota tree itself) is in a subvolume.
//!
//! A snapshot alone changes who reaches extents of which no reference changes: all that the source
//! has, its copy has too. They are not visited. The numbers of the source, less what was visited
//! of it, are theirs: the copy gets them, and nothing of them is exclusive to the source any more.
//! Where the copy is not in the same groups as its source that does not do; then they are visited.
//!
//! What it does not know: how edits came about, and what the fixpoint does behind.

use super::account::{Change, GroupId, Tally};
use super::groups::{
    self, STATUS, Status, info, info_key, level, limit_key, parents, with_ancestors,
};
use super::regroup::{Relations, regroup};
use super::states::States;
use crate::backrefs::TreeState;
use crate::items::{Items, TreeItems};
use crate::settle::Settle;
use crate::settle::trees::Tree;
use btrfs_disk::items::{QgroupInfo, QgroupLimit, QgroupStatus, RootItem, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Generation, Key, Result, TreeId};
use btrfs_tree::{Edit, EditRef, NodeReader};
use std::collections::BTreeMap;

/// Of a volume whose quotas are on.
#[derive(Default)]
pub(crate) struct QuotaCommit {
    /// The numbers were right in the last commit, or a rescan makes them right.
    pub(super) keeps: bool,
    /// What lies here and behind is not in the numbers before this commit: a rescan under way counts it.
    pub(super) counted: u64,
    /// Too much is shared to be followed: a rescan begins, whether one is under way or not.
    pub(super) recount: bool,
    /// They are simple in the last commit, and began in this generation.
    pub(super) simple: Option<u64>,
    /// Subvolumes that this commit makes, and what they are snapshots of.
    pub(super) planted: Vec<(TreeId, Option<TreeId>)>,
    /// Relations that operations changed.
    relations: Relations,
    /// Limits and relations that operations wrote, by their group: it may be gone meanwhile.
    written: Vec<(GroupId, Key)>,
    /// Groups that operations took away.
    pub(super) destroyed: Vec<GroupId>,
    /// An operation begins a rescan, with room for groups that are missing.
    rescans: bool,
    /// Subvolumes that have a group behind this commit, then.
    living: Vec<TreeId>,
}

/// What becomes of items of the quota tree.
pub(super) type Edits = BTreeMap<Key, Edit>;

impl QuotaCommit {
    pub(super) fn sources(&self) -> impl Iterator<Item = TreeId> {
        self.planted.iter().filter_map(|(tree, _)| self.source(*tree))
    }

    /// Relations that are others than in the last commit.
    pub(super) fn relations_that_changed(&self, committed: &mut dyn Items) -> Result<Relations> {
        let mut changes = Relations::new();
        for ((child, parent), comes) in &self.relations {
            let key = Key::new(*child, kind::QGROUP_RELATION, *parent);
            if committed.get(&key)?.is_some() != *comes {
                changes.insert((*child, *parent), *comes);
            }
        }
        Ok(changes)
    }

    /// What a new subvolume is a snapshot of in the end; `None` if of nothing in the last commit.
    fn source(&self, tree: TreeId) -> Option<TreeId> {
        let mut at = tree;
        let mut found = None;
        // A snapshot may be the source of one more in the same commit.
        while let Some((_, source)) = self.planted.iter().find(|(planted, _)| *planted == at) {
            at = (*source)?;
            found = Some(at);
        }
        found
    }
}

/// Bytes that sources have and no reference change touches: referenced, exclusive.
struct Untouched(BTreeMap<TreeId, (i128, i128)>);

impl Untouched {
    fn of_sources(quota: &QuotaCommit, items: &mut dyn Items, edits: &Edits) -> Result<Untouched> {
        let mut all = BTreeMap::new();
        for source in quota.sources() {
            let info = info_with(items, edits, source.0)?.unwrap_or_default();
            all.insert(source, (info.referenced.into(), info.exclusive.into()));
        }
        Ok(Untouched(all))
    }

    /// An extent that `before` reached is touched.
    fn less(&mut self, before: &[TreeId], len: u64) {
        for (source, (referenced, exclusive)) in &mut self.0 {
            if before.contains(source) {
                *referenced -= i128::from(len);
                *exclusive -= if before.len() == 1 { len.into() } else { 0 };
            }
        }
    }

    /// Snapshots have what their sources have, which is exclusive to nobody any more.
    fn shared_now(&self, quota: &QuotaCommit, tally: &mut Tally) {
        for (tree, _) in &quota.planted {
            if let Some((referenced, _)) = quota.source(*tree).and_then(|of| self.0.get(&of)) {
                tally.add(tree.0, *referenced, 0);
            }
        }
        for (source, (_, exclusive)) in &self.0 {
            tally.add(source.0, 0, -exclusive);
        }
    }
}

impl<R: NodeReader> Settle<'_, R> {
    /// Looks whether the last commit has quotas.
    pub(crate) fn begin_quotas(&mut self) -> Result<()> {
        let Some(tree) = self.committed_tree(TreeId::QUOTA)? else { return Ok(()) };
        let status = Status::read(&mut TreeItems::new(self.store, &tree.root))?;
        let on = |status: &Status| status.item.flags & qgroup_status::ON != 0;
        let Some(status) = status.filter(on) else { return Ok(()) };
        let item = &status.item;
        if let Some(since) = status.simple_since() {
            self.format.owners = since <= self.generation.0;
            self.quota = Some(QuotaCommit { simple: Some(since), ..QuotaCommit::default() });
            return Ok(());
        }
        let right = item.flags & qgroup_status::INCONSISTENT == 0;
        let becomes_right = item.flags & qgroup_status::RESCAN != 0;
        let newest = item.generation == self.superblock.fields.generation.0;
        let keeps = newest && (right || becomes_right);
        if keeps {
            self.deltas.remember_touched();
        }
        let counted = if becomes_right { item.rescan } else { u64::MAX };
        self.quota = Some(QuotaCommit { keeps, counted, ..QuotaCommit::default() });
        Ok(())
    }

    /// The quota tree is about to be edited. Where there are no quotas, the status that comes
    /// begins them: there is a tree for it, and a group for each subvolume.
    pub fn quotas_change(&mut self) -> Result<()> {
        if self.quota.is_some() {
            return Ok(());
        }
        if self.current_tree(TreeId::QUOTA)?.is_none() {
            let item = RootItem { refs: 1, ..RootItem::default() };
            self.create_tree(TreeId::QUOTA, Key::new(TreeId::QUOTA.0, kind::ROOT_ITEM, 0), item)?;
        }
        let planted = self.subvolumes(false)?.into_iter().map(|tree| (tree, None)).collect();
        self.quota = Some(QuotaCommit { planted, ..QuotaCommit::default() });
        Ok(())
    }

    /// What operations changed in the quota tree.
    pub fn quota_items_change(&mut self, edits: &[(Key, EditRef<'_>)]) {
        let Some(quota) = &mut self.quota else { return };
        for (key, edit) in edits {
            let comes = matches!(edit, EditRef::Put(_));
            match key.kind {
                kind::QGROUP_RELATION => {
                    if level(key.objectid) < level(key.offset) {
                        quota.relations.insert((key.objectid, key.offset), comes);
                    }
                    if comes {
                        quota.written.push((key.objectid, *key));
                        quota.written.push((key.offset, *key));
                    }
                }
                kind::QGROUP_INFO if !comes => quota.destroyed.push(key.offset),
                kind::QGROUP_LIMIT if comes => quota.written.push((key.offset, *key)),
                kind::QGROUP_STATUS => {
                    let counted = counted_then(edit);
                    quota.rescans |= counted == 0;
                    quota.counted = quota.counted.min(counted);
                }
                _ => {}
            }
        }
    }

    /// Subvolumes that have a name, with `dead` those as well that have none any more; and those that this
    /// commit makes.
    pub(super) fn subvolumes(&mut self, dead: bool) -> Result<Vec<TreeId>> {
        let root = self.root(TreeId::ROOT)?;
        let mut found = self.trees_of_commit();
        let reader = self.reader();
        TreeItems::new(&reader, &root).scan(Key::MIN, Key::MAX, &mut |key, data| {
            if key.kind == kind::ROOT_ITEM && (dead || !RootItem::parse(data)?.is_deleted()) {
                found.push(TreeId(key.objectid));
            }
            Ok(())
        })?;
        found.retain(|tree| tree.is_subvolume() && !self.removed.contains(tree));
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Quotas end: the tree goes with all that is in it.
    fn end_quotas(&mut self) -> Result<()> {
        self.empty_tree(TreeId::QUOTA)?;
        self.remove_emptied(TreeId::QUOTA)
    }

    /// A subvolume came, as a snapshot of `source` if there is one, which has all its edits.
    pub(crate) fn quota_of_new(&mut self, tree: TreeId, source: Option<TreeId>) -> Result<()> {
        let Some(quota) = &mut self.quota else { return Ok(()) };
        if !tree.is_subvolume() {
            return Ok(());
        }
        quota.planted.push((tree, source));
        let Some(source) = source.filter(|_| quota.keeps) else { return Ok(()) };
        let above = |all: Vec<GroupId>| all.into_iter().filter(|group| group >> 48 > 0).collect();
        let mut groups = |tree| -> Result<Vec<GroupId>> {
            let root = self.root(TreeId::QUOTA)?;
            let reader = self.reader();
            Ok(above(with_ancestors(&mut TreeItems::new(&reader, &root), tree)?))
        };
        if groups(source)? != groups(tree)? {
            let root = self.root(source)?;
            let node = self.reader().node(&root.expect())?;
            self.touch_below(source, &node)?;
        }
        Ok(())
    }

    /// Brings the quota tree up to what this commit leaves. All edits of subvolumes come before. True: a rescan has
    /// not come to its end.
    pub(crate) fn settle_quotas(&mut self) -> Result<bool> {
        let Some(mut quota) = self.quota.take() else { return Ok(false) };
        self.deltas.order_touched();
        if quota.rescans {
            // Where the root tree is damaged it goes without them.
            quota.living = match self.subvolumes(false) {
                Err(error) if error.is_damage() => Vec::new(),
                living => living?,
            };
        }
        let root = self.root(TreeId::QUOTA)?;
        let (edits, counting) = {
            let reader = self.reader();
            let mut items = TreeItems::new(&reader, &root);
            let Some(mut status) = Status::read(&mut items)? else {
                return self.end_quotas().map(|()| false);
            };
            if status.simple_since().is_some() {
                // What they count is known behind the drain alone.
                self.quota = Some(quota);
                return Ok(false);
            }
            let mut edits = Edits::new();
            match self.quota_edits(&quota, &mut items, &mut status, &mut edits) {
                Ok(visited) => self.quota_extents = visited,
                // Said by the status; the drain says it of all that matters for more than numbers.
                Err(error) if error.is_damage() => {
                    self.groups_alone(&quota, &mut items, &mut edits)?;
                    mark_inconsistent(&mut status);
                }
                Err(error) => return Err(error),
            }
            let counting = status.item.flags & qgroup_status::RESCAN != 0;
            status_edit(status, self.generation(), &mut edits);
            (edits, counting)
        };
        self.apply_tree(TreeId::QUOTA, edits)?;
        Ok(counting)
    }

    /// Answers how many extents were looked at.
    fn quota_edits(
        &self,
        quota: &QuotaCommit,
        items: &mut dyn Items,
        status: &mut Status,
        edits: &mut Edits,
    ) -> Result<u64> {
        let mut tally = Tally::default();
        let (keeps, begins) = self.keeps_or_begins(quota, status, &mut tally)?;
        if begins {
            nothing_counted(items, edits)?;
        }
        self.new_groups(quota, items, edits)?;
        without_group(quota, items, edits)?;
        if !keeps && !begins {
            mark_inconsistent(status);
            return Ok(0);
        }
        let visited = self.tally(quota, items, edits, status, &mut tally)?;
        let generation = self.generation().0;
        let changes = tally.into_changes(&mut |tree| with_ancestors(items, tree))?;
        for (group, change) in changes {
            let Some(mut info) = info_with(items, edits, group)? else { continue };
            if !apply(&mut info, &change) {
                mark_inconsistent(status);
            }
            info.generation = generation;
            edits.insert(info_key(group), Edit::Put(info.to_vec().into()));
        }
        self.gone_groups(quota, items, edits)?;
        Ok(visited)
    }

    /// What comes and goes with subvolumes, where nothing is known of numbers: no later commit makes up for it.
    fn groups_alone(
        &self,
        quota: &QuotaCommit,
        items: &mut dyn Items,
        edits: &mut Edits,
    ) -> Result<()> {
        edits.clear();
        let made = self.new_groups(quota, items, edits);
        let made = made.and_then(|()| without_group(quota, items, edits));
        match made.and_then(|()| self.gone_groups(quota, items, edits)) {
            // It is the quota tree that is damaged: the status at least.
            Err(error) if error.is_damage() => {
                edits.clear();
                Ok(())
            }
            made => made,
        }
    }

    /// Whether the numbers of before are kept on, and whether a rescan begins, which needs to know nothing of before.
    fn keeps_or_begins(
        &self,
        quota: &QuotaCommit,
        status: &mut Status,
        tally: &mut Tally,
    ) -> Result<(bool, bool)> {
        let item = &mut status.item;
        if quota.recount {
            item.flags |= qgroup_status::RESCAN | qgroup_status::INCONSISTENT;
            item.rescan = 0;
        }
        let rescan = item.flags & qgroup_status::RESCAN != 0;
        let begins = rescan && item.rescan == 0;
        if quota.keeps && !begins && !self.regroup(quota, tally)? {
            *tally = Tally::default();
            item.rescan = 0;
            return Ok((false, rescan));
        }
        Ok((quota.keeps, begins))
    }

    /// False: only a rescan can tell what became of the numbers.
    fn regroup(&self, quota: &QuotaCommit, tally: &mut Tally) -> Result<bool> {
        let Some(tree) = self.committed_tree(TreeId::QUOTA)? else { return Ok(true) };
        let mut committed = TreeItems::new(self.store, &tree.root);
        let changes = quota.relations_that_changed(&mut committed)?;
        regroup(&mut committed, &changes, tally)
    }

    fn tally(
        &self,
        quota: &QuotaCommit,
        items: &mut dyn Items,
        edits: &Edits,
        status: &mut Status,
        tally: &mut Tally,
    ) -> Result<u64> {
        let mut visited = 0;
        let mut untouched = Untouched::of_sources(quota, items, edits)?;
        let rescan = status.item.flags & qgroup_status::RESCAN != 0;
        let counted = if rescan { status.item.rescan } else { u64::MAX };
        let reader = self.reader();
        let mut states = States::new(self, &reader);
        for (extent, len, kind) in self.deltas.all_touched() {
            // What lies behind is counted by the rescan, as it is by then.
            if extent.0 >= counted {
                break;
            }
            visited += 1;
            let Some((before, after)) = states.reachers(extent, kind)? else { continue };
            untouched.less(&before, len);
            tally.moved(len, before, after);
        }
        untouched.shared_now(quota, tally);
        if rescan {
            let mut extents = TreeItems::new(self.store, &self.extent_root);
            let status = &mut status.item;
            super::rescan::go_on(&mut states, &mut extents, tally, status)?;
        }
        Ok(visited)
    }

    /// Groups of new subvolumes; a snapshot has the limits of its source, but where quotas are simple. And those that are
    /// missing where a rescan begins.
    pub(super) fn new_groups(
        &self,
        quota: &QuotaCommit,
        items: &mut dyn Items,
        edits: &mut Edits,
    ) -> Result<()> {
        let put = |edits: &mut Edits, tree: TreeId, limit: Option<Box<[u8]>>| {
            let info = QgroupInfo { generation: self.generation().0, ..QgroupInfo::default() };
            let limit = limit.unwrap_or_else(|| QgroupLimit::default().to_vec().into());
            edits.insert(info_key(tree.0), Edit::Put(info.to_vec().into()));
            edits.insert(limit_key(tree.0), Edit::Put(limit));
        };
        for (tree, source) in &quota.planted {
            if info(items, tree.0)?.is_some() {
                continue;
            }
            let limit = match source {
                Some(source) if quota.simple.is_none() => limit_with(items, edits, source.0)?,
                _ => None,
            };
            put(edits, *tree, limit);
        }
        for tree in &quota.living {
            if info_with(items, edits, tree.0)?.is_none() {
                put(edits, *tree, limit_with(items, edits, tree.0)?);
            }
        }
        Ok(())
    }

    /// Groups of subvolumes that are gone, unless they count something still, or may count something
    /// again ([`Settle::may_own`]).
    pub(super) fn gone_groups(
        &self,
        quota: &QuotaCommit,
        items: &mut dyn Items,
        edits: &mut Edits,
    ) -> Result<()> {
        for tree in self.removed.iter().filter(|tree| tree.is_subvolume()) {
            let Some(info) = info_with(items, edits, tree.0)? else { continue };
            if (info.referenced, info.exclusive) != (0, 0) || self.may_own(quota, *tree)? {
                continue;
            }
            edits.insert(info_key(tree.0), Edit::Delete);
            if items.get(&limit_key(tree.0))?.is_some() {
                edits.insert(limit_key(tree.0), Edit::Delete);
            }
            for parent in parents(items, tree.0)? {
                for key in [(tree.0, parent), (parent, tree.0)] {
                    let key = Key::new(key.0, kind::QGROUP_RELATION, key.1);
                    if items.get(&key)?.is_some() {
                        edits.insert(key, Edit::Delete);
                    }
                }
            }
        }
        Ok(())
    }

    /// A tree as of the last commit.
    pub(super) fn committed_tree(&self, id: TreeId) -> Result<Option<TreeState>> {
        self.find_tree(&mut TreeItems::new(self.store, &self.committed_roots()), id)
    }

    /// What the root tree of the last commit says of one.
    pub(super) fn committed_root_item(&self, id: TreeId) -> Result<Option<RootItem>> {
        let mut items = TreeItems::new(self.store, &self.committed_roots());
        Ok(Tree::find(&mut items, id)?.and_then(|tree| tree.item).map(|(_, item)| item))
    }

    fn committed_roots(&self) -> btrfs_tree::TreeRoot {
        let fields = &self.superblock.fields;
        btrfs_tree::TreeRoot {
            id: TreeId::ROOT,
            logical: fields.root,
            generation: fields.generation,
            level: fields.root_level,
        }
    }

    pub(crate) fn current_tree(&self, id: TreeId) -> Result<Option<TreeState>> {
        if let Some(state) = self.tree_state(id) {
            return Ok(Some(state));
        }
        if self.removed.contains(&id) {
            return Ok(None);
        }
        self.committed_tree(id)
    }
}

/// Where a rescan is once the status is that.
fn counted_then(edit: &EditRef<'_>) -> u64 {
    let EditRef::Put(data) = edit else { return u64::MAX };
    let status = QgroupStatus::read(data).ok();
    let rescans = status.filter(|status| status.flags & qgroup_status::RESCAN != 0);
    rescans.map_or(u64::MAX, |status| status.rescan)
}

pub(super) fn nothing_counted(items: &mut dyn Items, edits: &mut Edits) -> Result<()> {
    items.scan(info_key(0), info_key(u64::MAX), &mut |key, _| {
        edits.insert(key, Edit::Put(QgroupInfo::default().to_vec().into()));
        Ok(())
    })
}

/// A commit may have taken a group away while an operation wrote of it.
pub(super) fn without_group(
    quota: &QuotaCommit,
    items: &mut dyn Items,
    edits: &mut Edits,
) -> Result<()> {
    for (group, key) in &quota.written {
        if info_with(items, edits, *group)?.is_none() && items.get(key)?.is_some() {
            edits.insert(*key, Edit::Delete);
        }
    }
    Ok(())
}

pub(super) fn status_edit(mut status: Status, generation: Generation, edits: &mut Edits) {
    status.item.generation = generation.0;
    edits.insert(STATUS, Edit::Put(status.into_data()));
}

pub(super) fn mark_inconsistent(status: &mut Status) {
    status.item.flags |= qgroup_status::INCONSISTENT;
    status.item.flags &= !qgroup_status::RESCAN;
}

/// What a group says with `edits` made.
pub(super) fn info_with(
    items: &mut dyn Items,
    edits: &Edits,
    group: GroupId,
) -> Result<Option<QgroupInfo>> {
    match edits.get(&info_key(group)) {
        Some(Edit::Put(data)) => Ok(Some(QgroupInfo::read(data)?)),
        Some(Edit::Delete) => Ok(None),
        None => groups::info(items, group),
    }
}

fn limit_with(items: &mut dyn Items, edits: &Edits, group: GroupId) -> Result<Option<Box<[u8]>>> {
    match edits.get(&limit_key(group)) {
        Some(Edit::Put(data)) => Ok(Some(data.clone())),
        _ => Ok(items.get(&limit_key(group))?.map(Into::into)),
    }
}

/// `None`: the number cannot have been right before.
pub(super) fn plus(number: u64, change: i128) -> Option<u64> {
    u64::try_from(i128::from(number) + change).ok()
}

/// False if the numbers cannot have been right before.
fn apply(info: &mut QgroupInfo, change: &Change) -> bool {
    let mut right = true;
    let mut add = |number: &mut u64, change: i128| match plus(*number, change) {
        Some(sum) => *number = sum,
        None => (*number, right) = (0, false),
    };
    add(&mut info.referenced, change.referenced);
    add(&mut info.referenced_compressed, change.referenced);
    add(&mut info.exclusive, change.exclusive);
    add(&mut info.exclusive_compressed, change.exclusive);
    right
}
