//! Balances that are stopped, by whom and how far: a pause and a cancellation end the run that they were meant
//! for, and no resize; a mount that is still for a while has nothing written by a balance, which
//! goes on behind it; what a resize has emptied a balance does not miss.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook, SimDevice};
use btrfs_disk::ids::block_group::{DATA, METADATA};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter};
use btrfs_fs::control::wire;
use btrfs_fs::{
    BalanceState, BtrfsFs, Caller, Defect, Delete, Injection, NewSize, Options, Place, ScrubState,
};
use btrfs_space::Kind;
use common::asleep::begun;
use common::places::Places;
use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vfs::{Asker, Control, Errno, FileSystem, Who};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 1 << 30;
/// Of a file: more than one step moves.
const BYTES: u64 = 70 * MIB;
const EXTENT: u64 = 5 * MIB;
/// Content is read so.
const PIECE: usize = 1 << 20;

type Device = Hooked<SimDevice, Watch>;

#[derive(Default)]
struct Watch {
    places: Places,
    writes: AtomicU64,
}

impl RequestHook for Watch {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> Result<()> {
        match request {
            Request::Read { len: PIECE, .. } => match std::thread::current().name() {
                Some("spinney-balance") => self.places.pass("balance"),
                Some("resize" | "spinney-resize") => self.places.pass("resize"),
                Some("spinney-scrub") => self.places.pass("scrub"),
                _ => {}
            },
            Request::Discard { .. } if std::thread::current().name() == Some("trim") => {
                self.places.pass("trim");
                self.writes.fetch_add(1, Ordering::SeqCst);
            }
            request if request.changes() => drop(self.writes.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
        go_on()
    }
}

/// A volume with a file, and what is in that.
fn a_volume() -> (Arc<Device>, BtrfsFs) {
    let sim = SimDevice::new(blocksim::Image::zeros(SIZE));
    btrfs_image::mkfs::make(&sim, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(Hooked { below: sim, hook: Watch::default() });
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    let ino = common::new_file(&fs, "file", &[]);
    for at in (0..BYTES).step_by(EXTENT as usize) {
        fs.write(&common::CX, ino, at, &[7; EXTENT as usize], Default::default()).expect("write");
        fs.sync().expect("commit");
    }
    (device, fs)
}

fn state(fs: &BtrfsFs) -> BalanceState {
    fs.balance_status().expect("status").state
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

fn begin(fs: &BtrfsFs, flags: u64) {
    fs.start_balance(BalanceItem { flags, ..BalanceItem::default() }).expect("begin");
}

/// It comes to its end, and has moved everything.
fn ends(fs: &BtrfsFs) {
    until("the balance ends", || state(fs) != BalanceState::Running);
    let status = fs.balance_status().expect("status");
    assert_eq!((status.state, status.failed, status.errno), (BalanceState::Done, 0, 0));
}

fn close(device: Arc<Device>, fs: BtrfsFs) {
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device.clone(), true, btrfs_check::Severity::Note);
    let again = BtrfsFs::open_device(device, Options { background: false, ..Options::default() });
    let again = again.expect("mount");
    assert_eq!(state(&again), BalanceState::None, "nothing is left to go on with");
    let entry = again.lookup(&common::CX, again.root(), b"file").expect("there");
    let mut content = vec![0; BYTES as usize];
    again.read(entry.attr.ino, 0, &mut content).expect("read");
    assert!(content.iter().all(|byte| *byte == 7), "the file is what it was");
    again.destroy().expect("close");
}

/// Once nothing may be written nothing is, and the balance is one to go on with.
#[test]
fn a_balance_rests_while_the_mount_is_still() {
    let (device, fs) = a_volume();
    device.hook.places.arm("balance");
    begin(&fs, DATA | METADATA);
    device.hook.places.wait_until_there("balance");
    std::thread::scope(|scope| {
        let still = begun(scope, || fs.still());
        device.hook.places.release("balance");
        still.join().expect("no panic").expect("still");
    });
    assert!(fs.is_still());
    let before = device.hook.writes.load(Ordering::SeqCst);
    assert_eq!(state(&fs), BalanceState::Paused);
    let errors = [fs.resume_balance(), fs.cancel_balance(), fs.resize(SIZE / 2).map(drop)];
    assert!(errors.into_iter().all(|e| e.expect_err("refused").errno() == libc::EROFS));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(device.hook.writes.load(Ordering::SeqCst), before, "writes while it is still");
    let now = Arc::new(SimDevice::new(device.below.image()));
    let options = Options { read_only: true, ..Options::default() };
    let seen = BtrfsFs::open_device(now, options).expect("mount");
    assert_eq!(state(&seen), BalanceState::Paused, "others find it as well");
    drop(seen);
    fs.writable_again().expect("it is open");
    ends(&fs);
    close(device, fs);
}

/// One that somebody has paused stays so.
#[test]
fn what_was_paused_before_stays_paused() {
    let (device, fs) = a_volume();
    device.hook.places.arm("balance");
    begin(&fs, DATA);
    device.hook.places.wait_until_there("balance");
    std::thread::scope(|scope| {
        let paused = begun(scope, || fs.pause_balance());
        device.hook.places.release("balance");
        paused.join().expect("no panic").expect("pause");
    });
    fs.still().expect("still");
    fs.writable_again().expect("it is open");
    assert_eq!(state(&fs), BalanceState::Paused);
    fs.cancel_balance().expect("cancel");
    close(device, fs);
}

/// The file comes to lie far behind; where the device's end is to be for it to move.
fn behind_which_the_file_lies(fs: &BtrfsFs) -> u64 {
    for _ in 0..4 {
        fs.space().new_chunk(Kind::Data).expect("a chunk");
    }
    let last = fs.space().group_infos().iter().map(|group| group.logical.0).max().expect("some");
    let mut data = BalanceFilter { flags: balance_filter::VRANGE, ..Default::default() };
    data.vend = last;
    fs.start_balance(BalanceItem { flags: DATA, data, ..BalanceItem::default() }).expect("begin");
    ends(fs);
    let moves = |total: &u64| fs.space().behind(*total).iter().any(|g| g.used > 40 * MIB);
    (256..1024).rev().map(|mib| mib * MIB).find(moves).expect("it is far behind")
}

/// The device's end comes nearer, while a balance waits: what it waits for is not what is paused.
fn shrunk_beside(stop: impl FnOnce(&BtrfsFs, &Device) + Send) {
    let (device, fs) = a_volume();
    let total = behind_which_the_file_lies(&fs);
    device.hook.places.arm("resize");
    std::thread::scope(|scope| {
        let named = std::thread::Builder::new().name("resize".into());
        let resized = named.spawn_scoped(scope, || fs.resize(total)).expect("a thread");
        device.hook.places.wait_until_there("resize");
        begin(&fs, DATA);
        std::thread::sleep(Duration::from_millis(50));
        stop(&fs, &device);
        resized.join().expect("no panic").expect("resize");
    });
    assert_eq!(fs.sizes(1, btrfs_fs::NewSize::Max).expect("sizes").0, total);
    if state(&fs) == BalanceState::Paused {
        fs.resume_balance().expect("resume");
    }
    ends(&fs);
    close(device, fs);
}

#[test]
fn a_pause_of_a_balance_is_none_of_a_resize() {
    shrunk_beside(|fs, device| {
        std::thread::scope(|scope| {
            let paused = begun(scope, || fs.pause_balance());
            device.hook.places.release("resize");
            paused.join().expect("no panic").expect("pause");
        });
    });
}

/// The groups that it was to move are gone when it comes to them.
#[test]
fn what_a_resize_has_emptied_is_not_missed() {
    shrunk_beside(|_, device| device.hook.places.release("resize"));
}

/// Who paused hears of it, also if it goes on at once.
#[test]
fn a_pause_ends_with_the_run_that_it_was_meant_for() {
    let (device, fs) = a_volume();
    for _ in 0..3 {
        device.hook.places.arm("balance");
        match state(&fs) {
            BalanceState::Paused => {}
            _ => begin(&fs, DATA),
        }
        if state(&fs) == BalanceState::Paused {
            fs.resume_balance().expect("resume");
        }
        device.hook.places.wait_until_there("balance");
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| fs.pause_balance());
            until("somebody pauses it", || fs.balance_status().expect("status").stopping);
            device.hook.places.release("balance");
            until("it is paused", || state(&fs) == BalanceState::Paused);
            device.hook.places.arm("balance");
            fs.resume_balance().expect("resume");
            device.hook.places.wait_until_there("balance");
            let end = Instant::now() + Duration::from_secs(2);
            while !paused.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            let heard = paused.is_finished();
            device.hook.places.release("balance");
            assert!(heard, "the pause waits for a run that began later");
        });
        ends(&fs);
    }
    close(device, fs);
}

/// The same of a scrub.
#[test]
fn a_cancellation_ends_with_the_scrub_that_it_was_meant_for() {
    let (device, fs) = a_volume();
    let scrubs = || fs.scrub_status().expect("status").state;
    device.hook.places.arm("scrub");
    fs.start_scrub(false).expect("begin");
    device.hook.places.wait_until_there("scrub");
    std::thread::scope(|scope| {
        let cancelled = begun(scope, || fs.cancel_scrub());
        device.hook.places.release("scrub");
        until("it is cancelled", || scrubs() == ScrubState::Cancelled);
        device.hook.places.arm("scrub");
        fs.resume_scrub().expect("resume");
        device.hook.places.wait_until_there("scrub");
        let end = Instant::now() + Duration::from_secs(2);
        while !cancelled.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let heard = cancelled.is_finished();
        device.hook.places.release("scrub");
        assert!(heard, "the cancellation waits for a scrub that began later");
    });
    until("the scrub ends", || scrubs() != ScrubState::Running);
    assert_eq!(scrubs(), ScrubState::Finished);
    close(device, fs);
}

/// `work` of another thread is held at the place of its name when `ends` is called, which waits for it; behind that it
/// writes nothing. What it answers.
fn ended_by<T: Send>(
    (device, fs): (&Device, &BtrfsFs),
    name: &'static str,
    work: impl FnOnce(&BtrfsFs) -> vfs::Result<T> + Send,
    ends: impl FnOnce(&BtrfsFs) -> vfs::Result<()> + Send,
) -> vfs::Result<T> {
    device.hook.places.arm(name);
    std::thread::scope(|scope| {
        let named = std::thread::Builder::new().name(name.into());
        let worked = named.spawn_scoped(scope, || work(fs)).expect("a thread");
        device.hook.places.wait_until_there(name);
        let ended = begun(scope, || {
            let result = ends(fs);
            (result, device.hook.writes.load(Ordering::SeqCst))
        });
        let waits = !ended.is_finished();
        device.hook.places.release(name);
        let answer = worked.join().expect("no panic");
        let (result, writes) = ended.join().expect("no panic");
        result.expect("it ends");
        assert!(waits, "who ends a {name} does not wait for it");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(device.hook.writes.load(Ordering::SeqCst), writes, "it goes on behind that");
        answer
    })
}

fn refused<T>(answer: vfs::Result<T>) {
    assert_eq!(common::errno(answer), libc::EROFS);
}

fn trimmed(fs: &BtrfsFs) -> vfs::Result<u64> {
    fs.trim(&common::CX, 0, u64::MAX, 0)
}

#[test]
fn a_mount_is_still_when_no_trim_or_resize_goes_on() {
    let (device, fs) = a_volume();
    refused(ended_by((&device, &fs), "trim", trimmed, BtrfsFs::still));
    assert!(fs.is_still());
    fs.writable_again().expect("it is open");
    trimmed(&fs).expect("trim");
    let total = behind_which_the_file_lies(&fs);
    refused(ended_by((&device, &fs), "resize", |fs| fs.resize(total), BtrfsFs::still));
    assert!(fs.is_still());
    fs.writable_again().expect("it is open");
    fs.resize(total).expect("resize");
    close(device, fs);
}

#[test]
fn a_volume_is_closed_when_no_trim_or_resize_goes_on() {
    let (device, fs) = a_volume();
    refused(ended_by((&device, &fs), "trim", trimmed, BtrfsFs::destroy));
    drop(fs);
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options.clone()).expect("mount");
    let total = behind_which_the_file_lies(&fs);
    refused(ended_by((&device, &fs), "resize", |fs| fs.resize(total), BtrfsFs::destroy));
    drop(fs);
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    assert_eq!(
        fs.sizes(1, btrfs_fs::NewSize::Max).expect("sizes").0,
        SIZE,
        "it is as large as before"
    );
    close(device, fs);
}

/// An administrator who is called away as soon as he would have to wait.
struct CalledAway;

impl Asker for CalledAway {
    fn who(&self) -> vfs::Result<Who> {
        let (groups, exempt) = (Vec::new(), vfs::Exempt::ALL);
        Ok(Who { uid: 0, gid: 0, unknown: false, groups, exempt, umask: 0o22, admin: true })
    }

    fn wait(&self, done: &mut dyn FnMut() -> vfs::Result<bool>) -> vfs::Result<()> {
        if done()? { Ok(()) } else { self.goes_on() }
    }

    fn goes_on(&self) -> vfs::Result<()> {
        Err(Errno::EINTR.into())
    }
}

/// Nor does it keep the thread that serves him.
#[test]
fn who_asks_for_a_resize_can_be_called_away() {
    let (device, fs) = a_volume();
    let total = behind_which_the_file_lies(&fs);
    device.hook.places.arm("resize");
    let record = wire::write_resize(1, NewSize::Bytes(total));
    let ask = || fs.control(&CalledAway, fs.root(), wire::RESIZE, &record);
    std::thread::scope(|scope| {
        let named = std::thread::Builder::new().name("resize".into());
        let asked = named.spawn_scoped(scope, ask).expect("a thread");
        device.hook.places.wait_until_there("resize");
        let end = Instant::now() + Duration::from_secs(2);
        while !asked.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let heard = asked.is_finished();
        device.hook.places.release("resize");
        assert!(heard, "he is not called away while it is at work");
        assert_eq!(common::errno(asked.join().expect("no panic")), libc::EINTR);
    });
    until("it goes on", || fs.sizes(1, NewSize::Max).expect("sizes").0 == total);
    close(device, fs);
}

/// A subvolume of many nodes is deleted, and the volume opened again by `options`.
fn with_much_deleted(device: &Arc<Device>, fs: BtrfsFs, options: Options) -> BtrfsFs {
    let made = fs.create_subvolume(&Caller::root(), fs.root(), b"doomed").expect("create");
    for n in 0..3000 {
        let name = format!("{n:0200}");
        let kind = vfs::FileKind::File;
        let made = fs.mknod(&common::CX, made.1.attr.ino, name.as_bytes(), kind, 0o644, 0);
        fs.forget(made.expect("create").attr.ino, 1);
    }
    fs.sync().expect("commit");
    let which = Delete::Name(fs.root(), b"doomed");
    fs.delete_subvolume(&Caller::root(), which).expect("delete");
    fs.destroy().expect("close");
    drop(fs);
    BtrfsFs::open_device(device.clone(), options).expect("mount")
}

/// That may take hours.
#[test]
fn a_pause_does_not_wait_until_all_that_is_deleted_is_dropped() {
    let (device, fs) = a_volume();
    let (places, steps) = (Arc::new(Places::default()), Arc::new(AtomicU64::new(0)));
    let (its, count) = (places.clone(), steps.clone());
    let injection = Injection::of(Some(Defect::TinySteps)).looking(move |place| {
        if place == Place::Sweeps {
            count.fetch_add(1, Ordering::SeqCst);
            its.pass("sweep");
        }
    });
    let options = Options { background: false, injection, ..Options::default() };
    let fs = with_much_deleted(&device, fs, options);
    places.arm("sweep");
    begin(&fs, DATA);
    places.wait_until_there("sweep");
    std::thread::scope(|scope| {
        let paused = scope.spawn(|| fs.pause_balance());
        until("somebody pauses it", || fs.balance_status().expect("status").stopping);
        places.release("sweep");
        paused.join().expect("no panic").expect("pause");
    });
    assert_eq!((state(&fs), steps.load(Ordering::SeqCst)), (BalanceState::Paused, 1));
    fs.resume_balance().expect("resume");
    ends(&fs);
    assert!(steps.load(Ordering::SeqCst) > 10, "there was much to drop");
    close(device, fs);
}

/// Whoever closes a volume, or only drops it, can open its device again at once: no thread has it still. Once
/// a test found an image "in use by another program", of which a balance had just ended.
#[test]
fn a_volume_that_is_dropped_lets_go_of_its_device() {
    let (device, mut fs) = a_volume();
    let options = || Options { background: false, ..Options::default() };
    let without = Arc::strong_count(&device) - 1;
    for turn in 0..40 {
        match turn % 4 {
            0 | 1 => begin(&fs, METADATA),
            2 => fs.start_scrub(true).expect("begin"),
            _ => begin(&fs, DATA | METADATA),
        }
        if turn % 4 == 1 {
            until("the balance ends", || state(&fs) != BalanceState::Running);
        }
        if turn % 3 != 0 {
            fs.destroy().expect("close");
        }
        drop(fs);
        assert!(Arc::strong_count(&device) <= without, "turn {turn}: a thread has the device");
        fs = BtrfsFs::open_device(device.clone(), options()).expect("mount");
        if state(&fs) == BalanceState::Paused {
            fs.cancel_balance().expect("cancel");
        }
    }
    common::check_device(device, true, btrfs_check::Severity::Note);
}
