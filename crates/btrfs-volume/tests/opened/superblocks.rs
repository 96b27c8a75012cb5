//! Superblock copies that do not all say the same: what is written to mend them, in which
//! order, and that nothing is where nothing may be. What wins is in `device/repair.rs`.

use crate::common;
use blockdev::{FileDevice, Sticky};
use blocksim::{GoOn, Hooked, Request, RequestHook};
use btrfs_disk::superblock::SUPER_SIZE;
use btrfs_disk::{Error, Generation, Superblock};
use btrfs_volume::{OpenOptions, Volume};
use common::*;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const FIRST: u64 = 64 << 10;
const SECOND: u64 = 64 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// Where, and the generation.
    Super(u64, u64),
    Other(u64),
    Flush,
}
use Event::{Flush, Super};

/// A device that notes what is written.
#[derive(Default)]
struct Noting(Mutex<Vec<Event>>);

impl Noting {
    fn open(path: &Path) -> Arc<Hooked<Arc<FileDevice>, Noting>> {
        Arc::new(Hooked { below: device(path), hook: Noting::default() })
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().expect("events"))
    }
}

impl RequestHook for Noting {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let event = match request {
            Request::Write { offset, pieces } => {
                match Superblock::parse(&pieces.concat(), offset) {
                    Ok(sb) => Super(offset, sb.generation().0),
                    Err(_) => Event::Other(offset),
                }
            }
            Request::Flush => Flush,
            _ => return go_on(),
        };
        self.0.lock().expect("events").push(event);
        go_on()
    }
}

/// A fresh volume, and its generation.
fn fresh(scratch: &Scratch) -> (PathBuf, u64) {
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    let generation = super_at(&path, FIRST).generation().0;
    (path, generation)
}

fn super_at(path: &Path, at: u64) -> Superblock {
    Superblock::parse(&read_bytes(path, at, SUPER_SIZE), at).expect("valid copy")
}

/// True if the copies say the same but for what each says of itself.
fn equal(path: &Path) -> bool {
    let mut second = super_at(path, SECOND);
    let first = super_at(path, FIRST);
    (second.fields.csum, second.fields.bytenr) = (first.fields.csum, first.fields.bytenr);
    first == second
}

/// What is written to mend the copy at `at`: the first one comes once more, when that is durable.
fn mended(at: u64, generation: u64) -> [Event; 5] {
    [Flush, Super(at, generation), Flush, Super(FIRST, generation), Flush]
}

type Harm = fn(&Path, u64);

/// What may have become of one copy. Not of the first one: to miss is to be wiped there.
const HARMS: &[(&str, Harm)] = &[
    ("damaged", |path, at| flip(path, at + 300)),
    ("older", |path, at| edit_super(path, at, |sb| sb.fields.generation.0 -= 1)),
    ("other log", |path, at| edit_super(path, at, |sb| sb.fields.log_root = sb.fields.root)),
    ("foreign", |path, at| {
        edit_super(path, at, |sb| {
            sb.fields.fsid = [7; 16];
            sb.fields.generation = Generation(1 << 40);
        });
    }),
    ("missing", |path, at| write_bytes(path, at, &[0; SUPER_SIZE])),
];

#[test]
fn a_second_copy_that_says_something_else_is_mended_on_request() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for (name, harm) in HARMS {
        let (path, generation) = fresh(&scratch);
        harm(&path, SECOND);
        let dev = Noting::open(&path);
        let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
        assert_eq!(dev.hook.take(), [], "{name}: opening alone writes nothing");
        volume.mend_superblocks().expect("mended");
        assert_eq!(dev.hook.take(), mended(SECOND, generation), "{name}");
        assert_eq!(volume.counters().superblock_repairs, 1);
        assert!(equal(&path), "{name}");
        volume.mend_superblocks().expect("nothing left to mend");
        assert_eq!(dev.hook.take(), [], "{name}");
    }
}

#[test]
fn a_damaged_or_older_first_copy_is_mended_alone() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for (name, harm) in &HARMS[..2] {
        let (path, generation) = fresh(&scratch);
        harm(&path, FIRST);
        let dev = Noting::open(&path);
        let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
        volume.mend_superblocks().expect("mended");
        // The second one may be all there is until the first is durable.
        assert_eq!(dev.hook.take(), [Flush, Flush, Super(FIRST, generation), Flush], "{name}");
        assert!(equal(&path), "{name}");
    }
}

/// Were the first one torn, the volume would fall back to a state whose nodes are gone.
#[test]
fn a_commit_mends_the_others_before_it_writes_over_the_first() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for log in [false, true] {
        let (path, generation) = fresh(&scratch);
        edit_super(&path, SECOND, |sb| sb.fields.generation.0 -= 1);
        let dev = Noting::open(&path);
        let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
        let mut next = (*volume.superblock()).clone();
        next.fields.generation.0 += u64::from(!log);
        let written = next.generation().0;
        let write = || match log {
            false => volume.commit_superblock(next.clone()),
            true => volume.write_log_root(next.fields.root, 0),
        };
        write().expect("written");
        let own = [Super(FIRST, written), Flush, Super(SECOND, written)];
        let all = [&mended(SECOND, generation)[..], &own].concat();
        assert_eq!(dev.hook.take(), all, "log: {log}");
        write().expect("written");
        assert_eq!(dev.hook.take(), own, "log: {log}");
    }
}

#[test]
fn equal_copies_and_volumes_that_must_not_be_written_stay_untouched() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let (path, _) = fresh(&scratch);
    let dev = Noting::open(&path);
    let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
    volume.mend_superblocks().expect("nothing to mend");
    assert_eq!((dev.hook.take(), volume.counters().superblock_repairs), (vec![], 0));
    drop((volume, dev));

    // Wiped: its place may be another's now. And a feature that is not maintained.
    let harms: [Harm; 2] = [
        |path, at| write_bytes(path, at, &[0; SUPER_SIZE]),
        |path, at| edit_super(path, at, |sb| sb.fields.compat_ro_flags |= 1 << 40),
    ];
    for harm in harms {
        let (path, _) = fresh(&scratch);
        harm(&path, FIRST);
        let dev = Noting::open(&path);
        let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
        assert!(matches!(volume.mend_superblocks(), Err(Error::ReadOnly(_))));
        assert_eq!(dev.hook.take(), []);
    }
}

/// Neither reads nor writes the place of the second copy, as long as that is so.
struct BadSector(AtomicBool);

impl RequestHook for BadSector {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let (at, len) = match request {
            Request::Read { offset, len } => (offset, len as u64),
            Request::Write { offset, pieces } => {
                (offset, pieces.iter().map(|piece| piece.len() as u64).sum())
            }
            _ => return go_on(),
        };
        if self.0.load(Ordering::SeqCst) && at < SECOND + 4096 && SECOND < at + len {
            return Err(io::Error::from_raw_os_error(5));
        }
        go_on()
    }
}

/// The kernel goes on as long as it can write the first one.
#[test]
fn a_second_copy_that_the_device_refuses_is_done_without() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let (path, _) = fresh(&scratch);
    let bad = BadSector(AtomicBool::new(true));
    let below = Sticky::new(device(&path));
    let dev = Arc::new(Sticky::new(Hooked { below, hook: bad }));
    let commit = |volume: &Volume| {
        let mut next = (*volume.superblock()).clone();
        next.fields.generation.0 += 1;
        volume.write_log_root(next.fields.root, 0).expect("a log");
        volume.commit_superblock(next.clone()).expect("a commit");
        assert_eq!(super_at(&path, FIRST).generation(), next.generation());
        assert_ne!(super_at(&path, SECOND).generation(), next.generation());
    };
    for round in 0..2 {
        let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
        volume.mend_superblocks().expect("the first one is right");
        commit(&volume);
        commit(&volume);
        let counted = volume.counters();
        // Each commit and each log make one try, and the mount its own.
        assert_eq!((counted.write_errors, counted.superblock_repairs), (5, 0), "round {round}");
    }
    let volume = Volume::open(dev.clone(), OpenOptions::default()).expect("opens");
    commit(&volume);
    dev.device().hook.0.store(false, Ordering::SeqCst);
    volume.write_log_root(volume.superblock().fields.root, 0).expect("a log");
    assert!(equal(&path), "the next one is there again");
}
