//! The table under loom: every interleaving of a few threads, and every value that the memory
//! model lets a load see. The modules are the real ones, with loom's atomics behind them; a new
//! table has one block of one slot, so that the second claim makes it grow.
//!
//! What it does not know: what a commit does with what it is told.

#![allow(dead_code, reason = "the models need a part of it")]

mod sync;

#[path = "../../src/slot.rs"]
mod slot;
#[allow(clippy::modulo_one, reason = "a block of the models has one slot")]
#[path = "../../src/table.rs"]
mod table;

use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;
use table::{Change, Orphans};

/// More preemptions find nothing more here and take minutes.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn table() -> Arc<Orphans> {
    Arc::new(Orphans::new().expect("memory"))
}

fn handed(table: &Orphans, epoch: u64) -> Vec<Change> {
    let mut told = Vec::new();
    table.hand_over(epoch, |change| told.push(change));
    told.sort_by_key(|change| match change {
        Change::Put(number) => (*number, 0),
        Change::Remove(number) => (*number, 1),
    });
    told
}

/// Claims have a slot each, though there is one: the table grows under both.
#[test]
fn two_who_claim_have_two_slots() {
    check(|| {
        let table = table();
        let other = {
            let table = table.clone();
            thread::spawn(move || table.claim(2, 0).expect("memory"))
        };
        let mine = table.claim(1, 0).expect("memory");
        let others = other.join().unwrap();
        assert_ne!(mine, others);
        assert_eq!(handed(&table, 0), [Change::Put(1), Change::Put(2)], "claimed and lost");
    });
}

/// What is released is free for the next: nothing is left, and nobody is told.
#[test]
fn what_came_and_went_is_told_to_nobody() {
    check(|| {
        let table = table();
        let other = {
            let table = table.clone();
            thread::spawn(move || {
                let slot = table.claim(2, 0).expect("memory");
                table.release(slot, 0);
            })
        };
        let slot = table.claim(1, 0).expect("memory");
        table.release(slot, 0);
        other.join().unwrap();
        assert!(table.is_empty());
        assert_eq!(handed(&table, 0), []);
    });
}

/// A release in the next epoch, beside the hand-over of the one that the claim was in: that one
/// has it, and the next one takes it away.
#[test]
fn what_goes_beside_a_commit_is_told_to_both() {
    check(|| {
        let table = table();
        let slot = table.claim(1, 0).expect("memory");
        let releasing = {
            let table = table.clone();
            thread::spawn(move || table.release(slot, 1))
        };
        let first = handed(&table, 0);
        releasing.join().unwrap();
        assert_eq!(first, [Change::Put(1)]);
        assert_eq!(handed(&table, 1), [Change::Remove(1)]);
        assert_eq!(handed(&table, 2), []);
    });
}

/// A claim in the next epoch, in a slot that comes free meanwhile or in one that is new, is for
/// the next commit alone.
#[test]
fn what_comes_beside_a_commit_is_the_nexts() {
    check(|| {
        let table = table();
        let old = table.claim(1, 0).expect("memory");
        assert_eq!(handed(&table, 0), [Change::Put(1)]);
        table.release(old, 1);
        let told = Arc::new(Mutex::new(Vec::new()));
        let coming = {
            let table = table.clone();
            thread::spawn(move || table.claim(2, 2).expect("memory"))
        };
        told.lock().unwrap().extend(handed(&table, 1));
        let new = coming.join().unwrap();
        assert_eq!(*told.lock().unwrap(), [Change::Remove(1)]);
        assert_eq!(handed(&table, 2), [Change::Put(2)]);
        table.release(new, 3);
        assert_eq!(handed(&table, 3), [Change::Remove(2)]);
    });
}
