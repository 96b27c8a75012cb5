//! The outside judges of a crash state: `btrfs check`, and the kernel's mount, which replays
//! the log if there is one.
//!
//! The kernel reads only the first superblock: a state in which that is torn is not for it.

use blocksim::Image;
use btrfs_disk::Superblock;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use std::sync::Mutex;
use testkit::compare::TreeSnapshot;
use testkit::durability::{Demands, Rules};
use testkit::oracle::{TempDir, btrfs_check, capabilities, with_kernel};
use vfs::Ino;

/// All images have the same identity: one at a time.
pub static ONE: Mutex<()> = Mutex::new(());

/// Subvolumes of the volumes that have some: names at the top, and the ids that the kernel gave.
pub const SUBVOLUMES: [(&str, u64); 3] = [("sub", 256), ("snap", 257), ("rw", 258)];

/// The kernel numbers the inodes of each subvolume by themselves.
fn number_as_ours(tree: &mut TreeSnapshot) {
    for (path, node) in &mut tree.nodes {
        let top = path.components().next().unwrap_or_default();
        if let Some((_, id)) = SUBVOLUMES.iter().find(|(name, _)| name.as_bytes() == top) {
            let own = node.attr.ino.0 & ((1 << 40) - 1);
            node.attr.ino = Ino(own | id << 40);
        }
    }
}

/// Why there are no outside judges here, if so.
pub fn lacking() -> Option<&'static str> {
    capabilities().lacking_kernel_btrfs()
}

/// The superblock that the kernel would use, if it is whole.
fn first_superblock(image: &Image) -> Option<Superblock> {
    let mut bytes = [0; SUPER_SIZE];
    image.read(COPIES[0], &mut bytes).ok()?;
    Superblock::parse(&bytes, COPIES[0]).ok()
}

pub fn fit(image: &Image) -> bool {
    first_superblock(image).is_some()
}

/// There are fsyncs in a log that the next mount replays.
pub fn log_pending(image: &Image) -> bool {
    first_superblock(image).is_some_and(|sb| sb.fields.log_root.0 != 0)
}

/// Says nothing against states that are not for the kernel, or where there is none.
pub fn judge(image: &Image, demands: &Demands<'_>, rules: Rules) -> Result<&'static str, String> {
    if lacking().is_some() {
        return Ok("not asked");
    }
    if !fit(image) {
        return Ok("its superblock is torn");
    }
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = TempDir::new("crash").map_err(|error| error.to_string())?;
    let path = dir.join("state.img");
    image.export(&path).map_err(|error| error.to_string())?;
    // The log's blocks are in no tree that `btrfs check` counts, so it waits for the replay.
    if !log_pending(image) {
        btrfs_check(&path)?;
    }
    let mut seen = with_kernel(&path, "noatime", |mount| TreeSnapshot::of_dir(mount.path()))
        .map_err(|why| format!("the kernel does not mount it: {why}"))?
        .map_err(|error| format!("reading the kernel's mount: {error}"))?;
    number_as_ours(&mut seen);
    let wrong = demands.judge(&seen, rules);
    if !wrong.is_empty() {
        return Err(format!("the kernel's mount: {}", wrong.join("\n  ")));
    }
    btrfs_check(&path).map_err(|why| format!("after the kernel's mount: {why}"))?;
    Ok("all is well")
}
