//! What a commit changed of the quota tree, as far as limits have to do with it.
//!
//! A leaf that was read before and is in the tree still has what it had. So the leaves that a commit made are
//! read, and the nodes above all leaves; what the leaves had that are gone, and those do not have, is gone.
//!
//! What it does not know: what was promised.

use btrfs_disk::items::{QGROUP_LEVEL_SHIFT, QgroupInfo, QgroupLimit, QgroupStatus, qgroup_limit};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Generation, Key, Logical, Node, Result};
use btrfs_tree::{NodePosition, NodeStore, Step, TreeRoot, Visitor, get, walk};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) const STATUS: Key = Key::new(0, kind::QGROUP_STATUS, 0);

/// Keys of what matters in the leaves that were read: the status, limits, and who is in whom.
pub(super) type Leaves = BTreeMap<(Logical, Generation), Vec<Key>>;

#[derive(Default)]
pub(super) struct Changes {
    /// There are quotas.
    pub quotas: bool,
    /// Nothing was known before: what is not here is not there.
    pub whole: bool,
    /// All leaves of the tree.
    pub leaves: Leaves,
    pub gone: BTreeSet<Key>,
    pub flags: Option<u64>,
    pub limits: BTreeMap<u64, QgroupLimit>,
    /// Referenced and exclusive bytes: of groups of `limits`, and of others.
    pub numbers: BTreeMap<u64, (u64, u64)>,
    pub relations: Vec<(u64, u64)>,
}

impl Changes {
    /// Since `known` was all of the tree. Of `landed` all is read.
    pub(super) fn since(
        known: Leaves,
        store: &NodeStore,
        root: &TreeRoot,
        landed: &[u64],
    ) -> Result<Changes> {
        let whole = known.is_empty();
        let changes = Changes { quotas: true, whole, ..Changes::default() };
        let mut search = Search { known, changes, failed: None };
        walk(store, root, &mut search);
        let Search { known, mut changes, failed } = search;
        failed.map_or(Ok(()), Err)?;
        changes.gone = known.into_values().flatten().collect();
        for key in changes.leaves.values().flatten() {
            changes.gone.remove(key);
        }
        changes.look_up(store, root, landed)?;
        Ok(changes)
    }

    /// What unchanged leaves have of groups that matter now.
    fn look_up(&mut self, store: &NodeStore, root: &TreeRoot, landed: &[u64]) -> Result<()> {
        for group in landed {
            let key = Key::new(0, kind::QGROUP_LIMIT, *group);
            match get(store, root, &key)? {
                Some(item) if self.limit(key, item.data())? => {}
                _ => _ = self.gone.insert(key),
            }
        }
        let unread = |group: &&u64| !self.numbers.contains_key(group);
        for group in self.limits.keys().filter(unread).copied().collect::<Vec<_>>() {
            let key = Key::new(0, kind::QGROUP_INFO, group);
            if let Some(item) = get(store, root, &key)? {
                self.number(key, item.data())?;
            }
        }
        Ok(())
    }

    fn leaf(&mut self, node: &Node) -> Result<Vec<Key>, Corrupt> {
        let mut keys = Vec::new();
        for (key, data) in node.items() {
            let matters = match key.kind {
                kind::QGROUP_STATUS => {
                    self.flags = Some(QgroupStatus::read(data).map_err(|c| c.key(key))?.flags);
                    true
                }
                kind::QGROUP_INFO => {
                    self.number(key, data)?;
                    false
                }
                kind::QGROUP_LIMIT => self.limit(key, data)?,
                kind::QGROUP_RELATION if is_above(&key) => {
                    self.relations.push((key.objectid, key.offset));
                    true
                }
                _ => false,
            };
            if matters {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    fn number(&mut self, key: Key, data: &[u8]) -> Result<(), Corrupt> {
        let info = QgroupInfo::read(data).map_err(|c| c.key(key))?;
        self.numbers.insert(key.offset, (info.referenced, info.exclusive));
        Ok(())
    }

    /// False: it limits nothing.
    fn limit(&mut self, key: Key, data: &[u8]) -> Result<bool, Corrupt> {
        let limit = QgroupLimit::read(data).map_err(|c| c.key(key))?;
        let limits =
            limit.flags & (qgroup_limit::MAX_REFERENCED | qgroup_limit::MAX_EXCLUSIVE) != 0;
        if limits {
            self.limits.insert(key.offset, limit);
        }
        Ok(limits)
    }
}

/// Each relation is there twice; the parent is of a higher level.
fn is_above(key: &Key) -> bool {
    key.offset >> QGROUP_LEVEL_SHIFT > key.objectid >> QGROUP_LEVEL_SHIFT
}

struct Search {
    /// What was not come by yet.
    known: Leaves,
    changes: Changes,
    failed: Option<btrfs_disk::Error>,
}

impl Visitor for Search {
    fn passes(&mut self, place: &NodePosition<'_>) -> bool {
        let (expect, known) = (place.expect, &mut self.known);
        let at = expect.generation.map(|generation| (expect.logical, generation));
        let Some((at, keys)) = at.and_then(|at| known.remove_entry(&at)) else { return false };
        self.changes.leaves.insert(at, keys);
        true
    }

    fn node(&mut self, _: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        if !node.is_leaf() {
            return Step::Into;
        }
        match self.changes.leaf(node) {
            Ok(keys) => _ = self.changes.leaves.insert((node.logical(), node.generation()), keys),
            Err(corrupt) => {
                self.failed = Some(corrupt.into());
                return Step::Stop;
            }
        }
        Step::Over
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: btrfs_disk::Error) -> Step {
        self.failed = Some(error);
        Step::Stop
    }
}
