//! Which subvolumes reach which extents, as quotas count it.
//!
//! Invariant: memory goes with the extents, and with the ways in which subvolumes share them, and not with what
//! each subvolume reaches: of a thousand snapshots of the same each is one way more. Ways are bounded, too:
//! where a stranger made more nothing is known.
//!
//! Subvolumes come one after the other, so a way is the last of them and the way of before it.

use std::collections::HashMap;

/// Ways that are kept at most. Chosen, not measured: snapshots that were changed between each two have half of
/// their number squared.
const MOST: usize = 1 << 22;
/// Nobody reached it before.
const NONE: Way = Way(u32::MAX);

/// A place in [`Reached::ways`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Way(u32);

struct Step {
    tree: u64,
    before: Way,
}

pub(crate) struct Reached {
    most: usize,
    /// Length and way, by address.
    extents: HashMap<u64, (u64, Way)>,
    ways: Vec<Step>,
    /// What the tree at hand, which is the last one, made of ways that were there before it.
    tree: u64,
    grown: HashMap<Way, Way>,
    too_many: bool,
}

impl Default for Reached {
    fn default() -> Reached {
        Reached {
            most: MOST,
            extents: HashMap::new(),
            ways: Vec::new(),
            tree: 0,
            grown: HashMap::new(),
            too_many: false,
        }
    }
}

impl Reached {
    /// `tree` reaches this extent, once more perhaps. No tree comes again behind another one.
    pub(crate) fn add(&mut self, tree: u64, start: u64, len: u64) {
        if self.too_many {
            return;
        }
        if self.tree != tree {
            (self.tree, self.grown) = (tree, HashMap::new());
        }
        let Reached { extents, ways, grown, .. } = self;
        let (known, way) = extents.entry(start).or_insert((len, NONE));
        // Where a damaged volume has two lengths the shorter one counts.
        *known = len.min(*known);
        if ways.get(way.0 as usize).is_none_or(|last| last.tree != tree) {
            let before = *way;
            *way = *grown.entry(before).or_insert_with(|| {
                ways.push(Step { tree, before });
                Way(ways.len() as u32 - 1)
            });
        }
        if ways.len() > self.most {
            *self = Reached { most: self.most, too_many: true, ..Reached::default() };
        }
    }

    /// There were too many ways: nothing is known.
    pub(crate) fn too_many(&self) -> bool {
        self.too_many
    }

    /// Address, length and way of each extent, in no order.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u64, u64, Way)> + '_ {
        self.extents.iter().map(|(start, (len, way))| (*start, *len, *way))
    }

    /// How many bytes are reached in each way.
    pub(crate) fn by_way(&self) -> HashMap<Way, u64> {
        let mut all = HashMap::<Way, u64>::new();
        for (_, len, way) in self.extents() {
            let sum = all.entry(way).or_default();
            *sum = sum.saturating_add(len);
        }
        all
    }

    /// Who reaches it so, the last first.
    pub(crate) fn trees(&self, way: Way) -> impl Iterator<Item = u64> + '_ {
        let step = |way: Way| self.ways.get(way.0 as usize);
        std::iter::successors(step(way), move |last| step(last.before)).map(|step| step.tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trees_of(reached: &Reached, start: u64) -> Vec<u64> {
        let (_, _, way) = reached.extents().find(|extent| extent.0 == start).unwrap();
        reached.trees(way).collect()
    }

    #[test]
    fn many_trees_of_the_same_are_as_many_ways() {
        let mut reached = Reached::default();
        for tree in 1..=1000 {
            for extent in (0..500).chain(0..3) {
                reached.add(tree, extent * 4096, 4096);
            }
        }
        assert_eq!((reached.ways.len(), reached.extents.len()), (1000, 500));
        assert!(reached.grown.len() <= 1);
        let expected: Vec<u64> = (1..=1000).rev().collect();
        assert_eq!(trees_of(&reached, 4096), expected);
        assert_eq!(reached.by_way().into_values().collect::<Vec<_>>(), [500 * 4096]);
    }

    #[test]
    fn each_extent_knows_who_reaches_it() {
        let mut reached = Reached::default();
        for (tree, extents) in [(5, &[1, 2][..]), (6, &[2, 3, 2]), (9, &[1, 3, 4])] {
            extents.iter().for_each(|extent| reached.add(tree, *extent, 10 * extent));
        }
        let all = [1, 2, 3, 4].map(|extent| trees_of(&reached, extent));
        assert_eq!(all, [vec![9, 5], vec![6, 5], vec![9, 6], vec![9]]);
        let mut sums: Vec<u64> = reached.by_way().into_values().collect();
        sums.sort_unstable();
        assert_eq!(sums, [10, 20, 30, 40]);
    }

    #[test]
    fn of_too_many_ways_nothing_is_kept() {
        let mut reached = Reached { most: 64, ..Reached::default() };
        for tree in 0..7 {
            (0..128).filter(|extent| extent >> tree & 1 == 1).for_each(|e| reached.add(tree, e, 1));
        }
        assert!(reached.too_many() && reached.ways.is_empty() && reached.extents.is_empty());
        reached.add(9, 1, 1);
        assert!(reached.extents.is_empty());
    }
}
