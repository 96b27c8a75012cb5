//! Nodes move while trees are half dropped: what is left of those moves with all others, and they are dropped to
//! the end behind it. Judged without the kernel: it oopses on a position above a tree's root (6.18).

use crate::common;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_space::{DropState, MoveNodes, MovedNodes, Space, count_moves};
use btrfs_tree::{NodeReader, scan};
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

/// Drops leaves of a tree of two levels until its root has `most` pointers that stand for something. How many stand for nothing.
fn drop_front(opened: &Opened, space: &Space, id: TreeId, most: usize) -> usize {
    assert!(!drop_one(opened, space, id, 1, 0));
    let mut state = DropState::default();
    loop {
        let mut commit = Commit::new(opened, space);
        assert!(!commit.drop_tree(id, &mut state, 5), "more is left to do");
        commit.finish();
        let trees = opened.trees();
        let (_, item, root) = trees.iter().find(|(_, _, root)| root.id == id).expect("there");
        let node = opened.store.node(&root.expect()).expect("root");
        assert_eq!(node.level(), 1);
        let gone = node.child_slot(&item.drop_progress);
        if node.len() - gone <= most {
            return gone;
        }
    }
}

/// What the front of a node led to is free, and the next that is given out: each of it would be one that the copy may not have.
#[test]
fn a_copy_takes_one_address_wherever_its_node_led() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        image.script("", "btrfs -q subvolume create a; cd a; seq -f file-%g 1 900 | xargs touch");
        let opened = image.open();
        let (space, id) = (opened.space(), subvolumes(&opened)[0]);
        let gone = drop_front(&opened, &space, id, 10);
        assert!(gone > 50, "{gone} pointers stand for nothing");
        let at = opened.tree(id).logical.0;
        let what = MoveNodes { range: at..at + 1, limit: 8, ..MoveNodes::default() };
        let mut commit = Commit::new(&opened, &space);
        commit.settle.move_nodes(what);
        let mut settled = commit.settle();
        assert!(settled.taken < 30 * 4096, "{} nodes, {gone} gone", settled.taken / 4096);
        settled.dirty.write_all(&opened.store).expect("nodes");
        opened.volume.commit_superblock(settled.superblock).expect("superblock");
        opened.volume.flush().expect("flush");
        space.unpin(&settled.pinned).expect("unpins");
        assert_ne!(opened.tree(id).logical.0, at, "it has moved");
        drop((space, opened));
        assert_eq!(findings(&image), [""; 0], "half of it");
        image.check();
        end(&image, id, 7);
    });
}
