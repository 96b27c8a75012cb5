//! A snapshot stops nobody: while it stands still at any of its accesses to the device (the flush of its source's
//! content, the merge, the nodes, the superblock), others make, write, read and remove files in the source, in other
//! subvolumes and beside; and it costs the same however large its source is. Structure, not time: `spinney-bench
//! subvolumes` measures.

#![allow(dead_code)]

mod common;
mod harness;

use blocksim::SimDevice;
use btrfs_fs::{BtrfsFs, Caller};
use common::{CX, Image, stat};
use harness::{base, hold};
use hold::{Gate, Hold, work_here};
use std::sync::Arc;
use std::time::Duration;
use vfs::{FileKind, FileSystem, Ino, RenameMode};

/// Where one stops; behind the last it is done.
const HOLDS: [Hold; 9] = [
    Hold::Write(0),
    Hold::Write(1),
    Hold::Write(2),
    Hold::Write(3),
    Hold::Write(4),
    Hold::Write(6),
    Hold::Flush(0),
    Hold::Superblock,
    Hold::Flush(1),
];

fn file(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    ino
}

fn subvolume(fs: &BtrfsFs, name: &str) -> Ino {
    let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
    made.expect("create a subvolume").1.attr.ino
}

fn snapshot(fs: &BtrfsFs, source: Ino, name: &str) {
    let made = fs.snapshot(&Caller::root(), source, fs.root(), name.as_bytes(), false);
    fs.forget(made.expect("snapshot").1.attr.ino, 1);
}

/// What others do in `dir`, where `old` is a file whose content has landed.
fn work(fs: &BtrfsFs, dir: Ino, old: Ino, round: usize) {
    let name = format!("new-{round}");
    file(fs, dir, &name, &[9; 3000]);
    fs.write(&CX, old, 0, &[round as u8; 100], Default::default()).expect("write");
    let mut read = [0; 100];
    assert_eq!(fs.read(old, 0, &mut read).expect("read"), 100);
    assert_eq!(read, [round as u8; 100]);
    let moved = format!("moved-{round}");
    fs.rename(&CX, dir, name.as_bytes(), dir, moved.as_bytes(), RenameMode::Replace).expect("move");
    fs.unlink(&CX, dir, moved.as_bytes()).expect("unlink");
}

#[test]
fn others_go_on_wherever_a_snapshot_stands_still() {
    work_here();
    let gate = Gate::new(Duration::ZERO);
    let device = SimDevice::new(base::base(0).image.clone()).hooked(Some(gate.hook()));
    let fs = base::mount(Arc::new(device)).expect("mount");
    let (source, other) = (subvolume(&fs, "source"), subvolume(&fs, "other"));
    let old = [source, other, fs.root()].map(|dir| (dir, file(&fs, dir, "old", &[1; 9000])));
    fs.sync().expect("sync");
    let mut held = 0;
    for (round, hold) in HOLDS.into_iter().enumerate() {
        // Content that it has to flush.
        for n in 0..3 {
            file(&fs, source, &format!("dirty-{round}-{n}"), &[n; 70_000]);
        }
        gate.arm(hold);
        std::thread::scope(|scope| {
            let name = format!("snapshot-{round}");
            let (fs, gate) = (&fs, &gate);
            let taking = scope.spawn(move || gate.commit(|| snapshot(fs, source, &name)));
            if gate.wait_held() {
                held += 1;
                old.iter().for_each(|(dir, old)| work(fs, *dir, *old, round));
                assert!(gate.inside().is_some(), "{hold:?}: somebody waited for the snapshot");
            }
            gate.release();
            taking.join().expect("a snapshot");
        });
    }
    assert!(held >= 7, "it was held {held} times alone");
    fs.destroy().expect("close");
}

/// Nodes that are looked at, items merged, nodes written.
fn cost(fs: &BtrfsFs, step: impl FnOnce()) -> u64 {
    let counted = ["cache.hits", "cache.misses", "commit.items_merged", "commit.nodes_written"];
    let work = || counted.iter().map(|name| stat(fs, name)).sum::<u64>();
    let before = work();
    step();
    work() - before
}

#[test]
fn a_large_subvolume_costs_what_a_small_one_does() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(base::options());
    let costs = [20, 20_000].map(|files| {
        let source = subvolume(&fs, &format!("of-{files}"));
        for n in 0..files {
            let ino = file(&fs, source, &format!("f{n}"), &[7; 300]);
            fs.forget(ino, 1);
        }
        (0..2).for_each(|_| fs.sync().expect("sync"));
        cost(&fs, || snapshot(&fs, source, &format!("snapshot-{files}")))
    });
    assert!(costs[1] < costs[0] * 3 / 2 + 20, "20 files cost {}, 20,000 {}", costs[0], costs[1]);
    common::close_and_judge(&image, fs);
}
