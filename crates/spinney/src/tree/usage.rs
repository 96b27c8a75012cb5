//! How much room nodes take, with each inode and each byte of an extent counted once.

use super::node::Node;
use crate::error::Result;
use crate::volume::{At, Volume};
use btrfs_fs::Stored;
use std::collections::{BTreeMap, HashMap, HashSet};
use vfs::{FileKind, Ino};

/// What some nodes take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Bytes on the volume.
    pub disk: u64,
    /// Bytes that the files say they have.
    pub apparent: u64,
    /// What was counted for others before.
    pub shared: u64,
    /// How many there are that are no directories.
    pub files: u64,
}

impl Sum {
    /// Adds another sum.
    pub fn add(&mut self, other: &Sum) {
        self.disk = self.disk.saturating_add(other.disk);
        self.apparent = self.apparent.saturating_add(other.apparent);
        self.shared = self.shared.saturating_add(other.shared);
        self.files += other.files;
    }
}

/// What was counted. Volumes are told apart by where their handles are in memory.
#[derive(Debug, Default)]
pub struct Counted {
    /// Trees that are gone through may lie in each other: any node may come twice.
    overlapping: bool,
    inodes: HashSet<(usize, Ino)>,
    extents: HashMap<(usize, u64), Ranges>,
}

impl Counted {
    /// Nothing yet. `overlapping`: of the trees that are counted one may lie in another.
    pub fn new(overlapping: bool) -> Counted {
        Counted { overlapping, ..Counted::default() }
    }

    /// What `node` adds to what was counted before, of a directory without what is in it;
    /// `None` if it was counted itself.
    pub fn take(&mut self, volume: &Volume, node: &Node, path: &[u8]) -> Result<Option<Sum>> {
        let (attr, here) = (&node.attr, std::ptr::from_ref(volume) as usize);
        let several = self.overlapping || (attr.nlink > 1 && !node.is_dir());
        if several && !self.inodes.insert((here, node.ino())) {
            return Ok(None);
        }
        let measured = matches!(attr.kind, FileKind::File | FileKind::Symlink);
        let all = attr.blocks.saturating_mul(512);
        let mut shared = 0;
        if attr.kind == FileKind::File {
            for Stored { extent, start, len } in volume.stored(node.ino()).at(volume, path)? {
                let ranges = self.extents.entry((here, extent)).or_default();
                shared += len - ranges.add(start, start.saturating_add(len));
            }
        }
        Ok(Some(Sum {
            disk: all.saturating_sub(shared),
            apparent: if measured { attr.size } else { 0 },
            shared,
            files: u64::from(!node.is_dir()),
        }))
    }
}

/// Ranges that do not touch, by their starts.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// How much of it is new.
    fn add(&mut self, start: u64, end: u64) -> u64 {
        let (mut from, mut to, mut known) = (start, end, 0);
        while let Some((&first, &last)) = self.0.range(..=to).next_back() {
            if last < from {
                break;
            }
            known += last.min(end).saturating_sub(first.max(start));
            (from, to) = (from.min(first), to.max(last));
            self.0.remove(&first);
        }
        if to > from {
            self.0.insert(from, to);
        }
        (end - start).saturating_sub(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_count_once() {
        let mut ranges = Ranges::default();
        let adds = [
            (0, 10, 10),
            (5, 15, 5),
            (20, 30, 10),
            (15, 20, 5),
            (0, 30, 0),
            (40, 50, 10),
            (29, 41, 10),
            (7, 7, 0),
        ];
        for (start, end, new) in adds {
            assert_eq!(ranges.add(start, end), new, "{start}..{end}");
        }
        assert_eq!(ranges.0.into_iter().collect::<Vec<_>>(), [(0, 50)]);
        // Against a bitmap.
        let (mut ranges, mut bits, mut random) = (Ranges::default(), [false; 200], 7u64);
        for _ in 0..500 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let start = (random >> 33) % 190;
            let end = start + (random >> 20) % 10;
            let new = (start..end).filter(|at| !std::mem::replace(&mut bits[*at as usize], true));
            let new = new.count() as u64;
            assert_eq!(ranges.add(start, end), new);
        }
    }
}
