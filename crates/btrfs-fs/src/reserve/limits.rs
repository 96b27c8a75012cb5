//! Limits of quota groups: nothing is promised that would take a group beyond its limit.
//!
//! A group counts what the last commit says of it, and next to it what was promised since: space of content, also
//! of content that waits for its extent, and a node for each name. That is more than it will be,
//! since content may be written over before it lands. So who is refused asks again after a
//! commit, which brings the numbers up to date ([`PATIENCE`]). What commits leave in memory may replace what
//! counts already, or be shorter on the volume than it is here: who would be refused beside any has it land first
//! ([`Limits::press`]), and then the numbers say.
//!
//! Invariants: a promise counts as long as its operation is under way ([`QuotaReservation`]), whatever commits come
//! meanwhile, and from then on until a commit of everything has begun and ended, so that it is in the
//! numbers, or came to nothing. Content that such a commit leaves in memory (it has no name, or finds no place)
//! counts by its length until the next one. A subvolume is in its groups from its first name on.
//!
//! What it does not know: what is promised for, who commits, how numbers come about.

mod changes;

use btrfs_disk::items::{QgroupLimit, qgroup_limit, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{Result, TreeId};
use btrfs_txn::Core;
use changes::{Changes, Leaves, STATUS};
use locks::{Mutex, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Commits that may make room in a group for one operation: promises live through one.
/// Chosen, not measured.
pub(crate) const PATIENCE: u32 = 2;

/// Bytes of content that stays in memory, by subvolume.
pub(crate) type Left = BTreeMap<TreeId, u64>;

#[derive(Default)]
struct Group {
    referenced: u64,
    exclusive: u64,
    limit: QgroupLimit,
    /// Promised to operations under way; to those that ended since the last commit of everything, and
    /// since the one before.
    under_way: u64,
    fresh: u64,
    aging: u64,
    /// Promised for content that the last commit of everything left in memory.
    left: u64,
}

impl Group {
    /// Of a snapshot, before a commit says what it has: all that the source has or may come to, and nothing
    /// for itself.
    fn of_snapshot(source: &Group) -> Group {
        let referenced = source.referenced.saturating_add(source.promised());
        Group { referenced, limit: source.limit, ..Group::default() }
    }

    fn promised(&self) -> u64 {
        let ended = self.fresh.saturating_add(self.aging).saturating_add(self.left);
        self.under_way.saturating_add(ended)
    }

    /// Beyond a limit, which can be set below what is there, not for nothing either: as with the kernel, where the inode
    /// that changes counts.
    fn has_room(&self, bytes: u64) -> bool {
        let fits = |flag, used: u64, most: u64| {
            let all = used.saturating_add(self.promised());
            self.limit.flags & flag == 0 || all.saturating_add(bytes) <= most
        };
        fits(qgroup_limit::MAX_REFERENCED, self.referenced, self.limit.max_referenced)
            && fits(qgroup_limit::MAX_EXCLUSIVE, self.exclusive, self.limit.max_exclusive)
    }
}

/// Groups with limits, and who is in them.
#[derive(Default)]
struct Table {
    groups: BTreeMap<u64, Group>,
    parents: BTreeMap<u64, BTreeSet<u64>>,
    /// The same of subvolumes that no commit has.
    coming: BTreeMap<u64, BTreeSet<u64>>,
    /// The status says so.
    flags: u64,
    simple: bool,
    /// Of the quota tree, that this was made from; none: it is to be made anew.
    leaves: Leaves,
    /// Content that was last left in memory.
    left: Left,
    /// Those for whom content has to land that would be left in memory, and how many wait for it.
    pressed: BTreeMap<TreeId, u32>,
}

impl Table {
    /// Groups with limits that a subvolume counts for.
    fn limited(&self, tree: TreeId) -> Vec<u64> {
        let mut all = BTreeSet::from([tree.0]);
        let mut queue = vec![tree.0];
        while let Some(group) = queue.pop() {
            let above = [self.parents.get(&group), self.coming.get(&group)];
            let parents = above.into_iter().flatten().flatten();
            queue.extend(parents.filter(|parent| all.insert(**parent)));
        }
        all.into_iter().filter(|group| self.groups.contains_key(group)).collect()
    }

    /// One is refused where the other has content in memory: a limit holds for both of them.
    fn share_a_limit(&self, one: TreeId, other: TreeId) -> bool {
        let limited = self.limited(one);
        self.limited(other).iter().any(|group| limited.contains(group))
    }

    fn apply(&mut self, changes: Changes) {
        if changes.whole {
            let coming = &self.coming;
            let stays = |group: &u64| changes.quotas && coming.contains_key(group);
            self.groups.retain(|group, _| changes.limits.contains_key(group) || stays(group));
            self.parents.clear();
            self.flags = 0;
        }
        self.forget_gone(&changes);
        let coming = &self.coming;
        for (group, limit) in changes.limits {
            self.groups.entry(group).or_default().limit = limit;
        }
        for (group, numbers) in changes.numbers {
            let known = self.groups.get_mut(&group).filter(|_| !coming.contains_key(&group));
            if let Some(known) = known {
                (known.referenced, known.exclusive) = numbers;
            }
        }
        for (child, parent) in changes.relations {
            self.parents.entry(child).or_default().insert(parent);
        }
        self.parents.retain(|_, parents| !parents.is_empty());
        self.flags = changes.flags.unwrap_or(self.flags);
        self.leaves = changes.leaves;
    }

    fn forget_gone(&mut self, changes: &Changes) {
        for key in &changes.gone {
            match key.kind {
                kind::QGROUP_LIMIT if !self.coming.contains_key(&key.offset) => {
                    self.groups.remove(&key.offset);
                }
                kind::QGROUP_RELATION => {
                    self.parents.entry(key.objectid).or_default().remove(&key.offset);
                }
                _ if *key == STATUS => self.flags = 0,
                _ => {}
            }
        }
    }
}

pub(crate) struct Limits {
    any: AtomicBool,
    /// A commit has something to do though nothing changed.
    rescans: AtomicBool,
    simple: AtomicBool,
    table: Mutex<Table>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            any: AtomicBool::new(false),
            rescans: AtomicBool::new(false),
            simple: AtomicBool::new(false),
            table: Mutex::new(Rank::Leaf, Table::default()),
        }
    }
}

/// What an operation under way was promised.
#[must_use = "it is no longer under way when this is dropped"]
pub(crate) struct QuotaReservation<'l> {
    limits: &'l Limits,
    groups: Vec<u64>,
    bytes: u64,
}

impl Drop for QuotaReservation<'_> {
    fn drop(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        let mut table = self.limits.table.lock();
        for id in &self.groups {
            if let Some(group) = table.groups.get_mut(id) {
                group.under_way = group.under_way.saturating_sub(self.bytes);
                group.fresh = group.fresh.saturating_add(self.bytes);
            }
        }
    }
}

/// Content that has no name lands with each commit, as long as somebody waits for that.
pub(crate) struct Pressed<'l> {
    limits: &'l Limits,
    tree: TreeId,
}

impl Drop for Pressed<'_> {
    fn drop(&mut self) {
        let mut table = self.limits.table.lock();
        let waiting = table.pressed.entry(self.tree).or_default();
        *waiting = waiting.saturating_sub(1);
        table.pressed.retain(|_, waiting| *waiting > 0);
    }
}

impl Limits {
    /// Promises `bytes` more of the subvolume where `spare` more would fit, too; `None`: a limit forbids
    /// it, and nothing is promised.
    pub(crate) fn reserve(
        &self,
        tree: TreeId,
        bytes: u64,
        spare: u64,
    ) -> Option<QuotaReservation<'_>> {
        let mut promise = QuotaReservation { limits: self, groups: Vec::new(), bytes };
        if !self.any.load(Ordering::Relaxed) {
            return Some(promise);
        }
        let mut table = self.table.lock();
        let groups = table.limited(tree);
        let fits = |group: &u64| table.groups[group].has_room(bytes + spare);
        if !groups.iter().all(fits) {
            return None;
        }
        for group in &groups {
            let group = table.groups.entry(*group).or_default();
            // A limit of 2^64-1 has room for anything.
            group.under_way = group.under_way.saturating_add(bytes);
        }
        drop(table);
        promise.groups = groups;
        Some(promise)
    }

    /// Whether no limit forbids `bytes` more of the subvolume now.
    pub(crate) fn have_room(&self, tree: TreeId, bytes: u64) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return true;
        }
        let table = self.table.lock();
        table.limited(tree).iter().all(|group| table.groups[group].has_room(bytes))
    }

    /// For who would be refused: what the last commit left in memory, and what a limit of the subvolume counts, lands
    /// with those that begin from now on. `None`: nothing was left.
    pub(crate) fn press(&self, tree: TreeId) -> Option<Pressed<'_>> {
        let mut table = self.table.lock();
        if table.limited(tree).iter().all(|group| table.groups[group].left == 0) {
            return None;
        }
        *table.pressed.entry(tree).or_default() += 1;
        Some(Pressed { limits: self, tree })
    }

    /// Whether content of the subvolume is not to be left in memory, since somebody would be refused for it.
    pub(crate) fn is_pressed(&self, tree: TreeId) -> bool {
        if !self.are_any() {
            return false;
        }
        let table = self.table.lock();
        table.pressed.keys().any(|waits| table.share_a_limit(*waits, tree))
    }

    /// A subvolume is about to come, in groups above, as a snapshot of `source` if there is one: before a commit
    /// has it, it is held to their limits and to that which its own group copies.
    pub(crate) fn joins(
        &self,
        tree: TreeId,
        groups: impl Iterator<Item = u64>,
        source: Option<TreeId>,
    ) {
        let mut table = self.table.lock();
        table.coming.insert(tree.0, groups.collect());
        // Groups of simple quotas copy none.
        let source = source.filter(|_| !table.simple);
        let copy = source.and_then(|source| table.groups.get(&source.0)).map(Group::of_snapshot);
        if let Some(copy) = copy {
            table.groups.insert(tree.0, copy);
        }
    }

    /// It did not come.
    pub(crate) fn forget(&self, tree: TreeId) {
        let mut table = self.table.lock();
        if table.coming.remove(&tree.0).is_some() {
            table.groups.remove(&tree.0);
            // There may have been a limit for it before.
            table.leaves.clear();
        }
    }

    /// A rescan is under way: each commit goes a step on.
    pub(crate) fn rescans(&self) -> bool {
        self.rescans.load(Ordering::Relaxed)
    }

    /// An extent counts for its first owner alone, whoever else comes to have it.
    pub(crate) fn are_simple(&self) -> bool {
        self.simple.load(Ordering::Relaxed)
    }

    /// Whether there are any: else nobody need say what is left.
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// All content was to land, and so much did not. For who has the turn to commit: two who took what there is would
    /// each know of a part.
    pub(crate) fn leave(&self, left: Left) {
        if self.are_any() {
            self.table.lock().left = left;
        }
    }

    /// A commit of everything has ended, but for what was [left](Limits::leave) by it.
    pub(crate) fn all_landed(&self) {
        if !self.are_any() {
            return;
        }
        let mut table = self.table.lock();
        for group in table.groups.values_mut() {
            (group.aging, group.left) = (std::mem::take(&mut group.fresh), 0);
        }
        for (tree, bytes) in std::mem::take(&mut table.left) {
            for id in table.limited(tree) {
                let group = table.groups.entry(id).or_default();
                group.left = group.left.saturating_add(bytes);
            }
        }
    }

    /// Takes over what the last commit says of groups. Where it fails, the next one reads all.
    pub(crate) fn follow(&self, core: &Core) -> Result<()> {
        let roots = core.roots();
        let (known, landed) = {
            let mut table = self.table.lock();
            let mut landed: Vec<u64> = table.coming.keys().copied().collect();
            landed.retain(|tree| roots.get(TreeId(*tree)).is_some());
            (std::mem::take(&mut table.leaves), landed)
        };
        let changes = match roots.get(TreeId::QUOTA) {
            Some(root) => Changes::since(known, &core.store, &root.root, &landed)?,
            None => Changes { whole: true, ..Changes::default() },
        };
        let mut table = self.table.lock();
        for tree in landed {
            table.coming.remove(&tree);
        }
        table.apply(changes);
        let flags = table.flags;
        let is = |flag| flags & qgroup_status::ON != 0 && flags & flag != 0;
        table.simple = is(qgroup_status::SIMPLE);
        // Simple ones are never counted anew, whatever stands there: no commit would end it.
        let rescans = is(qgroup_status::RESCAN) && !table.simple;
        self.rescans.store(rescans, Ordering::Relaxed);
        self.simple.store(table.simple, Ordering::Relaxed);
        self.any.store(!table.groups.is_empty(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether what is known of the last commit is what all of its quota tree says.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn are_those_of(&self, core: &Core) -> Result<bool> {
        let anew = Limits::default();
        anew.follow(core)?;
        let coming: Vec<u64> = self.table.lock().coming.keys().copied().collect();
        let facts = |limits: &Limits| {
            let table = limits.table.lock();
            let groups = table.groups.iter().filter(|(group, _)| !coming.contains(group));
            let groups = groups.map(|(id, g)| (*id, g.referenced, g.exclusive, g.limit));
            (groups.collect::<Vec<_>>(), table.parents.clone(), table.flags)
        };
        Ok(facts(self) == facts(&anew))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: TreeId = TreeId(256);

    fn limited(most: u64) -> Limits {
        let limits = Limits::default();
        let limit = QgroupLimit {
            flags: qgroup_limit::MAX_REFERENCED,
            max_referenced: most,
            ..QgroupLimit::default()
        };
        limits.table.lock().groups.insert(TREE.0, Group { limit, ..Group::default() });
        limits.any.store(true, Ordering::Relaxed);
        limits
    }

    /// An operation may wait for room, and so for any number of commits, before it changes anything.
    #[test]
    fn a_promise_outlives_the_commits_that_its_operation_waits_for() {
        let limits = limited(100);
        let waits = limits.reserve(TREE, 60, 0).expect("there is room");
        (0..3).for_each(|_| limits.all_landed());
        assert!(limits.reserve(TREE, 60, 0).is_none(), "it is under way still");
        drop(waits);
        limits.all_landed();
        assert!(limits.reserve(TREE, 60, 0).is_none(), "that commit may have begun before");
        limits.all_landed();
        assert!(limits.reserve(TREE, 60, 0).is_some(), "it is in the numbers");
    }

    /// It is in no number, and lands later or never.
    #[test]
    fn what_a_commit_leaves_in_memory_counts_until_the_next() {
        let limits = limited(100);
        let room = |bytes| limits.have_room(TREE, bytes);
        drop(limits.reserve(TREE, 60, 0).expect("there is room"));
        for _ in 0..3 {
            limits.leave(Left::from([(TREE, 60), (TreeId(257), 1000)]));
            limits.all_landed();
            assert!(!room(50), "it is in memory still");
        }
        assert!(room(40), "it counts once");
        limits.leave(Left::new());
        limits.all_landed();
        assert!(room(100));
    }

    /// Who is refused for what another subvolume has in memory has that land, and nothing else.
    #[test]
    fn who_would_be_refused_presses_what_was_left_in_his_groups() {
        const OTHER: TreeId = TreeId(257);
        let limits = limited(100);
        assert!(limits.press(TREE).is_none(), "nothing is left");
        limits.leave(Left::from([(TREE, 60)]));
        limits.all_landed();
        let waits = [limits.press(TREE), limits.press(TREE)].map(|waits| waits.expect("60 are"));
        assert!(limits.press(OTHER).is_none());
        assert!(limits.is_pressed(TREE) && !limits.is_pressed(OTHER));
        limits.table.lock().parents.insert(OTHER.0, BTreeSet::from([TREE.0]));
        assert!(limits.is_pressed(OTHER), "it counts there, too");
        let [first, second] = waits;
        drop(first);
        assert!(limits.is_pressed(TREE), "one waits still");
        drop(second);
        assert!(!limits.is_pressed(TREE));
    }

    /// The kernel keeps no such limit, but an item may say it.
    #[test]
    fn a_limit_of_all_numbers_counts_promises_to_its_end() {
        const HALF: u64 = (1 << 63) - 4096;
        let limits = limited(u64::MAX);
        let promises = [(); 3].map(|()| limits.reserve(TREE, HALF, 0).expect("anything fits"));
        drop(promises);
        assert!(limits.have_room(TREE, HALF));
        limits.leave(Left::from([(TREE, u64::MAX), (TreeId(257), HALF)]));
        limits.table.lock().parents.insert(257, BTreeSet::from([TREE.0]));
        limits.all_landed();
        assert!(limits.reserve(TREE, HALF, 0).is_some());
    }

    #[test]
    fn what_is_spare_is_asked_for_and_not_promised() {
        let limits = limited(100);
        assert!(limits.reserve(TREE, 20, 90).is_none());
        for _ in 0..2 {
            drop(limits.reserve(TREE, 20, 60).expect("20 and 60 fit"));
        }
        assert!(limits.reserve(TREE, 20, 60).is_none(), "40 are taken");
    }
}
