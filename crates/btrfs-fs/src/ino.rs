//! One inode number for the whole mount, out of (subvolume, object id).
//!
//! FUSE has a single `st_dev`, so numbers must not repeat across subvolumes. The scheme
//! is part of the public contract (docs/SEMANTICS.md):
//!
//! * bits 0..40: the object id inside its subvolume;
//! * bits 40..63: the subvolume id, 0 for the top level (id 5), so that files of the
//!   top level have the number that the kernel's btrfs shows;
//! * bit 63: an empty stand-in directory: the place of a nested subvolume inside a
//!   snapshot, which the kernel shows as an empty directory too. Bits 0..40 are then the
//!   id of the absent subvolume.
//!
//! Object ids from 2^40 and subvolume ids from `WINDOWS` on have bits 40..63 from a table
//! instead: each 2^40 object ids of a subvolume that somebody asks for are a *window*, and get
//! one of the numbers from `WINDOWS` on, by a hash, or the next that is free. So such numbers
//! are nearly always the same at each mount, where all others are without fail. A window
//! stays what it is as long as the process lives, and all volumes share the table, since
//! nothing in it is a volume's. A number that does not fit is never folded into another one.

use btrfs_disk::TreeId;
use locks::{Rank, RwLock};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;
use vfs::{Errno, FsError, Ino, Result};

const OBJECT_BITS: u32 = 40;
const SUBVOL_BITS: u32 = 23;
const STAND_IN: u64 = 1 << 63;
/// The first number of a window; a million of them is some 100 MB at most.
const WINDOWS: u64 = (1 << SUBVOL_BITS) - (1 << 20);

static TABLE: LazyLock<RwLock<Windows>> =
    LazyLock::new(|| RwLock::new(Rank::Leaf, Windows::new(1 << 20)));

/// Where an inode lives.
pub(crate) type InodeId = btrfs_txn::ObjectId;

pub(crate) fn number(id: InodeId) -> Result<Ino> {
    Ok(Ino(pack(id.tree, id.objectid)?))
}

pub(crate) fn id_of(ino: Ino) -> InodeId {
    let (high, low) = ((ino.0 & !STAND_IN) >> OBJECT_BITS, ino.0 & ((1 << OBJECT_BITS) - 1));
    match high {
        0 => InodeId { tree: TreeId::FS, objectid: low },
        1..WINDOWS => InodeId { tree: TreeId(high), objectid: low },
        _ => match TABLE.read().window(high - WINDOWS) {
            Some((tree, high)) => InodeId { tree, objectid: high << OBJECT_BITS | low },
            // Of another process's table: an inode of no subvolume.
            None => InodeId { tree: TreeId(u64::MAX), objectid: low },
        },
    }
}

/// Whether both lie in the same subvolume. The empty place of a nested one lies in none.
pub fn same_subvolume(a: Ino, b: Ino) -> bool {
    let stand_in = is_stand_in(a) || is_stand_in(b);
    !stand_in && id_of(a).tree == id_of(b).tree
}

fn pack(tree: TreeId, objectid: u64) -> Result<u64> {
    let subvol = if tree == TreeId::FS { 0 } else { tree.0 };
    let (high, low) = (objectid >> OBJECT_BITS, objectid & ((1 << OBJECT_BITS) - 1));
    let slot = match high == 0 && subvol < WINDOWS {
        true => subvol,
        false => WINDOWS + slot_of((tree, high))?,
    };
    Ok(slot << OBJECT_BITS | low)
}

fn slot_of(window: Window) -> Result<u64> {
    let known = TABLE.read().slots.get(&window).copied();
    match known {
        Some(slot) => Ok(slot),
        None => TABLE.write().add(window),
    }
}

/// A subvolume, and bits 40.. of its object ids.
type Window = (TreeId, u64);

struct Windows {
    slots: FxHashMap<Window, u64>,
    taken: FxHashMap<u64, Window>,
    limit: u64,
}

impl Windows {
    fn new(limit: u64) -> Windows {
        Windows { slots: FxHashMap::default(), taken: FxHashMap::default(), limit }
    }

    fn window(&self, slot: u64) -> Option<Window> {
        self.taken.get(&slot).copied()
    }

    fn add(&mut self, window: Window) -> Result<u64> {
        if let Some(slot) = self.slots.get(&window) {
            return Ok(*slot);
        }
        if self.slots.len() as u64 == self.limit {
            return Err(FsError::Posix(Errno::EOVERFLOW));
        }
        let (TreeId(tree), high) = window;
        let mixed = (tree ^ high.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut slot = (mixed >> 32) % self.limit;
        while self.taken.contains_key(&slot) {
            slot = (slot + 1) % self.limit;
        }
        self.taken.insert(slot, window);
        self.slots.insert(window, slot);
        Ok(slot)
    }
}

/// This process has no window left, as if a million others had been asked for.
#[cfg(feature = "fault-injection")]
pub fn use_up_windows() {
    let mut table = TABLE.write();
    table.limit = table.slots.len() as u64;
}

/// The number of the stand-in for `absent` inside `tree`.
pub(crate) fn stand_in(tree: TreeId, absent: TreeId) -> Result<Ino> {
    Ok(Ino(pack(tree, absent.0)? | STAND_IN))
}

pub(crate) fn is_stand_in(ino: Ino) -> bool {
    ino.0 & STAND_IN != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_do_not_meet() {
        for (tree, object) in [(5, 256), (256, 256), (257, 1 << 39), (WINDOWS - 1, 5)] {
            let id = InodeId::new(TreeId(tree), object);
            assert_eq!(id_of(number(id).unwrap()), id);
        }
        assert_eq!(number(InodeId::new(TreeId::FS, 257)).unwrap(), Ino(257));
        assert!(is_stand_in(stand_in(TreeId(300), TreeId(256)).unwrap()));
        assert_eq!(id_of(Ino((WINDOWS + 77) << 40 | 5)).tree, TreeId(u64::MAX));
    }

    #[test]
    fn large_numbers_are_each_its_own() {
        let mut seen = FxHashMap::default();
        let trees = [5, 256, WINDOWS - 1, WINDOWS, 1 << 23, 1 << 40, (1 << 48) - 1];
        for tree in trees.map(TreeId) {
            for object in [1, 256, 1 << 40, (1 << 40) + 256, u64::MAX - 256] {
                let id = InodeId::new(tree, object);
                let ino = number(id).unwrap();
                assert!(!is_stand_in(ino));
                assert_eq!(id_of(ino), id);
                assert_eq!(number(id).unwrap(), ino, "always the same");
                assert_eq!(seen.insert(ino, id), None);
            }
            let absent = stand_in(tree, TreeId(1 << 41)).unwrap();
            assert!(is_stand_in(absent));
            assert_eq!(id_of(absent), InodeId::new(tree, 1 << 41));
        }
    }

    #[test]
    fn a_full_table_refuses() {
        let mut table = Windows::new(3);
        let slots = [1, 2, 3].map(|high| table.add((TreeId(5), high)).unwrap());
        assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2]);
        assert!(table.add((TreeId(5), 4)).is_err());
        assert_eq!(table.add((TreeId(5), 2)).unwrap(), slots[1]);
        assert_eq!(table.window(slots[2]), Some((TreeId(5), 3)));
    }
}
