//! Simple quotas where groups change while a commit is at work: what the commit charges is in no number that
//! anybody can look at yet.
//!
//! Our check and a newer `btrfs check` count the same numbers as the quota tree has.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_fs::{BtrfsFs, Caller, Delete, LimitChange, NewSubvolume, Options, QgroupId};
use common::{CX, Cached, Image};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::oracle::{newer_btrfs, newer_btrfs_check};
use vfs::{FileKind, FileSystem};

const LEN: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The first copy of the superblock.
const SUPERBLOCK: u64 = 65536;

/// The next write after it was armed, or the next of a superblock, says so and waits until it may go on.
struct Stop {
    armed: AtomicBool,
    /// Only one of a superblock.
    last: bool,
    ends: Mutex<(Sender<()>, Receiver<()>)>,
}

/// A volume whose device tells when it is stopped, and may be told to go on.
struct Stage {
    device: Arc<Hooked<Cached, Stop>>,
    fs: BtrfsFs,
    stopped: Receiver<()>,
    go_on: Sender<()>,
}

impl Stage {
    fn new(image: &Image, last: bool) -> Stage {
        let ((told, stopped), (go_on, may)) = (channel(), channel());
        let (armed, ends) = (AtomicBool::new(false), Mutex::new((told, may)));
        let below = Cached(common::open_device(&image.path, false));
        let device = Arc::new(Hooked { below, hook: Stop { armed, last, ends } });
        let options = Options { background: false, ..Options::default() };
        let fs = BtrfsFs::open_device(device.clone(), options).expect("open volume");
        Stage { device, fs, stopped, go_on }
    }

    /// Does `beside` while `work`, which commits, is stopped, for as long as `most`: what waits for the commit ends
    /// behind it.
    fn beside<T: Send>(
        &self,
        work: impl FnOnce(&BtrfsFs) + Send,
        most: Duration,
        beside: impl FnOnce(&BtrfsFs) -> T + Send,
    ) -> T {
        std::thread::scope(|scope| {
            self.device.hook.armed.store(true, Ordering::SeqCst);
            let (fs, stopped) = (&self.fs, &self.stopped);
            let commits = scope.spawn(move || work(fs));
            stopped.recv_timeout(PATIENCE).expect("the commit writes");
            let (other, start) = (scope.spawn(move || beside(fs)), Instant::now());
            while !other.is_finished() && start.elapsed() < most {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.go_on.send(()).expect("it waits");
            commits.join().expect("no panic");
            other.join().expect("no panic")
        })
    }
}

impl RequestHook for Stop {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let meant = match request {
            Request::Write { offset, .. } => !self.last || offset == SUPERBLOCK,
            _ => false,
        };
        if meant && self.armed.swap(false, Ordering::SeqCst) {
            let ends = self.ends.lock().expect("no panic");
            ends.0.send(()).expect("somebody listens");
            ends.1.recv_timeout(PATIENCE).expect("it goes on");
        }
        go_on()
    }
}

fn above() -> QgroupId {
    "1/1".parse().expect("a group")
}

/// What a group counts.
fn counted(fs: &BtrfsFs, group: QgroupId) -> Option<u64> {
    let all = fs.qgroups_from(QgroupId(0), usize::MAX).expect("groups");
    all.into_iter().find(|found| found.id == group).map(|found| found.referenced)
}

/// A subvolume that is older than quotas and counts nothing writes, lets another have what it wrote, and is deleted.
fn leave_charges(fs: &BtrfsFs) -> QgroupId {
    let (root, caller) = (fs.root(), Caller::root());
    let (id, old) = fs.create_subvolume(&caller, root, b"old").expect("a subvolume");
    fs.sync().expect("commit");
    fs.enable_simple_quotas().expect("on");
    fs.sync().expect("commit");
    let group = QgroupId(id.0);
    fs.create_qgroup(above()).expect("a group");
    fs.assign_qgroup(group, above()).expect("in it");
    assert_eq!(counted(fs, group), Some(0));
    let make = |dir, name: &[u8]| {
        fs.mknod(&CX, dir, name, FileKind::File, 0o644, 0).expect("made").attr.ino
    };
    let (from, to) = (make(old.attr.ino, b"file"), make(root, b"file"));
    fs.write(&CX, from, 0, &vec![7; LEN as usize], Default::default()).expect("written");
    fs.clone_range(&CX, from, 0, to, 0, 0).expect("shared");
    fs.delete_subvolume(&caller, Delete::Name(root, b"old")).expect("deleted");
    assert_eq!(counted(fs, group), Some(0), "this shows nothing");
    group
}

/// A group counts nothing, and a commit that is under way charges it: nobody takes it away, since its subvolume is not
/// wholly gone.
#[test]
fn a_group_is_not_taken_away_while_a_commit_charges_it() {
    testkit::require!(kernel_btrfs);
    testkit::require!(newer_btrfs().is_ok(), "no newer btrfs-progs");
    let image = Image::new(512 << 20, &[]);
    let stage = Stage::new(&image, false);
    let group = leave_charges(&stage.fs);
    let taken =
        stage.beside(|fs| fs.sync().expect("commit"), PATIENCE / 2, |fs| fs.destroy_qgroup(group));
    assert_eq!(taken.map_err(|error| error.errno()), Err(libc::EBUSY));
    let fs = stage.fs;
    fs.sync().expect("commit");
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    fs.sync().expect("commit");
    assert_eq!((counted(&fs, group), counted(&fs, above())), (Some(LEN), Some(LEN)));
    let taken = fs.destroy_qgroup(group).map_err(|error| error.errno());
    assert_eq!(taken, Err(libc::EBUSY), "it has charges of what another shares");
    fs.destroy().expect("close");
    drop(fs);
    common::check_ourselves(&image.path);
    newer_btrfs_check(&image.path).expect("a sound volume with the right numbers");
}

/// A snapshot can be found before all of its commit is done: it is held to the limits of its groups by then.
#[test]
fn a_snapshot_is_held_to_limits_while_its_commit_ends() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 << 20, &[]);
    let stage = Stage::new(&image, true);
    let (fs, caller) = (&stage.fs, Caller::root());
    fs.enable_simple_quotas().expect("on");
    let (_, source) = fs.create_subvolume(&caller, fs.root(), b"source").expect("a subvolume");
    fs.create_qgroup(above()).expect("a group");
    let most = LimitChange { referenced: Some(Some(LEN)), ..LimitChange::default() };
    fs.limit_qgroup(above(), &most).expect("limited");
    let snapshot = |fs: &BtrfsFs| {
        let new = NewSubvolume { parent: fs.root(), name: b"copy", groups: &[above()] };
        fs.snapshot_in(&caller, source.attr.ino, &new, false).expect("a snapshot");
    };
    // Who would be refused waits for the commit first.
    let written = stage.beside(snapshot, Duration::from_millis(500), |fs| {
        let copy = fs.lookup(&CX, fs.root(), b"copy").expect("there").attr.ino;
        let file = fs.mknod(&CX, copy, b"file", FileKind::File, 0o644, 0).expect("made").attr.ino;
        fs.write(&CX, file, 0, &vec![7; 4 * LEN as usize], Default::default())
    });
    assert_eq!(written.map_err(|error| error.errno()), Err(libc::EDQUOT));
    fs.destroy().expect("close");
}

/// The same of the limit that its own group copies from the source's, where quotas are not simple.
#[test]
fn a_snapshot_is_held_to_the_limit_that_it_copies() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 << 20, &[]);
    let stage = Stage::new(&image, true);
    let (fs, caller) = (&stage.fs, Caller::root());
    fs.enable_quotas().expect("on");
    let (source, made) = fs.create_subvolume(&caller, fs.root(), b"source").expect("a subvolume");
    fs.wait_for_rescan().expect("counted");
    let most = LimitChange { referenced: Some(Some(3 * LEN)), ..LimitChange::default() };
    fs.limit_qgroup(QgroupId(source.0), &most).expect("limited");
    let write = |fs: &BtrfsFs, len: u64| {
        let copy = fs.lookup(&CX, fs.root(), b"copy").expect("there").attr.ino;
        let file = fs.mknod(&CX, copy, b"file", FileKind::File, 0o644, 0).expect("made").attr.ino;
        fs.write(&CX, file, 0, &vec![7; len as usize], Default::default())
    };
    let snapshot = |fs: &BtrfsFs| {
        fs.snapshot(&caller, made.attr.ino, fs.root(), b"copy", false).expect("a snapshot");
    };
    let most = Duration::from_millis(500);
    let written = stage.beside(snapshot, most, |fs| write(fs, 4 * LEN));
    assert_eq!(written.map_err(|error| error.errno()), Err(libc::EDQUOT));
    fs.destroy().expect("close");
}
