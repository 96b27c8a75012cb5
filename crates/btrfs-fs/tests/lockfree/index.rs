//! The face of `inode-index` with a lock around a map behind it: that the real one does what this
//! does is for its own models to say, and each state of it would be one more of these. The words
//! that count references and claims are the real ones.

#![allow(dead_code, reason = "the models need a part of it")]

#[path = "../../../inode-index/src/entry.rs"]
mod entry;
#[path = "../../../inode-index/src/memory.rs"]
mod memory;

/// inode-index/src/sync.rs as loom's models see it.
mod sync {
    pub use loom::sync::atomic::{AtomicU64, Ordering};
}

pub use entry::Ref;

use entry::MAX_CLAIMS;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use testkit::model_locks::{Mutex, Rank};

#[derive(Default)]
pub struct Epochs(());

pub struct Pin<'e>(PhantomData<&'e ()>);

impl Epochs {
    pub fn pin(&self) -> Pin<'_> {
        Pin(PhantomData)
    }

    pub fn entries(&self) -> usize {
        0
    }
}

/// One subvolume is enough.
pub struct Grown<T>(OnceLock<T>);

impl<T: Send + 'static> Grown<T> {
    pub fn new(_: Arc<Epochs>) -> Grown<T> {
        Grown(OnceLock::new())
    }

    pub fn get(&self, _: &Pin<'_>, _: u64) -> Option<&T> {
        self.0.get()
    }

    pub fn get_or_make(&self, _: &Pin<'_>, _: u64, make: impl FnOnce() -> T) -> Result<&T, ()> {
        Ok(self.0.get_or_init(make))
    }

    pub fn next(&self, _: &Pin<'_>, from: u64) -> Option<(u64, &T)> {
        self.0.get().filter(|_| from <= 5).map(|tree| (5, tree))
    }
}

enum Slot<T> {
    Entry(Ref<T>),
    Left(u64),
}

pub struct Index<T>(Mutex<BTreeMap<u64, Slot<T>>>);

pub enum Refused<T> {
    NoMemory,
    Taken(Ref<T>),
    Reserved,
}

pub enum Reserve {
    NoMemory,
    InUse,
}

#[derive(Clone, Copy, Default)]
pub struct Evicted {
    pub gone: usize,
    pub unclaimed: usize,
    pub next: Option<u64>,
}

pub struct Reservation<'i, T>(&'i T);

impl<T> Reservation<'_, T> {
    pub fn fill(self, _: T, _: u64) -> Ref<T> {
        unreachable!("no model makes inodes")
    }
}

/// A reference more, with `claims`: what is in the map is not gone.
fn taken<T>(entry: &Ref<T>, claims: u64) -> Ref<T> {
    assert!(entry.entry().take(claims), "sealed ones are taken out under the lock");
    // SAFETY: the reference that `take` has counted becomes this one.
    unsafe { Ref::from_raw(NonNull::from(entry.entry())) }
}

impl<T: Send + 'static> Index<T> {
    pub fn new(_: Arc<Epochs>) -> Index<T> {
        Index(Mutex::new(Rank::Leaf, BTreeMap::new()))
    }

    pub fn find(&self, _: &Pin<'_>, number: u64, claims: u64) -> Option<Ref<T>> {
        match self.0.lock().get(&number)? {
            Slot::Entry(entry) => Some(taken(entry, claims)),
            Slot::Left(_) => None,
        }
    }

    pub fn insert(
        &self,
        _: &Pin<'_>,
        number: u64,
        new: &Ref<T>,
        claims: u64,
    ) -> Result<(), Refused<T>> {
        let mut slots = self.0.lock();
        let left = match slots.get(&number) {
            Some(Slot::Entry(entry)) => return Err(Refused::Taken(taken(entry, claims))),
            Some(Slot::Left(left)) => *left,
            None => 0,
        };
        slots.insert(number, Slot::Entry(taken(new, left + claims)));
        Ok(())
    }

    pub fn claim(&self, _: &Pin<'_>, number: u64, claims: u64) -> Result<(), Refused<T>> {
        let mut slots = self.0.lock();
        let left = match slots.get(&number) {
            Some(Slot::Entry(entry)) => return Err(Refused::Taken(taken(entry, claims))),
            Some(Slot::Left(left)) => *left,
            None => 0,
        };
        slots.insert(number, Slot::Left(left + claims));
        Ok(())
    }

    pub fn reserve(&self, _: u64) -> Result<Reservation<'_, T>, Reserve> {
        Err(Reserve::NoMemory)
    }

    pub fn give_back(&self, _: &Pin<'_>, number: u64, count: u64) -> Option<Ref<T>> {
        let mut slots = self.0.lock();
        match slots.get_mut(&number)? {
            Slot::Entry(entry) => {
                let found = taken(entry, 0);
                drop(slots);
                Ref::give_back(&found, count).then_some(found)
            }
            Slot::Left(left) => {
                *left -= count;
                if *left == 0 {
                    slots.remove(&number);
                }
                None
            }
        }
    }

    fn take_out(&self, number: u64, seal: impl FnOnce(&Ref<T>) -> bool) -> bool {
        let mut slots = self.0.lock();
        let Some(Slot::Entry(entry)) = slots.get(&number) else { return false };
        if !seal(entry) {
            return false;
        }
        let claims = Ref::claims(entry);
        slots.remove(&number);
        if claims > 0 {
            slots.insert(number, Slot::Left(claims));
        }
        true
    }

    pub fn evict(&self, _: &Pin<'_>, number: u64, entry: &Ref<T>, keep_claims: bool) -> bool {
        let most = if keep_claims { MAX_CLAIMS } else { 0 };
        self.take_out(number, |found| Ref::ptr_eq(found, entry) && entry.entry().seal(2, most))
    }

    pub fn remove(&self, _: &Pin<'_>, number: u64, entry: &Ref<T>, count: u64) -> bool {
        self.take_out(number, |found| {
            Ref::ptr_eq(found, entry) && entry.entry().seal_at_once(count)
        })
    }

    pub fn evict_idle(
        &self,
        from: u64,
        _: usize,
        keep_claims: bool,
        mut leaves: impl FnMut(&T, &dyn Fn() -> bool) -> bool,
    ) -> Evicted {
        let most = if keep_claims { MAX_CLAIMS } else { 0 };
        let numbers: Vec<u64> = self.0.lock().range(from..).map(|(number, _)| *number).collect();
        let mut leaves = |entry: &Ref<T>| {
            entry.entry().is_idle(most) && leaves(entry, &|| entry.entry().seal(1, most))
        };
        let mut seen = Evicted::default();
        for number in numbers {
            match self.take_out(number, &mut leaves) {
                true => seen.gone += 1,
                false => seen.unclaimed += usize::from(self.claims_of(number) == Some(0)),
            }
        }
        seen
    }

    pub fn claims(&self, _: &Pin<'_>, number: u64) -> u64 {
        match self.0.lock().get(&number) {
            Some(Slot::Entry(entry)) => Ref::claims(entry),
            Some(Slot::Left(claims)) => *claims,
            None => 0,
        }
    }

    fn claims_of(&self, number: u64) -> Option<u64> {
        match self.0.lock().get(&number)? {
            Slot::Entry(entry) => Some(Ref::claims(entry)),
            Slot::Left(_) => None,
        }
    }

    pub fn each(&self, _: &Pin<'_>, visit: &mut dyn FnMut(u64, Ref<T>)) {
        let slots = self.0.lock();
        let entries = slots.iter().filter_map(|(number, slot)| match slot {
            Slot::Entry(entry) => Some((*number, taken(entry, 0))),
            Slot::Left(_) => None,
        });
        for (number, entry) in entries.collect::<Vec<_>>() {
            visit(number, entry);
        }
    }
}
