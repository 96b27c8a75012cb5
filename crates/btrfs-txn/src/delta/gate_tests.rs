//! A gate beside real threads; loom's model of it is in tests/lockfree.

use super::gate::Gate;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn who_asks_a_closed_gate_does_not_look_like_one_inside() {
    let (gate, over) = (Gate::new(), AtomicBool::new(false));
    gate.seal();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(gate.enter().is_none());
                }
            });
        }
        let occupied = (0..100_000).filter(|_| gate.looks_occupied()).count();
        over.store(true, Ordering::Relaxed);
        assert_eq!(occupied, 0);
    });
}
