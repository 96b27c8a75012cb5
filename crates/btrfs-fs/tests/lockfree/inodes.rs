//! Inodes in memory: lookups, forgets and evictions; changes beside writeback.

use crate::bounded;
use crate::ino::InodeId;
use crate::inode::{DirtyQueue, Inode, InodeTable, State};
use crate::sync::{Ordering, Ref};
use btrfs_disk::TreeId;
use loom::sync::Arc as Shared;
use loom::sync::atomic::AtomicU64;
use loom::thread;

const ID: InodeId = InodeId { tree: TreeId::FS, objectid: 6 };

/// One inode, what writes it back, and what has landed of it.
struct House {
    table: InodeTable,
    dirty: DirtyQueue,
    landed: AtomicU64,
}

impl House {
    fn new() -> Shared<House> {
        let (table, dirty) = (InodeTable::new(), DirtyQueue::default());
        let house = House { table, dirty, landed: AtomicU64::new(0) };
        // The subvolume is there before the threads are.
        drop(house.get(0));
        assert_eq!(house.table.evict_idle(), 1);
        Shared::new(house)
    }

    /// The inode, loaded if it is not in memory.
    fn get(&self, lookups: u64) -> Ref<Inode> {
        self.table.get(ID, lookups, || Ok(State::default())).expect("it can always be loaded")
    }

    /// As `orphan::forget`, of an inode with a name.
    fn forget(&self) {
        if let Some(inode) = self.table.forget(ID, 1) {
            self.table.evict(inode);
        }
    }

    /// As `ops::io::write`.
    fn write(&self) {
        let inode = self.get(0);
        inode.state.write().unwritten += 1;
        self.dirty.add(&inode);
    }

    /// As `Engine::flush_queue`.
    fn land(&self, queue: Vec<Ref<Inode>>) {
        for inode in queue {
            self.dirty.begin(&inode);
            let unwritten = std::mem::take(&mut inode.state.write().unwritten);
            self.landed.fetch_add(unwritten, Ordering::Relaxed);
            self.table.evict(inode);
        }
    }

    fn flush_some(&self) {
        let (_turn, queue) = self.dirty.take_some();
        self.land(queue);
    }

    fn flush_all(&self) -> u64 {
        self.land(self.dirty.take_all());
        self.landed.load(Ordering::Relaxed)
    }

    /// Of the inode in memory; `None`: it is not.
    fn lookups(&self) -> Option<u64> {
        self.table.find(ID, 0).map(|inode| Ref::claims(&inode))
    }
}

/// A lookup was handed out while the last one was forgotten, and a commit dropped what nobody
/// used: the inode stays, with one reference.
#[test]
fn an_inode_that_is_looked_up_stays() {
    bounded(3).check(|| {
        let house = House::new();
        drop(house.get(1));
        let looking = {
            let house = house.clone();
            thread::spawn(move || drop(house.get(1)))
        };
        let committing = {
            let house = house.clone();
            thread::spawn(move || house.table.evict_idle())
        };
        house.forget();
        looking.join().unwrap();
        committing.join().unwrap();
        assert_eq!(house.lookups(), Some(1));
        house.forget();
        assert_eq!(house.lookups(), None, "nobody refers to it any more");
    });
}

/// The last claim on an inode goes while one has it at hand and a commit looks for what may leave:
/// the next commit finds it, though the one before had nothing to look for any more.
fn nobody_claims_it_any_more(looked_at: bool) {
    bounded(3).check(move || {
        let house = House::new();
        drop(house.get(1));
        if looked_at {
            house.table.evict_idle();
            assert_eq!(house.table.evict_idle(), 0, "all that is there is claimed");
        }
        let looking = {
            let house = house.clone();
            thread::spawn(move || drop(house.table.find(ID, 0)))
        };
        let committing = {
            let house = house.clone();
            thread::spawn(move || house.table.evict_idle())
        };
        house.forget();
        looking.join().unwrap();
        committing.join().unwrap();
        house.table.evict_idle();
        assert_eq!(house.lookups(), None, "nobody refers to it, and it stays");
        assert_eq!(house.table.evict_idle(), 0, "there is nothing any more");
    });
}

#[test]
fn what_nobody_claims_any_more_is_found() {
    nobody_claims_it_any_more(true);
}

#[test]
fn what_nobody_claims_any_more_is_found_while_a_commit_looks() {
    nobody_claims_it_any_more(false);
}

/// An inode that callers hold leaves memory for others while it is looked up, forgotten and
/// written: their references stay, and what was written lands.
#[test]
fn references_stay_when_an_inode_leaves_memory() {
    bounded(3).check(|| {
        let house = House::new();
        drop(house.get(1));
        let writing = {
            let house = house.clone();
            thread::spawn(move || house.write())
        };
        let looking = {
            let house = house.clone();
            thread::spawn(move || {
                drop(house.get(1));
                house.forget();
            })
        };
        house.table.make_room(8);
        house.table.make_room(8);
        writing.join().unwrap();
        looking.join().unwrap();
        assert_eq!(house.flush_all(), 1, "written and lost");
        drop(house.get(0));
        assert_eq!(house.lookups(), Some(1));
        house.table.make_room(8);
        house.table.make_room(8);
        assert_eq!(house.lookups(), None, "it has left");
        house.forget();
        house.table.evict_idle();
        drop(house.get(0));
        assert_eq!(house.lookups(), Some(0), "nobody refers to it any more");
    });
}

/// As `ops::link`: who has the inode at hand takes the reference when all is done, while others
/// look whether it is in use.
#[test]
fn an_inode_that_is_at_hand_stays_when_it_is_looked_up() {
    bounded(3).check(|| {
        let house = House::new();
        let linking = {
            let house = house.clone();
            thread::spawn(move || {
                let inode = house.get(0);
                let again = house.get(1);
                assert!(Ref::ptr_eq(&inode, &again), "one number, two inodes");
            })
        };
        let forgetting = {
            let house = house.clone();
            thread::spawn(move || {
                drop(house.get(1));
                house.forget();
            })
        };
        house.table.evict_idle();
        linking.join().unwrap();
        forgetting.join().unwrap();
        assert_eq!(house.lookups(), Some(1));
    });
}

/// Of two who look one up that nobody has in memory one loads it; what fails to load leaves
/// nothing.
#[test]
fn an_inode_is_loaded_once() {
    bounded(3).check(|| {
        let house = House::new();
        let other = {
            let house = house.clone();
            thread::spawn(move || {
                let inode = house.get(1);
                assert!(inode.state.read().loaded, "told of it before it was loaded");
                inode.state.write().unwritten += 1;
            })
        };
        let inode = house.get(1);
        assert!(inode.state.read().loaded, "told of it before it was loaded");
        inode.state.write().unwritten += 1;
        other.join().unwrap();
        assert_eq!(inode.state.read().unwritten, 2, "one number, two inodes");
        assert_eq!(house.lookups(), Some(2));
    });
}

/// Two write while one makes room in memory and a commit drops what nobody uses: all of it
/// lands with the next commit, at last.
#[test]
fn what_changes_during_writeback_is_written_back() {
    bounded(3).check(|| {
        let house = House::new();
        house.write();
        let writing = {
            let house = house.clone();
            thread::spawn(move || house.write())
        };
        let pressed = {
            let house = house.clone();
            thread::spawn(move || house.flush_some())
        };
        house.write();
        house.table.evict_idle();
        writing.join().unwrap();
        pressed.join().unwrap();
        assert_eq!(house.flush_all(), 3, "written and lost");
        house.table.evict_idle();
        assert_eq!(house.lookups(), None, "clean, and nobody refers to it");
    });
}

/// What was written before a commit was asked for has landed with it, whoever else is at work
/// on the inode.
#[test]
fn a_commit_waits_for_what_others_write_back() {
    bounded(3).check(|| {
        let house = House::new();
        house.write();
        let pressed = [(), ()].map(|()| {
            let house = house.clone();
            thread::spawn(move || house.flush_some())
        });
        house.write();
        assert_eq!(house.flush_all(), 2, "a commit without what came before");
        pressed.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
