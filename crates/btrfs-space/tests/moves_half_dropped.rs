//! Nodes move while trees are half dropped: what is left of those moves with all others, and they are dropped to
//! the end behind it. Judged without the kernel: it oopses on a position above a tree's root (6.18).

mod common;

use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_space::{DropState, MoveNodes, MovedNodes, Space, count_moves};
use btrfs_tree::scan;
use common::edit::{Commit, Dice};
use common::family::{drop_one, family, findings, go_on, judge, subvolumes};
use common::{Image, Opened, with_kernel};
use std::ops::Range;

/// Nodes that move at a time.
const PIECE: usize = 60;

/// The addresses of all nodes, ascending, in pieces.
fn pieces(opened: &Opened) -> Vec<Range<u64>> {
    let mut nodes = Vec::new();
    for item in scan(&opened.store, &opened.tree(TreeId::EXTENT), Key::MIN..=Key::MAX) {
        let item = item.expect("extent tree");
        if item.key().kind == kind::METADATA_ITEM {
            nodes.push(item.key().objectid);
        }
    }
    nodes.chunks(PIECE).map(|piece| piece[0]..piece[piece.len() - 1] + 1).collect()
}

/// Moves what is in a range, in a commit that has something else in it as well.
fn move_out(
    opened: &Opened,
    space: &Space,
    range: Range<u64>,
    other: impl FnOnce(&mut Commit<'_>),
) -> MovedNodes {
    let mut what = MoveNodes { range, ..MoveNodes::default() };
    let counted = count_moves(&opened.store, &opened.states(), &what).expect("counts");
    (what.limit, what.leaves) = (counted.copies as usize + 64, counted.leaves);
    let mut commit = Commit::new(opened, space);
    other(&mut commit);
    commit.settle.move_nodes(what);
    commit.finish().pop().expect("one move")
}

fn assert_moved(done: &MovedNodes, range: &Range<u64>) {
    assert!(done.refused.is_none() && done.moved > 0, "{range:?}: {done:?}");
}

#[test]
fn what_is_left_of_a_tree_moves_with_the_others() {
    with_kernel(|| {
        let (image, mut half) = (family(), 0);
        for (turn, steps) in [3, 2, 4, 1].into_iter().enumerate() {
            let opened = image.open();
            let (space, left) = (opened.space(), subvolumes(&opened));
            let id = left[turn % left.len()];
            if drop_one(&opened, &space, id, 5, steps) {
                continue;
            }
            half += 1;
            for range in pieces(&opened) {
                assert_moved(&move_out(&opened, &space, range.clone(), |_| ()), &range);
            }
            drop((space, opened));
            assert_eq!(findings(&image), [""; 0], "half of {id}");
            image.check();
            end(&image, id, [7, 40][turn % 2]);
        }
        assert!(half > 2, "{half} trees were half dropped");
    });
}

/// Drops the rest, and nothing of it stays.
fn end(image: &Image, id: TreeId, budget: usize) {
    let opened = image.open();
    let space = opened.space();
    assert!(go_on(&opened, &space, id, budget, 10_000), "{id} is stuck");
    drop((space, opened));
    judge(image);
    assert_eq!(findings(image), [""; 0]);
}

/// Some steps, moves between them and in their commits; addresses of what is gone come again at once.
fn drop_among_moves(opened: &Opened, space: &Space, id: TreeId, dice: &mut Dice) {
    let mut state = DropState::default();
    for _ in 0..2000 {
        let pieces = pieces(opened);
        let range = pieces[dice.roll(pieces.len() as u64) as usize].clone();
        let (how, budget) = (dice.roll(6), 1 + dice.roll(8) as usize);
        let mut done = false;
        if how > 3 {
            let moved = move_out(opened, space, range.clone(), |commit| {
                done = commit.drop_tree(id, &mut state, budget);
            });
            assert!(moved.refused.is_none(), "{range:?}: {moved:?}");
        } else {
            assert_moved(&move_out(opened, space, range.clone(), |_| ()), &range);
            let mut commit = Commit::new(opened, space);
            done = commit.drop_tree(id, &mut state, budget);
            commit.finish();
        }
        assert_eq!(state.stuck(), None);
        if done {
            return;
        }
        // As behind a crash.
        if how == 0 {
            state = DropState::default();
        }
    }
    panic!("{id} does not come to its end");
}

#[test]
fn trees_are_dropped_among_moves() {
    with_kernel(|| {
        for seed in 1..3 {
            let image = family();
            let mut dice = Dice(0x5eed_cafe * seed);
            loop {
                let opened = image.open();
                let (space, left) = (opened.space(), subvolumes(&opened));
                if left.is_empty() {
                    break;
                }
                let id = left[dice.roll(left.len() as u64) as usize];
                if !drop_one(&opened, &space, id, 5, 1) {
                    drop_among_moves(&opened, &space, id, &mut dice);
                }
                drop((space, opened));
                judge(&image);
            }
        }
    });
}
