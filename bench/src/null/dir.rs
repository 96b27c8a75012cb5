//! The names of one directory, in the order in which they came.
//!
//! Invariants: each name of `found` has its place in `list` and the other way round; places are
//! numbered from the first name on and never again, so a listing goes on where it stopped. The
//! first two places are those of `.` and `..`.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use vfs::{FileKind, Ino};

/// Of the first name.
pub(super) const FIRST: u64 = 2;

#[derive(Clone, Copy)]
pub(super) struct Child {
    pub ino: Ino,
    pub kind: FileKind,
}

struct Place {
    name: Box<[u8]>,
    child: Child,
}

pub(super) struct Names {
    pub parent: Ino,
    found: FxHashMap<Box<[u8]>, u64>,
    /// `None` where a name went.
    list: VecDeque<Option<Place>>,
    /// The number of the list's front.
    front: u64,
}

impl Names {
    pub fn new(parent: Ino) -> Names {
        Names { parent, found: FxHashMap::default(), list: VecDeque::new(), front: FIRST }
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub fn get(&self, name: &[u8]) -> Option<Child> {
        let number = self.found.get(name)?;
        self.list.get((number - self.front) as usize)?.as_ref().map(|place| place.child)
    }

    /// The name is not there yet.
    pub fn insert(&mut self, name: &[u8], child: Child) {
        let number = self.end();
        let old = self.found.insert(name.into(), number);
        debug_assert!(old.is_none());
        self.list.push_back(Some(Place { name: name.into(), child }));
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<Child> {
        let number = self.found.remove(name)?;
        let place = self.list.get_mut((number - self.front) as usize)?.take()?;
        while let Some(None) = self.list.front() {
            self.list.pop_front();
            self.front += 1;
        }
        Some(place.child)
    }

    /// Behind all names.
    pub fn end(&self) -> u64 {
        self.front + self.list.len() as u64
    }

    /// From `number` on, each with its own.
    pub fn from(&self, number: u64) -> impl Iterator<Item = (u64, &[u8], Child)> {
        let first = number.max(self.front);
        let skipped = usize::try_from(first - self.front).unwrap_or(usize::MAX);
        let places = self.list.range(skipped.min(self.list.len())..).zip(first..);
        places.filter_map(|(place, number)| {
            place.as_ref().map(|place| (number, &*place.name, place.child))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(number: u64) -> Child {
        Child { ino: Ino(number), kind: FileKind::File }
    }

    #[test]
    fn listings_go_on_while_names_come_and_go() {
        let mut names = Names::new(Ino(1));
        (0..5u8).for_each(|n| names.insert(&[b'a' + n], child(n.into())));
        let listed = |names: &Names, from| -> Vec<(u64, u64)> {
            names.from(from).map(|(number, _, child)| (number, child.ino.0)).collect()
        };
        assert_eq!(listed(&names, 4), [(4, 2), (5, 3), (6, 4)]);
        assert!(names.remove(b"a").is_some() && names.remove(b"d").is_some());
        assert!(names.remove(b"d").is_none());
        names.insert(b"a", child(9));
        assert_eq!(listed(&names, 4), [(4, 2), (6, 4), (7, 9)]);
        assert_eq!((names.end(), names.get(b"a").map(|child| child.ino)), (8, Some(Ino(9))));
        for name in [b"b", b"c", b"e", b"a"] {
            names.remove(name);
        }
        assert_eq!((names.is_empty(), names.list.len(), names.end()), (true, 0, 8));
        assert!(listed(&names, 0).is_empty() && listed(&names, 100).is_empty());
    }
}
