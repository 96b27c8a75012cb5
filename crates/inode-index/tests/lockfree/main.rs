//! The index under loom: every interleaving of a few threads, and every value that the memory
//! model lets a load see. The modules are the real ones, with loom's atomics and locks behind
//! them, and nodes of two ways.
//!
//! What it does not know: what an index is used for (`lockfree` of btrfs-fs).

#![allow(dead_code, unused_imports, reason = "the models need a part of it")]

mod sync;

#[path = "../../src/entry.rs"]
mod entry;
#[path = "../../src/epochs.rs"]
mod epochs;
#[path = "../../src/index.rs"]
mod index;
#[path = "../../src/memory.rs"]
mod memory;
#[path = "../../src/node.rs"]
mod node;

use entry::Ref;
use epochs::Epochs;
use index::{Index, Refused};
use loom::sync::RwLock;
use loom::thread;
use std::sync::Arc;
use sync::{AtomicU64, Ordering};

/// More preemptions find nothing more here and take minutes.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Its memory is given back to loom when it is dropped: a use behind that is found.
struct Inode {
    alive: AtomicU64,
    made_by: u64,
    /// It may not leave with claims on it.
    nameless: RwLock<bool>,
}

impl Inode {
    fn new(made_by: u64) -> Inode {
        Inode { alive: AtomicU64::new(1), made_by, nameless: RwLock::new(false) }
    }

    /// As the engine's `Inode::leaves_by`.
    fn leaves_by(&self, seal: &dyn Fn() -> bool) -> bool {
        self.nameless.try_read().is_ok_and(|nameless| !*nameless && seal())
    }

    /// Looks as a reader does.
    fn look(&self) -> u64 {
        assert_eq!(self.alive.load(Ordering::Relaxed), 1, "used behind its end");
        self.made_by
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.alive.store(0, Ordering::Relaxed);
    }
}

struct House {
    epochs: Arc<Epochs>,
    index: Index<Inode>,
}

/// Two levels: a leaf that can die under a root that stays.
const NUMBER: u64 = 2;
const NEIGHBOUR: u64 = 3;

impl House {
    fn new() -> Arc<House> {
        let epochs = Arc::new(Epochs::default());
        Arc::new(House { index: Index::new(epochs.clone()), epochs })
    }

    fn make(&self, number: u64, claims: u64) -> Ref<Inode> {
        self.index.reserve(number).expect("nobody has it").fill(Inode::new(0), claims)
    }

    fn find(&self, claims: u64) -> Option<Ref<Inode>> {
        self.index.find(&self.epochs.pin(), NUMBER, claims)
    }

    fn evict(&self, entry: &Ref<Inode>, keep_claims: bool) -> bool {
        self.index.evict(&self.epochs.pin(), NUMBER, entry, keep_claims)
    }

    /// As who loads what is not in memory.
    fn get(&self, me: u64, claims: u64) -> Ref<Inode> {
        loop {
            let pin = self.epochs.pin();
            if let Some(found) = self.index.find(&pin, NUMBER, claims) {
                return found;
            }
            let new = Ref::try_new(Inode::new(me)).expect("memory");
            match self.index.insert(&pin, NUMBER, &new, claims) {
                Ok(()) => return new,
                Err(Refused::Taken(found)) => return found,
                Err(_) => thread::yield_now(),
            }
        }
    }

    fn forget(&self, count: u64) {
        let last = self.index.give_back(&self.epochs.pin(), NUMBER, count);
        if let Some(entry) = last {
            self.evict(&entry, false);
        }
    }
}

/// In a thread at the place `at`.
fn beside<R: 'static>(
    house: &Arc<House>,
    at: usize,
    work: impl FnOnce(&House) -> R + 'static,
) -> thread::JoinHandle<R> {
    let house = house.clone();
    thread::spawn(move || {
        sync::sit_at(at);
        work(&house)
    })
}

/// A lookup beside an eviction has the entry, or nothing; what it has stays.
#[test]
fn who_is_found_is_not_freed() {
    check(3, || {
        let house = House::new();
        let entry = house.make(NUMBER, 0);
        let looking = beside(&house, 1, |house| {
            if let Some(found) = house.find(0) {
                found.look();
                drop(found);
            }
        });
        let gone = house.evict(&entry, false);
        drop(entry);
        house.epochs.collect();
        looking.join().unwrap();
        assert_eq!(house.find(0).is_none(), gone);
    });
}

/// What is unlinked is not freed while a reader that came before looks at it.
#[test]
fn a_pin_keeps_what_it_sees() {
    check(3, || {
        let house = House::new();
        drop(house.make(NUMBER, 0));
        let looking = beside(&house, 1, |house| {
            let pin = house.epochs.pin();
            let mut seen = Vec::new();
            house.index.each(&pin, &mut |_, entry| seen.push(entry.look()));
            assert!(seen.len() <= 1);
        });
        let gone = house.index.evict_idle(0, 8, false, |_, seal| seal()).gone;
        house.epochs.collect();
        house.epochs.collect();
        looking.join().unwrap();
        assert!(gone <= 1);
    });
}

/// Two who load one number have one entry of it, and both claims.
#[test]
fn a_number_has_one_entry() {
    check(3, || {
        let house = House::new();
        let other = beside(&house, 1, |house| _ = house.get(1, 1).look());
        let mine = house.get(2, 1);
        other.join().unwrap();
        let again = house.find(0).expect("it is claimed");
        assert!(Ref::ptr_eq(&mine, &again));
        assert_eq!(Ref::claims(&mine), 2);
    });
}

/// Claims outlast their entry: one forgets, one looks up, one evicts what they claim.
#[test]
fn no_claim_is_lost_when_its_entry_goes() {
    check(2, || {
        let house = House::new();
        drop(house.make(NUMBER, 1));
        let looking = beside(&house, 1, |house| drop(house.get(1, 1)));
        let pressed = beside(&house, 2, |house| {
            _ = house.index.evict_idle(0, 8, true, |_, seal| seal());
        });
        house.forget(1);
        looking.join().unwrap();
        pressed.join().unwrap();
        let entry = house.get(2, 0);
        assert_eq!(Ref::claims(&entry), 1);
        drop(entry);
        house.forget(1);
        assert!(house.index.reserve(NUMBER).is_ok(), "nobody claims it any more");
    });
}

/// A number is claimed without an entry beside who loads one and has it leave again: both claims are there.
#[test]
fn a_claim_without_an_entry_is_no_other() {
    check(3, || {
        let house = House::new();
        let loading = beside(&house, 1, |house| {
            let entry = house.get(1, 1);
            house.evict(&entry, true);
        });
        let claimed = house.index.claim(&house.epochs.pin(), NUMBER, 1);
        assert!(matches!(claimed, Ok(()) | Err(Refused::Taken(_))));
        drop(claimed);
        loading.join().unwrap();
        let entry = house.get(2, 0);
        assert_eq!(Ref::claims(&entry), 2);
    });
}

/// The last claim goes beside who claims the number anew, neither with an entry.
#[test]
fn a_claim_comes_while_the_last_goes() {
    check(3, || {
        let house = House::new();
        house.index.claim(&house.epochs.pin(), NUMBER, 1).err();
        let claiming =
            beside(&house, 1, |house| house.index.claim(&house.epochs.pin(), NUMBER, 1).is_ok());
        house.forget(1);
        assert!(claiming.join().unwrap(), "nobody has an entry");
        assert_eq!(Ref::claims(&house.get(2, 0)), 1);
        house.forget(1);
        assert!(house.index.reserve(NUMBER).is_ok(), "nobody claims it any more");
    });
}

/// Somebody comes and makes it such as may not leave, and goes, while another looks whether it may.
#[test]
fn what_may_not_leave_any_more_stays() {
    check(3, || {
        let house = House::new();
        drop(house.make(NUMBER, 1));
        let unlinking = beside(&house, 1, |house| {
            let found = house.find(0)?;
            *found.nameless.write().expect("no panic") = true;
            Some(())
        });
        _ = house.index.evict_idle(0, 8, true, |inode, seal| inode.leaves_by(seal));
        let unlinked = unlinking.join().unwrap();
        assert_eq!(
            house.find(0).is_some(),
            unlinked.is_some(),
            "who gives the claim back finds it"
        );
    });
}

/// The last under a leaf goes while a neighbour comes: the neighbour is there.
#[test]
fn a_neighbour_comes_while_the_leaf_goes() {
    check(3, || {
        let house = House::new();
        let entry = house.make(NUMBER, 0);
        let coming = beside(&house, 1, |house| drop(house.make(NEIGHBOUR, 1)));
        assert!(house.evict(&entry, false));
        drop(entry);
        coming.join().unwrap();
        let pin = house.epochs.pin();
        assert!(house.index.find(&pin, NEIGHBOUR, 0).is_some(), "it is lost");
        assert!(house.index.find(&pin, NUMBER, 0).is_none());
        drop(pin);
        house.epochs.collect();
    });
}

/// What is reserved is nobody's: not found, not had twice; one of two has it.
#[test]
fn a_number_is_reserved_once() {
    check(3, || {
        let house = House::new();
        let other = beside(&house, 1, |house| {
            let reserved = house.index.reserve(NUMBER);
            reserved.map(|slot| slot.fill(Inode::new(1), 1)).is_ok()
        });
        let mine = house.index.reserve(NUMBER).map(drop).is_ok();
        let filled = other.join().unwrap();
        assert!(mine || filled, "nobody had it");
        assert_eq!(house.find(0).is_some(), filled);
    });
}
