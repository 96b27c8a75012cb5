//! What a reader of the need finds while operations come and go, on a small volume in memory.

use super::bound::{Cost, bound};
use crate::{BtrfsFs, Options};
use blockdev::{BlockDevice, MemDevice};
use btrfs_space::Priority;
use btrfs_txn::delta::{ActionCost, TreeAction};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vfs::{Context, FileKind, FileSystem, Ino};

/// An empty volume whose device is `mib` MiB of memory, and nobody at work on it.
pub(crate) fn volume(mib: u64, node_size: u32) -> BtrfsFs {
    volume_on(Arc::new(MemDevice::new(mib << 20)), node_size)
}

/// The same of some size, opened with these options.
pub(crate) fn volume_with(options: Options) -> BtrfsFs {
    let device = Arc::new(MemDevice::new(128 << 20));
    btrfs_image::mkfs::make(&*device, &Default::default()).expect("mkfs");
    BtrfsFs::open_device(device, options).expect("open")
}

/// A new file in its root directory, which has one lookup reference.
pub(crate) fn new_file(fs: &BtrfsFs) -> Ino {
    let cx = Context { umask: 0o022, ..Context::default() };
    let made = fs.mknod(&cx, fs.root(), b"file", FileKind::File, 0o644, 0);
    made.expect("create").attr.ino
}

/// The same on a device.
pub(crate) fn volume_on(device: Arc<dyn BlockDevice>, node_size: u32) -> BtrfsFs {
    let options = btrfs_image::mkfs::MkfsOptions {
        node_size: Some(node_size),
        ..btrfs_image::mkfs::MkfsOptions::default()
    };
    btrfs_image::mkfs::make(&*device, &options).expect("mkfs");
    let options = Options { background: false, ..Options::default() };
    BtrfsFs::open_device(device, options).expect("open")
}

/// An operation counts from when it has reserved: as one that is under way or in the delta, whenever
/// somebody looks. Who reads the delta first finds some of them in neither.
#[test]
fn an_operation_that_ends_meanwhile_is_never_missed() {
    const LONGEST: Duration = Duration::from_secs(2);
    const OPERATORS: u64 = 2;
    const LOOKERS: u64 = 3;
    let fs = volume(128, 16384);
    let (core, reservations) = (&fs.engine.core, &fs.engine.reservations);
    let trees = reservations.trees();
    let bytes = trees.room;
    let of = |operations: u64| Cost { bytes: operations * bytes, ..Cost::default() };
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    let operate = || {
        while start.elapsed() < LONGEST {
            let reservation = reservations.hold_anyway(of(1));
            begun.fetch_add(1, Ordering::AcqRel);
            // No commit ever sees it.
            let cost = ActionCost { bytes, ..ActionCost::default() };
            core.begin().act(TreeAction::OtherDefault, cost);
            drop(reservation);
        }
        ended.fetch_add(1, Ordering::AcqRel);
    };
    let look = |priority| {
        while ended.load(Ordering::Acquire) < OPERATORS {
            let least = bound(&trees, &of(begun.load(Ordering::Acquire)));
            let need = reservations.need(priority);
            assert!(need >= least, "{priority:?}: {need} bytes for what takes {least}");
        }
    };
    std::thread::scope(|scope| {
        (0..OPERATORS).for_each(|_| _ = scope.spawn(operate));
        // More than processors: one is stopped between its looks now and then.
        for _ in 0..LOOKERS {
            scope.spawn(|| look(Priority::Normal));
            scope.spawn(|| look(Priority::Delete));
        }
    });
    assert_eq!(reservations.need(Priority::Normal), bound(&trees, &of(begun.into_inner())));
}

/// Content that had space of its own when it came lands elsewhere, out of what is held for other content, and that in
/// what is free. What is reserved from then on is given back as ever.
#[test]
fn what_landed_elsewhere_is_not_unpaid_for_ever() {
    let fs = volume(128, 16384);
    let (core, reservations) = (&fs.engine.core, &fs.engine.reservations);
    let sector = core.sector();
    let reserve = || {
        let space = core.space.reserve_data(sector).expect("room");
        reservations.hold_dirty(sector, Some(space))
    };
    reservations.hold_dirty_in_own(sector).spend(sector);
    reserve().spend(sector);
    for _ in 0..2 {
        let extent = reservations.allocate(sector).expect("room");
        reservations.forget_landed(sector, extent.len);
        core.space.release(extent).expect("its own");
    }
    assert!(!reservations.is_any_unpaid(), "nothing is dirty");
    drop(reserve());
    reservations.assert_returned();
}
