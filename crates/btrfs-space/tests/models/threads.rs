//! Many threads at one allocator: no byte is handed out twice, every reservation is kept,
//! and at the end everything is free again.

use btrfs_disk::Error;
use btrfs_space::{Extent, Kind, Priority, Space};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common;
use common::edit::Dice;
use common::{Image, with_kernel};

/// Who holds what; panics on a byte that two hold.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<u64, u64>>);

impl Ledger {
    fn take(&self, extent: &Extent) {
        let mut held = self.0.lock().expect("not poisoned");
        let before = held.range(..extent.end()).next_back();
        assert!(
            before.is_none_or(|(start, len)| start + len <= extent.logical.0),
            "{extent:?} is held: {before:?}"
        );
        held.insert(extent.logical.0, extent.len);
    }

    fn give(&self, extent: &Extent) {
        let len = self.0.lock().expect("not poisoned").remove(&extent.logical.0);
        assert_eq!(len, Some(extent.len));
    }
}

fn worker(space: &Space, ledger: &Ledger, seed: u64, rounds: u64, allocated: &AtomicU64) {
    let mut dice = Dice(seed);
    let mut mine: Vec<Extent> = Vec::new();
    for _ in 0..rounds {
        if dice.roll(5) < 2 && !mine.is_empty() {
            let extent = mine.swap_remove(dice.roll(mine.len() as u64) as usize);
            ledger.give(&extent);
            space.release(extent).expect("mine");
            continue;
        }
        if dice.roll(4) == 0 {
            let node = match space.alloc(Kind::Metadata, 16384, 16384) {
                Ok(node) => node,
                Err(Error::NoSpace) => continue,
                Err(error) => panic!("{error}"),
            };
            assert!(node.logical.0.is_multiple_of(16384) && node.len == 16384);
            ledger.take(&node);
            mine.push(node);
            continue;
        }
        let bytes = 4096 * (1 + dice.roll(300));
        let mut reservation = match space.reserve_data(bytes) {
            Ok(reservation) => reservation,
            Err(Error::NoSpace) => continue,
            Err(error) => panic!("{error}"),
        };
        let keep = dice.roll(bytes / 4096) * 4096;
        while reservation.bytes() > keep {
            let goal = mine.last().map(|extent| btrfs_disk::Logical(extent.end()));
            let extent =
                reservation.alloc(space, reservation.bytes(), 4096, goal).expect("reserved");
            ledger.take(&extent);
            allocated.fetch_add(extent.len, Ordering::Relaxed);
            mine.push(extent);
        }
    }
    for extent in mine {
        ledger.give(&extent);
        space.release(extent).expect("mine");
    }
}

#[test]
fn nothing_is_handed_out_twice() {
    with_kernel(|| {
        let image = Image::new("700M", &[]);
        let opened = image.open();
        let space = opened.space();
        let before = space.totals();
        let (ledger, allocated) = (Ledger::default(), AtomicU64::new(0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Reservations of metadata come and go meanwhile.
                while !done.load(Ordering::Relaxed) {
                    let _ = space.reserve_metadata(3 << 20, Priority::Normal);
                    let _ = space.totals();
                    std::thread::yield_now();
                }
            });
            let workers: Vec<_> = (1..=24u64)
                .map(|seed| {
                    let (space, ledger, allocated) = (&space, &ledger, &allocated);
                    scope.spawn(move || {
                        worker(
                            space,
                            ledger,
                            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                            600,
                            allocated,
                        );
                    })
                })
                .collect();
            let ends: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
            done.store(true, Ordering::Relaxed);
            ends.into_iter().for_each(|end| end.expect("worker"));
        });
        assert!(allocated.load(Ordering::Relaxed) > 1 << 30, "the volume was turned over");
        let after = space.totals();
        let data = (after.data.reserved, after.metadata.reserved);
        assert_eq!(data, (0, 0));
        assert_eq!(after.data.free, before.data.free + after.data.total - before.data.total);
        let excluded = after.metadata.excluded - before.metadata.excluded;
        let grown = after.metadata.total - before.metadata.total - excluded;
        assert_eq!(after.metadata.free, before.metadata.free + grown);
    });
}

/// Waiting for each other is better than a chunk that no commit knows: what lies there makes
/// an fsync a commit.
#[test]
fn a_chunk_that_no_commit_knows_comes_last() {
    with_kernel(|| {
        let image = Image::new("700M", &[]);
        let opened = image.open();
        let space = opened.space();
        let old = space.totals().data.free;
        let new = space.new_chunk(Kind::Data).expect("room for a chunk").logical.0;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let extent = space.alloc(Kind::Data, 4096, 4096).expect("room");
                        assert!(extent.logical.0 < new, "{extent:?} while the old one has room");
                        space.release(extent).expect("mine");
                    }
                });
            }
        });
        let rest = space.alloc(Kind::Data, old, old).expect("all of the old one");
        assert!(rest.logical.0 < new);
        let next = space.alloc(Kind::Data, 4096, 4096).expect("room");
        assert!(next.logical.0 >= new, "the old one is full");
    });
}

/// Four threads put into one reservation and take out of it: nobody gets what is not there, and in
/// the end all of it is free again.
#[test]
fn what_many_hold_together_is_neither_lost_nor_doubled() {
    with_kernel(|| {
        let image = Image::new("700M", &[]);
        let opened = image.open();
        let space = opened.space();
        let shared = space.share_data();
        std::thread::scope(|scope| {
            for seed in 1..5 {
                let (space, shared) = (&space, &shared);
                scope.spawn(move || {
                    let mut dice = Dice(seed);
                    for _ in 0..20_000 {
                        let bytes = 4096 * (1 + dice.roll(16));
                        match dice.roll(3) {
                            0 => {
                                let more = space.reserve_data(bytes);
                                more.into_iter().for_each(|more| shared.absorb(more));
                            }
                            1 => shared.shrink(bytes),
                            _ => {
                                let part = shared.split(bytes);
                                assert!(part.bytes() <= bytes);
                                shared.absorb(part);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(space.totals().data.reserved, shared.bytes());
        drop(shared);
        assert_eq!(space.totals().data.reserved, 0, "all of it came back");
    });
}
