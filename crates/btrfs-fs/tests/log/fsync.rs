//! fsyncs that meet others: many in one log write, beside writeback and commits that are held,
//! and what becomes of them when something fails; and what an fsync costs, counted.
//!
//! A thread is held at the device, in its n-th write or flush, until it is released.

#![allow(dead_code)]

use crate::common::asleep::begun;
use crate::harness;
use base::base;
use blocksim::{Access, Hook, SimDevice};
use btrfs_fs::{BtrfsFs, Caller, Defect, Injection, Options};
use harness::{base, ops};
use ops::CX;
use std::cell::Cell;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use vfs::{FileKind, FileSystem, Ino, RenameMode, SetAttr, WriteFlags, XattrMode};

/// After that long who is held goes on, so that a failing test ends.
const LIMIT: Duration = Duration::from_secs(10);
/// For what must not happen to happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// Holds the one thread that calls `arm` at its next access of the kind.
#[derive(Default)]
struct Holder {
    /// (somebody is held, may go on)
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

thread_local! {
    static ARMED: Cell<Option<Access>> = const { Cell::new(None) };
}

fn arm(access: Access) {
    ARMED.set(Some(access));
}

impl Holder {
    fn hook(self: &Arc<Holder>) -> Hook {
        let holder = self.clone();
        Arc::new(move |access, _| {
            if ARMED.get() == Some(access) {
                ARMED.set(None);
                let mut state = holder.state.lock().expect("lock");
                state.0 = true;
                holder.changed.notify_all();
                let held = |state: &mut (bool, bool)| !state.1;
                drop(holder.changed.wait_timeout_while(state, LIMIT, held).expect("wait"));
            }
        })
    }

    fn wait_held(&self) {
        let state = self.state.lock().expect("lock");
        let free = |state: &mut (bool, bool)| !state.0;
        let (state, _) = self.changed.wait_timeout_while(state, LIMIT, free).expect("wait");
        assert!(state.0, "nobody came to the device");
    }

    fn release(&self) {
        self.state.lock().expect("lock").1 = true;
        self.changed.notify_all();
    }
}

fn stat(fs: &dyn FileSystem, name: &str) -> u64 {
    fs.stats().into_iter().find(|s| s.name == name).expect("a counter").value
}

fn create(fs: &dyn FileSystem, name: &str) -> Ino {
    create_in(fs, fs.root(), name)
}

fn create_in(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0).expect("create").attr.ino
}

fn find(fs: &dyn FileSystem, path: &str) -> Ino {
    let step = |dir, name: &str| fs.lookup(&CX, dir, name.as_bytes()).expect("lookup").attr.ino;
    path.split('/').fold(fs.root(), step)
}

fn write(fs: &dyn FileSystem, ino: Ino, offset: u64, data: &[u8]) {
    fs.write(&CX, ino, offset, data, WriteFlags::default()).expect("write");
}

fn mounted(device: &Arc<SimDevice>, options: Options) -> BtrfsFs {
    BtrfsFs::open_device(device.clone(), options).expect("mount")
}

/// What a mount reads after a crash now, at which nothing arrived that no flush covered.
fn after_a_crash(device: &SimDevice, path: &str, len: usize) -> Vec<u8> {
    let epoch = device.recording().epochs().last().expect("there is always one");
    let fs = mounted(&Arc::new(SimDevice::new(epoch.durable)), base::options());
    let mut found = vec![0; len];
    let read = fs.read(find(&fs, path), 0, &mut found).expect("read");
    found.truncate(read);
    found
}

/// Files whose content another thread took for writeback, and has not written yet.
fn durable_beside_writeback(options: Options, make_durable: impl Fn(&BtrfsFs, Ino) + Sync) {
    let holder = Arc::<Holder>::default();
    let device = SimDevice::new(base(0).image.clone()).hooked(Some(holder.hook()));
    let device = Arc::new(device);
    let options = Options { dirty_bytes: 110_000, ..options };
    let fs = &mounted(&device, options);
    let [first, second, third] = ["first", "second", "third"].map(|name| create(fs, name));
    write(fs, first, 0, &[1; 50_000]);
    write(fs, second, 0, &[2; 40_000]);
    std::thread::scope(|scope| {
        let throttled = scope.spawn(|| {
            arm(Access::Write);
            write(fs, third, 0, &[3; 40_000]);
            ARMED.set(None);
        });
        holder.wait_held();
        let (done, finished) = channel();
        let (make_durable, device) = (&make_durable, &device);
        scope.spawn(move || {
            make_durable(fs, second);
            done.send(after_a_crash(device, "second", 40_000)).expect("send");
        });
        let early = finished.recv_timeout(A_WHILE);
        holder.release();
        throttled.join().expect("the writer");
        let found = early.or_else(|_| finished.recv()).expect("an end");
        assert!(found == [2; 40_000], "{} bytes are there", found.len());
    });
    assert_eq!(stat(fs, "delta.throttled"), 1, "or this shows nothing");
}

#[test]
fn a_sync_waits_for_what_a_throttled_writer_has_taken() {
    durable_beside_writeback(base::options(), |fs, _| fs.sync().expect("sync"));
}

#[test]
fn an_fsync_that_commits_does_too() {
    let options = Options { tree_log: false, ..base::options() };
    durable_beside_writeback(options, |fs, ino| fs.fsync(ino, false).expect("fsync"));
}

/// Eight threads that come while a log write is at work share the next one.
#[test]
fn who_waits_for_a_log_write_shares_the_next() {
    let holder = Arc::<Holder>::default();
    let device = SimDevice::new(base(0).image.clone()).hooked(Some(holder.hook()));
    let device = Arc::new(device);
    let fs = &mounted(&device, base::options());
    let files: Vec<Ino> = (0..9).map(|n| create(fs, &format!("file{n}"))).collect();
    let flushes = device.counts().flushes;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            arm(Access::Flush);
            fs.fsync(files[0], false).expect("fsync");
        });
        holder.wait_held();
        for ino in &files[1..] {
            begun(scope, || fs.fsync(*ino, false).expect("fsync"));
        }
        assert_eq!(stat(fs, "fsync.count"), 9, "all of them have begun");
        holder.release();
    });
    assert_eq!(stat(fs, "log.writes"), 2);
    assert_eq!(device.counts().flushes - flushes, 4, "two for each");
    assert_eq!(stat(fs, "log.joined"), 7, "all but those who led");
    assert_eq!(stat(fs, "commit.count"), 0);
    for n in 0..9 {
        assert_eq!(after_a_crash(&device, &format!("file{n}"), 1), []);
    }
}

/// A subvolume that no commit has yet has no log: who syncs something in it waits for the commit at work, or
/// makes one, and meanwhile others write the log.
#[test]
fn an_fsync_in_a_new_subvolume_keeps_nobody_else_waiting() {
    for sealed in [true, false] {
        let holder = Arc::<Holder>::default();
        let device = SimDevice::new(base(0).image.clone()).hooked(Some(holder.hook()));
        let device = &Arc::new(device);
        let fs = &mounted(device, base::options());
        let new_subvolume = || {
            fs.create_subvolume(&Caller::root(), fs.root(), b"sub").expect("subvolume");
            create_in(fs, find(fs, "sub"), "inside")
        };
        create(fs, "something to commit");
        let made_before = sealed.then(new_subvolume);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                arm(Access::Flush);
                fs.sync().expect("sync");
            });
            holder.wait_held();
            let inside = made_before.unwrap_or_else(new_subvolume);
            let in_sub = scope.spawn(move || fs.fsync(inside, false).expect("fsync"));
            let start = Instant::now();
            while stat(fs, "log.waits_for_commit") < 1 {
                assert!(start.elapsed() < LIMIT, "the fsync does not begin");
                std::thread::yield_now();
            }
            let (done, finished) = channel();
            scope.spawn(move || {
                for n in 0..3 {
                    let other = create(fs, &format!("other{n}"));
                    fs.fsync(other, false).expect("fsync");
                }
                done.send(after_a_crash(device, "other2", 1)).expect("send");
            });
            // The commit is held for much longer.
            let early = finished.recv_timeout(LIMIT / 2);
            assert!(!in_sub.is_finished(), "nothing of it is durable");
            holder.release();
            in_sub.join().expect("the other fsync");
            assert_eq!(early, Ok(Vec::new()), "sealed {sealed}: it waited for the commit");
        });
        assert_eq!((stat(fs, "log.writes_in_commit"), stat(fs, "commit.doubled")), (3, 0));
        assert_eq!(stat(fs, "log.fallback_commits"), u64::from(!sealed));
        assert_eq!(after_a_crash(device, "sub/inside", 1), []);
    }
}

/// Others must not wait for ever for who panicked, nor may what is half done go on.
#[test]
fn a_panic_in_a_log_write_ends_the_volume_and_hangs_nobody() {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let options = Options { injection: Injection::of(Some(Defect::LogPanics)), ..base::options() };
    let fs = Arc::new(mounted(&device, options));
    let file = create(&*fs, "file");
    let (done, finished) = channel();
    for _ in 0..4 {
        let (fs, done) = (fs.clone(), done.clone());
        std::thread::spawn(move || {
            let call = std::panic::AssertUnwindSafe(|| fs.fsync(file, false));
            let fsync = std::panic::catch_unwind(call).is_ok_and(|result| result.is_ok());
            // Also an operation gets on: the epoch is not held still.
            let mkdir = fs.mkdir(&CX, fs.root(), b"later", 0o755).map_err(|e| e.errno());
            done.send((fsync, mkdir.map(|_| ()), fs.sync().is_ok())).expect("send");
        });
    }
    for _ in 0..4 {
        let seen = finished.recv_timeout(LIMIT).expect("nobody hangs");
        assert_eq!(seen, (false, Err(libc::EROFS), false));
    }
    assert!(fs.read_only_reason().is_some_and(|why| why.contains("panicked")));
}

/// Content of a file that came along, and that the device refused, is no loss of who syncs: the
/// log has what has landed. It stays in memory, and its own fsync tells, once if the device takes
/// it by then. A device that takes nothing more ends the volume with the log.
#[test]
fn content_that_failed_in_another_files_fsync_is_told_by_its_own() {
    for lasting in [false, true] {
        let device = Arc::new(SimDevice::new(base(0).image.clone()));
        let fs = mounted(&device, base::options());
        let dir = find(&fs, "A");
        let ino = fs.mknod(&CX, dir, b"new", FileKind::File, 0o644, 0).expect("create").attr.ino;
        write(&fs, ino, 0, &[7; 50_000]);
        fail_next_write(&device, lasting);
        let synced = fs.fsync(dir, false);
        assert_eq!(synced.is_ok(), !lasting, "{synced:?}");
        let mut unwritten = vec![0; 50_000];
        assert_eq!(fs.read(ino, 0, &mut unwritten).expect("read"), 50_000);
        assert!(unwritten == [7; 50_000], "memory has it still");
        if lasting {
            assert!(fs.read_only_reason().is_some_and(|why| why.contains("simulated failure")));
            assert!(fs.fsync(ino, false).is_err());
            let told = [fs.sync(), fs.sync()].map(|r| r.expect_err("refused").errno());
            assert_eq!(told, [libc::EIO, libc::EROFS]);
            assert!(fs.destroy().is_err(), "closed as if nothing were lost");
            continue;
        }
        assert_eq!(device.counts().failed, 1, "the new file's content came along");
        assert_eq!(fs.read_only_reason(), None);
        assert_eq!(after_a_crash(&device, "A/new", 50_000), [], "nothing of it has landed");
        let told = fs.fsync(ino, false).expect_err("it was refused");
        assert_eq!(told.errno(), libc::EIO, "{told}");
        fs.fsync(ino, false).expect("it is there");
        assert!(after_a_crash(&device, "A/new", 50_000) == [7; 50_000]);
        assert_eq!(fs.sync().expect_err("told once").errno(), libc::EIO);
        fs.sync().expect("and once only");
        fs.destroy().expect("nothing is lost");
    }
}

fn fail_next_write(device: &SimDevice, lasting: bool) {
    use blocksim::{Fault, Span};
    let span = if lasting { Span::FromThenOn } else { Span::Once };
    device.set_faults(&[Fault { access: Access::Write, nth: device.counts().writes, span }]);
}

/// A commit in an fsync's place answers for that file: what finds no room is another's.
#[test]
fn a_full_volume_is_told_to_who_wrote_too_much_alone() {
    let fsync_commits = Options { tree_log: false, ..base::options() };
    for options in [base::options(), fsync_commits] {
        let device = Arc::new(SimDevice::new(base(0).image.clone()));
        let fs = mounted(&device, options);
        let (mine, other) = (find(&fs, "A/foo"), find(&fs, "A/bar"));
        write(&fs, mine, 0, &[5; 9000]);
        fs.fsync(mine, false).expect("fsync");
        let before = stat(&fs, "commit.count");
        let (root, dir) = (fs.root(), find(&fs, "B"));
        fs.rename(&CX, dir, b"big", root, b"big", RenameMode::Replace).expect("rename");
        fs.unlink(&CX, dir, b"sym").expect("unlink");
        fs.rmdir(&CX, root, b"B").expect("rmdir");
        write(&fs, other, 0, &[6; 50_000]);
        fs.space().fail_data(true);
        fs.fsync(root, false).expect("nothing of it failed");
        assert!(stat(&fs, "commit.count") > before, "no log can say it");
        assert!(fs.sync().is_err_and(|error| error.errno() == libc::ENOSPC));
        fs.space().fail_data(false);
        fs.sync().expect("there is room");
        assert!(after_a_crash(&device, "A/bar", 50_000) == [6; 50_000]);
    }
}

/// Whatever was done to a file, its fsync commits nothing and merges nothing.
#[test]
fn an_fsync_writes_no_subvolume_tree() {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let fs = mounted(&device, base::options());
    let (file, big) = (find(&fs, "A/foo"), find(&fs, "B/big"));
    let (a, b) = (find(&fs, "A"), find(&fs, "B"));
    let truncate = |size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(&CX, file, &set).expect("truncate");
    };
    let steps: [(&str, &dyn Fn()); 6] = [
        ("truncate", &|| truncate(5000)),
        ("write", &|| write(&fs, file, 4096, &[9; 20_000])),
        ("xattr", &|| {
            fs.setxattr(&CX, file, b"user.z", &[1; 300], XattrMode::Set).expect("setxattr");
            fs.removexattr(&CX, file, b"user.x").expect("removexattr");
        }),
        ("clone", &|| fs.clone_range(&CX, big, 0, file, 0, 65_536).expect("clone")),
        ("rename", &|| {
            fs.rename(&CX, a, b"foo", b, b"moved", RenameMode::Replace).expect("rename");
        }),
        ("truncate to nothing", &|| truncate(0)),
    ];
    for (number, (name, step)) in steps.iter().enumerate() {
        step();
        fs.fsync(file, false).expect("fsync");
        let count = |name| stat(&fs, name);
        assert_eq!(count("log.writes"), number as u64 + 1, "{name}");
        assert_eq!((count("commit.count"), count("commit.items_merged")), (0, 0), "{name}");
    }
    assert_eq!(after_a_crash(&device, "B/moved", 1), []);
}

/// A subvolume has another name: who syncs something in it finds it under that name, as with the kernel, which
/// commits. Once it is committed logs are written as before.
#[test]
fn an_fsync_behind_the_rename_of_a_subvolume_commits() {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let fs = mounted(&device, base::options());
    let (root, dir) = (fs.root(), find(&fs, "A"));
    let sub = fs.create_subvolume(&Caller::root(), dir, b"sub").expect("subvolume").1.attr.ino;
    fs.sync().expect("sync");
    let synced = |name: &[u8]| {
        let made = fs.mknod(&CX, sub, name, FileKind::File, 0o644, 0).expect("create").attr.ino;
        write(&fs, made, 0, &[7; 100]);
        fs.fsync(made, false).expect("fsync");
    };
    fs.rename(&CX, dir, b"sub", root, b"moved", RenameMode::Replace).expect("rename");
    synced(b"file");
    assert_eq!(stat(&fs, "log.writes"), 0);
    assert_eq!(after_a_crash(&device, "moved/file", 100), [7; 100]);
    synced(b"other");
    assert_eq!(stat(&fs, "log.writes"), 1);
    fs.rename(&CX, root, b"moved", dir, b"foo2", RenameMode::Replace).expect("rename");
    fs.rename(&CX, dir, b"foo2", root, b"B", RenameMode::Exchange).expect("exchange");
    synced(b"third");
    assert_eq!(after_a_crash(&device, "B/third", 100), [7; 100]);
}

/// A file that lost its last name takes along what its directory has, as with the kernel, which commits: once.
/// One that never had a name commits nothing.
#[test]
fn an_fsync_of_what_lost_its_name_commits_once() {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let fs = mounted(&device, base::options());
    let (root, dir, old) = (fs.root(), find(&fs, "A"), find(&fs, "A/foo"));
    let commits = || stat(&fs, "commit.count");
    let synced = |ino| {
        write(&fs, ino, 0, &[7; 100]);
        fs.fsync(ino, false).expect("fsync");
    };
    let new =
        |dir, name| fs.mknod(&CX, dir, name, FileKind::File, 0o644, 0).expect("create").attr.ino;
    let made = fs.mkdir(&CX, root, b"made", 0o755).expect("mkdir").attr.ino;
    let gone = new(made, b"gone");
    fs.unlink(&CX, made, b"gone").expect("unlink");
    synced(gone);
    assert_eq!(commits(), 1);
    let epoch = device.recording().epochs().last().expect("there is always one");
    let crashed = mounted(&Arc::new(SimDevice::new(epoch.durable)), base::options());
    find(&crashed, "made");
    drop(crashed);
    new(dir, b"beside");
    fs.unlink(&CX, dir, b"foo").expect("unlink");
    [old, old, gone].into_iter().for_each(synced);
    assert_eq!(commits(), 2);
    assert_eq!(after_a_crash(&device, "A/beside", 0), []);
    let nameless = fs.tmpfile(&CX, dir, 0o600).expect("tmpfile").attr.ino;
    synced(nameless);
    assert_eq!(commits(), 2);
}

/// Whether an inode is in the log is known when the inode itself has left memory and come back.
#[test]
fn an_inode_that_was_evicted_is_not_logged_anew() {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let fs = mounted(&device, base::options());
    let dir = find(&fs, "A");
    let set = |ino, value: u8| {
        fs.setxattr(&CX, ino, b"user.y", &[value; 9], XattrMode::Set).expect("setxattr");
        fs.fsync(ino, false).expect("fsync");
    };
    let file = find(&fs, "A/foo");
    set(file, 1);
    let counted = || ["log.inodes_first", "log.tree_reads"].map(|name| stat(&fs, name));
    let first = counted();
    assert_eq!(first[0], 1);
    for round in 0..5 {
        let open = stat(&fs, "inodes.open");
        fs.forget(file, 1);
        assert_eq!(stat(&fs, "inodes.open"), open - 1, "it was evicted");
        assert_eq!(fs.lookup(&CX, dir, b"foo").expect("lookup").attr.ino, file);
        set(file, 2 + round);
    }
    write(&fs, file, 0, &[8; 5000]);
    fs.fsync(file, false).expect("fsync");
    assert_eq!(counted(), first, "known from memory");
    assert_eq!(stat(&fs, "log.writes"), 7);
    assert_eq!(after_a_crash(&device, "A/foo", 5000), [8; 5000]);
}

/// What is cut back is dropped by key: no search, however many extents the log has of the file.
#[test]
fn a_truncated_file_is_cut_back_without_a_search() {
    let device = Arc::new(SimDevice::new(base(0).image.clone()));
    let fs = mounted(&device, base::options());
    let file = create(&fs, "file");
    let fill = || {
        for part in 0..200 {
            write(&fs, file, part * 8192, &[part as u8; 4096]);
        }
        fs.fsync(file, false).expect("fsync");
    };
    fill();
    let (reads, items) = (stat(&fs, "log.tree_reads"), stat(&fs, "log.items"));
    let set = SetAttr { size: Some(4096), ..SetAttr::default() };
    fs.setattr(&CX, file, &set).expect("truncate");
    fs.fsync(file, false).expect("fsync");
    assert!(stat(&fs, "log.items") > items + 199, "199 extents leave the log");
    fill();
    assert_eq!(stat(&fs, "log.tree_reads"), reads);
    assert_eq!((stat(&fs, "log.inodes_first"), stat(&fs, "commit.count")), (1, 0));
    assert_eq!(after_a_crash(&device, "file", 4096), [0; 4096]);
}

/// Sectors of a file of which every other one is written.
const PLACES: u64 = 400;

/// A slow device, and somebody who writes to the file all the time: an fsync waits for what was written before
/// it, and not for what comes.
#[test]
fn who_writes_meanwhile_does_not_keep_an_fsync_from_its_end() {
    let slow: Hook = Arc::new(|access, _| {
        if access == Access::Write && std::thread::current().name() == Some("fsync") {
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let device = Arc::new(SimDevice::new(base(0).image.clone()).hooked(Some(slow)));
    let fs = BtrfsFs::open_device(device, base::options()).expect("mount");
    let ino = fs.mknod(&CX, fs.root(), b"file", FileKind::File, 0o644, 0).expect("create").attr.ino;
    let write = |place: u64, byte: u8| {
        fs.write(&CX, ino, place * 8192, &[byte; 4096], Default::default()).expect("write");
    };
    (0..PLACES).for_each(|place| write(place, 1));
    fs.sync().expect("commit");
    (0..PLACES).for_each(|place| write(place, 2));
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let syncs = || {
            let begin = Instant::now();
            fs.fsync(ino, false).expect("fsync");
            over.store(true, std::sync::atomic::Ordering::SeqCst);
            begin.elapsed()
        };
        let named = std::thread::Builder::new().name("fsync".into());
        let synced = named.spawn_scoped(scope, syncs).expect("a thread");
        let begin = Instant::now();
        for n in (0..PLACES).cycle() {
            if over.load(std::sync::atomic::Ordering::SeqCst) || begin.elapsed() > 2 * LIMIT {
                break;
            }
            write(n * 7 % PLACES, 3);
        }
        let took = synced.join().expect("no panic");
        assert!(took < LIMIT, "an fsync that took {took:?}");
    });
    fs.destroy().expect("close");
}
