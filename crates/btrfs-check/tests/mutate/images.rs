//! The small volumes that are damaged: few nodes, so that a check is quick, and an item of
//! each type that the kernel makes on one device.

use crate::common::{self, Scratch};
use std::path::PathBuf;

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

fn image(scratch: &Scratch, name: &str, mkfs: &str, load: &str) -> PathBuf {
    let path = scratch.path(name);
    let image = path.display();
    common::sh(&format!(
        "image={image}; truncate -s 128M $image
        mkfs.btrfs -q {mkfs} $image >/dev/null 2>&1 || exit 1
        mkdir $image.mnt; mount -o loop,noatime $image $image.mnt || exit 1
        ( cd $image.mnt; set -e; {load} ); status=$?
        umount $image.mnt || umount -l $image.mnt; rmdir $image.mnt; exit $status"
    ));
    path
}

pub fn make(scratch: &Scratch) -> Vec<PathBuf> {
    let plain = image(scratch, "plain", "", LOAD);
    // Interior nodes, explicit holes, quota groups, block groups in a tree of their own not.
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
    let load = format!(
        "{LOAD}\necho a > d/new; head -c 20000 /dev/urandom > d/logged
        python3 -c 'import os
for n in (\"d/new\", \"d/logged\", \"d/inline\"): os.fsync(os.open(n, os.O_RDWR))'
        cp --sparse=always $image {}",
        log.display()
    );
    image(scratch, "live", "-m single", &load);
    vec![plain, old, log]
}
