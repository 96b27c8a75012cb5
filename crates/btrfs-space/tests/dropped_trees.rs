//! Subvolumes dropped in steps, among snapshots that share with them: by us alone, and
//! begun by us and ended by the kernel.

mod common;

use btrfs_disk::TreeId;
use btrfs_space::{DropState, Space};
use common::derive::{assert_space_true, assert_true};
use common::edit::{Commit, Dice};
use common::{Image, Opened, with_kernel};

fn judge(image: &Image) {
    let opened = image.open();
    assert_true(&opened);
    assert_space_true(&opened);
    drop(opened);
    image.check();
}

/// Snapshots of snapshots, changed on all sides, with nodes of every way of sharing.
fn family() -> Image {
    let image = Image::new("512M", &["-n", "4096"]);
    image.script(
        "",
        "btrfs -q subvolume create a; cd a; mkdir d
         for i in $(seq 1 250); do head -c $((i * 97)) /dev/urandom > f$i; done
         for i in $(seq 1 15); do touch $(seq -f d/empty$i-%g 1 100); done; sync",
    );
    image.script(
        "",
        "btrfs -q subvolume snapshot a b; sync; touch a/f1*; sync
         btrfs -q subvolume snapshot b c; touch b/d/empty3*; rm -f b/f2*; sync
         btrfs -q subvolume snapshot a e; touch e/d/empty*; echo x >> e/f7; sync
         btrfs -q subvolume snapshot c g; rm -f c/d/empty2*; sync
         touch b/d/empty7* g/f*; btrfs -q subvolume snapshot b h; sync; rm -f h/f5*; sync",
    );
    image
}

fn subvolumes(opened: &Opened) -> Vec<TreeId> {
    let ids = opened.trees().into_iter().map(|(_, _, root)| root.id);
    ids.filter(|id| id.is_subvolume() && *id != TreeId::FS).collect()
}

/// Orphans a tree and drops it, `budget` nodes a commit; at most `steps` commits.
fn drop_one(opened: &Opened, space: &Space, id: TreeId, budget: usize, steps: usize) -> bool {
    let mut commit = Commit::new(opened, space);
    commit.orphan(id);
    commit.finish();
    go_on(opened, space, id, budget, steps)
}

fn go_on(opened: &Opened, space: &Space, id: TreeId, budget: usize, steps: usize) -> bool {
    let mut state = DropState::default();
    for step in 0..steps {
        let mut commit = Commit::new(opened, space);
        let done = commit.drop_tree(id, &mut state, budget);
        commit.finish();
        if done {
            return true;
        }
        // A new state is as good as the old one.
        if step % 3 == 2 {
            state = DropState::default();
        }
    }
    false
}

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
            mounted.script("btrfs subvolume sync . ; sync");
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
        image.script("", "touch a/f3* g/d/empty4*; sync");
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
        mounted.script("touch */f*; sync; find . -type f -print0 | xargs -0 cat > /dev/null");
        mounted.scrub();
        drop(mounted);
        judge(&image);
    });
}
