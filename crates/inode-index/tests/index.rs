//! The index beside a `BTreeMap`, and under many threads that count what is dropped.

use blocksim::Rng;
use inode_index::{Epochs, Grown, Index, Ref, Refused, Reserve};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Counts those that live.
struct Counted(Arc<AtomicI64>, u64);

impl Counted {
    fn new(alive: &Arc<AtomicI64>, value: u64) -> Counted {
        alive.fetch_add(1, Ordering::Relaxed);
        Counted(alive.clone(), value)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a number has: the value, if it is in memory, and the claims.
type Model = BTreeMap<u64, (Option<u64>, u64)>;

/// Numbers near each other, far from each other, and at both ends.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(200),
        1 => 4000 + rng.below(200),
        2 => u64::MAX - rng.below(70),
        _ => 1 << rng.below(64),
    }
}

fn step(
    index: &Index<Counted>,
    epochs: &Epochs,
    alive: &Arc<AtomicI64>,
    model: &mut Model,
    rng: &mut Rng,
) {
    let (n, claims) = (number(rng), rng.below(3));
    let pin = epochs.pin();
    let known = model.get(&n).copied();
    assert_eq!(index.claims(&pin, n), known.map_or(0, |(_, claims)| claims));
    match rng.below(7) {
        0 => match index.reserve(n) {
            Ok(reservation) => {
                assert!(known.is_none());
                assert!(index.find(&pin, n, 0).is_none(), "reserved, not there");
                if rng.below(3) > 0 {
                    reservation.fill(Counted::new(alive, n), claims);
                    model.insert(n, (Some(n), claims));
                }
            }
            Err(error) => assert!(error == Reserve::InUse && known.is_some()),
        },
        1 => {
            let new = Ref::try_new(Counted::new(alive, !n)).expect("memory");
            let (value, before) = known.unwrap_or_default();
            match index.insert(&pin, n, &new, claims) {
                Ok(()) => {
                    assert_eq!(value, None);
                    assert_eq!(Ref::claims(&new), before + claims, "claims that were left");
                    model.insert(n, (Some(!n), before + claims));
                }
                Err(Refused::Taken(found)) => {
                    assert_eq!(Some(found.1), value);
                    model.insert(n, (value, before + claims));
                }
                Err(other) => panic!("{}", matches!(other, Refused::Reserved)),
            }
        }
        2 => match (index.find(&pin, n, claims), known) {
            (Some(found), Some((value, before))) => {
                assert_eq!(Some(found.1), value);
                model.insert(n, (value, before + claims));
            }
            (None, known) => assert!(known.is_none_or(|(value, _)| value.is_none())),
            (Some(_), None) => panic!("{n} is there"),
        },
        3 => {
            let Some((value, before)) = known else { return };
            let back = claims.min(before);
            let last = index.give_back(&pin, n, back);
            assert_eq!(last.is_some(), value.is_some() && before == back);
            if value.is_none() && before == back {
                model.remove(&n);
            } else {
                model.insert(n, (value, before - back));
            }
        }
        4 => {
            let Some(found) = index.find(&pin, n, 0) else { return };
            let (_, claims) = known.expect("it is there");
            if rng.below(2) == 0 {
                let other = found.clone();
                assert!(!index.evict(&pin, n, &found, true), "somebody has it");
                drop(other);
            }
            let keep = rng.below(2) == 0;
            assert_eq!(index.evict(&pin, n, &found, keep), keep || claims == 0);
            match (keep, claims) {
                (_, 0) => _ = model.remove(&n),
                (true, _) => _ = model.insert(n, (None, claims)),
                (false, _) => {}
            }
        }
        5 => {
            let (value, before) = known.unwrap_or_default();
            match index.claim(&pin, n, claims + 1) {
                Ok(()) => assert_eq!(value, None),
                Err(Refused::Taken(found)) => assert_eq!(Some(found.1), value),
                Err(other) => panic!("{}", matches!(other, Refused::Reserved)),
            }
            model.insert(n, (value, before + claims + 1));
        }
        _ => {
            let Some(found) = index.find(&pin, n, 0) else { return };
            let (_, claims) = known.expect("it is there");
            let back = rng.below(claims + 1);
            let _other = found.clone();
            assert!(index.remove(&pin, n, &found, back) && !index.remove(&pin, n, &found, back));
            match claims - back {
                0 => _ = model.remove(&n),
                left => _ = model.insert(n, (None, left)),
            }
        }
    }
}

#[test]
fn it_is_what_a_map_says() {
    let alive = Arc::new(AtomicI64::new(0));
    let epochs = Arc::new(Epochs::default());
    let index = Index::new(epochs.clone());
    let (mut model, mut rng) = (Model::new(), Rng::new(14));
    let steps = if cfg!(miri) { 2_000 } else { 200_000 };
    for _ in 0..steps {
        step(&index, &epochs, &alive, &mut model, &mut rng);
    }
    let held: Vec<u64> = model.iter().filter(|(_, (v, _))| v.is_some()).map(|(n, _)| *n).collect();
    let mut found = Vec::new();
    index.each(&epochs.pin(), &mut |n, entry| {
        assert_eq!(Some(entry.1), model[&n].0);
        found.push(n);
    });
    assert_eq!(found, held, "all, in ascending order");
    epochs.collect();
    assert_eq!(alive.load(Ordering::Relaxed), held.len() as i64, "freed, and nothing else");
    drop(index);
    epochs.collect();
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_idle_goes_in_pieces() {
    let epochs = Arc::new(Epochs::default());
    let index = Index::new(epochs.clone());
    for n in 0..1000 {
        index.reserve(n).expect("memory").fill(n, n % 2);
    }
    let busy = index.find(&epochs.pin(), 500, 0).expect("it is there");
    let sweep = |keep_claims, most| {
        let (mut from, mut gone, mut stayed, mut rounds) = (Some(0), 0, 0, 0);
        while let Some(at) = from {
            let seen = index.evict_idle(at, most, keep_claims, |n, seal| n % 10 != 8 && seal());
            (from, gone, rounds) = (seen.next, gone + seen.gone, rounds + 1);
            stayed += seen.unclaimed;
        }
        (gone, stayed, rounds)
    };
    assert_eq!(
        sweep(false, 64),
        (399, 101, 16),
        "of the even ones all but one in five and the busy one"
    );
    drop(busy);
    assert_eq!(sweep(true, 10_000), (501, 100, 1));
    let claims = || [3, 5].map(|number| index.claims(&epochs.pin(), number));
    assert_eq!(claims(), [1, 1]);
    assert!(index.give_back(&epochs.pin(), 3, 1).is_none());
    assert_eq!(claims(), [0, 1]);
    assert!(index.reserve(3).is_ok(), "the last claim is given back");
    assert_eq!(index.reserve(5).err(), Some(Reserve::InUse), "a claim is left on it");
}

#[test]
fn a_growing_index_lends_what_it_has() {
    let epochs = Arc::new(Epochs::default());
    let grown = Grown::new(epochs.clone());
    let names: Vec<&String> = (250..260)
        .map(|n| grown.get_or_make(&epochs.pin(), n, || n.to_string()).expect("memory"))
        .collect();
    assert_eq!(grown.get(&epochs.pin(), 255), Some(names[5]));
    let (mut all, mut from) = (Vec::new(), 0);
    while let Some((n, _)) = grown.next(&epochs.pin(), from) {
        all.push(n);
        from = n + 1;
    }
    assert_eq!(all, (250..260).collect::<Vec<u64>>());
}

/// Threads make, find, evict and load again the same few numbers; each number has one entry at a
/// time, no claim is lost, and all memory comes back.
#[test]
fn many_threads_agree() {
    let alive = Arc::new(AtomicI64::new(0));
    let epochs = Arc::new(Epochs::default());
    let index = Index::new(epochs.clone());
    let rounds = if cfg!(miri) { 40 } else { 40_000 };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (index, epochs, alive) = (&index, &epochs, &alive);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..rounds {
                    let n = 60 + rng.below(8);
                    let entry = loop {
                        let pin = epochs.pin();
                        if let Some(found) = index.find(&pin, n, 1) {
                            break found;
                        }
                        let new = Ref::try_new(Counted::new(alive, n)).expect("memory");
                        match index.insert(&pin, n, &new, 1) {
                            Ok(()) => break new,
                            Err(Refused::Taken(found)) => break found,
                            Err(_) => {}
                        }
                    };
                    assert_eq!(entry.1, n);
                    if rng.below(2) == 0 {
                        index.evict(&epochs.pin(), n, &entry, true);
                    }
                    drop(entry);
                    if let Some(entry) = index.give_back(&epochs.pin(), n, 1) {
                        index.evict(&epochs.pin(), n, &entry, false);
                    }
                }
            });
        }
    });
    for n in 60..68 {
        let found = index.find(&epochs.pin(), n, 0);
        assert!(found.is_none_or(|entry| Ref::claims(&entry) == 0), "claims on {n} are left");
        assert_ne!(index.reserve(n).err(), Some(Reserve::NoMemory));
    }
    drop(index);
    epochs.collect();
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}
