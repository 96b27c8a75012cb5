//! src/sync.rs as loom's models see it.

pub use loom::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::cell::Cell;

pub const SLOTS: usize = 1;
pub const PLACES: usize = 1;

loom::thread_local! {
    static PLACE: Cell<usize> = Cell::new(0);
}

pub fn place() -> usize {
    PLACE.with(Cell::get)
}
