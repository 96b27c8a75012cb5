//! From who reached an extent before and after to what groups gain and lose.
//!
//! What it does not know: trees, items, and how it became known who reaches what.

use btrfs_disk::{Result, TreeId};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Id of a group; its level in the highest 16 bits.
pub(crate) type GroupId = u64;

/// Bytes by which a group's numbers change.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Change {
    pub referenced: i64,
    pub exclusive: i64,
}

/// What a tree is a member of, itself (the group of level 0) included.
pub(crate) type Member<'a> = dyn FnMut(TreeId) -> Result<Vec<GroupId>> + 'a;

/// Adds up what the extents of one commit change.
#[derive(Default)]
pub(crate) struct Tally {
    changes: BTreeMap<GroupId, Change>,
    members: HashMap<TreeId, Vec<GroupId>>,
}

impl Tally {
    /// Extents of `len` bytes that the trees `before` reached are reached by `after` instead.
    pub(crate) fn moved(
        &mut self,
        member: &mut Member<'_>,
        len: u64,
        before: &[TreeId],
        after: &[TreeId],
    ) -> Result<()> {
        if before != after {
            self.count(member, -len.cast_signed(), before)?;
            self.count(member, len.cast_signed(), after)?;
        }
        Ok(())
    }

    fn count(&mut self, member: &mut Member<'_>, len: i64, trees: &[TreeId]) -> Result<()> {
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
    pub(crate) fn add(&mut self, group: GroupId, referenced: i64, exclusive: i64) {
        let change = self.changes.entry(group).or_default();
        change.referenced += referenced;
        change.exclusive += exclusive;
    }

    pub(crate) fn into_changes(self) -> impl Iterator<Item = (GroupId, Change)> {
        self.changes.into_iter().filter(|(_, change)| *change != Change::default())
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

    fn changes(steps: &[(u64, &[TreeId], &[TreeId])]) -> Vec<(GroupId, i64, i64)> {
        let mut tally = Tally::default();
        let mut member =
            |tree: TreeId| Ok(if tree == C { vec![tree.0] } else { vec![tree.0, ABOVE] });
        for (len, before, after) in steps {
            tally.moved(&mut member, *len, before, after).unwrap();
        }
        tally.into_changes().map(|(g, c)| (g, c.referenced, c.exclusive)).collect()
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
