//! The gate over real volumes: whatever mkfs.btrfs and the kernel wrote must pass,
//! reached through its parents and lying around freed.

mod support;

use btrfs_disk::TreeId;
use btrfs_disk::key::{kind, kind_name};
use std::collections::{BTreeMap, BTreeSet};
use support::load;
use support::mount::{Image, Mount, Scratch, skipped};
use support::raw::Raw;

/// How many items of each type the gate has passed.
type Seen = BTreeMap<u8, usize>;

/// Every node of the image passes; counts items by type.
fn all_pass(image: &Image) -> Seen {
    let raw = Raw::open(&image.path);
    let mut seen = Seen::new();
    let mut complaints = Vec::new();
    let nodes = raw.scan(|at, verdict| match verdict {
        Ok(node) if node.is_leaf() => {
            for (key, _) in node.items() {
                *seen.entry(key.kind).or_default() += 1;
            }
        }
        Ok(_) => {}
        Err(corrupt) => complaints.push(format!("at {at}: {corrupt}")),
    });
    assert!(complaints.is_empty(), "false alarms: {complaints:#?}");
    assert!(nodes > 8, "only {nodes} nodes in {}", image.path.display());
    let trees = raw.all_trees().unwrap_or_else(|corrupt| panic!("false alarm: {corrupt}"));
    assert!(trees.iter().any(|(id, _)| *id == TreeId::FS));
    println!("{}: {nodes} nodes, {} trees", image.path.display(), trees.len());
    seen
}

fn names_of(seen: &Seen) -> String {
    let one = |(kind, count): (&u8, &usize)| {
        format!("{} {count}", kind_name(*kind).map_or(kind.to_string(), str::to_string))
    };
    seen.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn require(seen: &Seen, kinds: &[u8]) {
    let missing: BTreeSet<u8> =
        kinds.iter().copied().filter(|kind| !seen.contains_key(kind)).collect();
    assert!(missing.is_empty(), "the load made no items of types {missing:?}");
}

const FILES: &[u8] = &[
    kind::INODE_ITEM,
    kind::INODE_REF,
    kind::XATTR_ITEM,
    kind::DIR_ITEM,
    kind::DIR_INDEX,
    kind::EXTENT_DATA,
    kind::EXTENT_CSUM,
    kind::ROOT_ITEM,
    kind::ROOT_REF,
    kind::ROOT_BACKREF,
    kind::EXTENT_ITEM,
    kind::BLOCK_GROUP_ITEM,
    kind::DEV_EXTENT,
    kind::DEV_ITEM,
    kind::CHUNK_ITEM,
    kind::UUID_KEY_SUBVOL,
    kind::PERSISTENT_ITEM,
];

/// The whole load on one kind of volume.
fn work(mount: &Mount) {
    load::names(mount);
    load::extents(mount);
    load::subvolumes(mount);
}

fn volume(name: &str, mkfs: &str, options: &str, also: impl Fn(&Mount), kinds: &[u8]) {
    if skipped() {
        return;
    }
    let scratch = Scratch::new(name);
    worked_on(&Image::make(&scratch, name, "2500m", mkfs), options, also, kinds);
}

fn worked_on(image: &Image, options: &str, also: impl Fn(&Mount), kinds: &[u8]) {
    all_pass(image);
    {
        let mount = image.mount(options);
        work(&mount);
        also(&mount);
    }
    let seen = all_pass(image);
    println!("{}", names_of(&seen));
    require(&seen, FILES);
    require(&seen, kinds);
}

fn nothing_more(_: &Mount) {}

#[test]
fn default_volume_with_quota_and_balance() {
    let also = |mount: &Mount| {
        load::quota(mount);
        load::balance(mount);
    };
    let kinds = &[
        kind::METADATA_ITEM,
        kind::FREE_SPACE_INFO,
        kind::FREE_SPACE_EXTENT,
        kind::QGROUP_STATUS,
        kind::QGROUP_INFO,
        kind::QGROUP_LIMIT,
        kind::QGROUP_RELATION,
        kind::TEMPORARY_ITEM,
        kind::ORPHAN_ITEM,
        kind::INODE_EXTREF,
        kind::UUID_KEY_RECEIVED_SUBVOL,
    ];
    volume("default", "", "", also, kinds);
}

#[test]
fn small_nodes() {
    let kinds = &[kind::TREE_BLOCK_REF, kind::EXTENT_DATA_REF];
    volume("node4k", "-n 4096", "", load::balance, kinds);
}

#[test]
fn large_nodes_and_xxhash() {
    volume("node64k", "-n 65536 --csum xxhash", "compress-force=zstd", nothing_more, &[]);
}

#[test]
fn nodes_of_32k_and_sha256() {
    volume("node32k", "-n 32768 --csum sha256", "compress-force=lzo", nothing_more, &[]);
}

#[test]
fn blake2_and_zlib() {
    volume("blake2", "--csum blake2", "compress=zlib", load::balance, &[kind::FREE_SPACE_INFO]);
}

#[test]
fn block_group_tree() {
    if skipped() {
        return;
    }
    let newer = match testkit::oracle::newer_mkfs() {
        Ok(newer) => newer,
        Err(why) => testkit::skip!("{why}"),
    };
    let scratch = Scratch::new("bgt");
    let image = Image::make_by(&newer, &scratch, "bgt", "2500m", "-O block-group-tree");
    worked_on(&image, "", load::balance, &[kind::FREE_SPACE_INFO]);
    let trees = Raw::open(&image.path).all_trees().expect("no false alarm");
    assert!(trees.iter().any(|(id, _)| *id == TreeId::BLOCK_GROUP));
}

#[test]
fn v1_space_cache() {
    volume("v1", "-R ^free-space-tree", "space_cache=v1", load::balance, &[0]);
}

#[test]
fn mixed_block_groups() {
    volume("mixed", "--mixed -n 4096", "", nothing_more, &[kind::FREE_SPACE_EXTENT]);
}

#[test]
fn old_features() {
    let mkfs = "-O ^no-holes,^skinny-metadata,^extref -R ^free-space-tree";
    volume("old", mkfs, "", load::balance, &[kind::EXTENT_ITEM]);
}

#[test]
fn free_space_in_bitmaps() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("bitmaps");
    let image = Image::make(&scratch, "bitmaps", "300m", "");
    {
        let mount = image.mount("max_inline=0");
        mount.run(
            "for r in 1 2; do for i in $(seq 8000); do echo $i > f$r-$i; done; done; sync -f .
             for i in $(seq 1 2 8000); do echo f1-$i f2-$i; done | xargs rm; sync -f .; sync -f .",
        );
    }
    let seen = all_pass(&image);
    println!("{}", names_of(&seen));
    require(&seen, &[kind::FREE_SPACE_BITMAP]);
}

#[test]
fn volume_in_use_with_log_tree_and_orphans() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new("log");
    let image = Image::make(&scratch, "log", "400m", "");
    let mount = image.mount("commit=300");
    load::names(&mount);
    mount.run("btrfs -q subvolume create sub; mkdir dir; for i in $(seq 50); do echo $i > dir/$i; done; sync -f .");
    mount.run("for i in $(seq 60 90); do echo $i > dir/$i; done; rm dir/1*; xfs_io -c fsync dir");
    mount.run(
        "echo more >> dir/21; xfs_io -c fsync dir/21; setfattr -n user.a -v b dir/23
         xfs_io -f -c 'pwrite 0 200k' -c fsync dir/24 > /dev/null; xfs_io -c fsync dir/23
         xfs_io -f -c 'falloc 0 1m' -c 'pwrite 4k 8k' -c fsync sub/new > /dev/null",
    );
    let raw = Raw::open(&image.path);
    assert_ne!(raw.superblock.fields.log_root.0, 0, "no log tree was made");
    let seen = all_pass(&image);
    println!("{}", names_of(&seen));
    require(&seen, &[kind::DIR_LOG_INDEX]);
    // Unlinked while open, and never linked: both are orphans in the commit.
    mount.run(
        "exec 7<> dir/30; rm dir/30; xfs_io -T -c 'pwrite 0 100k' -c 'syncfs' . > /dev/null; sync -f .",
    );
    let seen = all_pass(&image);
    require(&seen, &[kind::ORPHAN_ITEM]);
}
