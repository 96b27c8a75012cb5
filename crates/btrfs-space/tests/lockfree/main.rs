//! The space's lock-free code under loom: every interleaving of a few threads, and every value
//! that the memory model lets a load see. The modules are the real ones, with loom's atomics
//! and locks behind them.
//!
//! What it does not know: the order in which groups are searched, and chunks (tests/models/threads.rs).

mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
    pub use testkit::model_locks::{Mutex, Rank};
}

#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/space/class.rs"]
mod class;
#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/space/free_index.rs"]
mod free_index;
#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/space/group.rs"]
mod group;
#[path = "../../src/space/proof.rs"]
mod proof;
#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/space/reservation.rs"]
mod reservation;

use btrfs_disk::Logical;
use btrfs_disk::ids::block_group::{DATA, METADATA};
use btrfs_space::{Extent, free_space};
use class::Class;
use group::{Ask, Fit, Group};
use loom::thread;
use proof::Proof;
use reservation::{DataReservation, MetadataReservation, SharedReservation};
use std::sync::Arc;
use sync::{AtomicI64, AtomicUsize, Mutex, Ordering, Rank};

/// What an allocation takes.
const UNIT: u64 = 4096;

/// More preemptions find nothing more here and take minutes.
fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}

/// A data group of three units and its class; what of it is free is to be told yet.
fn data_group() -> Arc<Group> {
    let class = Arc::new(Class::new(DATA, UNIT));
    let span = Extent { logical: Logical(0), len: 3 * UNIT };
    Arc::new(Group::new(span, DATA, class, Vec::new(), 0))
}

fn unit(number: u64) -> Extent {
    Extent { logical: Logical(number * UNIT), len: UNIT }
}

/// A reservation of one unit, if one can be had.
fn reserve_unit(class: &Arc<Class>) -> Option<DataReservation> {
    class.reserve(UNIT as i64, 0).then(|| DataReservation::new(class, UNIT))
}

/// Takes one unit out of the reservation, as the search for it does: where the hint says that
/// there is none it does not look.
fn take_reserved(group: &Group, mut reservation: DataReservation) -> Extent {
    assert!(group.largest() >= UNIT, "the hint hides what is reserved");
    let ask = Ask { want: UNIT, min: UNIT, paid: true, ..Ask::default() };
    let extent = group.alloc(&ask, Fit::Whole, true).expect("reserved");
    reservation.spend(extent.len);
    extent
}

/// What two put together is taken by who comes first, each byte once, and what is left goes back.
#[test]
fn what_is_held_together_is_taken_once() {
    bounded().check(|| {
        let class = Arc::new(Class::new(DATA, UNIT));
        class.free_changed(2 * UNIT as i64, 0);
        let shared = Arc::new(SharedReservation::new(&class));
        let works = |bytes: u64| {
            let (class, shared) = (Arc::clone(&class), Arc::clone(&shared));
            move || {
                reserve_unit(&class).into_iter().for_each(|more| shared.absorb(more));
                let part = shared.split(bytes);
                assert!(part.bytes() <= bytes);
                let back = part.bytes();
                shared.absorb(part);
                shared.shrink(back / 2);
                back / 2
            }
        };
        let other = thread::spawn(works(UNIT));
        let gone = works(2 * UNIT)() + other.join().unwrap();
        assert!(gone + shared.bytes() >= 2 * UNIT, "a byte was given back twice, or lost");
        drop(shared);
        assert!(class.reserve(2 * UNIT as i64, 0), "all of it came back");
    });
}

/// Three threads want more than there is, and give some of it back: at no moment is more
/// reserved than there is, and at the end nothing.
#[test]
fn no_more_is_reserved_than_is_free() {
    const FREE: i64 = 10;
    bounded().check(|| {
        let class = Arc::new(Class::new(METADATA, 1));
        class.free_changed(FREE, 0);
        let held = Arc::new(AtomicI64::new(0));
        let wanting = |bytes: i64, less: u64| {
            let (class, held) = (Arc::clone(&class), Arc::clone(&held));
            move || {
                if !class.reserve(bytes, 0) {
                    return;
                }
                let mut reservation = MetadataReservation::new(&class, bytes as u64);
                let all = held.fetch_add(bytes, Ordering::Relaxed) + bytes;
                assert!(all <= FREE, "{all} bytes are reserved");
                held.fetch_sub(bytes, Ordering::Relaxed);
                reservation.shrink(less);
                let part = reservation.split(2);
                drop(reservation);
                assert_eq!(part.bytes(), 2);
            }
        };
        let others = [thread::spawn(wanting(6, 1)), thread::spawn(wanting(7, 0))];
        wanting(4, 2)();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((class.free(), class.available()), (FREE, FREE), "a reservation leaked");
    });
}

/// What two hold of one reservation goes back once.
#[test]
fn what_is_handed_over_goes_back_once() {
    bounded().check(|| {
        let class = Arc::new(Class::new(METADATA, 1));
        class.free_changed(9, 0);
        assert!(class.reserve(6, 0));
        let mut reservation = MetadataReservation::new(&class, 6);
        let part = reservation.split(4);
        let other = thread::spawn(move || drop(part));
        if class.reserve(5, 0) {
            reservation.absorb(MetadataReservation::new(&class, 5));
            assert_eq!(reservation.bytes(), 7);
        }
        drop(reservation);
        other.join().unwrap();
        assert_eq!(class.available(), 9);
    });
}

/// One gives a unit back, two want one each: who has a reservation finds its room at once, and
/// nobody else's.
#[test]
fn what_is_reserved_is_found() {
    bounded().check(|| {
        let group = data_group();
        group.add_free([(0, UNIT)].into_iter()).unwrap();
        let wanting = || {
            let group = Arc::clone(&group);
            move || reserve_unit(&group.class).map(|reservation| take_reserved(&group, reservation))
        };
        let giving = {
            let group = Arc::clone(&group);
            thread::spawn(move || group.release(&unit(2), false).unwrap())
        };
        let other = thread::spawn(wanting());
        let mine = wanting()();
        let theirs = other.join().unwrap();
        giving.join().unwrap();
        assert!(mine.is_none() || mine != theirs, "{mine:?} is given twice");
        let taken = [mine, theirs].into_iter().flatten().count() as i64;
        let left = (2 - taken) * UNIT as i64;
        assert_eq!((group.class.free(), group.class.available()), (left, left));
    });
}

/// Takes one unit out of the reservation from whichever group has it, in this order.
fn search_reserved(groups: [&Group; 2], mut reservation: DataReservation) -> Extent {
    let ask = Ask { want: UNIT, min: UNIT, paid: true, ..Ask::default() };
    let look = || -> Result<_, ()> {
        let with_room = groups.iter().filter(|group| group.largest() >= UNIT);
        Ok(with_room.filter_map(|group| group.alloc(&ask, Fit::Whole, true)).next())
    };
    let extent = groups[0].class.search(true, look).unwrap().expect("reserved");
    reservation.spend(extent.len);
    extent
}

/// One gives back in the group where the other has looked, and takes in exchange what the other
/// was about to find.
#[test]
fn what_is_reserved_is_found_while_groups_turn_over() {
    bounded().check(|| {
        let class = Arc::new(Class::new(DATA, UNIT));
        let group = |number: u64| {
            let span = Extent { logical: Logical(number * 3 * UNIT), len: 3 * UNIT };
            Arc::new(Group::new(span, DATA, class.clone(), Vec::new(), 0))
        };
        let (first, second) = (group(0), group(1));
        second.add_free([(3 * UNIT, UNIT)].into_iter()).unwrap();
        let reservation = reserve_unit(&class).expect("one is free");
        let other = {
            let (class, first, second) = (class.clone(), first.clone(), second.clone());
            thread::spawn(move || {
                first.release(&unit(0), false).unwrap();
                let reservation = reserve_unit(&class).expect("his own");
                search_reserved([&second, &first], reservation)
            })
        };
        let mine = search_reserved([&first, &second], reservation);
        assert_ne!(mine, other.join().unwrap());
        assert_eq!((class.free(), class.available()), (0, 0));
    });
}

/// A unit that was not used after all is reserved as it was before: nobody gets it meanwhile.
#[test]
fn what_comes_back_into_a_promise_is_nobody_elses() {
    bounded().check(|| {
        let group = data_group();
        group.add_free([(0, UNIT)].into_iter()).unwrap();
        let reservation = reserve_unit(&group.class).unwrap();
        let extent = take_reserved(&group, reservation);
        let other = {
            let group = Arc::clone(&group);
            thread::spawn(move || reserve_unit(&group.class).is_some())
        };
        group.release(&extent, true).unwrap();
        let again = DataReservation::new(&group.class, extent.len);
        assert_eq!(take_reserved(&group, again), extent);
        assert!(!other.join().unwrap(), "what was reserved already");
        assert_eq!((group.class.free(), group.class.available()), (0, 0));
    });
}

/// An empty group is taken away, and a piece of another is with the device (trim), while
/// somebody wants a reservation: whoever comes second gets nothing.
#[test]
fn what_is_taken_away_is_not_reserved() {
    bounded().check(|| {
        let group = data_group();
        group.add_free([(0, 3 * UNIT)].into_iter()).unwrap();
        let other = {
            let group = Arc::clone(&group);
            thread::spawn(move || {
                reserve_unit(&group.class).map(|reservation| take_reserved(&group, reservation))
            })
        };
        let trimming = {
            let group = Arc::clone(&group);
            thread::spawn(move || {
                if group.hold(&unit(1)) {
                    group.release(&unit(1), false).unwrap();
                }
            })
        };
        let closed = group.close(0);
        let taken = other.join().unwrap();
        trimming.join().unwrap();
        assert!(!closed || taken.is_none(), "an extent in a group that is gone");
        let left = match (closed, taken) {
            (true, _) => 0,
            (false, taken) => 3 - i64::from(taken.is_some()),
        };
        let left = left * UNIT as i64;
        assert_eq!((group.class.free(), group.class.available()), (left, left));
    });
}

/// Metadata reservations count on the device, of which a chunk of data takes what they leave: what
/// they count on is there afterwards. (As `Space::make_chunk` and `Space::retune` do it.)
#[test]
fn a_chunk_of_data_leaves_what_reservations_count_on() {
    const KEPT: i64 = 4;
    bounded().check(|| {
        let class = Arc::new(Class::new(METADATA, 1));
        class.free_changed(6, 0);
        class.global_reserve.store(KEPT, Ordering::Relaxed);
        let unallocated = Arc::new(Mutex::new(Rank::Chunks, 16u64));
        class.count_on(*unallocated.lock());
        let wanting = |bytes: i64| {
            let (class, unallocated) = (Arc::clone(&class), Arc::clone(&unallocated));
            move || class.reserve_ahead(bytes, KEPT, || unallocated.lock())
        };
        let others = [thread::spawn(wanting(5)), thread::spawn(wanting(2))];
        {
            let mut device = unallocated.lock();
            let room = device.saturating_sub(class.owed(0));
            *device -= room;
            class.count_on(*device);
        }
        others.into_iter().for_each(|other| _ = other.join().unwrap());
        let lacking = KEPT - class.available();
        let left = *unallocated.lock() as i64;
        assert!(lacking <= left, "reservations count on {lacking} bytes, and {left} are left");
    });
}

/// What is checked once is checked once, and whoever goes on sees what the check did.
#[test]
fn who_goes_on_sees_what_was_proved() {
    bounded().check(|| {
        let proof = Arc::new(Proof::default());
        let checks = Arc::new(AtomicUsize::new(0));
        // The first check finds fault.
        let relying = || {
            let (proof, checks) = (Arc::clone(&proof), Arc::clone(&checks));
            move || {
                let check = || match checks.fetch_add(1, Ordering::Relaxed) {
                    0 => Err("wrong"),
                    _ => Ok(()),
                };
                if !proof.is_good() && proof.once(check).is_err() {
                    return false;
                }
                assert_eq!(checks.load(Ordering::Relaxed), 2, "relied on what was not proved");
                true
            }
        };
        let others = [thread::spawn(relying()), thread::spawn(relying())];
        let mine = relying()();
        let good = others.map(|other| other.join().unwrap());
        let refused = good.into_iter().chain([mine]).filter(|good| !good).count();
        assert_eq!(refused, 1, "the one that found the fault");
        assert_eq!(checks.load(Ordering::Relaxed), 2);
    });
}
