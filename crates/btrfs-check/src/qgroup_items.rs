//! The items of the quota tree, against each other: a group has its numbers and its limit, a relation is
//! there twice, once for each of its groups, and leads to a higher level.
//!
//! Nothing here depends on whether the numbers are to be believed. What counts as bad: what `btrfs check` or
//! the kernel complains of, and what leaves them of two minds (half a relation: each reads another half).
//! What they pass over in silence is a note.

use crate::kind::Group;
use crate::source::Context;
use crate::{Finding, FindingKind};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use std::collections::BTreeSet;

#[derive(Default)]
pub(crate) struct QgroupItems {
    infos: BTreeSet<Group>,
    limits: BTreeSet<Group>,
    /// As the keys have them.
    relations: BTreeSet<(Group, Group)>,
}

impl QgroupItems {
    pub(crate) fn item(&mut self, key: Key) {
        match key.kind {
            kind::QGROUP_INFO => drop(self.infos.insert(Group(key.offset))),
            kind::QGROUP_LIMIT => drop(self.limits.insert(Group(key.offset))),
            kind::QGROUP_RELATION => {
                self.relations.insert((Group(key.objectid), Group(key.offset)));
            }
            _ => {}
        }
    }

    /// `alive`: the subvolumes, where each should be counted.
    pub(crate) fn check(&self, cx: &mut Context<'_>, alive: impl Iterator<Item = TreeId>) {
        for group in self.limits.difference(&self.infos) {
            let key = Key::new(0, kind::QGROUP_LIMIT, group.0);
            add(cx, key, FindingKind::QgroupLimitAlone { group: *group });
        }
        for group in self.infos.difference(&self.limits) {
            let key = Key::new(0, kind::QGROUP_INFO, group.0);
            add(cx, key, FindingKind::QgroupLimitMissing { group: *group });
        }
        for subvolume in alive.filter(|tree| !self.infos.contains(&Group(tree.0))) {
            let kind = FindingKind::QgroupUncounted { subvolume };
            cx.add(Finding::new(kind).tree(TreeId::QUOTA));
        }
        for (from, to) in &self.relations {
            self.relation(cx, *from, *to);
        }
    }

    /// One finding for each relation, however many of its items are there.
    fn relation(&self, cx: &mut Context<'_>, from: Group, to: Group) {
        let twice = self.relations.contains(&(to, from));
        let (child, parent) = (from.min(to), from.max(to));
        if twice && from > to {
            return;
        }
        let absent = [child, parent].into_iter().find(|group| !self.infos.contains(group));
        let kind = match absent {
            Some(absent) => FindingKind::QgroupRelationStray { child, parent, absent },
            None if child.level() == parent.level() => {
                FindingKind::QgroupRelationLevel { child, parent }
            }
            None if !twice => FindingKind::QgroupRelationHalf { from, to },
            None => return,
        };
        add(cx, Key::new(from.0, kind::QGROUP_RELATION, to.0), kind);
    }
}

fn add(cx: &mut Context<'_>, key: Key, kind: FindingKind) {
    cx.add(Finding::new(kind).tree(TreeId::QUOTA).key(key));
}
