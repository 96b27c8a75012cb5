//! Still for a while: nothing is written, also not what happens by itself, and then goes on.

mod common;

use blocksim::{GoOn, Hooked, Request, RequestHook, SimDevice};
use btrfs_fs::{BtrfsFs, Caller, Delete, LimitChange, Options, QgroupId, ReceivedFrom, SubvolId};
use common::asleep::begun;
use common::places::Places;
use common::{CX, Image, close_and_judge, crashed, errno, find, new_file, open_image};
use std::sync::Arc;
use std::time::Duration;
use testkit::require;
use vfs::{Durable, FileSystem, FsError, RenameMode, Result};

fn is_refused<T>(result: Result<T>) -> bool {
    matches!(result, Err(FsError::ReadOnly(why)) if why == "remounted read-only")
}

#[test]
fn nothing_is_written_until_it_is_writable_again() {
    require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let kept = new_file(&fs, "kept", &[7; 100_000]);
    let gone = new_file(&fs, "gone", &[8; 1_000_000]);
    let root = fs.root();
    fs.unlink(&CX, root, b"gone").unwrap();
    fs.still().unwrap();
    assert!(fs.is_still());
    let before = std::fs::read(&image.path).unwrap();
    // Its last user goes late: it waits.
    fs.forget(gone, 1);
    assert!(is_refused(fs.write(&CX, kept, 0, b"x", Default::default())));
    assert!(is_refused(fs.mkdir(&CX, root, b"d", 0o755)));
    assert!(is_refused(fs.unlink(&CX, root, b"kept")));
    assert!(is_refused(fs.setxattr(&CX, kept, b"user.a", b"b", vfs::XattrMode::Set)));
    assert!(is_refused(fs.trim(&CX, 0, u64::MAX, 0)));
    fs.fsync(kept, false).unwrap();
    fs.sync().unwrap();
    assert!(std::fs::read(&image.path).unwrap() == before, "the image changed");
    // As others find it now.
    let copy = crashed(&image, "now");
    testkit::oracle::assert_clean(&copy);
    let now = open_image(&copy, Options { read_only: true, ..Options::default() });
    assert!(now.lookup(&CX, now.root(), b"gone").is_err());
    drop(now);
    let free = |fs: &btrfs_fs::BtrfsFs| fs.statfs().unwrap().blocks_free;
    let waiting = free(&fs);
    fs.writable_again().unwrap();
    fs.sync().unwrap();
    assert!(free(&fs) > waiting, "what waited is erased");
    fs.write(&CX, kept, 0, b"x", Default::default()).unwrap();
    close_and_judge(&image, fs);
}

/// Closed while still: not a byte is written, and the next mount erases what waited.
#[test]
fn closing_writes_nothing_either() {
    require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let gone = new_file(&fs, "gone", &[8; 1_000_000]);
    fs.unlink(&CX, fs.root(), b"gone").unwrap();
    fs.still().unwrap();
    let before = std::fs::read(&image.path).unwrap();
    fs.forget(gone, 1);
    fs.destroy().unwrap();
    drop(fs);
    assert!(std::fs::read(&image.path).unwrap() == before, "the image changed");
    let fs = image.open();
    new_file(&fs, "new", b"new");
    close_and_judge(&image, fs);
}

/// A read that finds a bad copy repairs it, but not then.
#[test]
fn bad_copies_stay_as_they_are() {
    require!(btrfs_progs);
    let image = Image::new(256 << 20, &["-d", "dup"]);
    let fs = image.open();
    let file = new_file(&fs, "file", &[7; 4096]);
    fs.still().unwrap();
    let mut bytes = std::fs::read(&image.path).unwrap();
    let at = bytes.windows(4096).position(|w| w == [7; 4096]).expect("the first copy");
    bytes[at] = 8;
    std::fs::write(&image.path, &bytes).unwrap();
    let mut content = [0; 4096];
    assert_eq!(fs.read(file, 0, &mut content).unwrap(), 4096);
    assert_eq!(content, [7; 4096]);
    assert!(std::fs::read(&image.path).unwrap() == bytes, "the image changed");
    fs.writable_again().unwrap();
    fs.read(file, 0, &mut content).unwrap();
    assert_eq!(std::fs::read(&image.path).unwrap()[at], 7, "and now it is repaired");
    close_and_judge(&image, fs);
}

/// Reads by the thread "first" pass the place "read", those by "closer" the place "erase", flushes by "still" the
/// place "flush".
struct Reads(Places);

impl RequestHook for Reads {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        let thread = std::thread::current();
        match (request, thread.name()) {
            (Request::Read { .. }, Some("first")) => self.0.pass("read"),
            (Request::Read { .. }, Some("closer")) => self.0.pass("erase"),
            (Request::Flush, Some("still")) => self.0.pass("flush"),
            _ => {}
        }
        go_on()
    }
}

const ONE: SubvolId = SubvolId(257);
const GROUP: QgroupId = group(1, 1);

const fn group(level: u64, number: u64) -> QgroupId {
    QgroupId(level << 48 | number)
}

/// What a control operation changes, and whether it is done.
type Case = (&'static str, fn(&BtrfsFs) -> Result<()>, fn(&BtrfsFs) -> bool);

/// The kernel, which sees to it that nobody writes behind a remount, knows nothing of these.
const CASES: &[Case] = &[
    (
        "read-only",
        |fs| fs.set_read_only(&Caller::root(), ONE, true),
        |fs| fs.subvolume_info(ONE).unwrap().read_only,
    ),
    (
        "received",
        |fs| {
            let from = ReceivedFrom { uuid: [7; 16], stransid: 3, stime: (1, 2) };
            fs.set_received(&Caller::root(), ONE, &from)
        },
        |fs| fs.subvolume_info(ONE).unwrap().received_uuid == [7; 16],
    ),
    (
        "create",
        |fs| fs.create_subvolume(&Caller::root(), fs.root(), b"new").map(drop),
        |fs| there(fs, "new"),
    ),
    (
        "snapshot",
        |fs| {
            let one = find(fs, fs.root(), "one").unwrap();
            fs.snapshot(&Caller::root(), one, fs.root(), b"copy", false).map(drop)
        },
        |fs| there(fs, "copy"),
    ),
    (
        "delete",
        |fs| fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), b"two")).map(drop),
        |fs| !there(fs, "two"),
    ),
    (
        "rename",
        |fs| fs.rename(&CX, fs.root(), b"two", fs.root(), b"other", RenameMode::Replace),
        |fs| there(fs, "other"),
    ),
    (
        "default",
        |fs| fs.set_default_subvolume(&Caller::root(), ONE),
        |fs| fs.default_subvolume().unwrap() == ONE,
    ),
    ("group", |fs| fs.create_qgroup(group(1, 9)), |fs| has_group(fs, group(1, 9))),
    ("no group", |fs| fs.destroy_qgroup(GROUP), |fs| !has_group(fs, GROUP)),
    (
        "assign",
        |fs| fs.assign_qgroup(group(0, ONE.0), GROUP).map(drop),
        |fs| !fs.qgroups_from(group(0, ONE.0), 1).unwrap()[0].parents.is_empty(),
    ),
    (
        "limit",
        |fs| {
            let limit = LimitChange { exclusive: Some(Some(1 << 30)), ..LimitChange::default() };
            fs.limit_qgroup(GROUP, &limit)
        },
        |fs| fs.qgroups_from(GROUP, 1).unwrap()[0].max_exclusive.is_some(),
    ),
    ("no quotas", BtrfsFs::disable_quotas, |fs| fs.quota_status().unwrap().is_none()),
    ("rescan", BtrfsFs::rescan_quotas, |fs| {
        fs.quota_status().unwrap().is_some_and(|status| status.rescan.is_some())
    }),
];

fn there(fs: &BtrfsFs, name: &str) -> bool {
    find(fs, fs.root(), name).is_some()
}

fn has_group(fs: &BtrfsFs, id: QgroupId) -> bool {
    fs.qgroups_from(id, 1).unwrap().first().is_some_and(|group| group.id == id)
}

fn top() -> Options {
    let subvol = btrfs_fs::Subvol::Id(btrfs_disk::TreeId::FS);
    Options { background: false, subvol, ..Options::default() }
}

fn with_subvolumes() -> SimDevice {
    let device = Arc::new(SimDevice::new(blocksim::Image::zeros(300 << 20)));
    btrfs_image::mkfs::make(&*device, &Default::default()).unwrap();
    let fs = BtrfsFs::open_device(device.clone(), top()).unwrap();
    for name in ["held", "one", "two"] {
        fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes()).unwrap();
    }
    fs.enable_quotas().unwrap();
    fs.wait_for_rescan().unwrap();
    fs.create_qgroup(GROUP).unwrap();
    fs.destroy().unwrap();
    SimDevice::new(device.image())
}

/// Somebody is held amid a change of quotas, and the volume is to be closed: what he heard, and whether it is so.
#[test]
fn what_is_under_way_while_it_is_closed_is_waited_for() {
    let below = SimDevice::new(with_subvolumes().image());
    let device = Arc::new(Hooked { below, hook: Reads(Places::default()) });
    let fs = BtrfsFs::open_device(device.clone(), Options { cache_bytes: 0, ..top() }).unwrap();
    device.hook.0.arm("read");
    let told = std::thread::scope(|scope| {
        let make = || errno(fs.create_qgroup(group(1, 9)));
        let first = std::thread::Builder::new().name("first".into());
        let first = first.spawn_scoped(scope, make).unwrap();
        device.hook.0.wait_until_there("read");
        let closing = begun(scope, || fs.destroy());
        device.hook.0.release("read");
        closing.join().unwrap().expect("close");
        first.join().unwrap()
    });
    let left = Arc::new(SimDevice::new(device.below.image()));
    let left = BtrfsFs::open_device(left, Options { read_only: true, ..top() }).unwrap();
    assert_eq!((told, has_group(&left, group(1, 9))), (0, true));
}

/// In a thread that the hook knows.
fn named<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, T> {
    std::thread::Builder::new().name(name.into()).spawn_scoped(scope, work).unwrap()
}

/// Who closes it reads to erase an open file that has no name any more.
fn with_something_to_erase() -> (Arc<Hooked<SimDevice, Reads>>, BtrfsFs) {
    let below = SimDevice::new(with_subvolumes().image());
    let device = Arc::new(Hooked { below, hook: Reads(Places::default()) });
    let fs = BtrfsFs::open_device(device.clone(), Options { cache_bytes: 0, ..top() }).unwrap();
    new_file(&fs, "open", &[7; 9000]);
    fs.unlink(&CX, fs.root(), b"open").unwrap();
    fs.sync().unwrap();
    (device, fs)
}

/// A remount is at its last commit, and the volume is closed beside it: what is erased for that is in a commit, or
/// left to the next mount, and nobody hears of an error.
#[test]
fn a_remount_and_the_end_come_one_behind_the_other() {
    let (device, fs) = with_something_to_erase();
    let places = &device.hook.0;
    places.arm("read");
    std::thread::scope(|scope| {
        // Gives the remount something to commit when it lets nobody begin a change any more.
        let first = named(scope, "first", || fs.create_qgroup(group(1, 9)));
        places.wait_until_there("read");
        let still = named(scope, "still", || fs.still());
        std::thread::sleep(Duration::from_millis(60));
        places.arm("flush");
        places.release("read");
        first.join().unwrap().expect("it was under way");
        places.wait_until_there("flush");
        places.arm("erase");
        let closer = named(scope, "closer", || fs.destroy());
        // Where it does not wait for the remount.
        places.comes("erase", Duration::from_millis(300));
        places.release("flush");
        still.join().unwrap().expect("still");
        places.release("erase");
        closer.join().unwrap().expect("close");
    });
    let left = Arc::new(SimDevice::new(device.below.image()));
    let again = BtrfsFs::open_device(left.clone(), Options { read_only: true, ..top() }).unwrap();
    assert!(has_group(&again, group(1, 9)));
    drop(again);
    common::check_device(left, false, btrfs_check::Severity::Warning);
}

/// Nor is it stopped as by a crash while it is being closed: what is under way comes to its end.
#[test]
fn the_end_comes_before_a_shutdown_beside_it() {
    let (device, fs) = with_something_to_erase();
    let places = &device.hook.0;
    places.arm("erase");
    std::thread::scope(|scope| {
        let closer = named(scope, "closer", || fs.destroy());
        places.wait_until_there("erase");
        let beside = scope.spawn(|| errno(fs.shut_down(Durable::Synced)));
        std::thread::sleep(Duration::from_millis(200));
        places.release("erase");
        closer.join().unwrap().expect("close");
        assert_eq!(beside.join().unwrap(), libc::EROFS, "it is closed");
    });
    let left = Arc::new(SimDevice::new(device.below.image()));
    common::check_device(left, false, btrfs_check::Severity::Warning);
}

/// Processor time of the process's threads of that name, in ticks.
fn ticks(thread: &str) -> u64 {
    let stats = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = stats.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let of_it = stats.filter(|stat| stat.contains(&format!("({thread})")));
    let time = |stat: String| {
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum::<u64>()
    };
    of_it.map(time).sum()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A volume that is still amid a rescan and the deletion of a subvolume of so many files. `None` if one of them
/// was done before.
fn still_amid_both(files: usize) -> Option<(Arc<SimDevice>, BtrfsFs)> {
    let device = Arc::new(SimDevice::new(blocksim::Image::zeros(1200 << 20)));
    btrfs_image::mkfs::make(&*device, &Default::default()).unwrap();
    let injection = btrfs_fs::Injection::of(Some(btrfs_fs::Defect::TinySteps));
    let options = Options { background: true, injection, ..top() };
    let fs = BtrfsFs::open_device(device.clone(), options).unwrap();
    let (id, sub) = fs.create_subvolume(&Caller::root(), fs.root(), b"sub").unwrap();
    for n in 0..files {
        let name = format!("file-{n}");
        let made = fs.mknod(&CX, sub.attr.ino, name.as_bytes(), vfs::FileKind::File, 0o644, 0);
        let ino = made.unwrap().attr.ino;
        fs.write(&CX, ino, 0, &[1; 4096], Default::default()).unwrap();
        fs.forget(ino, 1);
    }
    fs.forget(sub.attr.ino, 1);
    fs.sync().unwrap();
    fs.enable_quotas().unwrap();
    fs.delete_subvolume(&Caller::root(), Delete::Id(id)).unwrap();
    fs.still().unwrap();
    let is_dying = fs.subvolume_info(id).is_ok_and(|info| info.deleted);
    (rescans(&fs) && is_dying).then_some((device, fs))
}

fn rescans(fs: &BtrfsFs) -> bool {
    fs.quota_status().unwrap().unwrap().rescan.is_some()
}

/// What each commit would take a step on waits without turning in circles, and goes on by itself behind that.
#[test]
fn what_goes_on_in_the_background_sleeps_meanwhile() {
    let volume = [24_000, 48_000, 96_000].into_iter().find_map(still_amid_both);
    let (device, fs) = volume.expect("both have something left to do");
    let before = ticks("spinney-commit");
    std::thread::sleep(Duration::from_millis(500));
    let spent = ticks("spinney-commit") - before;
    assert!(spent < 5, "{spent} ticks in half a second");
    let nodes = fs.statfs().unwrap().blocks_free;
    fs.writable_again().unwrap();
    until("the rescan goes on", || !rescans(&fs));
    until("the deletion goes on", || fs.statfs().unwrap().blocks_free > nodes);
    fs.destroy().unwrap();
    common::check_device(device, false, btrfs_check::Severity::Warning);
}

/// Somebody is held amid a deletion, `act` has asked whether it may and waits for him, and the mount is to be still.
/// What each of them heard, and what the volume has then.
fn beside_a_remount(before: &SimDevice, act: fn(&BtrfsFs) -> Result<()>) -> ([i32; 2], BtrfsFs) {
    let below = SimDevice::new(before.image());
    let device = Arc::new(Hooked { below, hook: Reads(Places::default()) });
    let fs = BtrfsFs::open_device(device.clone(), top()).unwrap();
    // What it needs before it waits it has in memory.
    let _ = ["one", "two"].map(|name| find(&fs, fs.root(), name));
    device.hook.0.arm("read");
    let told = std::thread::scope(|scope| {
        let delete =
            || errno(fs.delete_subvolume(&Caller::root(), Delete::Name(fs.root(), b"held")));
        let first = std::thread::Builder::new().name("first".into());
        let first = first.spawn_scoped(scope, delete).unwrap();
        device.hook.0.wait_until_there("read");
        let second = begun(scope, || errno(act(&fs)));
        let still = begun(scope, || fs.still());
        device.hook.0.release("read");
        still.join().unwrap().expect("still");
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert!(fs.is_still());
    assert!(fs.sync().is_ok(), "all is durable");
    fs.destroy().unwrap();
    let left = Arc::new(SimDevice::new(device.below.image()));
    (told, BtrfsFs::open_device(left, Options { read_only: true, ..top() }).unwrap())
}

/// What is answered behind a remount is on the volume; or it is refused, and is not.
#[test]
fn what_waits_while_the_mount_becomes_read_only_is_refused() {
    let before = with_subvolumes();
    for (name, act, is_done) in CASES {
        let (told, left) = beside_a_remount(&before, *act);
        assert_eq!(told, [0, libc::EROFS], "{name}");
        assert!(!there(&left, "held"), "{name}: what was under way is durable");
        assert!(!is_done(&left), "{name}");
    }
}

/// Bytes a second: behind its first piece a scrub rests for a while.
const SLOW: u64 = 4096;
const SPARE_SUPERBLOCK: std::ops::Range<u64> = 64 << 20..(64 << 20) + (64 << 10);

/// Where the second copies of nodes can be.
fn second_copies(image: &Image) -> Vec<u64> {
    let open = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let device = Arc::new(common::open_device(&image.path, true));
    let chunks = btrfs_volume::Volume::open(device, open).expect("open").chunks();
    let of_nodes = |flags: u64| flags & btrfs_disk::ids::block_group::METADATA != 0;
    let chunk = chunks.iter().find(|chunk| of_nodes(chunk.flags)).expect("there");
    let from = chunk.stripes[1].1.0;
    let places = (from..from + (chunk.end() - chunk.logical.0)).step_by(16384);
    places.filter(|at| !SPARE_SUPERBLOCK.contains(at)).collect()
}

fn scrubbed(fs: &BtrfsFs) -> btrfs_fs::ScrubStatus {
    let begun = std::time::Instant::now();
    loop {
        let status = fs.scrub_status().expect("a status");
        if status.state != btrfs_fs::ScrubState::Running {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// As in the kernel. What it may not mend any more is not said to be impossible, and who goes on with it once it may
/// write has it mended.
#[test]
fn a_scrub_is_cancelled_that_writes() {
    use btrfs_fs::ScrubState::{Cancelled, Finished, Running};
    use std::os::unix::fs::FileExt;
    require!(btrfs_progs);
    let image = Image::new(256 << 20, &[]);
    let copies = second_copies(&image);
    let fs = image.open();
    new_file(&fs, "kept", &[7; 100_000]);
    fs.sync().expect("commit");
    fs.limit_scrub(SLOW, false).expect("a limit");
    fs.start_scrub(false).expect("begin");
    let file = std::fs::File::options().write(true).open(&image.path).expect("open");
    copies.iter().for_each(|at| file.write_all_at(&[0x5a; 300], *at).expect("write"));
    fs.still().expect("still");
    fs.limit_scrub(0, false).expect("no limit");
    let status = scrubbed(&fs);
    assert_eq!((status.state, status.done.uncorrectable_errors), (Cancelled, 0));
    assert_eq!(errno(fs.resume_scrub()), libc::EROFS);
    assert_eq!(errno(fs.start_scrub(false)), libc::EROFS);
    fs.writable_again().expect("it is open");
    fs.resume_scrub().expect("begin");
    let status = scrubbed(&fs);
    assert_eq!((status.state, status.done.uncorrectable_errors), (Finished, 0));
    assert!(status.done.corrected_errors > 0);
    // One that writes nothing goes on.
    fs.limit_scrub(SLOW, false).expect("a limit");
    fs.start_scrub(true).expect("begin");
    fs.still().expect("still");
    assert_eq!(fs.scrub_status().expect("a status").state, Running);
    fs.cancel_scrub().expect("at work");
    fs.resume_scrub().expect("it may");
    fs.cancel_scrub().expect("at work");
    fs.writable_again().expect("it is open");
    close_and_judge(&image, fs);
}
