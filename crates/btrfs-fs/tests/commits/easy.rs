//! A commit keeps out of the way: it rests while nobody waits for it, and does not leave all of
//! its writing to the next flush, which may be somebody else's fsync.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_fs::{BtrfsFs, Contention, Options};
use common::{CX, Cached, Image, close_and_judge, new_file, open_device, stat};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vfs::{FileSystem, Ino};

const MIB: u64 = 1 << 20;
const CONTENT: u64 = 48 * MIB;
const PIECE: &[u8] = &[7; 64 << 10];

/// A device that notes how much is written between two requests to begin with it.
type Watched = Hooked<Cached, Writing>;

#[derive(Default)]
struct Writing {
    unwritten: AtomicU64,
    most: AtomicU64,
    requests: AtomicU64,
    /// To be told of the first request, and how long that one then takes.
    told: Mutex<Option<Sender<()>>>,
    fails: AtomicBool,
}

impl Writing {
    fn wrote(&self, bytes: u64) {
        let now = self.unwritten.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    fn starts(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.unwritten.store(0, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(told) = self.told.lock().expect("no panic").take() {
            told.send(()).expect("somebody listens");
            std::thread::sleep(STALL);
        }
        Ok(())
    }
}

const STALL: Duration = Duration::from_millis(800);

impl RequestHook for Writing {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        match request {
            Request::Write { pieces, .. } => {
                self.wrote(pieces.iter().map(|piece| piece.len() as u64).sum())
            }
            Request::StartWriting => return self.starts(),
            Request::Flush => self.unwritten.store(0, Ordering::Relaxed),
            _ => {}
        }
        go_on()
    }
}

/// Others always want the processor, or never do.
#[derive(Debug)]
struct Wanted(bool);

impl Contention for Wanted {
    fn give_way(&self) -> bool {
        self.0
    }
}

fn open(image: &Image, interval: u64) -> (BtrfsFs, Arc<Watched>) {
    open_beside(image, interval, Wanted(true))
}

fn open_beside(image: &Image, interval: u64, others: Wanted) -> (BtrfsFs, Arc<Watched>) {
    let below = Cached(open_device(&image.path, false));
    let watched = Arc::new(Hooked { below, hook: Writing::default() });
    let commit_interval = Duration::from_secs(interval);
    let contention = Arc::new(others);
    let options = Options { commit_interval, contention, ..Options::default() };
    (BtrfsFs::open_device(watched.clone(), options).expect("open volume"), watched)
}

/// Content that waits in memory: a large write would go straight to its extents.
fn unwritten(fs: &BtrfsFs) -> Ino {
    let ino = new_file(fs, "content", &[7; 4096]);
    for offset in (0..CONTENT).step_by(PIECE.len()) {
        fs.write(&CX, ino, offset, PIECE, Default::default()).expect("write");
    }
    ino
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A commit that is due rests; one that somebody waits for does not.
#[test]
fn nobody_waits() {
    testkit::require!(kernel_btrfs);
    for (interval, waits) in [(1, false), (3600, true)] {
        let image = Image::new(512 * MIB, &[]);
        let (fs, _) = open(&image, interval);
        unwritten(&fs);
        match waits {
            true => {
                // A chunk that was made has a commit of its own, which may rest until now.
                let before = stat(&fs, "commit.rests");
                fs.sync().expect("sync");
                let rests = stat(&fs, "commit.rests") - before;
                assert!(rests <= 1, "{rests} rests while somebody waited");
            }
            // The first may have had a part of it only.
            false => wait_for("the interval commits", || {
                stat(&fs, "delta.dirty_bytes") == 0 && stat(&fs, "commit.rests") > 0
            }),
        }
        close_and_judge(&image, fs);
    }
}

/// A commit that nobody is kept waiting by has no reason to.
#[test]
fn nobody_wants_the_processor() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 * MIB, &[]);
    let (fs, _) = open_beside(&image, 1, Wanted(false));
    unwritten(&fs);
    wait_for("the interval commits", || stat(&fs, "delta.dirty_bytes") == 0);
    assert_eq!(stat(&fs, "commit.rests"), 0);
    close_and_judge(&image, fs);
}

/// A commit rests while it passes over what came and went since the last one, too: of 100,000
/// such files nothing is written, but to look at each of them and to forget it takes its time.
#[test]
fn what_is_gone_takes_time() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 * MIB, &[]);
    let (fs, _) = open(&image, 2);
    for _ in 0..60_000 {
        let ino = new_file(&fs, "gone", b"x");
        fs.unlink(&CX, fs.root(), b"gone").expect("unlink");
        fs.forget(ino, 1);
    }
    let merged = stat(&fs, "commit.items_merged");
    assert!(merged < 1000, "{merged} items are work enough");
    wait_for("the interval commits", || stat(&fs, "commit.rests") > 0);
    close_and_judge(&image, fs);
}

fn told(watched: &Watched) -> Receiver<()> {
    let (sender, receiver) = channel();
    *watched.hook.told.lock().expect("no panic") = Some(sender);
    receiver
}

/// Who comes to wait for a commit at rest makes it hasten.
#[test]
fn somebody_comes_to_wait() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 * MIB, &[]);
    let (fs, watched) = open(&image, 2);
    let begun = told(&watched);
    unwritten(&fs);
    begun.recv_timeout(Duration::from_secs(60)).expect("the interval commits");
    // The commit is held up in the device: this waits for it before it goes on.
    let before = stat(&fs, "commit.rests");
    fs.sync().expect("sync");
    let rests = stat(&fs, "commit.rests") - before;
    assert!(rests <= 1, "{rests} rests while somebody waited");
    drop(watched);
    close_and_judge(&image, fs);
}

/// Content and nodes of a commit go to the medium in pieces.
#[test]
fn a_flush_has_little_left_to_do() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(512 * MIB, &[]);
    let (fs, watched) = open(&image, 3600);
    unwritten(&fs);
    assert!(stat(&fs, "delta.dirty_bytes") >= CONTENT);
    fs.sync().expect("sync");
    let (requests, most) = (&watched.hook.requests, &watched.hook.most);
    assert!(requests.load(Ordering::Relaxed) >= 4, "{requests:?} requests");
    assert!(most.load(Ordering::Relaxed) <= 16 * MIB, "{most:?} bytes are left to a flush");
    drop(watched);
    close_and_judge(&image, fs);
}

/// An error that the request tells of is told to nobody else: the content may be lost, and no
/// later call may say that it is durable.
#[test]
fn an_error_is_a_failed_write() {
    testkit::require!(kernel_btrfs);
    for alone in [false, true] {
        let image = Image::new(512 * MIB, &[]);
        let (fs, watched) = open(&image, 3600);
        let ino = unwritten(&fs);
        let durable = || if alone { fs.fsync(ino, false) } else { fs.sync() };
        watched.hook.fails.store(true, Ordering::Relaxed);
        assert!(durable().is_err(), "durable, though the medium refused");
        watched.hook.fails.store(false, Ordering::Relaxed);
        assert!(durable().is_err(), "durable, though the medium has refused");
        assert!(fs.read_only_reason().is_some());
        drop((fs, watched));
        testkit::oracle::assert_clean(&image.path);
    }
}
