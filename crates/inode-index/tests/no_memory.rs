//! The allocator refuses: each allocation on the way of an insert in turn. The caller is told,
//! and the index is as before.

use inode_index::{Epochs, Grown, Index, NoMemory, Ref, Refused, Reserve};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// How many allocations of this thread are granted yet.
    static GRANTED: Cell<u64> = const { Cell::new(u64::MAX) };
}

struct Refusing;

// SAFETY: the system's allocator, but that it refuses at times, as any may.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let granted = GRANTED.get();
        if granted == 0 {
            return std::ptr::null_mut();
        }
        GRANTED.set(granted - u64::from(granted != u64::MAX));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// `work` with so many allocations.
fn granting<T>(count: u64, work: impl FnOnce() -> T) -> T {
    GRANTED.set(count);
    let result = work();
    GRANTED.set(u64::MAX);
    result
}

/// Debug builds keep a list of the locks that a thread holds: it has its room behind this.
fn warm_up() {
    let epochs = Arc::new(Epochs::default());
    let index = Index::new(epochs.clone());
    let entry = index.reserve(1).expect("memory").fill((), 0);
    assert!(index.evict(&epochs.pin(), 1, &entry, false));
    epochs.collect();
}

/// Four levels, so four nodes and the entry.
const NUMBER: u64 = 5_000_000;
const ALLOCATIONS: u64 = 5;

#[test]
fn a_reservation_is_refused_and_leaves_nothing() {
    warm_up();
    let epochs = Arc::new(Epochs::default());
    let index: Index<u64> = Index::new(epochs.clone());
    let mut refused = 0;
    while let Err(error) = granting(refused, || index.reserve(NUMBER + (refused << 24)).map(drop)) {
        assert_eq!(error, Reserve::NoMemory);
        assert!(index.find(&epochs.pin(), NUMBER + (refused << 24), 0).is_none());
        refused += 1;
    }
    assert!(refused >= ALLOCATIONS, "{refused} allocations alone");
    // What was reserved asks for nothing any more.
    let reservation = index.reserve(NUMBER).expect("memory");
    let entry = granting(0, || reservation.fill(7, 1));
    assert_eq!(*entry, 7);
    assert!(index.find(&epochs.pin(), NUMBER, 0).is_some_and(|found| Ref::ptr_eq(&found, &entry)));
}

#[test]
fn an_insert_is_refused_and_can_be_made_again() {
    warm_up();
    let epochs = Arc::new(Epochs::default());
    let index = Index::new(epochs.clone());
    let entry = Ref::try_new(String::from("kept")).expect("memory");
    let mut refused = 0;
    loop {
        let pin = epochs.pin();
        match granting(refused, || index.insert(&pin, NUMBER, &entry, 1)) {
            Err(Refused::NoMemory) => refused += 1,
            other => break assert!(other.is_ok()),
        }
    }
    // The entry is there, and the root stays: of the other nodes each is refused once.
    assert!(refused >= ALLOCATIONS - 2, "{refused} allocations alone");
    assert_eq!(Ref::claims(&entry), 1);
}

#[test]
fn an_entry_and_a_growing_index_are_refused() {
    warm_up();
    assert!(granting(0, || Ref::try_new(1u64)).is_none());
    let epochs = Arc::new(Epochs::default());
    let grown = Grown::new(epochs.clone());
    let pin = epochs.pin();
    assert_eq!(granting(1, || grown.get_or_make(&pin, 256, || 1u64).copied()), Err(NoMemory));
    assert_eq!(grown.get_or_make(&pin, 256, || 2u64), Ok(&2));
    assert_eq!(grown.get_or_make(&pin, 256, || 3u64), Ok(&2));
}

/// What is taken out while nothing can be noted is lost to the process, and no more.
#[test]
fn an_eviction_without_memory_succeeds() {
    warm_up();
    let epochs = Arc::new(Epochs::default());
    let index = Index::new(epochs.clone());
    let pin = epochs.pin();
    let entry = index.reserve(NUMBER).expect("memory").fill(1u64, 0);
    assert!(granting(0, || index.evict(&pin, NUMBER, &entry, false)));
    assert!(index.find(&pin, NUMBER, 0).is_none());
}
