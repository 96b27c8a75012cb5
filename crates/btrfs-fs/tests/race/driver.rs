//! Threads that do at random what can be done to files, all of them to the same few.
//!
//! Each call is noted with its time, and what it changed or saw (`history`). An error that is not
//! expected of a call ends the test.

use super::history::{CELL, CELLS, Event, File, What, content, values};
use crate::common::CX;
use btrfs_disk::compress::{Encoded, compress};
use btrfs_disk::items::Compression;
use btrfs_fs::{BtrfsFs, Defragment, Method, VerityWish};
use fs_verity::{HashAlgorithm, Params};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, RwLock};
use testkit::ops::Rng;
use vfs::{
    FallocateMode, FileKind, FileSystem, Ino, RenameMode, Result, SeekWhence, SetAttr, WriteFlags,
};

/// A place for a file. Whoever looks there may still be at work on one that was there before.
#[derive(Clone, Debug)]
pub struct Slot {
    pub ino: Ino,
    pub file: File,
    /// In which directory it has a name; none, once it has lost it.
    pub dir: Ino,
    pub name: String,
}

pub struct World<'f> {
    pub fs: &'f BtrfsFs,
    pub slots: Vec<RwLock<Slot>>,
    /// Numbers that are held, to be forgotten in the end.
    pub held: Mutex<Vec<Ino>>,
    pub clock: AtomicU64,
    pub stamps: AtomicU64,
    pub files: AtomicU32,
    pub names: AtomicU32,
    pub events: Mutex<Vec<Event>>,
    pub done: AtomicBool,
    pub seed: u64,
    /// Subvolumes are deleted: their files go away under those who use them.
    pub goes: bool,
}

const FS_COMPR: u32 = 0x4;
const FS_NOCOMP: u32 = 0x400;
const FS_NOCOW: u32 = 0x80_0000;

impl<'f> World<'f> {
    pub fn new(fs: &'f BtrfsFs, dirs: &[Ino], seed: u64, goes: bool) -> World<'f> {
        let world = World {
            fs,
            slots: Vec::new(),
            held: Mutex::default(),
            clock: AtomicU64::new(1),
            stamps: AtomicU64::new(1),
            files: AtomicU32::new(0),
            names: AtomicU32::new(0),
            events: Mutex::default(),
            done: AtomicBool::new(false),
            seed,
            goes,
        };
        let slots =
            dirs.iter().map(|dir| RwLock::new(world.new_file(*dir, 0).expect("a file"))).collect();
        World { slots, ..world }
    }

    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    /// None: the directory is gone.
    pub fn new_file(&self, dir: Ino, flags: u32) -> Option<Slot> {
        let file = self.files.fetch_add(1, SeqCst);
        let name = format!("file{}", self.names.fetch_add(1, SeqCst));
        let made = self.fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
        let ino = self.check(made, &[], "create")?.attr.ino;
        self.held.lock().unwrap().push(ino);
        let number = file.to_le_bytes();
        let marked = self.fs.setxattr(&CX, ino, b"user.file", &number, vfs::XattrMode::Create);
        self.check(marked, &[], "mark")?;
        if flags != 0 {
            self.check(self.fs.set_flags(&CX, ino, flags), &[], "flags of a new file")?;
        }
        Some(Slot { ino, file, dir, name })
    }

    /// Until the threads have ended.
    pub fn meanwhile(&self, mut work: impl FnMut()) {
        while !self.done.load(SeqCst) {
            work();
        }
    }

    /// `work` says whether what it did is sure.
    pub fn note(
        &self,
        log: &mut Vec<Event>,
        name: &'static str,
        work: impl FnOnce() -> Option<(What, bool)>,
    ) {
        let start = self.tick();
        let done = work();
        let end = self.tick();
        if let Some((what, sure)) = done {
            log.push(Event { name, start, end, what, sure });
        }
    }

    pub fn read_whole(&self, log: &mut Vec<Event>, name: &'static str, ino: Ino, file: File) {
        self.note(log, name, || Some((self.read(ino, file, 0..CELLS)?, true)));
    }

    fn read(&self, ino: Ino, file: File, cells: Range<u32>) -> Option<What> {
        let mut buf = vec![0xa5; (u64::from(cells.end - cells.start) * CELL) as usize];
        let offset = u64::from(cells.start) * CELL;
        let read = self.check(self.fs.read(ino, offset, &mut buf), &[], "read")?;
        buf[read..].fill(0);
        let values = values(&buf).unwrap_or_else(|at| {
            let at = cells.start + at as u32;
            panic!("seed {}: two values in cell {at} of file {file} (inode {ino:?})", self.seed)
        });
        Some(What::Read { file, first: cells.start, values })
    }

    /// None: refused as is expected.
    fn check<T>(&self, result: Result<T>, expected: &[i32], what: &str) -> Option<T> {
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        let errno = error.errno();
        let gone = self.goes && [libc::ENOENT, libc::ESTALE, libc::EROFS].contains(&errno);
        assert!(expected.contains(&errno) || gone, "seed {}: {what}: {error:?}", self.seed);
        None
    }
}

/// One thread.
pub struct Actor<'w, 'f> {
    pub world: &'w World<'f>,
    pub rng: Rng,
    pub log: Vec<Event>,
}

/// A file does not change any more, or is about to be so.
const STAYS: &[i32] = &[libc::EPERM, libc::ETXTBSY];

impl Actor<'_, '_> {
    pub fn run(mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
        self.world.events.lock().unwrap().append(&mut self.log);
    }

    /// What began at `start` has ended; it changed nothing that can be read.
    fn beside(&mut self, name: &'static str, start: u64, file: File, cells: Range<u32>) {
        let (end, what) = (self.world.tick(), What::Beside { file, cells });
        self.log.push(Event { name, start, end, what, sure: true });
    }

    fn slot(&mut self) -> (usize, Slot) {
        let at = self.rng.below(self.world.slots.len() as u64) as usize;
        (at, self.world.slots[at].read().unwrap().clone())
    }

    fn cells(&mut self) -> Range<u32> {
        let start = match self.rng.below(4) {
            0 => self.rng.below(u64::from(CELLS)),
            1 => self.rng.below(8) * 4,
            _ => self.rng.below(64),
        };
        let len = match self.rng.below(8) {
            0 => 128 + self.rng.below(400),
            1..=3 => 4 * (1 + self.rng.below(16)),
            _ => 1 + self.rng.below(12),
        };
        start as u32..(start + len).min(u64::from(CELLS)) as u32
    }

    fn sectors(&mut self) -> Range<u32> {
        let cells = self.cells();
        cells.start / 4 * 4..cells.end.next_multiple_of(4)
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..22 => self.write(),
            22..30 => self.encoded(),
            30..50 => self.read(),
            50..56 => self.truncate(),
            56..66 => self.fallocate(),
            66..72 => self.clone_range(),
            72..77 => self.copy(),
            77..81 => self.defragment(),
            81..84 => self.flags(),
            84..88 => self.seek(),
            88..91 => self.fsync(),
            91..94 => self.look(),
            94..98 => self.names(),
            98 => self.verity(),
            _ => self.anew(),
        }
    }

    fn write(&mut self) {
        let (_, slot) = self.slot();
        let cells = if self.rng.chance(50) { self.cells() } else { self.sectors() };
        let flags = WriteFlags {
            direct: self.rng.chance(33),
            sync: self.rng.chance(3),
            ..WriteFlags::default()
        };
        let world = self.world;
        let stamp = world.stamps.fetch_add(1, SeqCst);
        let data = content(stamp, cells.clone());
        let name = if flags.direct { "direct write" } else { "write" };
        world.note(&mut self.log, name, || {
            let offset = u64::from(cells.start) * CELL;
            let done = world.fs.write(&CX, slot.ino, offset, &data, flags);
            let written = world.check(done, STAYS, name);
            assert!(written.is_none_or(|n| n == data.len()), "written in part");
            Some((What::Put { file: slot.file, cells, stamp }, written.is_some()))
        });
    }

    fn encoded(&mut self) {
        let (_, slot) = self.slot();
        let cells = if self.rng.chance(25) { 0..1 } else { self.sectors() };
        let cells = cells.start..cells.end.min(cells.start + 124);
        let skip = if cells.end - cells.start > 4 { 4 * self.rng.below(2) } else { 0 };
        let world = self.world;
        let stamp = world.stamps.fetch_add(1, SeqCst);
        let whole = cells.start as u64..cells.end as u64;
        let data = content(stamp, cells.clone());
        let kinds = [Compression::Zlib, Compression::Lzo, Compression::Zstd];
        let kind = kinds[self.rng.below(3) as usize];
        let Some(stream) = compress(kind, 3, 4096, &data, data.len()) else { return };
        let part = skip * CELL..(whole.end - whole.start) * CELL;
        let mut room = Vec::new();
        let decoded = Encoded::decode(kind, 4096, &stream, (part.end, part), &mut room);
        let encoded = decoded.expect("our own stream");
        let cells = cells.start + skip as u32..cells.end;
        let (start, same, file) = (world.tick(), cells.clone(), slot.file);
        let refused = Cell::new(false);
        world.note(&mut self.log, "encoded write", || {
            let done = world.fs.write_encoded(slot.ino, u64::from(cells.start) * CELL, &encoded);
            let put = What::Put { file: slot.file, cells, stamp };
            match world.check(done, STAYS, "encoded write") {
                Some(false) => {
                    refused.set(true);
                    None
                }
                done => Some((put, done.is_some())),
            }
        });
        if refused.get() {
            self.beside("encoded", start, file, same);
        }
    }

    fn read(&mut self) {
        let (_, slot) = self.slot();
        let cells = if self.rng.chance(13) { 0..CELLS } else { self.cells() };
        let world = self.world;
        world.note(&mut self.log, "read", || Some((world.read(slot.ino, slot.file, cells)?, true)));
    }

    fn truncate(&mut self) {
        let (_, slot) = self.slot();
        let to = match self.rng.below(4) {
            0 => self.rng.below(3),
            1 => self.rng.below(64),
            _ => self.rng.below(u64::from(CELLS)),
        };
        let world = self.world;
        let set = SetAttr { size: Some(to * CELL), ..SetAttr::default() };
        world.note(&mut self.log, "truncate", || {
            let done = world.check(world.fs.setattr(&CX, slot.ino, &set), STAYS, "truncate");
            let put = What::Put { file: slot.file, cells: to as u32..CELLS, stamp: 0 };
            Some((put, done.is_some()))
        });
    }

    fn fallocate(&mut self) {
        let (_, slot) = self.slot();
        let cells = self.cells();
        let keep_size = self.rng.chance(50);
        let mode = match self.rng.below(4) {
            0 => FallocateMode::Allocate,
            1 => FallocateMode::KeepSize,
            2 => FallocateMode::PunchHole,
            _ => FallocateMode::ZeroRange { keep_size },
        };
        let start = self.world.tick();
        let zeros = matches!(mode, FallocateMode::PunchHole | FallocateMode::ZeroRange { .. });
        let world = self.world;
        let (at, len) = (u64::from(cells.start) * CELL, (cells.end - cells.start) as u64 * CELL);
        world.note(&mut self.log, if zeros { "zeros" } else { "allocate" }, || {
            let done = world.fs.fallocate(&CX, slot.ino, mode, at, len);
            let done = world.check(done, STAYS, "fallocate");
            zeros.then_some((
                What::Put { file: slot.file, cells: cells.clone(), stamp: 0 },
                done.is_some(),
            ))
        });
        if !zeros {
            self.beside("allocate", start, slot.file, cells);
        }
    }

    /// Source and target, ranges of the same length.
    fn pair(&mut self, aligned: bool) -> (Slot, Slot, u32, u32, u32) {
        let (source, target) = (self.slot().1, self.slot().1);
        let cells = if aligned { self.sectors() } else { self.cells() };
        let to = if aligned { self.sectors().start } else { self.cells().start };
        let count = (cells.end - cells.start).min(CELLS - to);
        (source, target, cells.start, to, count)
    }

    fn clone_range(&mut self) {
        let (source, target, mut from, mut to, mut count) = self.pair(true);
        let (world, some) = (self.world, self.rng.chance(33));
        // To the end of the source, wherever that is now.
        let attr = world.check(world.fs.getattr(source.ino), &[], "getattr");
        let Some(attr) = attr else { return };
        let size = (attr.size / CELL) as u32;
        let to_end = self.rng.chance(50) && size > 0;
        if to_end {
            from = self.rng.below(u64::from(size)) as u32 / 4 * 4;
            count = size - from;
            to = if self.rng.chance(50) { from } else { to.min((CELLS - count) / 4 * 4) };
        }
        if count == 0 {
            return;
        }
        let (at, into) = (u64::from(from) * CELL, u64::from(to) * CELL);
        let len = u64::from(count) * CELL;
        let start = world.tick();
        let refused = Cell::new(false);
        world.note(&mut self.log, if some { "clone some" } else { "clone" }, || {
            let done = match some {
                true => world.fs.clone_some((source.ino, at), (target.ino, into), len),
                false => {
                    world.fs.clone_range(&CX, source.ino, at, target.ino, into, len).map(|()| len)
                }
            };
            let expected = [STAYS, &[libc::EINVAL, libc::EXDEV]].concat();
            let Some(done) = world.check(done, &expected, "clone") else {
                refused.set(true);
                return None;
            };
            let count = (done / CELL) as u32;
            Some((What::Copy { from: (source.file, from), to: (target.file, to), count }, true))
        });
        if refused.get() {
            self.beside("clone refused", start, target.file, to..to + count);
        }
    }

    fn copy(&mut self) {
        let aligned = self.rng.chance(67);
        let (source, target, from, to, count) = self.pair(aligned);
        let world = self.world;
        world.note(&mut self.log, "copy", || {
            let (at, into) = (u64::from(from) * CELL, u64::from(to) * CELL);
            let len = u64::from(count) * CELL;
            let done = world.fs.copy_range(&CX, source.ino, at, target.ino, into, len);
            let expected = [STAYS, &[libc::EINVAL]].concat();
            let done = world.check(done, &expected, "copy");
            let sure = done.is_some();
            let count = done.map_or(count, |done| (done / CELL) as u32);
            Some((What::Copy { from: (source.file, from), to: (target.file, to), count }, sure))
        });
    }

    fn defragment(&mut self) {
        let (_, slot) = self.slot();
        let methods = ["zlib", "lzo", "zstd"];
        let method = methods[self.rng.below(3) as usize];
        let compress = self.rng.chance(33).then(|| method_of(method));
        let wish = Defragment { compress, unshare: self.rng.chance(33), ..Defragment::default() };
        let start = self.world.tick();
        let done = self.world.fs.defragment(slot.ino, &wish);
        self.world.check(done, STAYS, "defragment");
        let name = if compress.is_some() { "compress" } else { "defragment" };
        self.beside(name, start, slot.file, 0..CELLS);
    }

    fn flags(&mut self) {
        let (_, slot) = self.slot();
        let flags = [0, FS_COMPR, FS_NOCOMP][self.rng.below(3) as usize];
        self.beside("flags", self.world.tick(), slot.file, 0..CELLS);
        let done = self.world.fs.set_flags(&CX, slot.ino, flags);
        self.world.check(done, &[libc::EINVAL], "flags");
    }

    /// Where there is a hole are zeros.
    fn seek(&mut self) {
        let (_, slot) = self.slot();
        let at = self.cells().start;
        let (world, offset) = (self.world, u64::from(at) * CELL);
        let whence = if self.rng.chance(50) { SeekWhence::Hole } else { SeekWhence::Data };
        world.note(&mut self.log, "seek", || {
            let found = match world.fs.seek(slot.ino, offset, whence) {
                Err(error) if error.errno() == libc::ENXIO => None,
                found => Some(world.check(found, &[], "seek")?),
            };
            let cells = match (whence, found) {
                (SeekWhence::Hole, Some(found)) => {
                    let hole = found.div_ceil(CELL) as u32;
                    hole..(hole + 1).min(CELLS)
                }
                // Nothing but holes from here on.
                (SeekWhence::Data, None) => at..CELLS,
                (SeekWhence::Data, Some(found)) => at..(found / CELL) as u32,
                (SeekWhence::Hole, None) => return None,
            };
            let values = vec![0; cells.len()];
            Some((What::Read { file: slot.file, first: cells.start, values }, true))
        });
    }

    fn fsync(&mut self) {
        let (_, slot) = self.slot();
        let start = self.world.tick();
        let done = self.world.fs.fsync(slot.ino, self.rng.chance(50));
        self.world.check(done, &[], "fsync");
        self.beside("fsync", start, slot.file, 0..CELLS);
    }

    /// Questions that change nothing.
    fn look(&mut self) {
        let (_, slot) = self.slot();
        let (world, fs) = (self.world, self.world.fs);
        match self.rng.below(4) {
            0 => drop(world.check(fs.stored(slot.ino), &[], "stored")),
            1 => drop(world.check(fs.getattr(slot.ino), &[], "getattr")),
            2 => {
                let names = world.check(fs.listxattr(slot.ino), &[], "listxattr");
                let Some(names) = names else { return };
                assert!(names.iter().any(|name| name == b"user.file"), "an attribute that stays");
            }
            _ => {
                let value = (self.rng.next_u64() as u32)
                    .to_le_bytes()
                    .repeat(1 + self.rng.below(200) as usize);
                let done = fs.setxattr(&CX, slot.ino, b"user.other", &value, vfs::XattrMode::Set);
                world.check(done, &[], "setxattr");
            }
        }
    }

    /// Another name for the file, of which it has one alone.
    fn names(&mut self) {
        let at = self.rng.below(self.world.slots.len() as u64) as usize;
        let world = self.world;
        let mut slot = world.slots[at].write().unwrap();
        let name = format!("name{}", world.names.fetch_add(1, SeqCst));
        let mode = if self.rng.chance(50) { RenameMode::Replace } else { RenameMode::NoReplace };
        let (old, new) = (slot.name.as_bytes(), name.as_bytes());
        let done = match self.rng.chance(50) {
            true => world.fs.rename(&CX, slot.dir, old, slot.dir, new, mode),
            false => world.fs.link(&CX, slot.ino, slot.dir, new).and_then(|_| {
                world.held.lock().unwrap().push(slot.ino);
                world.fs.unlink(&CX, slot.dir, old)
            }),
        };
        if world.check(done, &[], "another name").is_some() {
            slot.name = name;
        }
    }

    fn verity(&mut self) {
        let (_, slot) = self.slot();
        if self.rng.chance(50) {
            let params = Params::new(HashAlgorithm::Sha256, 4096, b"").expect("allowed");
            let wish = VerityWish { params, signature: Vec::new() };
            let done = self.world.fs.enable_verity(None, slot.ino, &wish);
            let expected = [libc::EEXIST, libc::EBUSY, libc::EPERM, libc::ETXTBSY];
            self.world.check(done, &expected, "verity");
        }
    }

    /// Another file in the place of this one, which goes.
    fn anew(&mut self) {
        let flags = if self.rng.chance(25) { FS_NOCOW } else { 0 };
        let at = self.rng.below(self.world.slots.len() as u64) as usize;
        let world = self.world;
        let mut slot = world.slots[at].write().unwrap();
        let Some(new) = world.new_file(slot.dir, flags) else { return };
        let done = match self.rng.chance(50) {
            true => world.fs.unlink(&CX, slot.dir, slot.name.as_bytes()).map(|()| new),
            false => {
                let (from, to) = (new.name.as_bytes(), slot.name.as_bytes());
                let moved = world.fs.rename(&CX, slot.dir, from, slot.dir, to, RenameMode::Replace);
                let name = slot.name.clone();
                moved.map(|()| Slot { name, ..new })
            }
        };
        if let Some(new) = world.check(done, &[], "a file in another's place") {
            *slot = new;
        }
    }
}

fn method_of(text: &str) -> Method {
    Method::parse(text).expect("a method")
}
