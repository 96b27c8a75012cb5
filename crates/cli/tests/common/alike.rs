//! What tests of volumes that others made ask of them: all judges find them sound, and the kernel sees what we see.

use super::{Image, KernelMount, SCRUB, assert_clean, fine};
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::scrub;

/// What the kernel's mount shows.
pub fn kernels(image: &Image) -> TreeSnapshot {
    let mount = KernelMount::new(&image.path, "ro,noatime").unwrap();
    let tree = TreeSnapshot::of_dir(mount.path()).unwrap();
    mount.unmount().unwrap();
    tree
}

/// The kernel sees the same as we saw.
pub fn assert_seen_alike(image: &Image, seen: &TreeSnapshot, what: &str) {
    let found = diff(&kernels(image), seen, &Rules::default());
    let told: Vec<String> = found.iter().take(20).map(ToString::to_string).collect();
    assert!(seen.nodes.len() > 100, "{what}: nothing is shown by an empty volume");
    assert!(found.is_empty(), "{what}: the kernel sees\n{}", told.join("\n"));
}

/// `btrfs check` finds nothing, nor does ours, content read.
pub fn assert_sound(image: &Image, what: &str) {
    assert_clean(&image.path);
    let told = fine(&["check", "--data", &image.word()]);
    assert!(told.contains("no damage found"), "{what}: {told}");
}

/// All of it, and the kernel's scrub.
pub fn judge(image: &Image, seen: &TreeSnapshot, what: &str) {
    assert_sound(image, what);
    assert_seen_alike(image, seen, what);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    scrub(&mount).unwrap_or_else(|found| panic!("{what}, {SCRUB}: {found}"));
    mount.unmount().unwrap();
}
