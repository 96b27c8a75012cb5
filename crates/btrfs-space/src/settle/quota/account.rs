//! From who reached an extent before and after to what groups gain and lose.
//!
//! What it does not know: trees, items, and how it became known who reaches what.

use crate::backrefs::Reachers;
use btrfs_disk::{Result, TreeId};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Id of a group; its level in the highest 16 bits.
pub(crate) type GroupId = u64;

/// Bytes by which a group's numbers change. Wider than these, which may be anything on a damaged volume:
/// sums of them do not overflow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Change {
    pub referenced: i128,
    pub exclusive: i128,
}

/// What a tree is a member of, itself (the group of level 0) included.
pub(crate) type Member<'a> = dyn FnMut(TreeId) -> Result<Vec<GroupId>> + 'a;

/// Adds up what the extents of one commit change.
///
/// Extents of one leaf mostly have the same readers before and after: these are added up first.
#[derive(Default)]
pub(crate) struct Tally {
    moved: HashMap<(Reachers, Reachers), i128>,
    changes: BTreeMap<GroupId, Change>,
    members: HashMap<TreeId, Vec<GroupId>>,
}

impl Tally {
    /// An extent of `len` bytes that the trees `before` reached is reached by `after` instead.
    pub(crate) fn moved(&mut self, len: u64, before: Reachers, after: Reachers) {
        if before != after {
            *self.moved.entry((before, after)).or_default() += i128::from(len);
        }
    }

    fn count(&mut self, member: &mut Member<'_>, len: i128, trees: &[TreeId]) -> Result<()> {
        if let [tree] = trees {
            // By far the most: everything of it is exclusive to all its groups.
            let groups = known(&mut self.members, member, *tree)?;
            for group in groups {
                let change = self.changes.entry(*group).or_default();
                change.referenced += len;
                change.exclusive += len;
            }
            return Ok(());
        }
        let mut members: BTreeMap<GroupId, usize> = BTreeMap::new();
        for tree in trees {
            for group in known(&mut self.members, member, *tree)? {
                *members.entry(*group).or_default() += 1;
            }
        }
        for (group, count) in members {
            let change = self.changes.entry(group).or_default();
            change.referenced += len;
            if count == trees.len() {
                change.exclusive += len;
            }
        }
        Ok(())
    }

    /// One group alone, by more than extents.
    pub(crate) fn add(&mut self, group: GroupId, referenced: i128, exclusive: i128) {
        let change = self.changes.entry(group).or_default();
        change.referenced += referenced;
        change.exclusive += exclusive;
    }

    pub(crate) fn into_changes(
        mut self,
        member: &mut Member<'_>,
    ) -> Result<Vec<(GroupId, Change)>> {
        for ((before, after), len) in std::mem::take(&mut self.moved) {
            self.count(member, -len, &before)?;
            self.count(member, len, &after)?;
        }
        let some = self.changes.into_iter().filter(|(_, change)| *change != Change::default());
        Ok(some.collect())
    }
}

fn known<'t>(
    members: &'t mut HashMap<TreeId, Vec<GroupId>>,
    member: &mut Member<'_>,
    tree: TreeId,
) -> Result<&'t [GroupId]> {
    Ok(match members.entry(tree) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => unknown.insert(member(tree)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TreeId = TreeId(256);
    const B: TreeId = TreeId(257);
    const C: TreeId = TreeId(258);
    /// A and B are in it, C is not.
    const ABOVE: GroupId = 1 << 48;

    fn changes(steps: &[(u64, &[TreeId], &[TreeId])]) -> Vec<(GroupId, i128, i128)> {
        let mut tally = Tally::default();
        let mut member =
            |tree: TreeId| Ok(if tree == C { vec![tree.0] } else { vec![tree.0, ABOVE] });
        for (len, before, after) in steps {
            tally.moved(*len, Reachers::from(*before), Reachers::from(*after));
        }
        tally
            .into_changes(&mut member)
            .unwrap()
            .into_iter()
            .map(|(g, c)| (g, c.referenced, c.exclusive))
            .collect()
    }

    #[test]
    fn what_one_has_is_exclusive_to_all_its_groups() {
        assert_eq!(changes(&[(8, &[], &[A])]), [(A.0, 8, 8), (ABOVE, 8, 8)]);
        assert_eq!(changes(&[(8, &[A], &[])]), [(A.0, -8, -8), (ABOVE, -8, -8)]);
        assert_eq!(changes(&[(8, &[A], &[A])]), []);
    }

    #[test]
    fn sharing_inside_a_group_is_exclusive_to_it() {
        assert_eq!(changes(&[(8, &[A], &[A, B])]), [(A.0, 0, -8), (B.0, 8, 0)]);
        assert_eq!(changes(&[(8, &[A, B], &[B])]), [(A.0, -8, 0), (B.0, 0, 8)]);
    }

    #[test]
    fn one_outside_makes_it_shared() {
        let shared = [(A.0, 0, -8), (C.0, 8, 0), (ABOVE, 0, -8)];
        assert_eq!(changes(&[(8, &[A], &[A, C])]), shared);
        assert_eq!(
            changes(&[(8, &[A, B], &[C])]),
            [(A.0, -8, 0), (B.0, -8, 0), (C.0, 8, 8), (ABOVE, -8, -8)]
        );
        assert_eq!(changes(&[(8, &[A], &[A, C]), (8, &[A, C], &[A])]), []);
    }
}
