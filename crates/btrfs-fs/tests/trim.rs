//! Telling the device what is free: all of that, and nothing else. The device of these
//! tests takes its revenge: what it is told of reads as garbage from then on.

mod common;

use blockdev::{BlockDevice, MemDevice};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::{MkfsOptions, make};
use common::{assert_same, snapshot};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use testkit::ops::Rng;
use vfs::{Context, FileKind, FileSystem, Ino, WriteFlags};

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

struct Forgetful {
    below: MemDevice,
    discarded: AtomicU64,
    asked: Mutex<Vec<Asked>>,
}

impl Forgetful {
    fn note(&self, asked: Asked) {
        self.asked.lock().expect("no panic").push(asked);
    }

    /// What was asked since the last call.
    fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().expect("no panic"))
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

impl BlockDevice for Forgetful {
    fn len(&self) -> u64 {
        self.below.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buf)
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

fn volume(size: u64, mixed: bool) -> Arc<Forgetful> {
    let below = MemDevice::new(size);
    make(&below, &MkfsOptions { mixed, ..MkfsOptions::default() }).expect("mkfs");
    Arc::new(Forgetful { below, discarded: AtomicU64::new(0), asked: Mutex::default() })
}

fn open(device: &Arc<Forgetful>) -> BtrfsFs {
    open_with(device, false)
}

fn open_with(device: &Arc<Forgetful>, discard: bool) -> BtrfsFs {
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
fn judge(device: &Arc<Forgetful>, fs: BtrfsFs) {
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

/// Whoever writes, syncs and deletes meanwhile notices nothing, on a nearly full volume.
#[test]
fn trimming_while_others_write() {
    for (mixed, ballast) in [(false, 28), (true, 70)] {
        let device = volume(128 * MIB, mixed);
        let fs = open(&device);
        file(&fs, "ballast", ballast * MIB, 77).expect("room");
        let (done, trims) = (AtomicBool::new(false), AtomicU64::new(0));
        let long_enough = |i: u64| i >= 60 && trims.load(Ordering::Relaxed) >= 3 || i >= 2000;
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
                    fs.trim(&CX, 0, u64::MAX, 0).expect("trim");
                    trims.fetch_add(1, Ordering::Relaxed);
                }
            });
            let failed = writers.into_iter().filter_map(|w| w.join().err()).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0);
        });
        assert!(trims.load(Ordering::Relaxed) >= 3);
        judge(&device, fs);
    }
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
