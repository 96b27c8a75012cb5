//! Volumes on which the kernel was interrupted while it moved block groups: trees of its own are left
//! in them. The next mount that writes frees these, and nothing else changes.
//!
//! The states are real ones: the image lies on an ext4, which is frozen in the midst of the
//! kernel's balance, so that a copy of it is what a crash at that moment leaves.

#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod images;

use blockdev::BlockDevice;
use btrfs_fs::{BtrfsFs, Options};
use common::Image;
use common::kernel::kernel;
use common::likeness::assert_like;
use images::{Quotas, interrupted, populate, positions};
use std::path::Path;
use std::sync::Arc;
use testkit::compare::{Rules, TreeSnapshot};
use testkit::oracle;
use vfs::FileSystem;

const MIB: u64 = 1 << 20;

fn open(device: Arc<dyn BlockDevice>) -> BtrfsFs {
    let options = Options { background: false, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("open")
}

fn judge(image: &Path, expected: &TreeSnapshot, quotas: Quotas) {
    quotas.assert_sound(image);
    let seen = kernel(image, "ro,noatime,skip_balance", |m| TreeSnapshot::of_dir(m.path()));
    assert_like(expected, &seen.expect("walk the kernel's mount"), &Rules::default());
    kernel(image, "noatime,skip_balance", |mount| oracle::scrub(mount).expect("scrub"));
    quotas.assert_sound(image);
}

fn is_freed(what: &str, quotas: Quotas) {
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    let tree = kernel(&image.path, "noatime", |mount| populate(mount, quotas));
    let states = interrupted(&image.path, what, quotas);
    assert!(!states.is_empty(), "no state of a balance had trees of its own: this shows nothing");
    for state in &states {
        let trees = positions(state, quotas).0;
        let fs = open(Arc::new(common::open_device(state, false)));
        assert_eq!(fs.read_only_reason(), None);
        assert_eq!(positions(state, quotas).0, 0, "freed before anybody is served");
        println!("{trees} trees of a relocation freed");
        assert_like(&tree, &common::snapshot(&fs), &Rules::default());
        common::new_file(&fs, "new", &vec![3; 3 << 20]);
        let after = common::snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        judge(state, &after, quotas);
    }
}

#[test]
fn trees_of_a_metadata_balance_are_freed() {
    testkit::require!(kernel_btrfs);
    is_freed("-m", Quotas::Off);
}

#[test]
fn quotas_do_not_count_them() {
    testkit::require!(kernel_btrfs);
    is_freed("-m", Quotas::Full);
}

#[test]
fn trees_of_a_data_balance_are_freed() {
    testkit::require!(kernel_btrfs);
    is_freed("-d", Quotas::Off);
}

/// They count them, for those whose nodes the balance had copied.
#[test]
fn simple_quotas_stay_right() {
    testkit::require!(kernel_btrfs);
    testkit::require!(oracle::newer_btrfs().is_ok(), "no newer btrfs-progs");
    is_freed("-m", Quotas::Simple);
    is_freed("-d", Quotas::Simple);
}
