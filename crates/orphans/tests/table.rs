//! The table beside a set, epoch after epoch, and under many threads.

use blocksim::Rng;
use orphans::{Change, Orphans, Release, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// What commits have been told: the numbers that a mount would find.
fn follow(known: &mut BTreeSet<u64>, change: Change) {
    match change {
        Change::Put(number) => assert!(known.insert(number), "{number} is told twice"),
        Change::Remove(number) => assert!(known.remove(&number), "{number} was never told"),
    }
}

/// Each commit leaves what was there when its epoch was sealed, whatever the next one does before
/// it is told.
#[test]
fn every_commit_knows_its_own_state() {
    let table = Orphans::new().expect("memory");
    let mut rng = Rng::new(5);
    let mut claimed: BTreeMap<u64, Slot> = BTreeMap::new();
    let (mut known, mut next, mut told) = (BTreeSet::new(), 1, 0);
    // What claims and releases say that each commit will be told.
    let mut owed: BTreeMap<u64, u64> = BTreeMap::new();
    for epoch in 0..300u64 {
        let mut work = |claimed: &mut BTreeMap<u64, Slot>, epoch| {
            for _ in 0..rng.below(200) {
                if rng.chance(60) || claimed.is_empty() {
                    claimed.insert(next, table.claim(next, epoch).expect("memory"));
                    *owed.entry(epoch).or_default() += 1;
                    next += 1;
                } else {
                    let oldest = rng.chance(50);
                    let last = if oldest { claimed.pop_first() } else { claimed.pop_last() };
                    let owed = owed.entry(epoch).or_default();
                    match table.release(last.expect("not empty").1, epoch) {
                        Release::Forgotten => *owed -= 1,
                        Release::ToTell => *owed += 1,
                    }
                }
            }
        };
        work(&mut claimed, epoch);
        let sealed: BTreeSet<u64> = claimed.keys().copied().collect();
        assert_eq!(table.len(), sealed.len());
        // The next epoch is at work while this one is committed.
        work(&mut claimed, epoch + 1);
        let mut left = owed.remove(&epoch).unwrap_or(0);
        table.hand_over(epoch, |change| {
            left -= 1;
            told += u64::from(matches!(change, Change::Put(_)));
            follow(&mut known, change);
        });
        assert_eq!(left, 0, "epoch {epoch}: less is told than was owed");
        assert_eq!(known, sealed, "epoch {epoch}");
    }
    assert!(told < next - 1, "some came and went within an epoch, and nobody was told");
}

#[test]
fn a_table_grows_as_long_as_it_must() {
    let table = Orphans::new().expect("memory");
    let slots: Vec<Slot> = (1..=100_000).map(|n| table.claim(n, 0).expect("memory")).collect();
    assert_eq!(table.len(), 100_000);
    let mut known = BTreeSet::new();
    table.hand_over(0, |change| follow(&mut known, change));
    assert_eq!(known.len(), 100_000);
    let told = |slot| table.release(slot, 1) == Release::ToTell;
    assert!(slots.into_iter().all(told), "a commit knows all of them");
    table.hand_over(1, |change| follow(&mut known, change));
    assert!(known.is_empty() && table.is_empty());
}

/// Threads come and go while commits are told, each epoch held still for a moment as a seal does.
#[test]
fn threads_and_commits_agree() {
    let table = Orphans::new().expect("memory");
    let epoch = std::sync::RwLock::new(0u64);
    let known = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (table, epoch) = (&table, &epoch);
            scope.spawn(move || {
                let mut mine = Vec::new();
                for round in 0..20_000u64 {
                    let inside = epoch.read().unwrap();
                    mine.push(table.claim(thread << 32 | (round + 1), *inside).expect("memory"));
                    if mine.len() > 100 || round % 3 > 0 {
                        table.release(mine.swap_remove(round as usize % mine.len()), *inside);
                    }
                }
                mine.into_iter().for_each(|slot| {
                    table.release(slot, *epoch.read().unwrap());
                });
            });
        }
        let (table, epoch, known) = (&table, &epoch, &known);
        scope.spawn(move || {
            for _ in 0..200 {
                let sealed = {
                    let mut epoch = epoch.write().unwrap();
                    *epoch += 1;
                    *epoch - 1
                };
                table.hand_over(sealed, |change| follow(&mut known.lock().unwrap(), change));
                std::thread::yield_now();
            }
        });
    });
    let last = *epoch.read().unwrap();
    for epoch in [last, last + 1] {
        table.hand_over(epoch, |change| follow(&mut known.lock().unwrap(), change));
    }
    assert!(known.lock().unwrap().is_empty() && table.is_empty());
}
