//! Inode numbers: each once, and none behind the last.

#[path = "../../src/numbers.rs"]
mod modelled;

use crate::bounded;
use btrfs_disk::ids::LAST_FREE_OBJECTID;
use loom::sync::Arc;
use loom::thread;
use modelled::Numbers;

/// What three threads get that ask at once, in order, where `first` is the first number.
fn three(first: u64, then: impl Fn(Vec<u64>) + Sync + Send + 'static) {
    bounded(3).check(move || {
        let numbers = Arc::new(Numbers::default());
        let asking = || {
            let numbers = numbers.clone();
            move || numbers.take(|| Ok(first)).ok()
        };
        let others = [thread::spawn(asking()), thread::spawn(asking())];
        let mine = asking()();
        let theirs = others.map(|thread| thread.join().unwrap());
        let mut all: Vec<u64> = theirs.into_iter().chain([mine]).flatten().collect();
        all.sort_unstable();
        then(all);
    });
}

#[test]
fn each_number_is_given_once() {
    three(300, |all| assert_eq!(all, [300, 301, 302]));
}

#[test]
fn behind_the_last_number_nobody_gets_one() {
    three(LAST_FREE_OBJECTID - 1, |all| assert_eq!(all, [LAST_FREE_OBJECTID - 1]));
    // Numbers of an image can be any: one behind the last is not followed by those in use.
    three(u64::MAX, |all| assert!(all.is_empty(), "{all:?}"));
}
