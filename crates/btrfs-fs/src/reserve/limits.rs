//! Limits of quota groups: nothing is promised that would take a group beyond its limit.
//!
//! A group counts what the last commit says of it, and next to it what was promised since: space of content, also
//! of content that waits for its extent, and a node for each name. That is more than it will be,
//! since content may be written over before it lands. So who is refused asks again after a
//! commit, which brings the numbers up to date ([`PATIENCE`]).
//!
//! Invariant: a promise counts until a commit of everything has begun and ended after it, so that
//! it is in the numbers, or came to nothing. A subvolume is in its groups from its first name on.
//!
//! What it does not know: what is promised for, who commits, how numbers come about.

use btrfs_disk::items::{
    QGROUP_LEVEL_SHIFT, QgroupInfo, QgroupLimit, QgroupStatus, qgroup_limit, qgroup_status,
};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, Result, TreeId};
use btrfs_tree::Cursor;
use btrfs_txn::Core;
use locks::{Mutex, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Commits that may make room in a group for one operation: promises live through one.
pub(crate) const PATIENCE: u32 = 2;

#[derive(Default)]
struct Group {
    referenced: u64,
    exclusive: u64,
    limit: QgroupLimit,
    /// Promised since the last commit of everything, and since the one before.
    fresh: u64,
    aging: u64,
}

impl Group {
    /// Of a snapshot, before a commit says what it has: all that the source has or may come to, and nothing
    /// for itself.
    fn of_snapshot(source: &Group) -> Group {
        let promised = source.fresh.saturating_add(source.aging);
        let referenced = source.referenced.saturating_add(promised);
        Group { referenced, limit: source.limit, ..Group::default() }
    }

    fn has_room(&self, bytes: u64) -> bool {
        let fits = |flag, used: u64, most: u64| {
            let all = used.saturating_add(self.fresh).saturating_add(self.aging);
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
    parents: BTreeMap<u64, Vec<u64>>,
    /// The same of subvolumes that no commit has.
    coming: BTreeMap<u64, Vec<u64>>,
    rescans: bool,
    simple: bool,
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

impl Limits {
    /// Promises `bytes` more of the subvolume; false: a limit forbids it, and nothing is promised.
    pub(crate) fn promise(&self, tree: TreeId, bytes: u64) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return true;
        }
        let mut table = self.table.lock();
        let groups = table.limited(tree);
        if !groups.iter().all(|group| table.groups[group].has_room(bytes)) {
            return false;
        }
        for group in groups {
            table.groups.entry(group).or_default().fresh += bytes;
        }
        true
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

    /// A commit of everything has ended.
    pub(crate) fn all_landed(&self) {
        if self.any.load(Ordering::Relaxed) {
            for group in self.table.lock().groups.values_mut() {
                group.aging = std::mem::take(&mut group.fresh);
            }
        }
    }

    /// Takes over what the last commit says of groups.
    pub(crate) fn follow(&self, core: &Core) -> Result<()> {
        let mut next = Table::default();
        let roots = core.roots();
        if let Some(root) = roots.get(TreeId::QUOTA) {
            next = read(&mut Cursor::new(&core.store, &root.root))?;
        }
        let mut table = self.table.lock();
        for (id, group) in &mut next.groups {
            if let Some(before) = table.groups.get(id) {
                (group.fresh, group.aging) = (before.fresh, before.aging);
            }
        }
        next.coming = std::mem::take(&mut table.coming);
        next.coming.retain(|tree, _| roots.get(TreeId(*tree)).is_none());
        let quotas = roots.get(TreeId::QUOTA).is_some();
        for tree in next.coming.keys().filter(|_| quotas) {
            if let Some(copy) = table.groups.remove(tree) {
                next.groups.entry(*tree).or_insert(copy);
            }
        }
        self.rescans.store(next.rescans, Ordering::Relaxed);
        self.simple.store(next.simple, Ordering::Relaxed);
        self.any.store(!next.groups.is_empty(), Ordering::Relaxed);
        *table = next;
        Ok(())
    }
}

fn read(cursor: &mut Cursor<'_, btrfs_tree::NodeStore>) -> Result<Table> {
    let mut table = Table::default();
    let mut numbers = BTreeMap::new();
    cursor.first()?;
    while let Some((key, data)) = cursor.item() {
        match key.kind {
            kind::QGROUP_INFO => {
                let info = QgroupInfo::read(data).map_err(|c| c.key(key))?;
                numbers.insert(key.offset, (info.referenced, info.exclusive));
            }
            kind::QGROUP_LIMIT => {
                let limit = QgroupLimit::read(data).map_err(|c| c.key(key))?;
                let limits = qgroup_limit::MAX_REFERENCED | qgroup_limit::MAX_EXCLUSIVE;
                if limit.flags & limits != 0 {
                    table.groups.insert(key.offset, Group { limit, ..Group::default() });
                }
            }
            kind::QGROUP_STATUS => {
                let flags = QgroupStatus::read(data).map_err(|c| c.key(key))?.flags;
                let is = |flag| flags & qgroup_status::ON != 0 && flags & flag != 0;
                table.rescans = is(qgroup_status::RESCAN);
                table.simple = is(qgroup_status::SIMPLE);
            }
            kind::QGROUP_RELATION if is_above(&key) => {
                table.parents.entry(key.objectid).or_default().push(key.offset);
            }
            _ => {}
        }
        cursor.next()?;
    }
    for (id, group) in &mut table.groups {
        (group.referenced, group.exclusive) = numbers.get(id).copied().unwrap_or_default();
    }
    Ok(table)
}

/// Each relation is there twice; the parent is of a higher level.
fn is_above(key: &Key) -> bool {
    key.offset >> QGROUP_LEVEL_SHIFT > key.objectid >> QGROUP_LEVEL_SHIFT
}
