//! The order of all locks, and what a thread holds.
//!
//! Outside of it stand, since nothing of the engine is called with them held:
//! * `blockdev`'s chunks of a device in memory: below everything, and each is held for a copy;
//! * `fuse`'s own (`parking_lot`'s: listings, pages, FORGETs that gather, messages to the kernel
//!   and their condition variable, threads): the crate knows no engine and calls its file system
//!   with none of them held; two of them are never held together, but that the pages of files
//!   are dropped behind the list of what was;
//! * the program's (`std`'s: log, control socket, progress), each for a line or a number.

#[cfg(debug_assertions)]
use std::cell::RefCell;

/// From the first to the last that a thread may take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Rank {
    /// Whether a transaction of the library is open; held by who makes something durable.
    Transaction,
    /// A volume of the library is closed, by one at a time.
    Closing,
    /// Whether it was, held by who changes something.
    Ending,
    /// The background threads, while they are told to end.
    Background,
    /// Subvolumes and their names are made, moved and taken away, one at a time.
    Subvolumes,
    /// Renames across directories, one at a time: no directory is moved while one looks for loops.
    Rename,
    /// The device's size changes.
    Resize,
    /// Block groups are emptied, one at a time.
    Balance,
    /// The device is told of all that is free; who waits for that holds it alone.
    Trims,
    /// What is known of trees that are being dropped; held over a step, and its commit.
    Cleaner,
    /// A step of erasing in the background, which may look for room.
    Erasing,
    /// A removal looks for the last room; held over commits.
    LastRoom,
    /// The running commit.
    Commit,
    /// Who took dirty inodes out of their list and is not done with them.
    WritebackTurn,
    /// Addresses of content: held by who has read one and will say it to the delta, and by the
    /// commit that moves content.
    Addresses,
    /// The tree log's state, and with it the right to write superblocks.
    Log,
    /// An inode, by tree and object id.
    Inode,
    /// The list of dirty inodes.
    DirtyList,
    /// Commits whose superblock waits for the next one's.
    Owed,
    /// Inodes without names that wait to be erased.
    Unerased,
    /// A label that is to be written.
    Label,
    /// What is held of metadata.
    MetadataReservation,
    /// What of an inode's content in memory lies over extents.
    Covered,
    /// A shard of the delta's items; of its extents, and their lists. Of two deltas the older
    /// one's, by generation.
    DeltaItems,
    /// A shard of the delta's data extents.
    DeltaExtents,
    /// The delta's lists of extents.
    DeltaLists,
    /// Discards that are due.
    Discards,
    /// Chunks are made and given up.
    Chunks,
    /// One looks whether a block group is right while others wait.
    GroupProof,
    /// All block groups; those of a class.
    Groups,
    /// The list of a class's block groups.
    ClassGroups,
    /// One block group.
    Group,
    /// Which of a volume's superblock copies are behind.
    SuperblockCommit,
    /// Repairs, and who writes where one may come.
    Repair,
    /// The chunk map; the superblock in memory.
    ChunkMap,
    /// The superblock in memory.
    Superblock,
    /// What nobody takes another lock behind.
    Leaf,
}

/// Where a lock stands: its rank, and its number among those of that rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    #[cfg(debug_assertions)]
    rank: Rank,
    #[cfg(debug_assertions)]
    number: u128,
}

impl Position {
    #[cfg(debug_assertions)]
    pub(crate) fn of(rank: Rank, number: u128) -> Position {
        Position { rank, number }
    }

    #[cfg(not(debug_assertions))]
    pub(crate) fn of(_: Rank, _: u128) -> Position {
        Position {}
    }
}

#[cfg(debug_assertions)]
thread_local!(static HELD: RefCell<Vec<Position>> = const { RefCell::new(Vec::new()) });

/// A lock is held, by the thread that this was made in, until it is dropped.
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    place: Position,
}

impl Held {
    /// For who is about to wait for the lock.
    #[cfg(debug_assertions)]
    #[track_caller]
    pub(crate) fn wait(place: Position) -> Held {
        let above = HELD.with_borrow(|held| held.iter().copied().find(|held| *held >= place));
        if let Some(above) = above
            && !std::thread::panicking()
        {
            panic!("{place:?} is taken behind {above:?}, which comes after it");
        }
        Held::at_once(place)
    }

    /// For who got it without waiting.
    #[cfg(debug_assertions)]
    pub(crate) fn at_once(place: Position) -> Held {
        HELD.with_borrow_mut(|held| held.push(place));
        Held { place }
    }

    /// For who is about to sleep with it.
    #[cfg(debug_assertions)]
    #[track_caller]
    pub(crate) fn assert_alone(&self) {
        let others = HELD.with_borrow(|held| held.iter().any(|held| *held != self.place));
        assert!(!others, "a thread sleeps at {:?} with other locks held", self.place);
    }

    #[cfg(not(debug_assertions))]
    pub(crate) fn assert_alone(&self) {}

    #[cfg(not(debug_assertions))]
    pub(crate) fn wait(_: Position) -> Held {
        Held {}
    }

    #[cfg(not(debug_assertions))]
    pub(crate) fn at_once(_: Position) -> Held {
        Held {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        // Behind the end of the thread's variables nobody looks any more.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|place| *place == self.place) {
                held.remove(at);
            }
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use crate::{Mutex, Rank, RwLock};

    fn panics(work: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(work).is_err()
    }

    #[test]
    fn by_ascending_place_alone() {
        let (log, leaf) = (Mutex::new(Rank::Log, ()), Mutex::new(Rank::Leaf, ()));
        {
            let _log = log.lock();
            let _leaf = leaf.lock();
        }
        let (log, leaf) = (std::panic::AssertUnwindSafe(&log), std::panic::AssertUnwindSafe(&leaf));
        assert!(panics(|| {
            let _leaf = leaf.lock();
            let _log = log.lock();
        }));
        assert!(panics(|| {
            let _once = log.lock();
            let _twice = log.lock();
        }));
        // Nothing is held any more, and who does not wait may take what he likes.
        let _leaf = leaf.lock();
        assert!(log.try_lock().is_some());
    }

    #[test]
    fn who_sleeps_holds_one_lock() {
        let (log, leaf) = (Mutex::new(Rank::Log, ()), Mutex::new(Rank::Leaf, ()));
        let sleeping = crate::Condvar::default();
        let soon = std::time::Instant::now();
        sleeping.wait_until(&mut leaf.lock(), soon);
        let both = std::panic::AssertUnwindSafe((&log, &leaf, &sleeping));
        assert!(panics(|| {
            let (log, leaf, sleeping) = *both;
            let _log = log.lock();
            sleeping.wait_until(&mut leaf.lock(), soon);
        }));
    }

    #[test]
    fn of_one_rank_by_ascending_number() {
        let inode = |number| RwLock::numbered(Rank::Inode, number, number);
        let (first, second) = (inode(1), inode(2));
        {
            let low = first.read();
            let mut high = second.write();
            *high += *low;
        }
        assert_eq!(*second.read(), 3);
        let (first, second) =
            (std::panic::AssertUnwindSafe(&first), std::panic::AssertUnwindSafe(&second));
        assert!(panics(|| {
            let _high = second.read();
            let _low = first.read();
        }));
    }
}
