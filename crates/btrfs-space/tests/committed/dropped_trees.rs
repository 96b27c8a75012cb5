//! Subvolumes dropped in steps, among snapshots that share with them: by us alone, and
//! begun by us and ended by the kernel; and from positions that are not where the last one stopped.
//! Those are judged without the kernel: it oopses on a level above the root (6.18).

use crate::common;
use btrfs_disk::key::kind;
use btrfs_disk::{Expect, Key, Logical, TreeId};
use btrfs_space::{DropState, Space};
use btrfs_tree::NodeReader;
use common::edit::{Commit, Dice};
use common::family::{drop_one, family, findings, go_on, judge, subvolumes};
use common::{Image, Opened, with_kernel};

#[test]
fn trees_of_a_family_go_one_after_the_other() {
    with_kernel(|| {
        for seed in 1..4 {
            let image = family();
            let mut dice = Dice(0x0bad_5eed * seed);
            loop {
                let opened = image.open();
                let space = opened.space();
                let left = subvolumes(&opened);
                if left.is_empty() {
                    break;
                }
                let id = left[dice.roll(left.len() as u64) as usize];
                let budget = [7, 40, 100_000][dice.roll(3) as usize];
                assert!(drop_one(&opened, &space, id, budget, 10_000));
                drop((space, opened));
                judge(&image);
            }
            let opened = image.open();
            assert_eq!(opened.space().totals().data.used, 0);
        }
    });
}

#[test]
fn the_kernel_ends_what_we_began() {
    with_kernel(|| {
        let image = family();
        for steps in [1, 3, 9] {
            let opened = image.open();
            let space = opened.space();
            let id = subvolumes(&opened)[1];
            assert!(!drop_one(&opened, &space, id, 5, steps), "more is left to do");
            drop((space, opened));
            image.check();
            let mounted = image.mount("");
            mounted.script("btrfs subvolume sync . ; sync -f .");
            mounted.scrub();
            drop(mounted);
            judge(&image);
            assert!(!subvolumes(&image.open()).contains(&id), "gone");
        }
    });
}

#[test]
fn dropped_after_a_balance() {
    with_kernel(|| {
        let image = family();
        image.script("", "btrfs -q balance start --full-balance .");
        image.script("", "touch a/f3* g/d/empty4*; sync -f .");
        for turn in 0..3 {
            let opened = image.open();
            let space = opened.space();
            let left = subvolumes(&opened);
            let id = left[turn % left.len()];
            assert!(drop_one(&opened, &space, id, 25, 10_000));
            drop((space, opened));
            judge(&image);
        }
        let mounted = image.mount("");
        mounted.script("touch */f*; sync -f .; find . -type f -print0 | xargs -0 cat > /dev/null");
        mounted.scrub();
        drop(mounted);
        judge(&image);
    });
}

/// A state that is kept knows where it stopped, and looks at nothing in front of that again.
#[test]
fn a_step_begins_where_the_last_one_ended() {
    with_kernel(|| {
        let looks = |keeps: bool| {
            let image = family();
            let opened = image.open();
            let (space, id) = (opened.space(), subvolumes(&opened)[1]);
            let mut commit = Commit::new(&opened, &space);
            commit.orphan(id);
            commit.finish();
            let (mut state, mut all) = (DropState::default(), 0);
            let count = || {
                let counters = opened.store.counters();
                counters.hits + counters.misses
            };
            loop {
                let mut commit = Commit::new(&opened, &space);
                let before = count();
                let done = commit.drop_tree(id, &mut state, 1);
                all += count() - before;
                commit.finish();
                if done {
                    return all;
                }
                if !keeps {
                    state = DropState::default();
                }
            }
        };
        let (kept, anew) = (looks(true), looks(false));
        assert!(kept * 3 < anew * 2, "{kept} and {anew} nodes were looked at");
    });
}

type Position = (u8, Key);

fn position(opened: &Opened, id: TreeId) -> Position {
    let (_, item, _) =
        opened.trees().into_iter().find(|(_, _, root)| root.id == id).expect("there");
    (item.drop_level, item.drop_progress)
}

/// In a commit of its own.
fn set_position(opened: &Opened, space: &Space, id: TreeId, (level, key): Position) {
    let mut commit = Commit::new(opened, space);
    let item = commit.settle.root_item(id).expect("root item");
    (item.drop_level, item.drop_progress) = (level, key);
    commit.finish();
}

/// Drops the rest, and nothing of it stays.
fn end(image: &Image, id: TreeId, budget: usize) {
    let opened = image.open();
    let space = opened.space();
    assert!(go_on(&opened, &space, id, budget, 10_000));
    drop((space, opened));
    judge(image);
    assert_eq!(findings(image), [""; 0]);
}

#[test]
fn a_position_that_lags_is_no_harm() {
    with_kernel(|| {
        let image = family();
        for (turn, steps) in [2, 6, 1, 4].into_iter().enumerate() {
            let opened = image.open();
            let space = opened.space();
            let left = subvolumes(&opened);
            let id = left[turn % left.len()];
            assert!(!drop_one(&opened, &space, id, 5, 1), "more is left to do");
            let early = position(&opened, id);
            assert!(!go_on(&opened, &space, id, 5, steps), "more is left to do");
            assert_ne!(position(&opened, id), early);
            assert_eq!(findings(&image), [""; 0], "as it was dropped");
            set_position(&opened, &space, id, early);
            drop((space, opened));
            assert_eq!(findings(&image), [""; 0], "at {early:?}");
            end(&image, id, [7, 40][turn % 2]);
        }
    });
}

/// The last pointer of a tree that is still there.
fn last_pointer(opened: &Opened, id: TreeId) -> Position {
    let mut node = opened.store.node(&opened.tree(id).expect()).expect("root");
    loop {
        let last = node.len() - 1;
        if node.level() == 1 {
            return (1, node.key(last));
        }
        let expect = Expect::of_child(&node.child(last), node.level() - 1, id);
        node = opened.store.node(&expect).expect("child");
    }
}

#[test]
fn a_position_that_is_too_far_loses_nothing() {
    with_kernel(|| {
        let image = family();
        let inside = Key::new(300, 1, 0);
        // Inside of the tree, then where it cannot be: behind its end, at a key of no pointer, at levels
        // that it does not have.
        let cases =
            [None, Some((1, Key::MAX)), Some((1, inside)), Some((7, inside)), Some((0, inside))];
        for (turn, case) in cases.into_iter().enumerate() {
            let opened = image.open();
            let space = opened.space();
            let left = subvolumes(&opened);
            let id = left[turn % left.len()];
            assert!(!drop_one(&opened, &space, id, 3, turn % 2), "more is left to do");
            let at = case.unwrap_or_else(|| last_pointer(&opened, id));
            set_position(&opened, &space, id, at);
            drop((space, opened));
            let expected = if case.is_some() { "drop-progress" } else { "extent-unreferenced" };
            assert!(findings(&image).contains(&expected), "{at:?}: {:?}", findings(&image));
            if case.is_some() {
                assert_eq!(findings(&image), ["drop-progress"], "{at:?}");
            }
            end(&image, id, 7);
        }
    });
}

/// A flipped bit in the extent item of a node.
fn make_extent_late(opened: &Opened, at: Logical) {
    const GENERATION: usize = 8;
    let mut key = Key::new(at.0, kind::METADATA_ITEM, 0);
    let mut node = opened.store.node(&opened.tree(TreeId::EXTENT).expect()).expect("root");
    while !node.is_leaf() {
        let child = node.child(node.child_slot(&Key { offset: u64::MAX, ..key }));
        let below = Expect::of_child(&child, node.level() - 1, TreeId::EXTENT);
        node = opened.store.node(&below).expect("child");
    }
    let slot = (0..node.len()).rfind(|slot| node.key(*slot).objectid == at.0).expect("an item");
    key.offset = node.key(slot).offset;
    assert_eq!(node.key(slot), key);
    let (mut bytes, place) = (node.bytes().to_vec(), node.data_range(slot).start + GENERATION);
    bytes[place..place + 8].copy_from_slice(&(1u64 << 50).to_le_bytes());
    opened.store.geometry().csum.seal(&mut bytes);
    opened.volume.write(node.logical(), &[&bytes]).expect("write");
}

#[test]
fn an_extent_from_later_than_now_is_no_other_extent() {
    with_kernel(|| {
        let image = family();
        let opened = image.open();
        let (space, id) = (opened.space(), subvolumes(&opened)[1]);
        assert!(!drop_one(&opened, &space, id, 5, 2), "more is left to do");
        let root = opened.store.node(&opened.tree(id).expect()).expect("root");
        assert!(!root.is_leaf());
        make_extent_late(&opened, root.child(root.len() - 1).logical);
        drop((space, opened));
        end(&image, id, 40);
    });
}
