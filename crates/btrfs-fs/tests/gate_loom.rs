//! The epoch's gate under loom: every interleaving of two operations and a sealer.

mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

    pub const LANES: usize = 2;

    pub fn lane_index() -> usize {
        loom::thread_local!(static LANE: std::cell::Cell<usize> = std::cell::Cell::new(0));
        LANE.with(|lane| lane.get())
    }

    pub fn relax(_: u32) {
        loom::thread::yield_now();
    }
}

#[path = "../src/delta/gate.rs"]
mod gate;

use gate::Gate;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::JoinHandle;

/// Without a bound a model takes five minutes (and passes); two preemptions find the bug
/// that a missing fence makes.
fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model
}

/// Two threads, each of which enters once if it can, and answers how often it did.
fn operations(gate: &Arc<Gate>, inside: &Arc<AtomicUsize>) -> Vec<JoinHandle<usize>> {
    let operation = || {
        let (gate, inside) = (gate.clone(), inside.clone());
        loom::thread::spawn(move || {
            let Some(active) = gate.enter() else { return 0 };
            inside.fetch_add(1, Ordering::Relaxed);
            gate.leave(active);
            1
        })
    };
    vec![operation(), operation()]
}

/// What an operation writes inside is there when `seal` returns, and nothing comes later.
#[test]
fn nothing_changes_behind_the_seal() {
    bounded().check(|| {
        let (gate, inside) = (Arc::new(Gate::new()), Arc::new(AtomicUsize::new(0)));
        let threads = operations(&gate, &inside);
        gate.seal();
        let sealed = inside.load(Ordering::Relaxed);
        let entered: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(sealed, entered, "an operation wrote behind the seal");
        assert!(gate.enter().is_none());
    });
}

/// While the epoch is held still nothing changes, and nothing is lost when it goes on.
#[test]
fn nothing_changes_while_held_still() {
    bounded().check(|| {
        let (gate, inside) = (Arc::new(Gate::new()), Arc::new(AtomicUsize::new(0)));
        let threads = operations(&gate, &inside);
        gate.seal();
        let before = inside.load(Ordering::Relaxed);
        loom::thread::yield_now();
        assert_eq!(before, inside.load(Ordering::Relaxed), "changed while held still");
        gate.reopen();
        let entered: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(inside.load(Ordering::Relaxed), entered);
        assert!(gate.enter().map(|active| gate.leave(active)).is_some());
    });
}
