//! Telling the device what is free: all of that, and nothing else. The device of these
//! tests takes its revenge: what it is told of reads as garbage from then on.

use crate::common;
use blockdev::{BlockDevice, MemDevice};
use btrfs_disk::ids::block_group::{DATA, DUP};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter as f};
use btrfs_fs::{BalanceState, BtrfsFs, Options};
use btrfs_image::mkfs::{MkfsOptions, make};
use common::{assert_same, snapshot};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use testkit::ops::Rng;
use vfs::{Context, FallocateMode, FileKind, FileSystem, Ino, WriteFlags};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
const MIB: u64 = 1 << 20;
/// Where the first superblock is.
const SUPERBLOCK: u64 = 64 << 10;

/// What the device was asked to do, in order; writes of the first superblock alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Superblock,
    Flush,
    /// From, up to.
    Discard(u64, u64),
}

struct DiscardingDevice {
    below: MemDevice,
    discarded: AtomicU64,
    asked: Mutex<Vec<Asked>>,
}

impl DiscardingDevice {
    fn note(&self, asked: Asked) {
        self.asked.lock().expect("no panic").push(asked);
    }

    /// What was asked since the last call.
    fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().expect("no panic"))
    }

    /// The device as a crash leaves it now, when all that was asked has arrived.
    fn crashed(&self) -> Arc<DiscardingDevice> {
        let below = MemDevice::new(self.len());
        let mut part = vec![0; MIB as usize];
        for at in (0..self.len()).step_by(part.len()) {
            self.below.read_at(at, &mut part).expect("read");
            below.write_at(at, &part).expect("write");
        }
        Arc::new(DiscardingDevice { below, discarded: AtomicU64::new(0), asked: Mutex::default() })
    }

    /// Where the sectors of `content` lie, whatever chunk they are in.
    fn places(&self, content: &[u8]) -> Vec<u64> {
        let wanted: HashSet<&[u8]> = content.chunks_exact(4096).collect();
        let mut sector = [0; 4096];
        let mut holds = |at: &u64| {
            self.below.read_at(*at, &mut sector).expect("read");
            wanted.contains(&sector[..])
        };
        (0..self.below.len()).step_by(4096).filter(|at| holds(at)).collect()
    }
}

impl BlockDevice for DiscardingDevice {
    fn len(&self) -> u64 {
        self.below.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buf)
    }
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.below.read_medium(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        if offset == SUPERBLOCK {
            self.note(Asked::Superblock);
        }
        self.below.write_at(offset, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.note(Asked::Flush);
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.discarded.fetch_add(len, Ordering::Relaxed);
        self.note(Asked::Discard(offset, offset + len));
        self.below.write_at(offset, &vec![0xD5; len as usize])
    }
    fn name(&self) -> String {
        "forgetful".into()
    }
}

fn volume(size: u64, mixed: bool) -> Arc<DiscardingDevice> {
    let below = MemDevice::new(size);
    make(&below, &MkfsOptions { mixed, ..MkfsOptions::default() }).expect("mkfs");
    Arc::new(DiscardingDevice { below, discarded: AtomicU64::new(0), asked: Mutex::default() })
}

fn open(device: &Arc<DiscardingDevice>) -> BtrfsFs {
    open_with(device, false)
}

fn open_with(device: &Arc<DiscardingDevice>, discard: bool) -> BtrfsFs {
    let options = Options { background: false, discard, ..Options::default() };
    BtrfsFs::open_device(device.clone(), options).expect("open")
}

fn content(len: u64, seed: u64) -> Vec<u8> {
    let mut content = vec![0; len as usize];
    Rng::new(seed).fill(&mut content);
    content
}

fn file(fs: &BtrfsFs, name: &str, len: u64, seed: u64) -> vfs::Result<Ino> {
    let ino = fs.mknod(&CX, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0)?.attr.ino;
    let written = fs.write(&CX, ino, 0, &content(len, seed), WriteFlags::default());
    // Or its space would not come back when it is deleted.
    fs.forget(ino, 1);
    written.map(|_| ino)
}

/// Closes, opens, and finds everything again.
fn judge(device: &Arc<DiscardingDevice>, fs: BtrfsFs) {
    let expected = snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    let again = open(device);
    assert_same(&expected, &snapshot(&again));
    assert_eq!(again.read_only_reason(), None);
}

#[test]
fn all_that_is_free_is_told_and_nothing_else() {
    for mixed in [false, true] {
        let device = volume(256 * MIB, mixed);
        let fs = open(&device);
        for i in 0..40 {
            file(&fs, &format!("file-{i}"), MIB + i * 5000, i).expect("write");
        }
        (0..40).step_by(2).for_each(|i| {
            fs.unlink(&CX, fs.root(), format!("file-{i}").as_bytes()).expect("unlink");
        });
        let trimmed = fs.trim(&CX, 0, u64::MAX, 0).expect("trim");
        assert_eq!(trimmed, device.discarded.load(Ordering::Relaxed));
        // 20 files of a MiB, the trees, superblocks and what rounding leaves.
        assert!(trimmed > 220 * MIB && trimmed < 237 * MIB, "{trimmed}");
        let small = fs.trim(&CX, 0, u64::MAX, 2 * MIB).expect("trim");
        assert!(small < trimmed && small > 100 * MIB, "holes of less are left out: {small}");
        assert_eq!(fs.trim(&CX, 0, 100, 0).expect_err("too little").errno(), libc::EINVAL);
        judge(&device, fs);
    }
}

/// Also where groups of one kind have not as many copies as new ones get.
#[test]
fn what_is_answered_is_what_the_device_was_told() {
    let device = volume(512 * MIB, false);
    let fs = open(&device);
    file(&fs, "in-one-copy", 40 * MIB, 1).expect("write");
    fs.sync().expect("commit");
    let copies = |copies: usize| {
        let groups = fs.space().group_infos().into_iter().filter(|group| group.flags & DATA != 0);
        groups.filter(|group| (group.flags & DUP != 0) == (copies == 2)).count()
    };
    // Of one group: others stay.
    let flags = f::CONVERT | f::LIMIT;
    let data = BalanceFilter { flags, target: DUP, limit: 1, ..BalanceFilter::default() };
    fs.start_balance(BalanceItem { flags: DATA, data, ..BalanceItem::default() }).expect("begins");
    while fs.balance_status().expect("a status").state == BalanceState::Running {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(copies(1) > 0 && copies(2) > 0, "{:?}", fs.space().group_infos());
    let before = device.discarded.load(Ordering::Relaxed);
    let trimmed = fs.trim(&CX, 0, u64::MAX, 0).expect("trim");
    assert_eq!(trimmed, device.discarded.load(Ordering::Relaxed) - before);
    judge(&device, fs);
}

/// Which of `places` were discarded, and whether all that came behind a superblock that was
/// flushed.
fn told(asked: &[Asked], places: &[u64]) -> (Vec<u64>, bool) {
    let durable = asked
        .iter()
        .position(|a| *a == Asked::Superblock)
        .and_then(|at| asked[at..].iter().position(|a| *a == Asked::Flush).map(|n| at + n));
    let (mut found, mut in_order) = (Vec::new(), true);
    for (number, asked) in asked.iter().enumerate() {
        let Asked::Discard(from, to) = asked else { continue };
        in_order &= durable.is_some_and(|durable| number > durable);
        found.extend(places.iter().filter(|at| (*from..*to).contains(*at)));
    }
    found.sort_unstable();
    (found, in_order)
}

/// `-o discard`: the commit that frees an extent tells the device of it, once nothing on the
/// volume leads there any more; not the operation before it, and nothing that stays.
#[test]
fn what_a_commit_frees_is_told_after_it() {
    for (mixed, discard) in [(false, true), (true, true), (false, false)] {
        let device = volume(256 * MIB, mixed);
        let fs = open_with(&device, discard);
        let files = ["deleted", "cut", "overwritten", "kept"];
        let inos: Vec<Ino> =
            (0..4).map(|n| file(&fs, files[n], 8 * MIB, n as u64).expect("room")).collect();
        fs.sync().expect("commit");
        let places: Vec<Vec<u64>> = (0..4).map(|n| device.places(&content(8 * MIB, n))).collect();
        assert!(places.iter().all(|p| p.len() == 2048), "each sector lies somewhere, once");
        device.take_asked();
        fs.unlink(&CX, fs.root(), b"deleted").expect("unlink");
        let nothing = vfs::SetAttr { size: Some(0), ..Default::default() };
        fs.setattr(&CX, inos[1], &nothing).expect("truncate");
        fs.write(&CX, inos[2], 0, &content(8 * MIB, 9), WriteFlags::default()).expect("write");
        fs.fsync(inos[2], false).expect("fsync");
        let all = places.concat();
        assert_eq!(told(&device.take_asked(), &all).0, [], "the last commit still has it");
        fs.sync().expect("commit");
        let asked = device.take_asked();
        for (name, places) in files.iter().zip(&places) {
            let (found, in_order) = told(&asked, places);
            let all_of_it = discard && *name != "kept";
            let expected = if all_of_it { &places[..] } else { &[] };
            assert!(found == expected, "{name}: {} of {} sectors", found.len(), expected.len());
            assert!(in_order, "a discard before the commit was durable");
        }
        judge(&device, fs);
    }
}

/// How often the volume was committed, ever.
fn generation(fs: &BtrfsFs) -> u64 {
    fs.stats().iter().find(|s| s.name == "generation").expect("there is one").value
}

/// Room for content in chunks that a commit knows: an fsync need not commit for that.
fn make_room(fs: &BtrfsFs, mib: u64) {
    file(fs, "room", mib * MIB, 99).expect("room");
    fs.sync().expect("commit");
    fs.unlink(&CX, fs.root(), b"room").expect("unlink");
    fs.sync().expect("commit");
}

fn resize(fs: &BtrfsFs, ino: Ino, size: u64) {
    let size = vfs::SetAttr { size: Some(size), ..Default::default() };
    fs.setattr(&CX, ino, &size).expect("truncate");
}

/// `-o discard`, of content that is gone before any commit has it: told with the next commit,
/// and not before. What a log has is there if the power fails earlier.
#[test]
fn what_no_commit_ever_had_is_told_too() {
    for (mixed, discard) in [(false, true), (true, true), (false, false), (true, false)] {
        let device = volume(256 * MIB, mixed);
        let fs = open_with(&device, discard);
        make_room(&fs, 64);
        let before = generation(&fs);
        let files = ["deleted", "synced", "cut", "overwritten", "shortened", "kept"];
        let inos: Vec<Ino> =
            (0..6).map(|n| file(&fs, files[n], 4 * MIB, n as u64).expect("room")).collect();
        let places: Vec<Vec<u64>> = (0..6).map(|n| device.places(&content(4 * MIB, n))).collect();
        assert!(places.iter().all(|p| p.len() == 1024), "it landed, with no commit");
        device.take_asked();
        fs.fsync(inos[1], false).expect("fsync");
        // First of all: it must not take the place of what is deleted.
        fs.write(&CX, inos[3], 0, &content(4 * MIB, 9), WriteFlags::default()).expect("write");
        fs.unlink(&CX, fs.root(), b"deleted").expect("unlink");
        fs.unlink(&CX, fs.root(), b"synced").expect("unlink");
        resize(&fs, inos[2], 0);
        // Half of an extent is in use: there is no less of it.
        resize(&fs, inos[4], 2 * MIB);
        assert_eq!(generation(&fs), before, "no commit came between, or this shows nothing");
        let asked = device.take_asked();
        assert!(!asked.iter().any(|a| matches!(a, Asked::Discard(..))), "{asked:?}");
        let logged = device.crashed();
        fs.sync().expect("commit");
        let asked = device.take_asked();
        for (name, places) in files.iter().zip(&places) {
            let (found, in_order) = told(&asked, places);
            let all_of_it = discard && !["shortened", "kept"].contains(name);
            let expected = if all_of_it { &places[..] } else { &[] };
            assert!(found == expected, "{name}: {} of {} sectors", found.len(), expected.len());
            assert!(in_order, "a discard before the commit was durable");
        }
        holds(&open(&logged), "synced", &content(4 * MIB, 1));
        assert_same(&snapshot(&fs), &snapshot(&open(&device.crashed())));
        judge(&device, fs);
    }
}

fn holds(fs: &BtrfsFs, name: &str, expected: &[u8]) {
    let ino = fs.lookup(&CX, fs.root(), name.as_bytes()).expect("it was synced").attr.ino;
    let mut found = vec![0; expected.len()];
    assert_eq!(fs.read(ino, 0, &mut found).expect("read"), expected.len());
    assert!(found == expected, "{name} holds something else");
}

/// An unnamed file that came and went leaves nothing to commit, but for what it lay in.
#[test]
fn what_leaves_nothing_to_commit_is_told() {
    let device = volume(128 * MIB, false);
    let fs = open_with(&device, true);
    make_room(&fs, 16);
    let before = generation(&fs);
    let ino = fs.tmpfile(&CX, fs.root(), 0o600).expect("open").attr.ino;
    fs.write(&CX, ino, 0, &content(4 * MIB, 1), WriteFlags::default()).expect("write");
    let places = device.places(&content(4 * MIB, 1));
    assert_eq!(places.len(), 1024);
    fs.forget(ino, 1);
    device.take_asked();
    fs.sync().expect("sync");
    assert_eq!(told(&device.take_asked(), &places).0, places);
    assert_eq!(generation(&fs), before, "there was something to commit");
    judge(&device, fs);
}

/// Fills the volume but for `mib` MiB for content.
fn fill_but(fs: &BtrfsFs, mib: u64) {
    file(fs, "room", mib * MIB, 98).expect("room");
    let ino = fs.mknod(&CX, fs.root(), b"filler", FileKind::File, 0o644, 0).unwrap().attr.ino;
    let (mut end, mut step) = (0, 16 * MIB);
    while step >= 4096 {
        match fs.fallocate(&CX, ino, FallocateMode::Allocate, end, step) {
            Ok(()) => end += step,
            Err(_) => step /= 2,
        }
    }
    fs.unlink(&CX, fs.root(), b"room").expect("unlink");
    fs.sync().expect("commit");
}

/// Space that was given back and is in use again belongs to its new owner.
#[test]
fn what_has_a_new_owner_is_not_told() {
    for mixed in [false, true] {
        let device = volume(128 * MIB, mixed);
        let fs = open_with(&device, true);
        fill_but(&fs, 12);
        let before = generation(&fs);
        file(&fs, "first", 8 * MIB, 1).expect("room");
        let first = device.places(&content(8 * MIB, 1));
        fs.unlink(&CX, fs.root(), b"first").expect("unlink");
        file(&fs, "second", 6 * MIB, 2).expect("room");
        assert_eq!(generation(&fs), before, "no commit came between, or this shows nothing");
        let second = device.places(&content(6 * MIB, 2));
        let free: Vec<u64> = first.iter().copied().filter(|at| !second.contains(at)).collect();
        assert!(!free.is_empty() && free.len() < first.len(), "{} are free", free.len());
        device.take_asked();
        fs.sync().expect("commit");
        let asked = device.take_asked();
        assert_eq!(told(&asked, &second).0, [], "it is in use");
        let (found, in_order) = told(&asked, &free);
        // Nodes take some of it where they share block groups with content.
        let left = if mixed { free.len() / 2 } else { free.len() };
        assert!(found.len() >= left && in_order, "{} of {} are told", found.len(), free.len());
        judge(&device, fs);
    }
}

/// Whoever writes, syncs and deletes while `tell` has the device told of what is free notices
/// nothing, on a nearly full volume.
fn while_others_write(discard: bool, tell: impl Fn(&BtrfsFs) + Sync) {
    for (mixed, ballast) in [(false, 28), (true, 70)] {
        let device = volume(128 * MIB, mixed);
        let fs = open_with(&device, discard);
        file(&fs, "ballast", ballast * MIB, 77).expect("room");
        let (done, times) = (AtomicBool::new(false), AtomicU64::new(0));
        let long_enough = |i: u64| i >= 60 && times.load(Ordering::Relaxed) >= 3 || i >= 2000;
        let work = |t: u64| (0..).take_while(|i| !long_enough(*i)).for_each(|i| churn(&fs, t, i));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|t| {
                    scope.spawn({
                        let work = &work;
                        move || work(t)
                    })
                })
                .collect();
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    tell(&fs);
                    times.fetch_add(1, Ordering::Relaxed);
                }
            });
            let failed = writers.into_iter().filter_map(|w| w.join().err()).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0);
        });
        assert!(times.load(Ordering::Relaxed) >= 3);
        assert!(device.discarded.load(Ordering::Relaxed) > MIB, "hardly anything was told");
        judge(&device, fs);
    }
}

#[test]
fn trimming_while_others_write() {
    while_others_write(false, |fs| {
        fs.trim(&CX, 0, u64::MAX, 0).expect("trim");
    });
}

#[test]
fn telling_while_others_write() {
    while_others_write(true, |fs| fs.sync().expect("sync"));
}

fn churn(fs: &BtrfsFs, thread: u64, i: u64) {
    let name = format!("{thread}-{i}");
    let ino = file(fs, &name, 200_000 + i % 60 * 3000, thread * 1000 + i).expect("room");
    if i.is_multiple_of(3) {
        fs.fsync(ino, false).expect("fsync");
    }
    if i >= 10 {
        fs.unlink(&CX, fs.root(), format!("{thread}-{}", i - 10).as_bytes()).expect("unlink");
    }
    if i.is_multiple_of(20) {
        fs.sync().expect("sync");
    }
}
