//! Debug builds: what this thread's operations may change, held against what they do change.
//!
//! Who reserves for an operation enters its cost here; each operation is charged when it leaves
//! its epoch. An operation that changes more than was reserved is a mistake in the table of costs,
//! and every test finds it. Items that take the place of others are not counted: what they add
//! to a leaf is not known here.
//!
//! What it does not know: extents and checksums, and operations of threads that reserve nothing
//! for themselves (writeback has its share of the content's reservation).

use std::cell::Cell;

/// What operations of a thread changed or may change.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Changes {
    /// Keys that lie apart.
    pub places: i64,
    /// Bytes of new items, with their headers.
    pub bytes: i64,
}

#[derive(Clone, Copy, Default)]
struct State {
    left: Changes,
    /// Reservations of this thread.
    entered: u32,
    suspended: u32,
}

thread_local!(static STATE: Cell<State> = const { Cell::new(State {
    left: Changes { places: 0, bytes: 0 },
    entered: 0,
    suspended: 0,
}) });

fn change(work: impl FnOnce(&mut State)) {
    STATE.with(|cell| {
        let mut state = cell.get();
        work(&mut state);
        cell.set(state);
    });
}

/// The calling thread may change `most` more, until `leave`.
pub fn enter(most: Changes) {
    if cfg!(debug_assertions) {
        change(|state| {
            state.entered += 1;
            state.left.places += most.places;
            state.left.bytes += most.bytes;
        });
    }
}

/// Ends an `enter`. With the last one nothing is left.
pub fn leave() {
    if cfg!(debug_assertions) {
        change(|state| {
            state.entered = state.entered.saturating_sub(1);
            if state.entered == 0 {
                state.left = Changes::default();
            }
        });
    }
}

/// What `work` changes has another reservation.
pub fn suspended<T>(work: impl FnOnce() -> T) -> T {
    if !cfg!(debug_assertions) {
        return work();
    }
    struct Resume;
    impl Drop for Resume {
        fn drop(&mut self) {
            change(|state| state.suspended -= 1);
        }
    }
    change(|state| state.suspended += 1);
    let _resume = Resume;
    work()
}

/// An operation changed this.
pub(crate) fn charge(changes: Changes) {
    if !cfg!(debug_assertions) || std::thread::panicking() {
        return;
    }
    change(|state| {
        if state.entered == 0 || state.suspended > 0 {
            return;
        }
        state.left.places -= changes.places;
        state.left.bytes -= changes.bytes;
        let left = state.left;
        assert!(
            left.places >= 0 && left.bytes >= 0,
            "an operation changed more than was reserved: {changes:?}, which leaves {left:?}"
        );
    });
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn who_changes_more_than_was_reserved_is_told() {
        let changes = |places, bytes| Changes { places, bytes };
        charge(changes(9, 9));
        enter(changes(3, 100));
        charge(changes(2, 90));
        suspended(|| charge(changes(7, 700)));
        enter(changes(1, 0));
        charge(changes(2, 10));
        leave();
        let more = std::panic::catch_unwind(|| charge(changes(0, 1)));
        assert!(more.is_err());
        leave();
        charge(changes(9, 9));
    }
}
