//! Content that the device refuses, and direct writes: who is told, what goes on, and that nothing
//! which was acknowledged is lost while the volume is mounted.

#![allow(dead_code)]

use crate::harness;
use base::base;
use blockdev::BlockDevice;
use blocksim::{Image, Rng, SimDevice};
use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use harness::{base, ops, state};
use ops::CX;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vfs::{FallocateMode, FileKind, FileSystem, FsError, Ino, RenameMode, SetAttr, WriteFlags};

const DIRECT: WriteFlags =
    WriteFlags { kill_priv: false, sync: false, direct: true, cached: false };
const PLAIN: WriteFlags =
    WriteFlags { kill_priv: false, sync: false, direct: false, cached: false };

/// Takes everything but content, as long as it is told to.
struct RefusingDevice {
    below: SimDevice,
    /// How many of the next writes of content it takes before that.
    takes: AtomicU64,
    /// How many of the next writes of content it refuses.
    refuses: AtomicU64,
    through: AtomicU64,
    cached: AtomicU64,
    /// What it refuses of the others it tells late.
    late: AtomicBool,
}

impl RefusingDevice {
    fn new(image: Image) -> Arc<RefusingDevice> {
        let below = SimDevice::new(image);
        let [takes, refuses, through, cached] = Default::default();
        let late = AtomicBool::new(false);
        Arc::new(RefusingDevice { below, takes, refuses, through, cached, late })
    }

    fn refuse(&self, count: u64) {
        self.refuses.store(count, Ordering::SeqCst);
    }

    /// Writes of content that went through to the device, and others.
    fn seen(&self) -> (u64, u64) {
        (self.through.load(Ordering::SeqCst), self.cached.load(Ordering::SeqCst))
    }
}

impl BlockDevice for RefusingDevice {
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
        self.below.write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.below.write_vectored_at(offset, bufs)
    }
    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        // A copy of the superblock is no content.
        if offset == 64 << 20 {
            return self.below.write_vectored_at(offset, bufs);
        }
        let seen = if through { &self.through } else { &self.cached };
        seen.fetch_add(1, Ordering::SeqCst);
        let less = |n: u64| n.checked_sub(1);
        let counts =
            |left: &AtomicU64| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if !counts(&self.takes) && counts(&self.refuses) {
            // Half of it, as a device does that fails.
            let all = bufs.concat();
            self.below.write_at(offset, &all[..all.len() / 2])?;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.below.write_vectored_at(offset, bufs)
    }
    fn tells_late(&self) -> bool {
        self.late.load(Ordering::SeqCst)
    }
    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.discard(offset, len)
    }
    fn name(&self) -> String {
        "picky".into()
    }
}

fn mounted(device: &Arc<RefusingDevice>, options: Options) -> BtrfsFs {
    BtrfsFs::open_device(device.clone(), options).expect("mount")
}

fn fresh() -> (Arc<RefusingDevice>, BtrfsFs) {
    let device = RefusingDevice::new(base(0).image.clone());
    let fs = mounted(&device, base::options());
    (device, fs)
}

fn make(fs: &BtrfsFs, name: &str) -> Ino {
    let root = fs.root();
    fs.mknod(&CX, root, name.as_bytes(), FileKind::File, 0o644, 0).expect("create").attr.ino
}

fn read(fs: &BtrfsFs, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; fs.getattr(ino).expect("attributes").size as usize + 1];
    let read = fs.read(ino, 0, &mut content).expect("read");
    content.truncate(read);
    content
}

fn errno<T>(result: vfs::Result<T>) -> i32 {
    result.err().map_or(0, |error: FsError| error.errno())
}

fn stat(fs: &BtrfsFs, name: &str) -> u64 {
    fs.stats().iter().find(|stat| stat.name == name).expect("a counter").value
}

/// What a mount after a crash finds under a name of the root.
fn after_a_crash(device: &RefusingDevice, name: &str) -> Option<Vec<u8>> {
    let epoch = device.below.recording().epochs().last().expect("there is always one");
    state::check(&epoch.durable).expect("check");
    let fs = base::mount(Arc::new(SimDevice::new(epoch.durable))).expect("mount");
    let entry = fs.lookup(&CX, fs.root(), name.as_bytes()).ok()?;
    Some(read(&fs, entry.attr.ino))
}

/// Closed well, and all judges agree.
fn close(device: &RefusingDevice, fs: BtrfsFs) {
    fs.destroy().expect("close");
    drop(fs);
    state::check(&device.below.image()).expect("check");
}

#[test]
fn a_direct_write_is_with_the_device_when_it_returns() {
    let (device, fs) = fresh();
    let ino = make(&fs, "file");
    for (offset, len) in [(0, 4096), (8192, 12_288), (4096, 1), (5000, 9000), (1 << 20, 1 << 20)] {
        let before = device.seen();
        fs.write(&CX, ino, offset, &vec![7; len], DIRECT).expect("write");
        let after = device.seen();
        assert!(after.0 > before.0, "{offset}, {len}: through");
        assert_eq!(after.1, before.1, "{offset}, {len}: into a cache");
        assert_eq!(stat(&fs, "delta.dirty_bytes"), 0, "{offset}, {len}");
    }
    fs.write(&CX, ino, 100, b"short", PLAIN).expect("write");
    let before = device.seen();
    assert_eq!(stat(&fs, "delta.dirty_bytes"), 4096, "what is not direct waits");
    fs.fsync(ino, false).expect("fsync");
    assert_eq!(device.seen(), (before.0, before.1 + 1));
    close(&device, fs);
}

/// Where nobody can say later what was refused, what somebody asks for and what is long goes
/// through to the device; the writer does not wait for it.
#[test]
fn what_a_device_would_refuse_late_goes_through() {
    let (device, fs) = fresh();
    device.late.store(true, Ordering::SeqCst);
    let ino = make(&fs, "file");
    fs.write(&CX, ino, 0, &vec![1; 300_000], PLAIN).expect("write");
    assert_eq!(device.seen(), (0, 0), "nobody asked for it");
    fs.sync().expect("sync");
    let (through, cached) = device.seen();
    assert!(through > 0 && cached == 0, "{through}, {cached}");
    fs.write(&CX, ino, 0, &[2; 5000], PLAIN).expect("write");
    fs.sync().expect("sync");
    assert_eq!(device.seen(), (through, 1), "one of many, perhaps");
    fs.write(&CX, ino, 0, &[3; 5000], PLAIN).expect("write");
    device.refuse(1);
    assert_eq!(errno(fs.fsync(ino, false)), libc::EIO);
    assert_eq!(device.seen(), (through + 1, 1));
    fs.fsync(ino, false).expect("fsync");
    assert_eq!(device.seen(), (through + 2, 1));
    // A replacement lands before its name, which nobody asked to be durable.
    let (root, new) = (fs.root(), make(&fs, "new"));
    fs.write(&CX, new, 0, &[4; 5000], PLAIN).expect("write");
    fs.rename(&CX, root, b"new", root, b"file", RenameMode::Replace).expect("rename");
    assert_eq!(device.seen(), (through + 2, 2));
    close(&device, fs);
}

/// Stores through a map, and writes with `-o writeback`, come long after their program has gone on, and the kernel
/// drops what is refused: after the one error an fsync that succeeds is one whose content is on the device.
#[test]
fn what_the_kernel_had_in_its_cache_is_kept() {
    let cached = WriteFlags { cached: true, ..PLAIN };
    for (refused, offset, len) in [(1, 0, 1 << 20), (2, 0, 1 << 20), (3, 4000, 300_001)] {
        let (device, fs) = fresh();
        let ino = make(&fs, "file");
        fs.write(&CX, ino, 0, &vec![1; 1 << 20], PLAIN).expect("write");
        fs.fsync(ino, false).expect("fsync");
        device.refuse(refused);
        fs.write(&CX, ino, offset, &vec![2; len], cached).expect("it is kept");
        let mut expected = vec![1; 1 << 20];
        expected[offset as usize..][..len].fill(2);
        assert!(read(&fs, ino) == expected, "{refused}: it can be read");
        let mut told = 0;
        while fs.fsync(ino, false).is_err() {
            told += 1;
            assert!(told <= refused, "{refused}: told again and again");
        }
        assert!(told > 0, "{refused}: nobody was told");
        assert!(after_a_crash(&device, "file") == Some(expected), "{refused}: an fsync lied");
        assert_eq!(errno(fs.sync()), libc::EIO, "once");
        close(&device, fs);
    }
}

/// A file in many pieces, overwritten in order: a write does not pass over all that those before
/// it have taken the place of. And an extent does not grow for ever by it.
#[test]
fn direct_writes_in_order_look_at_what_lies_around_them() {
    const SECTORS: u64 = 1024;
    for flags in [DIRECT, PLAIN] {
        let (device, fs) = fresh();
        let ino = make(&fs, "file");
        for n in 0..SECTORS {
            let sector = n * 389 % SECTORS;
            fs.write(&CX, ino, sector * 4096, &[1; 4096], DIRECT).expect("write");
        }
        fs.sync().expect("sync");
        let (hits, len) = (stat(&fs, "cache.hits"), 128 << 10);
        for round in 0..2 {
            for offset in (0..SECTORS * 4096).step_by(len) {
                fs.write(&CX, ino, offset, &vec![2 + round; len], flags).expect("write");
            }
        }
        let writes = 2 * SECTORS * 4096 / len as u64;
        let each = (stat(&fs, "cache.hits") - hits) / writes;
        assert!(each < 40, "{each} nodes for a write");
        assert!(read(&fs, ino) == vec![3; SECTORS as usize * 4096]);
        close(&device, fs);
    }
}

/// The writer is told, nobody else; what the file had stays, also what was not written yet.
#[test]
fn a_refused_direct_write_changes_nothing_and_ends_nothing() {
    let (device, fs) = fresh();
    let (file, other) = (make(&fs, "file"), make(&fs, "other"));
    let mut content: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
    fs.write(&CX, file, 0, &content, PLAIN).expect("write");
    fs.fsync(file, false).expect("fsync");
    // Dirty, and partly under what comes.
    fs.write(&CX, file, 6000, &[9; 5000], PLAIN).expect("write");
    content[6000..11_000].fill(9);
    for (offset, len) in [(8192, 4096), (7000, 100), (3000, 20_000), (49_000, 8000), (90_000, 10)] {
        device.refuse(1);
        let direct = || fs.write(&CX, file, offset, &vec![1; len], DIRECT);
        assert_eq!(errno(direct()), libc::EIO, "{offset}, {len}");
        assert_eq!(device.refuses.load(Ordering::SeqCst), 0, "it came there");
        assert!(read(&fs, file) == content, "{offset}, {len}");
        assert_eq!(fs.read_only_reason(), None);
        fs.write(&CX, other, 0, &[5; 9000], DIRECT).expect("another file");
        fs.fsync(other, false).expect("another file");
    }
    fs.fsync(file, false).expect("who was told is told once");
    fs.sync().expect("told already");
    assert!(after_a_crash(&device, "file").as_ref() == Some(&content));
    assert!(after_a_crash(&device, "other") == Some(vec![5; 9000]));
    close(&device, fs);
}

/// What is written behind the end of a file is not part of it on the volume until its content is, also where
/// content in front of the end landed before, and more of that has not.
#[test]
fn a_file_is_no_longer_than_what_has_landed() {
    let lzo = Compress { method: Method::parse("lzo").expect("a method"), force: true };
    for compress in [None, Some(lzo)] {
        let device = RefusingDevice::new(base(0).image.clone());
        let fs = mounted(&device, Options { compress, ..base::options() });
        let (file, size) = (make(&fs, "file"), 1 << 20);
        let content: Vec<u8> = (0..size).map(|n| (n / 3) as u8).collect();
        fs.write(&CX, file, 0, &content, PLAIN).expect("write");
        fs.sync().expect("commit");
        for at in [0, 8192, 1 << 20] {
            fs.write(&CX, file, at, &[9; 4096], PLAIN).expect("write");
        }
        device.takes.store(1, Ordering::SeqCst);
        device.refuse(1);
        assert_eq!(errno(fs.sync()), libc::EIO);
        assert_eq!(device.refuses.load(Ordering::SeqCst), 0, "it came there");
        let found = after_a_crash(&device, "file").expect("it is there");
        assert_eq!(found[0], 9, "this was committed");
        let landed = found.len() <= size || found[size..] == [9; 4096];
        assert!(landed, "{} bytes, and zeros at the end", found.len());
        fs.sync().expect("who was told is told once");
        let found = after_a_crash(&device, "file").expect("it is there");
        assert_eq!(found[size..], [9; 4096]);
        close(&device, fs);
    }
}

/// Direct and buffered writes, some of them refused, over files of every kind, and a model.
#[test]
fn direct_and_buffered_writes_agree_with_a_model() {
    for seed in 0..40 {
        let (device, fs) = fresh();
        let ino = make(&fs, "file");
        let mut rng = Rng::new(seed);
        let mut model: Vec<u8> = Vec::new();
        match seed % 4 {
            0 => {}
            // Inline.
            1 => {
                fs.write(&CX, ino, 0, b"a few bytes", PLAIN).expect("write");
                fs.sync().expect("sync");
                model.extend_from_slice(b"a few bytes");
            }
            2 => fs.fallocate(&CX, ino, FallocateMode::KeepSize, 0, 100_000).expect("fallocate"),
            // Without copy on write: what is refused there may be torn, so nothing is.
            _ => fs.set_flags(&CX, ino, 0x0080_0000).expect("chattr +C"),
        }
        let mut refused = 0;
        for step in 0..60 {
            let len = *rng.pick(&[1, 100, 4096, 5000, 8192, 70_000, 140_000]) as usize;
            let offset = match rng.chance(50) {
                true => rng.below(40) * 4096,
                false => rng.below(160_000),
            };
            let direct = rng.chance(60);
            let refuse = direct && seed % 4 != 3 && rng.chance(20);
            device.refuse(u64::from(refuse));
            let flags = if direct { DIRECT } else { PLAIN };
            let data = vec![rng.below(255) as u8 + 1; len];
            let written = fs.write(&CX, ino, offset, &data, flags);
            assert_eq!(errno(written), if refuse { libc::EIO } else { 0 }, "{seed}, {step}");
            refused += u32::from(refuse);
            if !refuse {
                model.resize(model.len().max(offset as usize + len), 0);
                model[offset as usize..offset as usize + len].copy_from_slice(&data);
            }
            if rng.chance(10) {
                fs.fsync(ino, false).expect("fsync");
                assert!(after_a_crash(&device, "file").as_ref() == Some(&model), "{seed}, {step}");
            }
            if rng.chance(10) {
                let size = rng.below(200_000);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(&CX, ino, &set).expect("truncate");
                model.resize(size as usize, 0);
            }
            assert!(read(&fs, ino) == model, "{seed}, {step}: {offset} {len} {direct} {refuse}");
        }
        assert!(refused > 0 || seed % 4 == 3, "or this shows nothing");
        fs.destroy().expect("close");
        drop(fs);
        let image = device.below.image();
        state::check(&image).expect("check");
        let fs = base::mount(Arc::new(SimDevice::new(image))).expect("mount");
        let entry = fs.lookup(&CX, fs.root(), b"file").expect("lookup");
        assert!(read(&fs, entry.attr.ino) == model, "{seed}, later");
    }
}

/// Content that was acknowledged and refused later: each of those who may ask hears of it once,
/// and who hears nothing has what he asked for.
#[test]
fn a_refusal_in_the_background_is_told_to_fsync_and_to_sync() {
    let (device, fs) = fresh();
    let (file, other) = (make(&fs, "file"), make(&fs, "other"));
    fs.write(&CX, file, 0, &[3; 50_000], PLAIN).expect("write");
    device.refuse(1);
    assert_eq!(errno(fs.sync()), libc::EIO);
    assert!(after_a_crash(&device, "file") == Some(vec![]), "its name, and nothing of it");
    assert!(read(&fs, file) == [3; 50_000]);
    fs.write(&CX, other, 0, &[4; 50_000], PLAIN).expect("write");
    fs.sync().expect("now it is all there");
    for (name, byte) in [("file", 3), ("other", 4)] {
        assert!(after_a_crash(&device, name) == Some(vec![byte; 50_000]), "{name}");
    }
    fs.fsync(other, false).expect("nothing of it was refused");
    assert_eq!(errno(fs.fsync(file, false)), libc::EIO, "once");
    fs.fsync(file, false).expect("once only");
    assert_eq!(stat(&fs, "data.refused"), 1);
    close(&device, fs);
}

/// Where openings are told apart, each that was there hears of it once.
#[test]
fn each_opening_hears_of_a_refusal_once() {
    let (device, fs) = fresh();
    let file = make(&fs, "file");
    let [first, second] = [fs.opened(), fs.opened()];
    let asks = |opened| errno(fs.fsync_opened(file, opened, false));
    fs.write(&CX, file, 0, &[3; 50_000], PLAIN).expect("write");
    device.refuse(1);
    assert_eq!([first, first].map(asks), [libc::EIO, 0], "it is told, and written");
    let late = fs.opened();
    assert_eq!([late, second, second, late, first].map(asks), [0, libc::EIO, 0, 0, 0]);
    fs.write(&CX, file, 0, &[4; 50_000], PLAIN).expect("write");
    device.refuse(1);
    assert_eq!(errno(fs.sync()), libc::EIO);
    fs.sync().expect("it is written");
    // Not dropped with what else is as it is on the volume.
    let early = fs.opened();
    assert_eq!([early, early].map(asks), [libc::EIO, 0]);
    assert_eq!(asks(fs.opened()), 0, "opened when it was told");
    assert_eq!(errno(fs.fsync(file, false)), 0, "somebody has heard");
    assert_eq!([first, second, late, first].map(asks), [libc::EIO, libc::EIO, libc::EIO, 0]);
    close(&device, fs);
}

/// Who hears of something else has not heard of it, and may be served once more without a word: a write of a
/// file with `chattr +S` that found no room, an fsync while commits are held.
#[test]
fn a_refusal_is_told_by_its_own_error_alone() {
    const SYNC_FLAG: u32 = 0x8;
    let (device, fs) = fresh();
    let file = make(&fs, "file");
    let refused = |byte: u8| {
        fs.write(&CX, file, 0, &[byte; 50_000], PLAIN).expect("write");
        device.refuse(1);
        assert_eq!(errno(fs.sync()), libc::EIO);
        fs.sync().expect("it is written");
    };
    refused(3);
    fs.hold_commits().expect("held");
    assert_eq!(errno(fs.fsync(file, false)), libc::EBUSY);
    fs.commit_held().expect("committed");
    assert_eq!([(); 2].map(|()| errno(fs.fsync(file, false))), [libc::EIO, 0]);
    refused(4);
    fs.set_flags(&CX, file, SYNC_FLAG).expect("chattr");
    let write = || errno(fs.write(&CX, file, 0, &[5; 50_000], PLAIN));
    fs.space().fail_data(true);
    assert_eq!(write(), libc::ENOSPC);
    fs.space().fail_data(false);
    assert_eq!([write(), write()], [libc::EIO, 0]);
    assert!(after_a_crash(&device, "file") == Some(vec![5; 50_000]));
    close(&device, fs);
}

/// A device that takes no content any more, and all else: the volume goes on, an fsync never
/// succeeds, a rename does not put an empty file in a good one's place, memory has a bound, and
/// the end says what is lost.
#[test]
fn a_device_that_takes_no_content() {
    let options = Options { dirty_bytes: 400_000, ..base::options() };
    let device = RefusingDevice::new(base(0).image.clone());
    let fs = mounted(&device, options);
    let (old, new) = (make(&fs, "old"), make(&fs, "new"));
    fs.write(&CX, old, 0, &[1; 30_000], PLAIN).expect("write");
    fs.sync().expect("sync");
    device.refuse(u64::MAX);
    fs.write(&CX, new, 0, &[2; 30_000], PLAIN).expect("write");
    for _ in 0..3 {
        assert_eq!(errno(fs.fsync(new, false)), libc::EIO);
        assert_eq!(errno(fs.sync()), libc::EIO);
        let root = fs.root();
        let renamed = fs.rename(&CX, root, b"new", root, b"old", RenameMode::Replace);
        assert_eq!(errno(renamed), libc::EIO);
    }
    fs.mkdir(&CX, fs.root(), b"dir", 0o755).expect("mkdir");
    fs.fsync(fs.root(), false).expect("names are no content");
    assert!(after_a_crash(&device, "old") == Some(vec![1; 30_000]));
    assert!(after_a_crash(&device, "new") == Some(vec![]));
    let many: Vec<Ino> = (0..).map_while(|n| fill(&fs, n)).collect();
    let dirty = stat(&fs, "delta.dirty_bytes");
    assert!(many.len() > 5 && dirty < 800_000, "{} files, {dirty} bytes", many.len());
    assert!(read(&fs, many[0]) == [8; 50_000], "nothing was dropped for it");
    for n in 0..=many.len() {
        fs.unlink(&CX, fs.root(), format!("many{n}").as_bytes()).expect("unlink");
        many.get(n).inspect(|ino| fs.forget(**ino, 1));
    }
    assert_eq!(fs.read_only_reason(), None);
    let lost = fs.destroy().expect_err("content is lost").to_string();
    assert!(lost.contains("1 file is lost"), "{lost}");
    drop(fs);
    state::check(&device.below.image()).expect("check");
    device.refuse(0);
    let fs = mounted(&device, base::options());
    let found = fs.lookup(&CX, fs.root(), b"new").expect("lookup").attr.ino;
    assert!(read(&fs, found).is_empty());
    fs.write(&CX, found, 0, &[2; 30_000], PLAIN).expect("write");
    fs.fsync(found, false).expect("fsync");
    close(&device, fs);
}

fn fill(fs: &BtrfsFs, number: u32) -> Option<Ino> {
    let ino = make(fs, &format!("many{number}"));
    match fs.write(&CX, ino, 0, &[8; 50_000], PLAIN) {
        Ok(_) => Some(ino),
        Err(error) => {
            assert_eq!(error.errno(), libc::EIO, "{error}");
            fs.forget(ino, 1);
            None
        }
    }
}

/// The end of a volume is told as EIO once, then as what it is from then on.
#[test]
fn sync_says_eio_before_erofs() {
    use blocksim::{Access, Fault, Span};
    for tell_at_once in [true, false] {
        let device = Arc::new(SimDevice::new(base(0).image.clone()));
        let fs = base::mount(device.clone()).expect("mount");
        let ino = make(&fs, "file");
        let nth = device.counts().flushes;
        device.set_faults(&[Fault { access: Access::Flush, nth, span: Span::Once }]);
        if !tell_at_once {
            assert_ne!(errno(fs.fsync(ino, false)), 0, "the log");
        }
        assert_eq!(
            [fs.sync(), fs.sync(), fs.sync()].map(errno),
            [libc::EIO, libc::EROFS, libc::EROFS]
        );
        assert_ne!(errno(fs.destroy()), 0);
    }
}
