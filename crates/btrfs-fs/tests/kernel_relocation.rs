//! Volumes on which the kernel was interrupted while it moved block groups: trees of its own are left
//! in them. The next mount that writes frees these, and nothing else changes.
//!
//! The states are real ones: the image lies on an ext4, which is frozen in the midst of the
//! kernel's balance, so that a copy of it is what a crash at that moment leaves.

mod common;

use blockdev::BlockDevice;
use blocksim::SimDevice;
use btrfs_fs::{BtrfsFs, Options};
use common::Image;
use common::kernel::{btrfs, kernel};
use common::likeness::assert_like;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::compare::{Rules, TreeSnapshot};
use testkit::oracle::{self, KernelMount};
use vfs::FileSystem;

const MIB: u64 = 1 << 20;
const WANTED: usize = 2;

fn open(device: Arc<dyn BlockDevice>) -> BtrfsFs {
    let options = Options { background: false, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("open")
}

/// Trees of a relocation that the root tree names.
fn left(image: &Path) -> usize {
    let path = image.to_string_lossy();
    let dump = oracle::sh("btrfs", &["inspect-internal", "dump-tree", "-t", "1", &path]).unwrap();
    dump.lines().filter(|line| line.contains("key (TREE_RELOC ROOT_ITEM")).count()
}

/// Many small nodes, shared by snapshots that were changed a little.
fn populate(mount: &KernelMount, quotas: bool) -> TreeSnapshot {
    if quotas {
        btrfs(mount, &["quota", "enable", "/"]);
    }
    btrfs(mount, &["subvolume", "create", "/s"]);
    for dir in 0..30 {
        let dir = mount.join(&format!("s/{dir}"));
        std::fs::create_dir(&dir).expect("mkdir");
        for file in 0..200_usize {
            std::fs::write(dir.join(file.to_string()), vec![7; file * 37 % 9000]).expect("write");
        }
    }
    for snapshot in 0..5 {
        btrfs(mount, &["subvolume", "snapshot", "/s", &format!("/snapshot{snapshot}")]);
        for file in 0..6 {
            let path = format!("snapshot{snapshot}/{}/{file}", snapshot * 5 + file);
            std::fs::write(mount.join(&path), path.as_bytes()).expect("write");
        }
    }
    btrfs(mount, &["filesystem", "sync", "/"]);
    TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
}

/// Copies of the image from the midst of a balance, with trees that it had left.
fn interrupted(image: &Path, what: &str) -> Vec<PathBuf> {
    let script = format!(
        "set -e
        image={image}; dir=$image.d; mkdir -p $dir/ext4 $dir/btrfs
        trap 'set +e; exec 2> /dev/null; fsfreeze -u $dir/ext4; touch $dir/end
              btrfs balance cancel $dir/btrfs; wait; umount $dir/btrfs; umount $dir/ext4' EXIT
        truncate -s 2G $dir/outer; mkfs.ext4 -q -F $dir/outer; mount -o loop $dir/outer $dir/ext4
        mv $image $dir/ext4/image; mount -o loop $dir/ext4/image $dir/btrfs
        (for i in $(seq 40); do [ -e $dir/end ] || btrfs balance start {what} $dir/btrfs; done) > /dev/null 2>&1 &
        balance=$!
        # Trees are on the volume where it commits meanwhile.
        (while [ ! -e $dir/end ]; do btrfs filesystem sync $dir/btrfs; done) > /dev/null 2>&1 &
        found=0
        while kill -0 $balance 2> /dev/null && [ $found -lt {WANTED} ]; do
            fsfreeze -f $dir/ext4
            cp --sparse=always $dir/ext4/image $image.$found
            fsfreeze -u $dir/ext4
            if btrfs inspect-internal dump-tree -t 1 $image.$found 2> /dev/null |
                grep -q 'key (TREE_RELOC ROOT_ITEM'; then found=$((found + 1)); fi
            sleep 0.0$((found * 2 + 1))
        done
        echo found $found",
        image = image.display()
    );
    let said = oracle::sh("sh", &["-c", &script]).expect("a balance that is interrupted");
    let found = said.lines().find_map(|line| line.strip_prefix("found ")?.parse().ok());
    let found: usize = found.expect("how many were found");
    (0..found).map(|number| PathBuf::from(format!("{}.{number}", image.display()))).collect()
}

fn judge(image: &Path, expected: &TreeSnapshot) {
    common::assert_sound(image);
    let seen = kernel(image, "ro,noatime,skip_balance", |m| TreeSnapshot::of_dir(m.path()));
    assert_like(expected, &seen.expect("walk the kernel's mount"), &Rules::default());
    kernel(image, "noatime,skip_balance", |mount| oracle::scrub(mount).expect("scrub"));
    common::assert_sound(image);
}

fn is_freed(what: &str, quotas: bool) {
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    let tree = kernel(&image.path, "noatime", |mount| populate(mount, quotas));
    let states = interrupted(&image.path, what);
    assert!(!states.is_empty(), "no state of a balance had trees of its own: this shows nothing");
    for state in &states {
        let trees = left(state);
        let fs = open(Arc::new(common::open_device(state, false)));
        assert_eq!(fs.read_only_reason(), None);
        assert_eq!(left(state), 0, "freed before anybody is served");
        println!("{trees} trees of a relocation freed");
        assert_like(&tree, &common::snapshot(&fs), &Rules::default());
        common::new_file(&fs, "new", &vec![3; 3 << 20]);
        let after = common::snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        judge(state, &after);
    }
}

#[test]
fn trees_of_a_metadata_balance_are_freed() {
    testkit::require!(kernel_btrfs);
    is_freed("-m", false);
}

#[test]
fn quotas_do_not_count_them() {
    testkit::require!(kernel_btrfs);
    is_freed("-m", true);
}

#[test]
fn trees_of_a_data_balance_are_freed() {
    testkit::require!(kernel_btrfs);
    is_freed("-d", false);
}

/// Whatever a crash leaves is gone on with.
#[test]
fn a_crash_meanwhile_loses_nothing() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    let tree = kernel(&image.path, "noatime", |mount| populate(mount, false));
    let states = interrupted(&image.path, "-m");
    let first = states.first().expect("a state with trees of a relocation");
    let base = blocksim::Image::import(first).expect("import").flatten();
    let device = Arc::new(SimDevice::new(base));
    open(device.clone()).destroy().expect("close");
    for epoch in device.recording().epochs() {
        for choice in epoch.choices(2, 1) {
            let state = Arc::new(SimDevice::new(epoch.image(&choice)));
            common::check_device(state.clone(), false, btrfs_check::Severity::Error);
            let fs = open(state.clone());
            assert_like(&tree, &common::snapshot(&fs), &Rules::default());
            fs.destroy().expect("close");
            drop(fs);
            common::check_device(state, true, btrfs_check::Severity::Note);
        }
    }
}
