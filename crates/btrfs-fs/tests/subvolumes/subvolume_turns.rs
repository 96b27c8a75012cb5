//! Who waits for his turn to change subvolumes finds them otherwise than when he came: deleted, or under another name.
//!
//! A snapshot of a subvolume that nobody else wants is held amid its commit; two others come and wait for it, one
//! behind the other. Whichever goes first, each has done what it was asked for, or says that it has not.

use crate::common;
use blocksim::{Hooked, SimDevice};
use btrfs_fs::{BtrfsFs, Caller, Delete, Options, ReceivedFrom, SubvolId};
use common::places::{Flushes, volume_with_flushes_of};
use common::{CX, errno, find, read};
use std::sync::Arc;
use std::time::Duration;
use vfs::{FileKind, FileSystem, Ino, RenameMode};

const ROUNDS: usize = 6;
/// More, where the scheduler has not let the other one be first.
const MOST: usize = 60;

type Device = Hooked<SimDevice, Flushes>;

struct World {
    device: Arc<Device>,
    fs: BtrfsFs,
    snapshots: std::cell::Cell<usize>,
}

impl World {
    fn new() -> World {
        let device = volume_with_flushes_of("first", 300 << 20);
        let options = Options { background: false, ..Options::default() };
        let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
        let world = World { device, fs, snapshots: Default::default() };
        world.subvolume("held");
        world
    }

    fn subvolume(&self, name: &str) -> (SubvolId, Ino) {
        let made =
            self.fs.create_subvolume(&Caller::root(), self.fs.root(), name.as_bytes()).unwrap();
        (made.0, made.1.attr.ino)
    }

    fn snapshot(&self, source: Ino, name: &str) -> vfs::Result<SubvolId> {
        let root = self.fs.root();
        let made = self.fs.snapshot(&Caller::root(), source, root, name.as_bytes(), false)?;
        self.fs.forget(made.1.attr.ino, 1);
        Ok(made.0)
    }

    /// Both come while a snapshot is held, `one` before `two`.
    fn in_turn<A: Send, B: Send>(
        &self,
        one: impl FnOnce(&BtrfsFs) -> A + Send,
        two: impl FnOnce(&BtrfsFs) -> B + Send,
    ) -> (A, B) {
        let (fs, gate) = (&self.fs, &self.device.hook.places);
        let held = find(fs, fs.root(), "held").expect("there");
        self.snapshots.set(self.snapshots.get() + 1);
        let name = format!("held-{}", self.snapshots.get());
        gate.arm("flush");
        std::thread::scope(|scope| {
            let first = || {
                let root = fs.root();
                fs.snapshot(&Caller::root(), held, root, name.as_bytes(), false).expect("snapshot");
            };
            std::thread::Builder::new().name("first".into()).spawn_scoped(scope, first).unwrap();
            gate.wait_until_there("flush");
            // Whether they come in this order is not seen, and does not matter to what is right.
            let one = scope.spawn(|| one(fs));
            std::thread::sleep(Duration::from_millis(60));
            let two = scope.spawn(|| two(fs));
            std::thread::sleep(Duration::from_millis(60));
            gate.release("flush");
            (one.join().unwrap(), two.join().unwrap())
        })
    }

    /// What is there is whole.
    fn end(self) {
        assert_eq!(self.fs.read_only_reason(), None);
        assert!(self.fs.sync_deleted(&[], None).expect("drop what is deleted"));
        self.fs.sync().expect("sync");
        assert_eq!(self.fs.read_only_reason(), None);
        self.fs.destroy().expect("close");
        let image = Arc::new(SimDevice::new(self.device.below.image()));
        common::judge_image(&image.image());
        common::check_device(image, true, btrfs_check::Severity::Warning);
    }
}

fn delete(fs: &BtrfsFs, name: &str) -> vfs::Result<SubvolId> {
    fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), name.as_bytes()))
}

fn written(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) {
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).unwrap();
    fs.write(&CX, made.attr.ino, 0, content, Default::default()).unwrap();
    fs.forget(made.attr.ino, 1);
}

/// A snapshot has all that was written, or its source is gone.
#[test]
fn a_snapshot_behind_the_deletion_of_its_source() {
    let world = World::new();
    let mut late = 0;
    for round in 0..MOST {
        if round >= ROUNDS && late > 0 {
            break;
        }
        let (name, copy) = (format!("source-{round}"), format!("copy-{round}"));
        let (_, source) = world.subvolume(&name);
        world.fs.sync().unwrap();
        written(&world.fs, source, "file", &[5; 100_000]);
        let (deleted, made) = world.in_turn(
            |fs| delete(fs, &name),
            |fs| fs.snapshot(&Caller::root(), source, fs.root(), copy.as_bytes(), false),
        );
        deleted.expect("it can be deleted");
        match made {
            Ok((_, entry)) => {
                let seen = read(&world.fs, entry.attr.ino, "file");
                assert!(seen == [5; 100_000], "round {round}: {} bytes of content", seen.len());
            }
            Err(error) => {
                assert_eq!(error.errno(), libc::ESTALE, "round {round}");
                late += 1;
            }
        }
    }
    assert!(late > 0, "the deletion was first never");
    world.end();
}

/// What is gone can be told nothing more, and nobody else suffers from that.
#[test]
fn properties_behind_a_deletion() {
    let world = World::new();
    let from = ReceivedFrom { uuid: [7; 16], stransid: 3, stime: (1, 2) };
    let mut late = 0;
    for round in 0..MOST {
        if round >= ROUNDS && late > 0 {
            break;
        }
        let name = format!("source-{round}");
        let (id, source) = world.subvolume(&name);
        written(&world.fs, source, "file", &[5; 100_000]);
        world.fs.sync().unwrap();
        written(&world.fs, world.fs.root(), &format!("other-{round}"), &[6; 5000]);
        let (deleted, told) = world.in_turn(
            |fs| delete(fs, &name),
            |fs| match round % 2 {
                0 => fs.set_read_only(&Caller::root(), id, true),
                _ => fs.set_received(&Caller::root(), id, &from),
            },
        );
        deleted.expect("it can be deleted");
        if let Err(error) = told {
            assert!(
                [libc::ESTALE, libc::ENOENT].contains(&error.errno()),
                "round {round}: {error}"
            );
            late += 1;
        }
        assert_eq!(world.fs.read_only_reason(), None, "round {round}");
        assert!(world.fs.sync_deleted(&[], None).unwrap());
        world.fs.sync().unwrap();
    }
    assert!(late > 0, "the deletion was first never");
    world.end();
}

/// Who deletes by number deletes that one, under whatever name it has by then.
#[test]
fn a_deletion_by_number_behind_an_exchange_of_names() {
    let world = World::new();
    for round in 0..ROUNDS {
        let names = [format!("a-{round}"), format!("b-{round}")];
        let [wanted, other] = [&names[0], &names[1]].map(|name| world.subvolume(name).0);
        world.fs.sync().unwrap();
        let (moved, deleted) = world.in_turn(
            |fs| {
                let [a, b] = [&names[0], &names[1]].map(|name| name.as_bytes());
                fs.rename(&CX, fs.root(), a, fs.root(), b, RenameMode::Exchange)
            },
            |fs| fs.delete_subvolume(&Caller::root(), Delete::Id(wanted)),
        );
        assert_eq!(deleted.expect("it can be deleted"), wanted, "round {round}");
        if moved.is_ok() {
            assert!(find(&world.fs, world.fs.root(), &names[1]).is_none(), "round {round}");
        }
        assert!(world.fs.subvolume_info(other).is_ok_and(|info| !info.deleted), "round {round}");
        let gone = world.fs.subvolume_info(wanted);
        assert!(gone.as_ref().map_or(true, |info| info.deleted), "round {round}: {gone:?}");
    }
    assert_eq!(errno(world.snapshot(world.fs.root(), "held")), libc::EEXIST);
    world.end();
}

/// What nobody deletes is not waited for: it would be for ever.
#[test]
fn who_waits_for_a_living_one_is_told() {
    let world = World::new();
    let (id, _) = world.subvolume("alive");
    for limit in [Some(Duration::ZERO), None] {
        assert_eq!(errno(world.fs.sync_deleted(&[id], limit)), libc::EEXIST);
    }
    assert!(world.fs.sync_deleted(&[SubvolId(9999)], None).expect("it is not there"));
    delete(&world.fs, "alive").expect("it can be deleted");
    assert!(world.fs.sync_deleted(&[id], None).expect("and waited for"));
    world.end();
}

/// Directories are locked in one order, whichever lies in which.
#[test]
fn an_older_subvolume_in_a_younger_one() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.fs.root());
    let (_, young) = [world.subvolume("old"), world.subvolume("young")][1];
    let moved = |from: (Ino, &[u8]), to: (Ino, &[u8])| {
        fs.rename(&CX, from.0, from.1, to.0, to.1, RenameMode::Replace).expect("rename");
    };
    moved((root, b"old"), (young, b"inside"));
    moved((young, b"inside"), (young, b"other"));
    moved((young, b"other"), (root, b"out"));
    moved((root, b"out"), (young, b"again"));
    let caller = Caller { privileged: false, ..Caller::root() };
    let refused = fs.delete_subvolume(&caller, Delete::Name(young, b"again"));
    assert_eq!(errno(refused), libc::EPERM);
    fs.rmdir(&CX, young, b"again").expect("rmdir");
    world.end();
}
