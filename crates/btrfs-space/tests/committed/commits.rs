//! Commits made by hand on kernel images, judged by `btrfs check`, by the kernel, and by
//! deriving all references and free space again.

use crate::common;
use btrfs_disk::{
    ChildPtr, Error, Expect, Generation, LeafItem, Node, NodeIdentity, TreeId, build,
};
use btrfs_space::Space;
use btrfs_tree::{DirtyNodes, NodeReader};
use common::derive::{assert_space_true, assert_true};
use common::edit::{Commit, Dice};
use common::random::random_commits;
use common::{Image, Opened, with_kernel};
use std::sync::Arc;

/// The backup of the last commit, in the superblock, has the roots of that commit.
fn assert_backup_true(opened: &Opened) {
    let sb = opened.volume.superblock();
    let newest = sb.backups.iter().find(|b| b.tree_root_gen == sb.fields.generation);
    let backup = newest.expect("a backup of the last commit");
    let told = [
        (backup.tree_root, backup.tree_root_gen, backup.tree_root_level),
        (backup.chunk_root, backup.chunk_root_gen, backup.chunk_root_level),
        (backup.extent_root, backup.extent_root_gen, backup.extent_root_level),
        (backup.fs_root, backup.fs_root_gen, backup.fs_root_level),
        (backup.dev_root, backup.dev_root_gen, backup.dev_root_level),
        (backup.csum_root, backup.csum_root_gen, backup.csum_root_level),
    ];
    let trees = [TreeId::EXTENT, TreeId::FS, TreeId::DEV, TreeId::CSUM].map(|id| opened.tree(id));
    let mut roots = vec![opened.root_tree(), opened.chunk_tree()];
    roots.extend(trees);
    let roots: Vec<_> = roots.iter().map(|r| (r.logical, r.generation, r.level)).collect();
    assert_eq!(told[..], roots[..]);
    let fields = &sb.fields;
    assert_eq!(
        (backup.total_bytes, backup.bytes_used, backup.num_devices),
        (fields.total_bytes, fields.bytes_used, fields.num_devices)
    );
}

fn judge(image: &Image) {
    let opened = image.open();
    // The kernel's as well as ours: that is what a backup is.
    assert_backup_true(&opened);
    assert_true(&opened);
    assert_space_true(&opened);
    drop(opened);
    image.check();
}

/// What the gate would not let in is not written either, nor what else there is.
#[test]
fn a_node_that_nobody_could_read_is_not_written() {
    with_kernel(|| {
        let image = Image::new("512M", &[]);
        let opened = image.open();
        let root = opened.root_tree();
        let old = opened.store.node(&root.expect()).expect("root");
        let geometry = *opened.store.geometry();
        let room = opened.space();
        let at = || {
            let size = u64::from(geometry.node_size);
            room.alloc(btrfs_space::Kind::Metadata, size, size).expect("room").logical
        };
        let identity =
            || NodeIdentity { logical: at(), generation: root.generation, owner: TreeId::ROOT };
        let items: Vec<_> = old.items().map(|(key, data)| LeafItem { key, data }).collect();
        let good = build::leaf(&geometry, &identity(), &items);
        // A parent is never older than its child.
        let child = ChildPtr {
            key: old.key(0),
            logical: old.logical(),
            generation: Generation(root.generation.0 + 1),
        };
        let bad = build::interior(&geometry, &identity(), 1, &[child]);
        let mut dirty = DirtyNodes::new();
        let expect = |node: &Node| Expect {
            logical: node.logical(),
            level: node.level(),
            generation: Some(root.generation),
            owner: Some(TreeId::ROOT),
            first_key: None,
        };
        let (good_at, bad_at) = (expect(&good), expect(&bad));
        dirty.insert(Arc::new(good));
        dirty.insert(Arc::new(bad));
        let written = dirty.write_all(&opened.store);
        assert!(matches!(written, Err(Error::Corrupt(_))), "{written:?}");
        assert!(opened.volume.read_node(&good_at).is_err(), "nothing was written");
        dirty.remove(bad_at.logical);
        assert_eq!(dirty.write_all(&opened.store).expect("good"), 1);
        opened.volume.read_node(&good_at).expect("it is there");
    });
}

/// The kernel reads everything, goes on writing, and finds no fault.
fn kernel_goes_on(image: &Image) {
    let mounted = image.mount("");
    mounted.scrub();
    mounted.script(
        "find . -type f -print0 | xargs -0 cat > /dev/null
         for i in $(seq 1 50); do head -c $((i * 999)) /dev/urandom > kernel$i; done
         cp --reflink=always kernel50 kernel51; sync -f .; rm -f kernel2*; sync -f .",
    );
    mounted.scrub();
    drop(mounted);
    judge(image);
}

const FILES: &str = "
    for i in $(seq 1 150); do head -c $((i * 311)) /dev/urandom > f$i; done
    dd if=/dev/urandom of=big bs=1M count=8 status=none
    touch empty; chattr +C empty; fallocate -l 300k empty
    sync -f .
    for i in $(seq 0 5 100); do
        dd if=/dev/urandom of=big bs=4k count=1 seek=$i conv=notrunc status=none
    done
";

/// Opens, works, closes.
fn session<T>(image: &Image, work: impl FnOnce(&Opened, &Space) -> T) -> T {
    let opened = image.open();
    let space = opened.space();
    work(&opened, &space)
}

#[test]
fn an_empty_commit_and_a_touched_inode() {
    with_kernel(|| {
        let image = Image::new("256M", &[]);
        image.script("", FILES);
        session(&image, |opened, space| Commit::new(opened, space).finish());
        judge(&image);
        session(&image, |opened, space| {
            let mut commit = Commit::new(opened, space);
            for (ino, _) in commit.files(TreeId::FS) {
                commit.touch(TreeId::FS, ino, 12345);
            }
            commit.finish();
        });
        judge(&image);
        let mounted = image.mount("ro,noatime");
        assert_eq!(mounted.script("stat -c %X f77").trim(), "12345");
        drop(mounted);
        kernel_goes_on(&image);
    });
}

#[test]
fn random_commits_over_snapshots() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        image.script("", FILES);
        image.script(
            "",
            "btrfs -q subvolume snapshot . one; touch f1*; btrfs -q subvolume snapshot one two
             sync -f .; rm -f one/f2*; echo x >> two/f99; sync -f .",
        );
        let mut dice = Dice(0x5eed_0001);
        for _ in 0..6 {
            session(&image, |opened, space| random_commits(opened, space, &mut dice, 5, 40));
            judge(&image);
        }
        kernel_goes_on(&image);
        session(&image, |opened, space| random_commits(opened, space, &mut dice, 5, 40));
        judge(&image);
    });
}

#[test]
fn random_commits_after_a_balance() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        image.script("", FILES);
        image.script("", "btrfs -q subvolume snapshot . one; rm -f f2*; sync -f .");
        image.script("", "btrfs -q balance start --full-balance .");
        let mut dice = Dice(0x5eed_0002);
        for _ in 0..3 {
            session(&image, |opened, space| random_commits(opened, space, &mut dice, 4, 40));
            judge(&image);
        }
        kernel_goes_on(&image);
    });
}

#[test]
fn random_commits_on_other_geometries() {
    with_kernel(|| {
        let forms: [&[&str]; 4] = [
            &["-n", "65536", "--csum", "xxhash"],
            &["-n", "16384", "--csum", "sha256", "-m", "single"],
            &["--mixed", "--csum", "blake2"],
            &["-n", "8192", "-O", "^no-holes", "-d", "dup"],
        ];
        for (seed, mkfs) in forms.iter().enumerate() {
            let image = Image::new("400M", mkfs);
            image.script("", FILES);
            image.script("", "btrfs -q subvolume snapshot . one; rm -f f7*; sync -f .");
            let mut dice = Dice(0x9e0 + seed as u64);
            // With explicit holes in files, no more may be made by leaving items out.
            let holes = !mkfs.contains(&"^no-holes");
            for _ in 0..2 {
                session(&image, |opened, space| {
                    if holes {
                        random_commits(opened, space, &mut dice, 4, 30);
                    } else {
                        touch_all(opened, space);
                    }
                });
                judge(&image);
            }
            kernel_goes_on(&image);
        }
    });
}

/// Every inode of every subvolume changes, which copies all their leaves.
fn touch_all(opened: &Opened, space: &Space) {
    let mut commit = Commit::new(opened, space);
    let trees = opened.trees();
    for id in trees.iter().map(|(_, _, root)| root.id).filter(|id| id.is_subvolume()) {
        for (ino, _) in commit.files(id) {
            commit.touch(id, ino, 4711);
        }
    }
    commit.finish();
}

#[test]
fn free_space_goes_to_bitmaps_and_back_in_commits() {
    with_kernel(|| {
        let image = Image::new("512M", &[]);
        image.script("", "touch a b; for i in $(seq 1 4); do touch x$i; done");
        let form = |image: &Image| image.dump(10).contains("FREE_SPACE_BITMAP");
        assert!(!form(&image));
        session(&image, |opened, space| {
            let mut commit = Commit::new(opened, space);
            let files = commit.files(TreeId::FS);
            // One file's extents lie between the other's.
            for i in 0..600 {
                commit.prealloc(TreeId::FS, files[i % 2].0, 4096).expect("room");
            }
            commit.finish();
            let mut commit = Commit::new(opened, space);
            commit.truncate(TreeId::FS, files[0].0);
            commit.finish();
        });
        assert!(form(&image), "300 holes want bitmaps");
        judge(&image);
        kernel_goes_on(&image);
        session(&image, |opened, space| {
            let mut dice = Dice(77);
            random_commits(opened, space, &mut dice, 6, 30);
        });
        judge(&image);
        session(&image, |opened, space| {
            let mut commit = Commit::new(opened, space);
            for (ino, _) in commit.files(TreeId::FS) {
                commit.truncate(TreeId::FS, ino);
            }
            commit.finish();
        });
        judge(&image);
        kernel_goes_on(&image);
    });
}
