//! What we leave when we are interrupted while we free the trees of a relocation of the kernel's: it is
//! gone on with by us, and by the kernel.
//!
//! The kernel (6.18) oopses where a position is above a tree's root. So all judges that are no kernel have their say
//! first, and each position is held against what a kernel would have written, before one mounts the volume.

use crate::common::kernel::{btrfs, kernel};
use crate::common::{self, Image, likeness::assert_like};
use crate::images::{Quotas, interrupted, populate, positions};
use blockdev::BlockDevice;
use blocksim::{Epoch, SimDevice};
use btrfs_fs::{BtrfsFs, Defect, Injection, Options};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::compare::{Rules, TreeSnapshot};
use testkit::oracle::{self, KernelMount, TempDir};
use vfs::FileSystem;

const MIB: u64 = 1 << 20;

/// Steps are tiny: most commits have half of a tree.
fn open(device: Arc<dyn BlockDevice>) -> BtrfsFs {
    let injection = Injection::of(Some(Defect::TinySteps));
    let options = Options { background: false, injection, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("open")
}

/// We go on.
fn ours(device: Arc<SimDevice>, tree: &TreeSnapshot) {
    // A copy of the superblock may be torn, or of the commit before.
    common::check_device(device.clone(), false, btrfs_check::Severity::Error);
    let fs = open(device.clone());
    assert_eq!(fs.read_only_reason(), None);
    assert_like(tree, &common::snapshot(&fs), &Rules::default());
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device, true, btrfs_check::Severity::Note);
}

/// A balance that is under way ends; the command ends with 1 as long as there is one.
fn wait(mount: &KernelMount) {
    let (at, end) = (mount.path().to_string_lossy(), Instant::now() + Duration::from_secs(120));
    while oracle::sh("btrfs", &["balance", "status", &at]).is_err() {
        assert!(Instant::now() < end, "the kernel ends the balance");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The kernel goes on, with the trees alone or with its balance as well. Answers what `positions` does.
fn theirs(image: &Path, tree: &TreeSnapshot, quotas: Quotas, balances: bool) -> (usize, usize) {
    // Of the commit before there may be a copy of the superblock.
    common::check_device(
        Arc::new(common::open_device(image, true)),
        true,
        btrfs_check::Severity::Error,
    );
    quotas.assert_checked(image);
    let found = positions(image, quotas);
    let options = if balances { "noatime" } else { "noatime,skip_balance" };
    kernel(image, options, |mount| {
        let seen = TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount");
        assert_like(tree, &seen, &Rules::default());
        if balances {
            wait(mount);
        }
        // A commit of its own, after which no copy of the superblock is of the one before.
        std::fs::write(mount.join("written"), "by the kernel").expect("write");
        btrfs(mount, &["filesystem", "sync", "/"]);
        oracle::scrub(mount).expect("scrub");
    });
    assert_eq!(positions(image, quotas), (0, 0), "the kernel frees what is left");
    quotas.assert_sound(image);
    found
}

/// Some of what a crash leaves, from the beginning to the end.
fn sample(epochs: &[Epoch], most: usize) -> impl Iterator<Item = &Epoch> {
    epochs.iter().step_by(epochs.len().div_ceil(most))
}

/// What the kernel left, and the commits in which we free it: more than `least`. How far the kernel came is a
/// matter of time, so it is interrupted again until there is enough to free.
fn freed(image: &Path, what: &str, quotas: Quotas, least: usize) -> Vec<Epoch> {
    for _ in 0..5 {
        for state in interrupted(image, what, quotas) {
            let base = blocksim::Image::import(&state).expect("import").flatten();
            let device = Arc::new(SimDevice::new(base));
            open(device.clone()).destroy().expect("close");
            let epochs: Vec<Epoch> = device.recording().epochs().collect();
            println!("{} epochs", epochs.len());
            if epochs.len() > least {
                return epochs;
            }
        }
    }
    panic!("the kernel left nothing that takes more than {least} epochs");
}

/// How many half dropped trees the kernel found, where we free in more than `least` epochs.
fn crash(what: &str, quotas: Quotas, least: usize) -> usize {
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    let tree = kernel(&image.path, "noatime", |mount| populate(mount, quotas));
    let epochs = freed(&image.path, what, quotas, least);
    for epoch in sample(&epochs, common::number("SPINNEY_STATES", 6) as usize) {
        for choice in epoch.choices(2, 1) {
            ours(Arc::new(SimDevice::new(epoch.image(&choice))), &tree);
        }
    }
    let dir = TempDir::new("crash-relocation").expect("a directory");
    let (mut trees, mut half) = (0, 0);
    for (number, epoch) in
        sample(&epochs, common::number("SPINNEY_OUTSIDE", 4) as usize).enumerate()
    {
        // The kernel takes no torn superblock: what arrived whole, or not at all.
        let choice = &epoch.choices(2, 1)[number % 2];
        let path = dir.join("crashed.img");
        epoch.image(choice).export(&path).expect("export");
        let found = theirs(&path, &tree, quotas, number % 3 == 2);
        println!("{number}: {found:?} trees, half of them");
        (trees, half) = (trees + found.0, half + found.1);
    }
    println!("the kernel found {trees} trees, {half} of them half dropped");
    half
}

#[test]
fn a_crash_meanwhile_loses_nothing() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    assert!(crash("-m", Quotas::Off, 8) > 0, "this shows little");
}

#[test]
fn nor_does_one_in_a_data_balance() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    // Trees of a data balance are small: few commits have half of one.
    crash("-d", Quotas::Off, 1);
}

#[test]
fn nor_does_one_with_simple_quotas() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    testkit::require!(oracle::newer_btrfs().is_ok(), "no newer btrfs-progs");
    assert!(crash("-m", Quotas::Simple, 8) > 0, "this shows little");
}
