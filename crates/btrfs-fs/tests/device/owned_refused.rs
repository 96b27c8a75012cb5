//! Writes into space that a file has already, on full volumes whose device refuses some of it: who is told, what stays,
//! and what is kept.

use crate::common;
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_fs::{BtrfsFs, Caller, Options};
use btrfs_space::{MetadataReservation, Priority};
use common::full::{BUFFERED, CACHED, DIRECT, MIB, NOCOW, fill};
use common::{CX, Cached, Image, close_and_judge, errno, find, new_file, open_device};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::{FallocateMode, FileSystem, Ino};

const REFUSED: u8 = 0xee;

/// Refuses sectors full of `REFUSED`, so often.
#[derive(Default)]
struct Refuses(AtomicU64);

impl RequestHook for Refuses {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let Request::Write { pieces, .. } = request else { return go_on() };
        let mut sectors = pieces.iter().flat_map(|piece| piece.chunks_exact(4096));
        let left = |n: u64| n.checked_sub(1);
        if sectors.any(|sector| sector == [REFUSED; 4096])
            && self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok()
        {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        go_on()
    }
}

/// A full volume on a device that may refuse something, and a file that `make` made.
fn full(image: &Image, make: fn(&BtrfsFs) -> Ino) -> (Arc<Hooked<Cached, Refuses>>, BtrfsFs, Ino) {
    let below = Cached(open_device(&image.path, false));
    let device = Arc::new(Hooked { below, hook: Refuses::default() });
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("open");
    let ino = make(&fs);
    assert_eq!(fill(&fs), libc::ENOSPC);
    (device, fs, ino)
}

/// It has space for `MIB` bytes in as many items as there can be: it is written in steps.
fn nocow(fs: &BtrfsFs) -> Ino {
    let ino = new_file(fs, "file", &[]);
    fs.set_flags(&CX, ino, NOCOW).expect("chattr +C");
    fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, MIB).expect("room");
    for at in (0..MIB).step_by(8192) {
        fs.write(&CX, ino, at, &[7; 4096], DIRECT).expect("room");
    }
    ino
}

/// So has this one, and once only.
fn preallocated(fs: &BtrfsFs) -> Ino {
    let ino = new_file(fs, "file", &[]);
    for at in (0..MIB).step_by(4096) {
        fs.fallocate(&CX, ino, FallocateMode::Allocate, at, 4096).expect("room");
    }
    ino
}

/// The kernel looks at no count of what it sends out of its cache: all is written, or it hears an error, and all
/// that has its place and is not refused stays. Who waits for the answer hears of the front.
#[test]
fn of_what_comes_out_of_the_cache_no_front_alone_is_an_answer() {
    testkit::require!(kernel_btrfs);
    let (len, from, to) = (MIB as usize, 40 * 4096, 48 * 4096);
    let refused = [vec![5; from], vec![REFUSED; to - from], vec![5; len - to]].concat();
    for (flags, times, written) in [
        (CACHED, u64::MAX, Ok(len)),
        (CACHED, 1, Ok(len)),
        (BUFFERED, u64::MAX, Ok(from)),
        (DIRECT, u64::MAX, Err(libc::EIO)),
    ] {
        let what = format!("{flags:?}, refused {times} times");
        let image = Image::new(256 * MIB, &[]);
        let (device, fs, ino) = full(&image, nocow);
        let before = common::read(&fs, fs.root(), "file");
        device.hook.0.store(times, Ordering::SeqCst);
        let told = fs.write(&CX, ino, 0, &refused, flags).map_err(|error| error.errno());
        assert_eq!(told, written, "{what}");
        assert_ne!(device.hook.0.load(Ordering::SeqCst), times, "{what}: it came there");
        let mut expected = refused.clone();
        if flags != CACHED {
            expected[from..to].copy_from_slice(&before[from..to]);
        }
        let content = common::read(&fs, fs.root(), "file");
        let stays = if flags == CACHED { len } else { from };
        assert!(content[..stays] == expected[..stays], "{what}");
        device.hook.0.store(0, Ordering::SeqCst);
        drop(device);
        close_and_judge(&image, fs);
    }
}

/// What one try has written is not what another lacks.
#[test]
fn what_is_preallocated_takes_content_once_however_often_it_is_tried() {
    testkit::require!(kernel_btrfs);
    let (len, from, to) = (MIB as usize, 40 * 4096, 48 * 4096);
    let content = [vec![5; from], vec![REFUSED; to - from], vec![5; len - to]].concat();
    for (flags, times, written) in [
        (DIRECT, 1, Ok(len)),
        (DIRECT, u64::MAX, Err(libc::EIO)),
        (BUFFERED, 1, Ok(from)),
        (CACHED, 1, Ok(len)),
        (CACHED, u64::MAX, Ok(len)),
    ] {
        let what = format!("{flags:?}, refused {times} times");
        let image = Image::new(256 * MIB, &[]);
        let (device, fs, ino) = full(&image, preallocated);
        device.hook.0.store(times, Ordering::SeqCst);
        let told = fs.write(&CX, ino, 0, &content, flags).map_err(|error| error.errno());
        assert_eq!(told, written, "{what}");
        assert_ne!(device.hook.0.load(Ordering::SeqCst), times, "{what}: it came there");
        let stays = written.unwrap_or(from);
        let back = common::read(&fs, fs.root(), "file");
        assert!(back[..stays] == content[..stays], "{what}");
        device.hook.0.store(0, Ordering::SeqCst);
        drop(device);
        close_and_judge(&image, fs);
    }
}

/// As on any volume: it can be read, each writeback tries again, and an fsync that succeeds is one whose content is on
/// the device.
#[test]
fn what_the_kernel_had_in_its_cache_is_kept_on_a_full_volume() {
    testkit::require!(kernel_btrfs);
    for make in [nocow, preallocated] {
        let image = Image::new(256 * MIB, &[]);
        let (device, fs, ino) = full(&image, make);
        let content = [vec![5; 100_000], vec![REFUSED; 100_001], vec![6; 100_000]].concat();
        let at = 4000;
        device.hook.0.store(u64::MAX, Ordering::SeqCst);
        fs.write(&CX, ino, at, &content, CACHED).expect("it is kept");
        let back = || common::read(&fs, fs.root(), "file")[at as usize..][..content.len()].to_vec();
        assert!(back() == content);
        let dirty = common::stat(&fs, "delta.dirty_bytes");
        assert!((100_000..200_000).contains(&dirty), "{dirty} bytes in memory");
        for _ in 0..2 {
            assert_eq!(errno(fs.fsync(ino, false)), libc::EIO);
        }
        assert_eq!(errno(fs.sync()), libc::EIO);
        assert!(back() == content);
        device.hook.0.store(0, Ordering::SeqCst);
        let told = [(); 2].map(|()| errno(fs.fsync(ino, false)));
        assert_eq!(told, [libc::EIO, 0], "that of the sync");
        assert_eq!(common::stat(&fs, "delta.dirty_bytes"), 0);
        assert!(back() == content);
        drop(device);
        close_and_judge(&image, fs);
        let fs = image.open();
        assert!(common::read(&fs, fs.root(), "file")[at as usize..][..content.len()] == content);
        fs.destroy().expect("close");
    }
}

/// No space is reserved for it beside the file's own, and it gives none back.
#[test]
fn what_is_kept_for_a_files_own_space_takes_no_room_from_others() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let (device, fs, ino) = full(&image, |fs| {
        new_file(fs, "little", &[8; 60_000]);
        preallocated(fs)
    });
    device.hook.0.store(u64::MAX, Ordering::SeqCst);
    fs.write(&CX, ino, 0, &[REFUSED; 100_000], CACHED).expect("it is kept");
    let little = find(&fs, fs.root(), "little").expect("there");
    fs.unlink(&CX, fs.root(), b"little").expect("unlink");
    fs.forget(little, 2);
    assert_eq!(errno(fs.sync()), libc::EIO);
    let other = new_file(&fs, "other", &[9; 40_000]);
    device.hook.0.store(0, Ordering::SeqCst);
    assert_eq!([(); 2].map(|()| errno(fs.fsync(ino, false))), [libc::EIO, 0]);
    let more = new_file(&fs, "more", &[]);
    let refused = (0..).find(|n| fs.write(&CX, more, n * 4096, &[1; 4096], DIRECT).is_err());
    assert!(refused.is_some_and(|n| n < 20), "{refused:?} more");
    fs.fsync(other, false).expect("it has its room");
    drop(device);
    close_and_judge(&image, fs);
}

/// It lands in the file's own space while that is not a snapshot's, too: behind that it would take what is reserved
/// for others.
#[test]
fn what_is_kept_for_a_files_own_space_takes_no_room_from_others_where_a_snapshot_is_made() {
    testkit::require!(kernel_btrfs);
    const LEN: u64 = 40_960;
    let image = Image::new(256 * MIB, &[]);
    let (device, fs, ino) = full(&image, |fs| {
        new_file(fs, "little", &[8; LEN as usize]);
        preallocated(fs)
    });
    device.hook.0.store(u64::MAX, Ordering::SeqCst);
    fs.write(&CX, ino, 0, &[REFUSED; LEN as usize], CACHED).expect("it is kept");
    let little = find(&fs, fs.root(), "little").expect("there");
    fs.unlink(&CX, fs.root(), b"little").expect("unlink");
    fs.forget(little, 2);
    assert_eq!(errno(fs.sync()), libc::EIO);
    let other = new_file(&fs, "other", &[9; LEN as usize]);
    let make = || fs.snapshot(&Caller::root(), fs.root(), fs.root(), b"snapshot", true);
    assert_eq!(make().expect_err("it would not have what it refuses").errno(), libc::EIO);
    device.hook.0.store(0, Ordering::SeqCst);
    make().expect("a snapshot");
    fs.fsync(other, false).expect("it has its room");
    assert_eq!(common::stat(&fs, "delta.dirty_bytes"), 0);
    assert_eq!([(); 2].map(|()| errno(fs.fsync(ino, false))), [libc::EIO, 0]);
    drop(device);
    close_and_judge(&image, fs);
    let fs = image.open();
    let content = [vec![REFUSED; LEN as usize], vec![0; (MIB - LEN) as usize]].concat();
    assert!(common::read(&fs, fs.root(), "file") == content);
    assert!(common::read(&fs, fs.root(), "other") == [9; LEN as usize]);
    fs.destroy().expect("close");
}

/// All metadata that ordinary operations could still have.
fn all_ordinary(fs: &BtrfsFs) -> MetadataReservation {
    let reserve = |bytes| fs.space().reserve_metadata(bytes, Priority::Normal);
    let mut all = reserve(0).expect("nothing");
    for bytes in [1 << 20, 1 << 12] {
        while let Ok(more) = reserve(bytes) {
            all.absorb(more);
        }
    }
    all
}

/// Where there is no room for what it would need of the trees it is told at once, and keeps no other part from its
/// place.
#[test]
fn what_could_not_land_is_not_kept() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 * MIB, &[]);
    let (device, fs, ino) = full(&image, |fs| {
        let ino = new_file(fs, "file", &[]);
        for at in (0..MIB).step_by(8192) {
            fs.fallocate(&CX, ino, FallocateMode::Allocate, at, 4096).expect("room");
        }
        ino
    });
    let rest = all_ordinary(&fs);
    device.hook.0.store(u64::MAX, Ordering::SeqCst);
    let sectors = [5, 0, 5, 0, REFUSED, 0, 5, 0].repeat(8);
    let content =
        |sectors: &[u8]| sectors.iter().flat_map(|byte| [*byte; 4096]).collect::<Vec<_>>();
    assert_eq!(errno(fs.write(&CX, ino, 0, &content(&sectors), CACHED)), libc::EIO);
    let stays = [5, 0, 5, 0, 0, 0, 5, 0].repeat(8);
    assert!(common::read(&fs, fs.root(), "file").starts_with(&content(&stays)));
    drop((device, rest));
    close_and_judge(&image, fs);
}

/// The kernel takes any count for all of it: a front is no answer, and what is behind a refused part has its place.
#[test]
fn a_front_is_no_answer_where_the_rest_cannot_be_kept() {
    testkit::require!(kernel_btrfs);
    for make in [nocow, preallocated] {
        let image = Image::new(256 * MIB, &[]);
        let (device, fs, ino) = full(&image, make);
        let before = common::read(&fs, fs.root(), "file");
        let rest = all_ordinary(&fs);
        device.hook.0.store(u64::MAX, Ordering::SeqCst);
        let (from, to, len) = (40 * 4096, 48 * 4096, 80 * 4096);
        let content = [vec![5; from], vec![REFUSED; to - from], vec![6; len - to]].concat();
        assert_eq!(errno(fs.write(&CX, ino, 0, &content, CACHED)), libc::EIO);
        let expected = [&content[..from], &before[from..to], &content[to..]].concat();
        assert!(common::read(&fs, fs.root(), "file").starts_with(&expected));
        drop((device, rest));
        close_and_judge(&image, fs);
    }
}
