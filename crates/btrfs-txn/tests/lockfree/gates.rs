//! The epoch's gate: operations on one lane and on two, a sealer, and one who holds the epoch
//! still for a moment.

#[path = "../../src/delta/gate.rs"]
mod gate;

use crate::bounded;
use crate::sync::use_lane;
use gate::Gate;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::JoinHandle;

/// Two threads, each of which enters once if it can, and answers how often it did.
fn operations(lanes: [usize; 2], gate: &Arc<Gate>, inside: &Arc<AtomicUsize>) -> Ops {
    Ops(lanes.map(|lane| {
        let (gate, inside) = (gate.clone(), inside.clone());
        loom::thread::spawn(move || {
            use_lane(lane);
            let Some(active) = gate.enter() else { return 0 };
            inside.fetch_add(1, Ordering::Relaxed);
            gate.leave(active);
            1
        })
    }))
}

struct Ops([JoinHandle<usize>; 2]);

impl Ops {
    /// How many entered.
    fn join(self) -> usize {
        self.0.into_iter().map(|thread| thread.join().unwrap()).sum()
    }
}

/// What an operation writes inside is there when `seal` returns, and nothing comes later.
fn sealed(lanes: [usize; 2]) {
    bounded(2).check(move || {
        let (gate, inside) = (Arc::new(Gate::new()), Arc::new(AtomicUsize::new(0)));
        let operations = operations(lanes, &gate, &inside);
        gate.seal();
        let sealed = inside.load(Ordering::Relaxed);
        assert_eq!(sealed, operations.join(), "an operation wrote behind the seal");
        assert!(gate.enter().is_none());
    });
}

/// While the epoch is held still nothing changes, and nothing is lost when it goes on.
fn held_still(lanes: [usize; 2]) {
    bounded(2).check(move || {
        let (gate, inside) = (Arc::new(Gate::new()), Arc::new(AtomicUsize::new(0)));
        let operations = operations(lanes, &gate, &inside);
        gate.seal();
        let before = inside.load(Ordering::Relaxed);
        loom::thread::yield_now();
        assert_eq!(before, inside.load(Ordering::Relaxed), "changed while held still");
        gate.reopen();
        let entered = operations.join();
        assert_eq!(inside.load(Ordering::Relaxed), entered);
        assert!(gate.enter().map(|active| gate.leave(active)).is_some());
    });
}

#[test]
fn nothing_changes_behind_the_seal() {
    sealed([0, 0]);
}

#[test]
fn nothing_changes_behind_the_seal_on_two_lanes() {
    sealed([0, 1]);
}

#[test]
fn nothing_changes_while_held_still() {
    held_still([0, 0]);
}

#[test]
fn nothing_changes_while_held_still_on_two_lanes() {
    held_still([0, 1]);
}

/// Who enters behind it sees what was done while the epoch was held still: that names are
/// watched from then on, say (`ItemDelta::watch_names`).
#[test]
fn what_is_done_while_held_still_is_seen() {
    bounded(2).check(|| {
        let (gate, early) = (Arc::new(Gate::new()), Arc::new(AtomicUsize::new(0)));
        let watched = Arc::new(AtomicUsize::new(0));
        let operations = [0, 1].map(|lane| {
            let (gate, early, watched) = (gate.clone(), early.clone(), watched.clone());
            loom::thread::spawn(move || {
                use_lane(lane);
                let Some(active) = gate.enter() else { return };
                if watched.load(Ordering::Relaxed) == 0 {
                    early.fetch_add(1, Ordering::Relaxed);
                }
                gate.leave(active);
            })
        });
        gate.seal();
        let before = early.load(Ordering::Relaxed);
        watched.store(1, Ordering::Relaxed);
        gate.reopen();
        operations.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(early.load(Ordering::Relaxed), before, "entered behind it and did not see it");
    });
}

/// Who sees what an operation did first sees the rest when those have left who were inside.
fn ended(lanes: [usize; 2]) {
    bounded(2).check(move || {
        let gate = Arc::new(Gate::new());
        let halves = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let operations = lanes.map(|lane| {
            let (gate, halves) = (gate.clone(), halves.clone());
            loom::thread::spawn(move || {
                use_lane(lane);
                let active = gate.enter().expect("nobody seals it");
                halves[0].fetch_add(1, Ordering::Release);
                halves[1].fetch_add(1, Ordering::Relaxed);
                gate.leave(active);
            })
        });
        let seen = halves[0].load(Ordering::Acquire);
        gate.wait_for_those_inside();
        assert!(halves[1].load(Ordering::Relaxed) >= seen, "one of them is half done");
        operations.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn who_is_waited_for_has_ended() {
    ended([0, 0]);
}

#[test]
fn who_is_waited_for_has_ended_on_two_lanes() {
    ended([0, 1]);
}
