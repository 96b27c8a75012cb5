//! Balances that are begun, paused, resumed and cancelled, resizes, scrubs, and mounts that are still for a
//! while or closed, in quick random succession beside threads that change files, snapshots and limits.
//!
//! Invariants: each thread knows what is in its subvolume, and finds it after each mount; every call of
//! an administrator answers, by what is known to it; nothing is written while the mount is still; in the
//! end `btrfs check`, our own check and the kernel's scrub find nothing.
//!
//! A short history by default; `SPINNEY_SEED`, `SPINNEY_SEEDS`, `SPINNEY_ROUNDS` (mounts of each) and
//! `SPINNEY_MILLIS` (of each mount) make it long.

#[path = "../common/mod.rs"]
mod common;
mod spoiler;
mod worker;

use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, SYSTEM};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter as f, balance_flags};
use btrfs_fs::{
    BalanceState, BalanceStatus, BtrfsFs, Caller, Delete, LimitChange, Options, QgroupId,
    ScrubState,
};
use common::kernel::kernel;
use common::{Cached, Files, Image, Stop, errno, files_of, find};
use spoiler::Spoiler;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use testkit::ops::Rng;
use testkit::oracle;
use vfs::FileSystem;
use worker::{Worker, assert_files};

const THREADS: u64 = 3;
const SNAPSHOTS: usize = 8;
const MIB: u64 = 1 << 20;

/// Counts what is written.
#[derive(Default)]
struct Changes(AtomicU64);

type Counting = Hooked<Cached, Changes>;

impl RequestHook for Changes {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        self.0.fetch_add(u64::from(request.changes()), Ordering::SeqCst);
        go_on()
    }
}

/// What is known from one mount to the next.
#[derive(Default)]
struct Known {
    own: Vec<Files>,
    kept: BTreeMap<String, Files>,
    snapshots: u64,
}

/// What a history is of.
#[derive(Clone, Copy)]
struct Plan {
    size: u64,
    /// Bytes of a change, at most.
    most: u64,
    /// One copy of what has two goes bad, all the time.
    spoils: bool,
}

struct Mount<'m> {
    fs: &'m BtrfsFs,
    device: &'m Counting,
    stop: AtomicBool,
    /// Held by who changes something, and alone by who makes the mount still.
    changes: RwLock<()>,
    plan: Plan,
    seed: u64,
}

impl Mount<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn work(&self, thread: u64, files: Files) -> Files {
        let _stop = Stop(&self.stop);
        let dir = find(self.fs, self.fs.root(), &format!("own{thread}")).expect("there");
        let (fs, rng) = (self.fs, Rng::new(self.seed * 100 + thread));
        let (most, refused, mut done) = (self.plan.most, 0, 0);
        // Nothing says which of two copies is right that have no checksum.
        let nocow = !self.plan.spoils;
        let mut worker = Worker { fs, dir, files, rng, most, refused, nocow };
        while self.goes_on() {
            let _changing = self.changes.read().unwrap_or_else(PoisonError::into_inner);
            worker.change();
            done += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
        fs.forget(dir, 1);
        println!("thread {thread}: {done} changes, {} without room", worker.refused);
        worker.files
    }

    /// Snapshots come and go; those that are left.
    fn snapshots(&self, kept: &mut BTreeMap<String, Files>, number: &mut u64) {
        let _stop = Stop(&self.stop);
        let (mut rng, caller) = (Rng::new(self.seed + 99), Caller::root());
        let fs = self.fs;
        while self.goes_on() {
            let _changing = self.changes.read().unwrap_or_else(PoisonError::into_inner);
            *number += 1;
            let (source, name) = (format!("own{}", rng.below(THREADS)), format!("snap{number}"));
            let source = find(fs, fs.root(), &source).expect("there");
            match errno(fs.snapshot(&caller, source, fs.root(), name.as_bytes(), true)) {
                0 => _ = kept.insert(name.clone(), files_of(fs, &name)),
                error => assert_eq!(error, libc::ENOSPC, "a snapshot"),
            }
            fs.forget(source, 1);
            let all: Vec<String> = kept.keys().cloned().collect();
            if all.len() > SNAPSHOTS {
                let one = rng.pick(&all).clone();
                assert_files(fs, &one, &kept[&one]);
                let which = Delete::Name(fs.root(), one.as_bytes());
                match errno(fs.delete_subvolume(&caller, which)) {
                    0 => _ = kept.remove(&one),
                    error => assert_eq!(error, libc::ENOSPC, "a deletion"),
                }
            }
            drop(_changing);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Limits come and go, none of which is reached.
    fn limits(&self) {
        let mut rng = Rng::new(self.seed + 7);
        while self.goes_on() {
            let _changing = self.changes.read().unwrap_or_else(PoisonError::into_inner);
            let groups = self.fs.qgroups_from(QgroupId(0), 100).unwrap_or_default();
            if groups.is_empty() {
                return;
            }
            let most = rng.chance(50).then_some(1 << 40);
            let change = LimitChange { referenced: Some(most), ..LimitChange::default() };
            // Its subvolume may be gone by now.
            let _any = self.fs.limit_qgroup(rng.pick(&groups).id, &change);
            drop(_changing);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn spoil(&self, image: &Image) {
        let mut spoiler = Spoiler::new(&image.path, Rng::new(self.seed + 5));
        while self.goes_on() {
            spoiler.one(&self.fs.space().group_infos());
            std::thread::sleep(Duration::from_micros(500));
        }
        println!("{} places spoilt", spoiler.spoilt);
    }

    /// Calls of an administrator; how many.
    fn administrate(&self, thread: u64) -> u64 {
        let _stop = Stop(&self.stop);
        let (mut rng, mut calls) = (Rng::new(self.seed * 1000 + thread), 0);
        while self.goes_on() {
            let (start, what) = (Instant::now(), self.ask(&mut rng));
            calls += 1;
            let took = start.elapsed();
            if took > Duration::from_secs(5) {
                println!("{what} took {took:?}");
            }
            assert!(took < Duration::from_secs(60), "{what} took {took:?}");
            std::thread::sleep(Duration::from_millis(rng.below(40)));
        }
        calls
    }

    fn ask(&self, rng: &mut Rng) -> String {
        let fs = self.fs;
        let (what, error, may): (String, i32, &[i32]) = match rng.below(16) {
            0..=4 => {
                let item = a_balance(rng);
                let error = errno(fs.start_balance(item));
                let may = &[libc::EINPROGRESS, libc::EINVAL, libc::ENOSPC, libc::EROFS];
                (format!("start {:x}", item.flags), error, may)
            }
            5 | 6 => ("pause".into(), errno(fs.pause_balance()), &[libc::ESRCH]),
            7 => ("cancel".into(), errno(fs.cancel_balance()), &[libc::ESRCH, libc::EROFS]),
            8 | 9 => {
                let may = &[libc::ESRCH, libc::EINPROGRESS, libc::EROFS];
                ("resume".into(), errno(fs.resume_balance()), may)
            }
            10 | 11 => {
                let size = self.plan.size - rng.below(self.plan.size / 8);
                (format!("resize {size}"), errno(fs.resize(size)), &[libc::ENOSPC, libc::EROFS])
            }
            12 => {
                let may = &[libc::EINPROGRESS, libc::EROFS];
                ("scrub".into(), errno(fs.start_scrub(rng.chance(50))), may)
            }
            13 => ("cancel scrub".into(), errno(fs.cancel_scrub()), &[libc::ENOTCONN]),
            14 => {
                self.still(rng);
                ("still".into(), 0, &[])
            }
            _ => ("sync".into(), errno(fs.sync()), &[libc::ENOSPC]),
        };
        assert!(error == 0 || may.contains(&error), "{what}: errno {error}");
        assert_eq!(fs.read_only_reason(), None, "after {what}");
        let (balance, scrub) =
            (fs.balance_status().expect("told"), fs.scrub_status().expect("told"));
        let known = [0, libc::ENOSPC, libc::EROFS, libc::EBUSY];
        assert!(known.contains(&balance.errno), "after {what}: {balance:?}");
        assert!(scrub.state != ScrubState::Failed, "after {what}: {scrub:?}");
        what
    }

    /// Nothing is written while it is still.
    fn still(&self, rng: &mut Rng) {
        let _alone = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        match errno(self.fs.still()) {
            0 => {}
            error => return assert_eq!(error, libc::ENOSPC, "still"),
        }
        let before = self.device.hook.0.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(rng.below(60)));
        let written = self.device.hook.0.load(Ordering::SeqCst) - before;
        // Another thread of administration may have ended it.
        if self.fs.is_still() {
            assert_eq!(written, 0, "writes while the mount is read-only");
        }
        self.fs.writable_again().expect("it is open");
    }
}

fn a_balance(rng: &mut Rng) -> BalanceItem {
    let mut filter = || {
        let mut filter = BalanceFilter::default();
        match rng.below(6) {
            0 => (filter.flags, filter.usage) = (f::USAGE, rng.below(100)),
            1 => (filter.flags, filter.limit) = (f::LIMIT, 1 + rng.below(3)),
            2 => (filter.flags, filter.vend) = (f::VRANGE, rng.below(2048) * MIB),
            3 => {
                filter.flags = f::DEVID | f::DRANGE;
                (filter.devid, filter.pend) = (1, rng.below(1024) * MIB);
            }
            4 => {
                filter.flags = f::CONVERT | if rng.chance(50) { f::SOFT } else { 0 };
                filter.target = if rng.chance(60) { DUP } else { f::SINGLE };
            }
            _ => {}
        }
        filter
    };
    let (data, metadata) = (filter(), filter());
    let system = metadata;
    let types = [DATA, METADATA | SYSTEM, DATA | METADATA | SYSTEM, SYSTEM];
    let flags = *rng.pick(&types) | balance_flags::FORCE;
    BalanceItem { flags, data, metadata, system, ..Default::default() }
}

fn open(image: &Image, seed: u64) -> (BtrfsFs, Arc<Counting>) {
    let below = Cached(common::open_device(&image.path, false));
    let device = Arc::new(Hooked { below, hook: Changes::default() });
    // The volume may have any size that the device has.
    let options = Options { skip_balance: seed.is_multiple_of(3), ..common::inodes(seed) };
    (BtrfsFs::open_device(device.clone(), options).expect("mount"), device)
}

/// One mount, from opening to closing.
fn mounted(image: &Image, known: &mut Known, seed: u64, plan: Plan) {
    let (fs, device) = open(image, seed);
    for (thread, files) in known.own.iter().enumerate() {
        assert_files(&fs, &format!("own{thread}"), files);
    }
    let stop = AtomicBool::new(false);
    let mount = Mount { fs: &fs, device: &device, stop, changes: RwLock::new(()), plan, seed };
    let own = std::mem::take(&mut known.own);
    let (kept, snapshots) = (&mut known.kept, &mut known.snapshots);
    known.own = std::thread::scope(|scope| {
        let mount = &mount;
        let each = own.into_iter().enumerate();
        let workers: Vec<_> =
            each.map(|(t, files)| scope.spawn(move || mount.work(t as u64, files))).collect();
        scope.spawn(move || mount.snapshots(kept, snapshots));
        scope.spawn(move || mount.limits());
        if plan.spoils {
            scope.spawn(move || mount.spoil(image));
        }
        for thread in 0..2 {
            scope.spawn(move || println!("{} calls", mount.administrate(thread)));
        }
        let end = Instant::now() + Duration::from_millis(common::number("SPINNEY_MILLIS", 1500));
        while mount.goes_on() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(Stop(&mount.stop));
        workers.into_iter().map(|w| w.join().expect("a worker")).collect()
    });
    assert_eq!(fs.read_only_reason(), None);
    // A balance may be at work.
    let full = errno(fs.sync());
    assert!(full == 0 || full == libc::ENOSPC, "sync: {full}");
    if plan.spoils {
        // What it has copied and not committed may be spoilt, and no scrub sees it.
        _ = fs.pause_balance();
        mended(&fs);
    }
    fs.destroy().expect("close");
    let written = device.hook.0.load(Ordering::SeqCst);
    drop(fs);
    assert_eq!(device.hook.0.load(Ordering::SeqCst), written, "nothing is written behind the end");
}

/// Nothing that is spoilt is left.
fn mended(fs: &BtrfsFs) {
    _ = fs.cancel_scrub();
    fs.start_scrub(false).expect("a scrub");
    let end = Instant::now() + Duration::from_secs(60);
    while fs.scrub_status().expect("told").state == ScrubState::Running {
        assert!(Instant::now() < end, "the scrub ends");
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = fs.scrub_status().expect("told");
    println!("{} mended by reads, {:?}", common::stat(fs, "device.repairs"), status.done);
    assert_eq!((status.state, status.done.uncorrectable_errors), (ScrubState::Finished, 0));
}

fn end_of_balance(fs: &BtrfsFs) -> BalanceStatus {
    common::end_of_balance(fs, Duration::from_secs(120))
}

/// The last mount: a balance that is left goes to its end.
fn ends(image: &Image, known: &Known, size: u64) {
    let (fs, _device) = open(image, 0);
    if fs.balance_status().expect("status").state == BalanceState::Paused {
        fs.resume_balance().expect("resume");
    }
    end_of_balance(&fs);
    fs.resize(size).expect("grow");
    for (thread, files) in known.own.iter().enumerate() {
        assert_files(&fs, &format!("own{thread}"), files);
    }
    for (name, files) in &known.kept {
        assert_files(&fs, name, files);
    }
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    assert_eq!((fs.read_only_reason(), common::stat(&fs, "commit.over_promise")), (None, 0));
    fs.destroy().expect("close");
}

/// Where there is room nothing is in the way of a balance.
fn empties(image: &Image, known: &Known) {
    let (fs, _device) = open(image, 0);
    let own = (0..THREADS).map(|thread| format!("own{thread}"));
    for name in own.chain(known.kept.keys().cloned()) {
        let which = Delete::Name(fs.root(), name.as_bytes());
        fs.delete_subvolume(&Caller::root(), which).expect("delete");
    }
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    fs.start_balance(BalanceItem { flags: DATA | METADATA | SYSTEM, ..Default::default() })
        .expect("begin");
    let status = end_of_balance(&fs);
    assert_eq!((status.failed, status.errno), (0, 0), "{status:?}");
    fs.destroy().expect("close");
}

fn history(seed: u64, plan: Plan) {
    println!("history {seed}");
    let size = plan.size;
    let nodes: &[_] = if seed.is_multiple_of(2) { &["-n", "4096"] } else { &[] };
    let copies: &[_] = if plan.spoils { &["-m", "dup", "-d", "dup"] } else { &[] };
    let image = Image::new(size, &[nodes, copies].concat());
    let mut known = Known { own: vec![Files::new(); THREADS as usize], ..Known::default() };
    {
        let (fs, _device) = open(&image, 1);
        match seed % 3 {
            0 => fs.enable_quotas().expect("quotas"),
            1 => fs.enable_simple_quotas().expect("quotas"),
            _ => {}
        }
        for thread in 0..THREADS {
            let name = format!("own{thread}");
            fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes()).expect("create");
        }
        fs.destroy().expect("close");
    }
    for round in 0..common::number("SPINNEY_ROUNDS", 2) {
        mounted(&image, &mut known, seed * 10 + round, plan);
        common::check_device(
            Arc::new(common::open_device(&image.path, true)),
            true,
            btrfs_check::Severity::Warning,
        );
    }
    ends(&image, &known, size);
    judge(&image, seed);
    empties(&image, &known);
    judge(&image, seed);
}

fn judge(image: &Image, seed: u64) {
    if seed % 3 != 1 {
        // It knows no simple quotas.
        oracle::assert_clean(&image.path);
    }
    let device = Arc::new(common::open_device(&image.path, true));
    common::check_device(device, true, btrfs_check::Severity::Warning);
    kernel(&image.path, "noatime", |mount| oracle::scrub(mount).expect("scrub"));
}

#[test]
fn nothing_is_lost_and_nobody_waits_for_ever() {
    testkit::require!(kernel_btrfs);
    for seed in common::seeds(1, 1) {
        history(seed, Plan { size: 3 << 30, most: 150_000, spoils: false });
    }
}

#[test]
fn a_volume_that_is_full_loses_nothing_either() {
    testkit::require!(kernel_btrfs);
    for seed in common::seeds(1, 1) {
        history(seed, Plan { size: 300 * MIB, most: 3_000_000, spoils: false });
    }
}

#[test]
fn a_bad_copy_is_mended_by_whoever_meets_it() {
    testkit::require!(kernel_btrfs);
    for seed in common::seeds(1, 2) {
        history(seed, Plan { size: 3 << 30, most: 150_000, spoils: true });
    }
}
