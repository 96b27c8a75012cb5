//! Crashes in random histories of everything that quotas follow: files, reflinks, snapshots, deletions,
//! quotas on and off, groups and limits, balances and resizes.
//!
//! What a device may hold then is mounted. It has the names that the model had at one moment, no earlier
//! than the last sync, and content of then or of what was written since; our check finds nothing, no number of a group either unless the status says that a
//! rescan has to come; limits are those of the moment. Balances and deletions go on to their end, and
//! all is asked again. Of a sample `btrfs check` counts the quotas, and the kernel mounts and goes on.
//!
//! `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_STEPS` choose others and more, `SPINNEY_OUTSIDE` how many
//! states are between two that are judged outside.

use crate::{common, histories};
// What only the turns of the kernel use.

use blockdev::BlockDevice;
use blocksim::{Image, Lie, SimDevice};
use btrfs_check::{FindingKind, Severity};
use btrfs_fs::{BtrfsFs, Options};
use common::kernel::kernel_but;
use histories::{side, world};
use side::{Ours, Side, Theirs};
use std::path::Path;
use std::sync::Arc;
use testkit::oracle::{self, TempDir, newer_btrfs, newer_btrfs_check, run, sh};
use vfs::FileSystem;
use world::{History, World};

const SIZE: u64 = 1 << 30;

/// Moments that a crash may leave.
type Window = [(usize, World)];

/// States of the model after each step, with the position of the device then.
#[derive(Default)]
struct Moments {
    all: Vec<(usize, World)>,
    /// Indexes of those that were promised to be durable.
    durable: Vec<usize>,
}

impl Moments {
    /// What may be found after a crash at `position`: the step under way may have been committed.
    fn window(&self, position: usize) -> &Window {
        let promised = |at: &&usize| self.all[**at].0 <= position;
        let first = self.durable.iter().rev().find(promised).copied().unwrap_or(0);
        let last = self.all.iter().take_while(|(at, _)| *at <= position).count();
        &self.all[first..(last + 1).min(self.all.len())]
    }
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

fn open(device: &Arc<SimDevice>) -> BtrfsFs {
    BtrfsFs::open_device(device.clone(), options()).expect("mount")
}

/// What a file may hold that changed since the last sync: in each byte what it had at some moment since,
/// and zero where what was written had not landed.
fn may_hold(read: &[u8], versions: &[Option<Arc<Vec<u8>>>]) -> bool {
    let versions = || versions.iter().flatten();
    let one = |i: usize| read[i] == 0 || versions().any(|v| v.get(i) == Some(&read[i]));
    let longest = versions().map(|v| v.len()).max().unwrap_or(0);
    read.len() <= longest && (0..read.len()).all(one)
}

/// The first file, or list of names, that a side has otherwise than `world`; `window` is what content
/// may be of.
fn differs(side: &dyn Side, world: &World, window: &Window, subs: &[String]) -> Option<String> {
    if !world.subs.keys().eq(subs) {
        return Some(format!("subvolumes {subs:?}"));
    }
    world.subs.iter().find_map(|(sub, known)| {
        let mut names = side.names(sub);
        names.sort();
        if !names.iter().eq(known.files.keys()) {
            let expected: Vec<_> = known.files.keys().collect();
            return Some(format!("{names:?} in {sub:?}, not {expected:?}"));
        }
        let other = |name: &&String| {
            let version = |world: &World| Some(world.subs.get(sub)?.files.get(*name)?.clone());
            let mut versions: Vec<_> = window.iter().map(|(_, world)| version(world)).collect();
            versions.dedup();
            let read = side.read(sub, name).expect("a file");
            let as_now = read == *known.files[*name];
            !(as_now || versions.len() > 1 && may_hold(&read, &versions))
        };
        names.iter().find(other).map(|name| format!("{sub}/{name}"))
    })
}

/// Subvolumes of the top level, with that.
fn subvolumes(fs: &BtrfsFs) -> Vec<String> {
    let all = fs.subvolumes().expect("list");
    let paths = all.into_iter().filter_map(|info| info.path);
    let mut names: Vec<String> =
        paths.map(|path| String::from_utf8(path).expect("UTF-8")).collect();
    names.sort();
    names.dedup();
    names
}

/// Our check: errors of any kind, and numbers of groups that are trusted and wrong.
fn check(device: Arc<dyn BlockDevice>, least: Severity) {
    let open = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let volume = btrfs_volume::Volume::open(device, open).expect("open the volume");
    let options = btrfs_check::CheckOptions { verify_data: true, ..Default::default() };
    let report = btrfs_check::check(Arc::new(volume), &options).expect("check");
    let miscounts = |kind: &FindingKind| {
        use FindingKind::{ExtentOwnerMissing, QgroupCount, QgroupMissing, QgroupOwned};
        matches!(kind, QgroupCount { .. } | QgroupOwned { .. } | QgroupMissing { .. })
            || *kind == ExtentOwnerMissing
    };
    let bad = report.findings.iter().filter(|f| f.severity >= least || miscounts(&f.kind));
    let found: Vec<String> = bad.map(ToString::to_string).collect();
    assert!(found.is_empty(), "our check finds {found:#?}");
}

/// What landed before what is in front of it lies behind the size: a note, and no more.
fn sound(path: &Path, simple: bool) {
    match simple {
        false => oracle::assert_clean(path),
        // It counts quotas as well.
        true => newer_btrfs_check(path).expect("sound"),
    }
    check(Arc::new(common::open_device(path, true)), Severity::Warning);
}

/// Numbers that nobody has to doubt are right, to `btrfs check`. Answers whether it counted.
fn counted(path: &Path, fs: &BtrfsFs) -> bool {
    let status = fs.quota_status().expect("status");
    let Some(status) = status else { return false };
    if status.simple {
        assert!(!status.inconsistent, "simple quotas are never to be doubted");
        newer_btrfs_check(path).expect("the right numbers");
        return true;
    }
    let report = run("btrfs", &["check", "-Q", &path.to_string_lossy()]);
    assert!(report.stdout.contains("Counts for qgroup id: 0/5"), "{}", report.text());
    let right = !report.stdout.contains("different");
    let doubtful = status.inconsistent || status.rescan.is_some();
    assert!(right || doubtful, "btrfs check counts otherwise: {}", report.text());
    !doubtful
}

/// The kernel has the files, ends what was begun, and its rescan makes all numbers right.
fn kernel_goes_on(path: &Path, (world, simple): (&World, bool), window: &Window, subs: &[String]) {
    kernel_but(path, "noatime", &[], |mount| {
        let side = Theirs(mount);
        assert_eq!(differs(&side, world, window, subs), None, "to the kernel");
        side.end_balance();
        let at = mount.path().to_string_lossy();
        sh("btrfs", &["filesystem", "sync", &at]).expect("sync");
        sh("btrfs", &["subvolume", "sync", &at]).expect("dropped");
        if world.quotas && !simple {
            sh("btrfs", &["quota", "rescan", "-w", &at]).expect("rescan");
        }
        // A commit of its own, after which no copy of the superblock is of the one before.
        std::fs::write(mount.join("written"), "by the kernel").expect("write");
        sh("btrfs", &["filesystem", "sync", &at]).expect("sync");
        oracle::scrub(mount).expect("scrub");
    });
    sound(path, simple);
}

#[derive(Default, Debug)]
struct Seen {
    states: u64,
    balances: u64,
    outside: u64,
    counted: u64,
    rescans: u64,
}

/// What is not of this moment: files, whether there are quotas, limits.
fn misfits(fs: &BtrfsFs, world: &World, window: &Window, subs: &[String]) -> Option<String> {
    let (side, quotas) = (Ours(fs), fs.quota_status().expect("status").is_some());
    if quotas != world.quotas {
        return Some(format!("quotas {quotas}"));
    }
    differs(&side, world, window, subs).or_else(|| {
        let there = if quotas { side.limits() } else { world.limits(&side) };
        let other = |(group, most): &(String, _)| there.get(group) != Some(most);
        world.limits(&side).into_iter().find(other).map(|(group, _)| format!("limit of {group}"))
    })
}

fn judge(image: &Image, window: &Window, outside: Option<&Path>, seen: &mut Seen) {
    let device = Arc::new(SimDevice::new(image.clone()));
    // One copy of the superblock may be torn, and one of the commit before.
    check(device.clone(), Severity::Error);
    seen.states += 1;
    let fs = open(&device);
    assert_eq!(fs.read_only_reason(), None);
    let (side, subs) = (Ours(&fs), subvolumes(&fs));
    let found =
        window.iter().map(|(_, world)| misfits(&fs, world, window, &subs)).collect::<Vec<_>>();
    let Some(fits) = found.iter().rposition(Option::is_none) else { panic!("{found:#?}") };
    let world = &window[fits].1;
    let status = fs.quota_status().expect("status");
    let rescans = status.is_some_and(|status| status.rescan.is_some());
    let simple = status.is_some_and(|status| status.simple);
    seen.rescans += u64::from(rescans);
    if let Some(path) = outside {
        image.export(path).expect("export");
        seen.outside += 1;
        seen.counted += u64::from(counted(path, &fs));
        kernel_goes_on(path, (world, simple), window, &subs);
    }
    seen.balances += u64::from(side.end_balance());
    assert!(fs.sync_deleted(&[], None).expect("dropped"));
    if rescans {
        fs.wait_for_rescan().expect("a rescan");
    }
    assert_eq!(differs(&side, world, window, &subs), None, "behind what went on");
    fs.destroy().expect("close");
    drop(fs);
    check(device.clone(), Severity::Warning);
    if let Some(path) = outside {
        device.image().export(path).expect("export");
        sound(path, simple);
        counted(path, &open(&device));
    }
}

/// A volume with quotas, begun by the kernel.
fn base(dir: &TempDir, simple: bool) -> Image {
    let path = dir.join("base.img");
    std::fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("an image");
    sh("mkfs.btrfs", &["-q", &path.to_string_lossy()]).expect("mkfs");
    kernel_but(&path, "noatime", &[], |mount| match simple {
        false => Theirs(mount).quotas(true).expect("enable"),
        true => {
            let newer = newer_btrfs().expect("there").to_string_lossy().into_owned();
            let at = mount.path().to_string_lossy();
            sh(&newer, &["quota", "enable", "--simple", &at]).expect("enable");
        }
    });
    Image::import(&path).expect("import").flatten()
}

fn crash(seed: u64, lie: Option<Lie>, simple: bool) {
    let dir = TempDir::new("crash-histories").expect("a directory");
    let device = Arc::new(SimDevice::new(base(&dir, simple)).lying(lie));
    let fs = open(&device);
    let mut history = History::new(seed);
    (history.world.quotas, history.simple) = (true, simple);
    let mut moments = Moments::default();
    moments.all.push((0, history.world.clone()));
    for _ in 0..5 {
        let mut seen = |world: &World, durable: bool| {
            moments.all.push((device.position(), world.clone()));
            if durable {
                moments.durable.push(moments.all.len() - 1);
            }
        };
        history.watched_turn(&Ours(&fs), common::steps(120) / 5, &mut seen);
    }
    drop(fs);
    println!("{:?}", history.tally);
    let (every, mut seen) = (common::number("SPINNEY_OUTSIDE", 60), Seen::default());
    // A part of what is in flight shows a lie, where all of it or nothing does not.
    let budget = if lie.is_some() { 6 } else { 3 };
    for epoch in device.recording().epochs() {
        for (number, choice) in epoch.choices(budget, seed).into_iter().enumerate() {
            // The kernel takes no torn superblock: what arrived whole or not at all.
            let path = (number < 2 && seen.states % every < 3).then(|| dir.join("crashed.img"));
            let window = moments.window(epoch.end);
            judge(&epoch.image(&choice), window, path.as_deref(), &mut seen);
        }
    }
    println!("{seen:?}");
    assert!(seen.states >= 40 && seen.outside > 0 && seen.counted > 0, "this shows little");
}

#[test]
fn a_crash_leaves_one_moment_with_the_numbers_of_its_groups() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    for seed in common::seeds(3, 2) {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={}", common::steps(120));
        crash(seed, None, false);
    }
}

#[test]
fn a_crash_leaves_one_moment_with_simple_quotas() {
    testkit::require!(kernel_btrfs);
    testkit::require!(newer_btrfs().is_ok(), "no newer btrfs-progs in target/tools");
    for seed in common::seeds(5, 1) {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={}", common::steps(120));
        crash(seed, None, true);
    }
}

/// The test above would see it: nodes that are not durable before their superblock, and a
/// superblock that is not before what it frees is used again.
#[test]
fn a_device_that_drops_flushes_is_found_out() {
    testkit::require!(btrfs_progs);
    testkit::require!(kernel_btrfs);
    for number in [0, 1] {
        let lie = Lie::FlushOf { every: 2, number };
        assert!(
            std::panic::catch_unwind(|| crash(4, Some(lie), false)).is_err(),
            "{lie:?} is not seen"
        );
    }
}
