//! Groups that came into others or left them in this commit, and what that makes of the numbers.
//!
//! Seen as if it had happened right behind the last commit, one relation after the other, before
//! anything else of this one. There the numbers are known, and mostly they suffice:
//!
//! * what counts nothing changes nothing;
//! * a group that counts nothing has, with the first that does, the numbers of that one;
//! * what nobody else reaches is all new, or all gone, if no subvolume of it is above by another way too;
//! * a group without subvolumes counts nothing.
//!
//! Otherwise extents would have to be looked at: a rescan does.
//!
//! What it does not know: what else the commit changes, and what becomes of the status.

use super::account::{GroupId, Tally};
use super::groups::{info, level};
use crate::items::Items;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Child and parent, and whether it is there now.
pub(super) type Relations = BTreeMap<(GroupId, GroupId), bool>;

/// Referenced and exclusive bytes.
type Numbers = (u64, u64);

/// Puts into `tally` what `changes` make of the numbers of the last commit; false: these do not say.
pub(super) fn regroup(
    committed: &mut dyn Items,
    changes: &Relations,
    tally: &mut Tally,
) -> Result<bool> {
    let mut groups = Groups { committed, changed: BTreeMap::new(), numbers: BTreeMap::new() };
    for ((child, parent), comes) in changes {
        let known = match comes {
            true => groups.joins(*child, *parent)?,
            false => groups.leaves(*child, *parent)?,
        };
        if !known {
            return Ok(false);
        }
    }
    for (group, new) in std::mem::take(&mut groups.numbers) {
        let old = groups.numbers(group)?;
        let change = |new: u64, old: u64| i128::from(new) - i128::from(old);
        tally.add(group, change(new.0, old.0), change(new.1, old.1));
    }
    Ok(true)
}

/// The same for simple quotas: a group above level 0 counts what its subvolumes count together.
pub(super) fn regroup_simple(
    committed: &mut dyn Items,
    changes: Relations,
) -> Result<BTreeMap<GroupId, i128>> {
    let mut groups = Groups { committed, changed: BTreeMap::new(), numbers: BTreeMap::new() };
    let parents: BTreeSet<GroupId> = changes.keys().map(|(_, parent)| *parent).collect();
    let mut above = parents.clone();
    let mut sums = BTreeMap::<GroupId, i128>::new();
    for parent in &parents {
        above.extend(groups.reachable(*parent, level)?);
    }
    groups.changed = changes.clone();
    for parent in &parents {
        above.extend(groups.reachable(*parent, level)?);
    }
    for (state, sign) in [(Relations::new(), -1), (changes, 1)] {
        groups.changed = state;
        for group in &above {
            for subvolume in groups.subvolumes(*group)? {
                let (counted, _) = groups.numbers(subvolume)?;
                *sums.entry(*group).or_default() += sign * i128::from(counted);
            }
        }
    }
    Ok(sums)
}

struct Groups<'a> {
    committed: &'a mut dyn Items,
    changed: Relations,
    numbers: BTreeMap<GroupId, Numbers>,
}

impl Groups<'_> {
    fn numbers(&mut self, group: GroupId) -> Result<Numbers> {
        if let Some(known) = self.numbers.get(&group) {
            return Ok(*known);
        }
        let info = info(self.committed, group)?.unwrap_or_default();
        Ok((info.referenced, info.exclusive))
    }

    fn joins(&mut self, child: GroupId, parent: GroupId) -> Result<bool> {
        let before = self.reachable(child, level)?;
        self.changed.insert((child, parent), true);
        let after = self.reachable(child, level)?;
        let (referenced, exclusive) = self.numbers(child)?;
        if referenced == 0 {
            return Ok(true);
        }
        let below = self.subvolumes(child)?;
        for above in after.difference(&before) {
            let old = self.numbers(*above)?;
            let new = if old.0 == 0 {
                (referenced, exclusive)
            } else {
                self.changed.insert((child, parent), false);
                let apart = self.subvolumes(*above)?.is_disjoint(&below);
                self.changed.insert((child, parent), true);
                if referenced != exclusive || !apart {
                    return Ok(false);
                }
                (old.0.saturating_add(referenced), old.1.saturating_add(exclusive))
            };
            self.numbers.insert(*above, new);
        }
        Ok(true)
    }

    fn leaves(&mut self, child: GroupId, parent: GroupId) -> Result<bool> {
        let before = self.reachable(child, level)?;
        self.changed.insert((child, parent), false);
        let after = self.reachable(child, level)?;
        let (referenced, exclusive) = self.numbers(child)?;
        if referenced == 0 {
            return Ok(true);
        }
        let below = self.subvolumes(child)?;
        for above in before.difference(&after) {
            // A relation that its group has outlived counts nothing.
            if info(self.committed, *above)?.is_none() {
                continue;
            }
            let left = self.subvolumes(*above)?;
            let old = self.numbers(*above)?;
            let new = if left.is_empty() {
                (0, 0)
            } else if referenced == exclusive && left.is_disjoint(&below) {
                (old.0.saturating_sub(referenced), old.1.saturating_sub(exclusive))
            } else {
                return Ok(false);
            };
            self.numbers.insert(*above, new);
        }
        Ok(true)
    }

    /// Subvolumes of a group.
    fn subvolumes(&mut self, group: GroupId) -> Result<BTreeSet<GroupId>> {
        let mut found = self.reachable(group, |group| u64::MAX - level(group))?;
        found.insert(group);
        found.retain(|group| level(*group) == 0);
        Ok(found)
    }

    /// All groups to which relations lead that ascend by `height`; without `from`.
    fn reachable(
        &mut self,
        from: GroupId,
        height: impl Fn(GroupId) -> u64,
    ) -> Result<BTreeSet<GroupId>> {
        let (mut all, mut queue) = (BTreeSet::new(), vec![from]);
        while let Some(group) = queue.pop() {
            for next in self.related(group)? {
                if height(next) > height(group) && all.insert(next) {
                    queue.push(next);
                }
            }
        }
        Ok(all)
    }

    /// Parents and members.
    fn related(&mut self, group: GroupId) -> Result<BTreeSet<GroupId>> {
        let mut found = BTreeSet::new();
        let range = [0, u64::MAX].map(|offset| Key::new(group, kind::QGROUP_RELATION, offset));
        self.committed.scan(range[0], range[1], &mut |key, _| {
            found.insert(key.offset);
            Ok(())
        })?;
        for ((child, parent), there) in &self.changed {
            let other = match group {
                _ if group == *child => *parent,
                _ if group == *parent => *child,
                _ => continue,
            };
            if *there {
                found.insert(other);
            } else {
                found.remove(&other);
            }
        }
        Ok(found)
    }
}
