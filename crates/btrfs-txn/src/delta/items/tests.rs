//! What the delta of items says and counts.

use super::*;

const T: TreeId = TreeId::FS;

fn bytes(b: u8) -> Box<[u8]> {
    vec![b; 3].into()
}

#[test]
fn what_is_born_and_gone_leaves_nothing() {
    let delta = ItemDelta::new(Generation(1));
    delta.edit(T, 300, |o| {
        o.mark_born();
        o.put(1, 0, bytes(1), Base::Possible);
        o.put(12, 256, bytes(2), Base::Possible);
    });
    delta.edit(T, 256, |o| o.put(84, 7, bytes(3), Base::Absent));
    assert_eq!(delta.slots(), 3);
    delta.edit(T, 300, |o| {
        o.delete(1, 0);
        o.delete(12, 256);
    });
    delta.edit(T, 256, |o| o.delete(84, 7));
    assert!(delta.is_empty());
    assert_eq!(delta.bytes(), 0);
    assert!(delta.objects(|| ()).is_empty());
}

fn counts(delta: &ItemDelta) -> (u64, u64) {
    (delta.spread(), delta.removals())
}

#[test]
fn a_place_is_a_removal_until_something_is_put_there() {
    let delta = ItemDelta::new(Generation(1));
    delta.edit(T, 256, |o| o.delete(84, 7));
    assert_eq!(counts(&delta), (1, 1));
    let put = |o: &mut ObjectEdit<'_>| o.put(84, 7, bytes(1), Base::Possible);
    let (_, changes) = delta.edit_in_run(T, 256, None, put);
    assert_eq!((counts(&delta), changes.places), ((1, 0), 1), "it needs more than before");
    let (_, changes) = delta.edit_in_run(T, 256, None, |o| o.delete(84, 7));
    assert_eq!((counts(&delta), changes.places), ((1, 1), 0));
    delta.edit(T, 256, |o| o.delete(84, 7));
    assert_eq!(counts(&delta), (1, 1));
}

/// What is put between the keys of a run counts on the first of them.
#[test]
fn keys_of_a_run_are_no_removals() {
    let delta = ItemDelta::new(Generation(1));
    let run = Cell::new(2);
    let in_run = |edit: fn(&mut ObjectEdit<'_>)| delta.edit_in_run(T, 300, Some(&run), edit).1;
    in_run(|o| (0..9).for_each(|n| o.delete(108, n)));
    in_run(|o| o.put(108, 4, bytes(1), Base::Possible));
    assert_eq!(counts(&delta), (2, 0));
    delta.edit(T, 300, |o| (0..9).for_each(|n| o.delete(108, n)));
    assert_eq!(counts(&delta), (2, 0));
}

/// However many keys went before, a run over them is no more places than that.
#[test]
fn a_run_over_removals_takes_its_own_places() {
    let delta = ItemDelta::new(Generation(1));
    delta.edit(T, 300, |o| (0..9).for_each(|n| o.delete(108, n)));
    assert_eq!(counts(&delta), (9, 9));
    let put = |o: &mut ObjectEdit<'_>| {
        (0..9).for_each(|n| o.put(108, n, bytes(1), Base::Possible));
    };
    let (_, changes) = delta.edit_in_run(T, 300, Some(&Cell::new(3)), put);
    assert_eq!((counts(&delta), changes.places), ((9, 6), 3));
}

#[test]
fn deleting_what_lies_below_leaves_a_tombstone() {
    let delta = ItemDelta::new(Generation(1));
    delta.edit(T, 256, |o| o.put(84, 7, bytes(3), Base::Possible));
    delta.edit(T, 256, |o| o.delete(84, 7));
    delta.edit(T, 256, |o| o.delete(96, 2));
    assert_eq!(delta.get(T, &Key::new(256, 84, 7)), Some(None));
    assert_eq!(delta.get(T, &Key::new(256, 96, 2)), Some(None));
    assert_eq!(delta.get(T, &Key::new(256, 96, 3)), None);
    assert_eq!(delta.slots(), 2);
}

#[test]
fn neighbours_are_found_in_both_directions() {
    let delta = ItemDelta::new(Generation(1));
    delta.edit(T, 256, |o| {
        o.put(96, 2, bytes(1), Base::Absent);
        o.put(96, 9, bytes(2), Base::Absent);
    });
    let key = |offset| Key::new(256, 96, offset);
    assert_eq!(delta.next(T, &key(3)).unwrap().0, key(9));
    assert_eq!(delta.previous(T, &key(8)).unwrap().0, key(2));
    assert!(delta.next(T, &key(10)).is_none());
}

#[test]
fn an_object_is_shown_in_steps() {
    let delta = ItemDelta::new(Generation(1));
    delta.edit(T, 256, |o| (0..50).for_each(|n| o.put(96, n, bytes(n as u8), Base::Absent)));
    delta.edit(T, 256, |o| o.delete(84, 3));
    for step in [1, 7, 51, 100] {
        let (mut seen, mut next) = (Vec::new(), Some(Key::new(256, 0, 0)));
        while let Some(from) = next {
            let before = seen.len();
            next = delta.visit(T, &from, step, |key, value| seen.push((key, value.is_some())));
            assert!(seen.len() - before <= step);
        }
        let names = (0..50).map(|n| (Key::new(256, 96, n), true));
        let all: Vec<_> = [(Key::new(256, 84, 3), false)].into_iter().chain(names).collect();
        assert_eq!(seen, all, "{step} at a time");
    }
    assert!(delta.visit(T, &Key::new(257, 0, 0), 9, |_, _| panic!("nothing")).is_none());
}
