//! A volume with a subvolume and two snapshots of it, made by the kernel, so that nodes and
//! extents are shared; and workloads in the subvolume and the snapshot that may be written.
//!
//! What is in the other snapshot is in the history like all the rest, and never changes.

use super::base::{self, Base};
use super::ops::*;
use super::outside::{ONE, SUBVOLUMES};
use super::rig::Case;
use blocksim::Image;
use std::sync::{OnceLock, PoisonError};
use testkit::PosixFs;
use testkit::ops::{Op, Outcome, Session, hash};
use testkit::oracle::{KernelMount, TempDir, btrfs_check, sh};

/// As `base::setup`, and so much more that the tree has several leaves: its root is no snapshot's.
fn setup() -> Vec<Op> {
    let file = |n: u64| {
        let name = format!("M/{n}");
        [create(&name), write(&name, 0, 700, 100 + n)]
    };
    let many = (0..60).flat_map(file);
    base::setup().into_iter().chain([mkdir("M")]).chain(many).collect()
}

/// What the subvolume has and its snapshots have not.
fn diverging() -> Vec<Op> {
    vec![
        write("B/big", 65_536, 20_000, 60),
        append("A/foo", 5000, 61),
        create("A/C/later"),
        write("A/C/later", 0, 9000, 62),
        link("A/bar", "A/bar2"),
        write("M/20", 0, 700, 63),
    ]
}

fn apply(mount: &KernelMount, place: &str, ops: &[Op]) {
    let fs = PosixFs::open(&mount.join(place)).expect("open a subvolume");
    let mut session = Session::new(&fs);
    for op in ops {
        let outcome = session.apply(op);
        assert!(!matches!(outcome, Outcome::Error(_)), "{op:?}: {outcome:?}");
    }
}

fn kernel_part(mount: &KernelMount, relocate: bool) {
    let at = |name: &str| mount.join(name).to_string_lossy().into_owned();
    let btrfs = |args: &[&str]| sh("btrfs", args).expect("btrfs does as it is told");
    let [sub, snap, rw] = SUBVOLUMES.map(|(name, _)| at(name));
    btrfs(&["subvolume", "create", &sub]);
    apply(mount, "sub", &setup());
    btrfs(&["subvolume", "snapshot", "-r", &sub, &snap]);
    btrfs(&["subvolume", "snapshot", &sub, &rw]);
    apply(mount, "sub", &diverging());
    if relocate {
        btrfs(&["filesystem", "sync", &at("")]);
        btrfs(&["balance", "start", "-m", "--force", &at("")]);
    }
}

/// The volumes of `base::base`, with more on them; on the second one metadata was relocated.
pub fn base(number: u64) -> &'static Base {
    static BASES: [OnceLock<Base>; 2] = [OnceLock::new(), OnceLock::new()];
    let number = number % 2;
    BASES[number as usize].get_or_init(|| {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let plain = base::base(number);
        let dir = TempDir::new("shared").expect("a directory");
        let path = dir.join("base.img");
        plain.image.export(&path).expect("export");
        let mount = KernelMount::new(&path, "noatime").expect("the kernel mounts it");
        kernel_part(&mount, number == 1);
        mount.unmount().expect("unmount");
        btrfs_check(&path).expect("sound");
        let dump = ["inspect-internal", "dump-tree", "-t", "extent", &path.to_string_lossy()];
        // The subvolume wrote to nodes that it had first and that snapshots have still.
        assert!(sh("btrfs", &dump).expect("a dump").contains("FULL_BACKREF"), "no such nodes");
        let mut setup = base::setup();
        for (place, _) in SUBVOLUMES {
            setup.push(mkdir(place));
            setup.extend(self::setup().into_iter().map(|op| op.below(place, 0)));
        }
        setup.extend(diverging().into_iter().map(|op| op.below("sub", 0)));
        Base { image: Image::import(&path).expect("import").flatten(), setup }
    })
}

/// `inner` in the subvolume; with odd numbers in the snapshot as well, one operation here and
/// one there; with every third one extents are shared that were not before.
pub fn over(inner: Case, number: u64) -> Case {
    let name = format!("shared:{number}:{}", inner.name);
    let mut ops = Vec::new();
    if number.is_multiple_of(3) {
        ops.extend([clone("rw/B/big", "sub/t0/copy"), fsync("sub/t0/copy")]);
        ops.insert(0, create("sub/t0/copy"));
    }
    for op in &inner.threads[0] {
        ops.push(op.clone().below("sub", 0));
        if !number.is_multiple_of(2) {
            ops.push(op.clone().below("rw", 8));
        }
    }
    Case { seed: hash(name.as_bytes()), name, threads: vec![ops], shared: true, ..inner }
}
