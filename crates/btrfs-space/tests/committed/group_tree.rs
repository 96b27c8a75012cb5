//! Block group items in a tree of their own: converted by a commit of ours, then kept by
//! us and by the kernel.

use crate::common;
use btrfs_disk::ids::compat_ro;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Generation, Key, TreeId};
use btrfs_space::{Settle, Space};
use btrfs_tree::{Edit, scan};
use common::derive::{assert_space_true, assert_true};
use common::edit::{Commit, Dice};
use common::{Image, Opened, with_kernel};

/// Moves all block group items out of the extent tree.
fn convert(opened: &Opened, space: &Space) {
    let items = scan(&opened.store, &opened.tree(TreeId::EXTENT), Key::MIN..=Key::MAX);
    let groups: Vec<(Key, Box<[u8]>)> = items
        .map(|item| item.expect("extent tree"))
        .filter(|item| item.key().kind == kind::BLOCK_GROUP_ITEM)
        .map(|item| (item.key(), item.data().into()))
        .collect();
    let mut sb = (*opened.volume.superblock()).clone();
    let generation = Generation(sb.fields.generation.0 + 1);
    sb.fields.compat_ro_flags |= compat_ro::BLOCK_GROUP_TREE;
    let mut settle =
        Settle::new(space, &opened.store, sb, generation, None).expect("a commit begins");
    let key = Key::new(TreeId::BLOCK_GROUP.0, kind::ROOT_ITEM, 0);
    let item = RootItem { refs: 1, ..RootItem::default() };
    settle.create_tree(TreeId::BLOCK_GROUP, key, item).expect("new tree");
    let gone = groups.iter().map(|(key, _)| (*key, Edit::Delete));
    settle.apply_tree(TreeId::EXTENT, gone).expect("applies");
    let there = groups.iter().map(|(key, data)| (*key, Edit::Put(data.clone())));
    settle.apply_tree(TreeId::BLOCK_GROUP, there).expect("applies");
    let mut settled = settle.finish().expect("settles");
    settled.dirty.write_all(&opened.store).expect("nodes");
    opened.volume.flush().expect("flush");
    opened.volume.commit_superblock(settled.superblock).expect("superblock");
    space.unpin(&settled.pinned).expect("unpins");
}

fn judge(image: &Image) {
    let opened = image.open();
    assert!(opened.find_tree(TreeId::BLOCK_GROUP).is_some());
    assert_true(&opened);
    assert_space_true(&opened);
    drop(opened);
    let mounted = image.mount("");
    mounted.scrub();
    mounted
        .script("find . -type f -print0 | xargs -0 cat > /dev/null; cp -r d e$RANDOM; sync -f .");
}

#[test]
fn items_of_the_group_tree_follow_what_is_used() {
    with_kernel(|| {
        let image = Image::new("600M", &[]);
        image.script(
            "",
            "mkdir d; for i in $(seq 1 99); do head -c $((i * 377)) /dev/urandom > d/f$i; done",
        );
        let opened = image.open();
        let space = opened.space();
        convert(&opened, &space);
        drop((space, opened));
        judge(&image);
        let mut dice = Dice(0xb10c);
        for _ in 0..3 {
            let opened = image.open();
            let space = opened.space();
            for _ in 0..4 {
                let mut commit = Commit::new(&opened, &space);
                let files = commit.files(TreeId::FS);
                let (ino, sums) = files[dice.roll(files.len() as u64) as usize];
                commit.truncate(TreeId::FS, ino);
                let data = vec![dice.roll(256) as u8; 123 << 12];
                assert!(commit.write(TreeId::FS, ino, sums, &data).expect("room"));
                commit.finish();
            }
            space.new_chunk(btrfs_space::Kind::Data).expect("room");
            Commit::new(&opened, &space).finish();
            drop((space, opened));
            judge(&image);
        }
    });
}
