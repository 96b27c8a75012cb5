//! The small volumes that are damaged: few nodes, so that a check is quick, and an item of
//! each type that the kernel makes on one device.

use crate::common::{self, Scratch};
use btrfs_disk::key::kind;
use std::path::{Path, PathBuf};
use testkit::oracle::{newer_mkfs, record_skip};

/// Files of each sort, in the mount's root.
const LOAD: &str = r#"
    mkdir d; echo small > d/inline; ln -s target d/link; mkfifo d/fifo; ln d/inline hard
    head -c 300000 /dev/urandom > d/big; setfattr -n user.a -v value d/inline
    fallocate -l 64k d/prealloc; dd if=/dev/urandom of=d/prealloc bs=4k count=3 seek=2 conv=notrunc status=none
    truncate -s 1M d/sparse; dd if=/dev/urandom of=d/sparse bs=4k count=2 seek=9 conv=notrunc status=none
    touch d/packed d/tiny; btrfs property set d/packed compression zstd
    yes line | head -c 200000 > d/packed
    mkdir plain; chattr +C plain; head -c 20000 /dev/urandom > plain/x
    btrfs -q subvolume create sub; echo in > sub/file; head -c 9000 /dev/urandom > sub/data
    sync -f .
    btrfs -q subvolume snapshot -r sub snap
    echo more > sub/other
    cp --reflink=always d/big d/clone
    sync -f .
"#;

/// One file with more names than an item holds, extents with more references than fit into
/// their items, and free space in pieces.
const MANY: &str = r#"
    mkdir d; echo x > d/file
    for i in $(seq 100); do ln d/file d/another-name-of-the-same-file-that-is-quite-long-$i; done
    for i in $(seq 60); do head -c 4096 /dev/urandom > d/piece$i; done; sync -f .
    for i in $(seq 2 2 60); do rm d/piece$i; done; sync -f .
    head -c 65536 /dev/urandom > d/shared
    for i in $(seq 60); do cp --reflink=always d/shared d/clone$i; done; sync -f .
    for i in $(seq 30); do btrfs -q subvolume snapshot . snap$i; done; sync -f .
"#;

/// Blocks that lost the subvolume that they were made for, so that what they refer to is known by
/// them alone; what was received; what lost its last name while it is open.
const SHARED: &str = r#"
    btrfs -q subvolume create sub; mkdir sub/d
    head -c 65536 /dev/urandom > sub/d/shared
    for i in $(seq 1000); do echo $i > sub/d/with-a-name-that-fills-the-leaves-$i; done
    for i in $(seq 150); do cp --reflink=always sub/d/shared sub/d/clone-with-a-long-name-$i; done
    for i in $(seq 20); do head -c 5000 /dev/urandom > sub/d/data$i; done; sync -f .
    btrfs -q subvolume snapshot -r sub read-only; btrfs -q subvolume snapshot sub other; sync -f .
    touch sub/d/* other/d/data7; sync -f .
    btrfs send -q read-only > $image.stream; mkdir got; btrfs receive -q -f $image.stream got
    btrfs balance start -d . > /dev/null
    mount -o remount,commit=1 . # which wakes the cleaner, too
    btrfs -q subvolume delete sub; btrfs subvolume sync . > /dev/null; sync -f .
    echo open > gone; exec 9< gone; rm gone; mkdir x; exec 8< x; rmdir x; sync -f .
"#;

fn image(scratch: &Scratch, name: &str, mkfs: &str, load: &str) -> PathBuf {
    image_by("mkfs.btrfs", scratch, name, mkfs, load)
}

fn image_by(program: &str, scratch: &Scratch, name: &str, mkfs: &str, load: &str) -> PathBuf {
    let path = scratch.path(name);
    common::mkfs_btrfs(&path, "128M", &format!("{program} {mkfs}"));
    common::mounted(&path, "noatime", &format!("set -e; {load}"));
    path
}

/// Does `change` to the mounted image and copies it to `to`, both within one transaction: a commit
/// drops the log, and a copy of what is being committed is none. The kernel commits when half a
/// minute has gone by, or when anybody on the machine says sync(2).
fn copied_between_commits(change: &str, to: &Path) -> String {
    format!(
        "generation() {{ od -An -tu8 -j 65608 -N 8 $image; }}
        for try in 1 2 3 4 5 none; do
            [ $try != none ] || {{ echo 'a commit came between each time'; exit 1; }}
            sync -f .; before=$(generation)
            {change}
            cp --sparse=always $image {}
            [ \"$before\" != \"$(generation)\" ] || break
        done",
        to.display()
    )
}

pub fn make(scratch: &Scratch) -> Vec<PathBuf> {
    let plain = image(scratch, "plain", "", LOAD);
    // Interior nodes, explicit holes, quota groups.
    let many =
        "for i in $(seq 150); do echo $i > d/$i-with-a-name-that-fills-leaves; done; sync -f .";
    let old = image(
        scratch,
        "old",
        "-n 4096 -m single -O ^no-holes",
        &format!(
            "{LOAD}\n{many}\nbtrfs quota enable .; btrfs quota rescan -w . >/dev/null; sync -f ."
        ),
    );
    // A log: copied while it is mounted, with nothing at work.
    let log = scratch.path("log");
    let change = "echo a > d/new$try; head -c 20000 /dev/urandom > d/logged
        python3 -c 'import os
for n in (\"d/new'$try'\", \"d/logged\", \"d/inline\"): os.fsync(os.open(n, os.O_RDWR))
os.fsync(os.open(\"d\", os.O_RDONLY))'";
    let load = format!("{LOAD}\n{}", copied_between_commits(change, &log));
    image(scratch, "live", "-m single", &load);
    let many = image(scratch, "many", "-n 4096 -m single", MANY);
    // Copied while it is mounted, as the log is.
    let shared = scratch.path("shared");
    let load = format!("{SHARED}\n{}", copied_between_commits("", &shared));
    image(scratch, "open", "-n 4096 -m single", &load);
    let mut all = vec![plain, old, log, many, shared];
    match newer_mkfs() {
        Ok(newer) => {
            let mkfs = "-n 4096 -m single -O block-group-tree,quota";
            all.push(image_by(&newer, scratch, GROUP_TREE, mkfs, LOAD));
        }
        Err(why) => record_skip("block groups in a tree of their own", &why),
    }
    all
}

/// The image with block groups in a tree of their own, which a newer btrfs-progs makes and judges.
pub const GROUP_TREE: &str = "group-tree";

/// The images have each of these, or the comparison does not say what it seems to.
pub const KINDS: &[u8] = &[
    kind::INODE_ITEM,
    kind::INODE_REF,
    kind::INODE_EXTREF,
    kind::XATTR_ITEM,
    kind::ORPHAN_ITEM,
    kind::DIR_LOG_INDEX,
    kind::DIR_ITEM,
    kind::DIR_INDEX,
    kind::EXTENT_DATA,
    kind::EXTENT_CSUM,
    kind::ROOT_ITEM,
    kind::ROOT_BACKREF,
    kind::ROOT_REF,
    kind::EXTENT_ITEM,
    kind::METADATA_ITEM,
    kind::TREE_BLOCK_REF,
    kind::EXTENT_DATA_REF,
    kind::SHARED_DATA_REF,
    kind::BLOCK_GROUP_ITEM,
    kind::FREE_SPACE_INFO,
    kind::FREE_SPACE_EXTENT,
    kind::FREE_SPACE_BITMAP,
    kind::DEV_EXTENT,
    kind::DEV_ITEM,
    kind::CHUNK_ITEM,
    kind::QGROUP_STATUS,
    kind::QGROUP_INFO,
    kind::QGROUP_LIMIT,
    kind::PERSISTENT_ITEM,
    kind::UUID_KEY_SUBVOL,
    kind::UUID_KEY_RECEIVED_SUBVOL,
];

/// References in the items of extents.
pub const INLINE: &[u8] =
    &[kind::TREE_BLOCK_REF, kind::EXTENT_DATA_REF, kind::SHARED_BLOCK_REF, kind::SHARED_DATA_REF];
