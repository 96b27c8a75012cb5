//! Random consistent edits of all subvolumes.

use super::Opened;
use super::edit::{Commit, Dice};
use btrfs_disk::TreeId;
use btrfs_space::Space;

/// Random consistent edits of all subvolumes, `rounds` commits of `ops` each.
pub fn random_commits(opened: &Opened, space: &Space, dice: &mut Dice, rounds: u64, ops: u64) {
    for round in 0..rounds {
        let mut commit = Commit::new(opened, space);
        let mut trees: Vec<TreeId> = opened
            .trees()
            .iter()
            .map(|(_, _, root)| root.id)
            .filter(|id| id.is_subvolume())
            .collect();
        for _ in 0..ops {
            let tree = trees[dice.roll(trees.len() as u64) as usize];
            random_op(&mut commit, tree, &trees, dice);
        }
        if dice.roll(3) == 0 {
            let to = TreeId(1000 + round + dice.roll(1 << 40));
            // Its own root directory may be the one that gets the name.
            trees.retain(|id| *id != TreeId::FS);
            trees.push(TreeId::FS);
            let source = trees[dice.roll(trees.len() as u64) as usize];
            let name = format!("snap{}", to.0);
            commit.snapshot(source, to, name.as_bytes());
        }
        commit.finish();
    }
}

pub fn random_op(commit: &mut Commit<'_>, tree: TreeId, trees: &[TreeId], dice: &mut Dice) {
    let files = commit.files(tree);
    if files.is_empty() {
        return;
    }
    let (ino, sums) = files[dice.roll(files.len() as u64) as usize];
    let full = "the volume has room";
    match dice.roll(16) {
        0..4 => commit.touch(tree, ino, dice.roll(1 << 31) as i64),
        4..6 => commit.truncate(tree, ino),
        6..8 => {
            commit.prealloc(tree, ino, 4096 * (1 + dice.roll(40))).expect(full);
        }
        8..10 => {
            let data: Vec<u8> =
                (0..4096 * (1 + dice.roll(30))).map(|_| dice.roll(256) as u8).collect();
            commit.write(tree, ino, sums, &data).expect(full);
        }
        10..13 => {
            let from = trees[dice.roll(trees.len() as u64) as usize];
            let alike: Vec<u64> = commit
                .files(from)
                .into_iter()
                .filter(|(_, s)| *s == sums)
                .map(|(i, _)| i)
                .collect();
            if !alike.is_empty() {
                let other = alike[dice.roll(alike.len() as u64) as usize];
                commit.clone_extent((from, other), (tree, ino), dice.roll(1000) as usize);
            }
        }
        _ => {
            commit.punch(tree, ino, dice.roll(1000) as usize);
        }
    }
}
