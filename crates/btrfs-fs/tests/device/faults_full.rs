//! fsync where no room is left for what it writes: it commits instead or says ENOSPC, the volume
//! goes on, and no crash loses what was acknowledged before or after.
//!
//! Files are never written over and names never used again, so what must be there follows from
//! the list of what succeeded; the model of the crash tests does not run out of room.

#![allow(dead_code)]

use crate::harness;
use blocksim::{Image, Rng, SimDevice};
use btrfs_fs::BtrfsFs;
use btrfs_image::mkfs::{MkfsOptions, Profile};
use harness::{base, ops, state};
use ops::CX;
use std::sync::Arc;
use vfs::{FallocateMode, FileKind, FileSystem, FsError, Ino, SetAttr, WriteFlags};

const MIB: u64 = 1 << 20;

/// What there is no room for.
#[derive(Clone, Copy, Debug)]
enum Full {
    Data,
    Metadata,
    /// Both are in the same block groups.
    Mixed,
}

impl Full {
    fn mkfs(self) -> (u64, MkfsOptions) {
        let plain = MkfsOptions::default();
        match self {
            Full::Data => (128 * MIB, plain),
            // Less to check, of each crash state.
            Full::Metadata => {
                (80 * MIB, MkfsOptions { metadata_profile: Some(Profile::Single), ..plain })
            }
            Full::Mixed => (24 * MIB, MkfsOptions { mixed: true, ..plain }),
        }
    }
}

/// ENOSPC as `None`, any other error as a panic.
fn room<T>(result: Result<T, FsError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.errno(), libc::ENOSPC, "only ENOSPC: {error}");
            None
        }
    }
}

/// One extent that takes all room for data, but for `left` bytes of it.
fn fill_data(fs: &BtrfsFs, left: u64) {
    let ino = fs.mknod(&CX, fs.root(), b"filler", FileKind::File, 0o644, 0).unwrap().attr.ino;
    let (mut end, mut step) = (0, 16 * MIB);
    while step >= 4096 {
        match room(fs.fallocate(&CX, ino, FallocateMode::Allocate, end, step)) {
            Some(()) => end += step,
            None => step /= 2,
        }
    }
    let size = Some(end.saturating_sub(left));
    fs.setattr(&CX, ino, &SetAttr { size, ..SetAttr::default() }).expect("truncate");
    fs.forget(ino, 1);
}

/// Long symbolic links until there is room for none. A mount finds a little more each time.
fn fill_metadata(fs: &BtrfsFs, turn: u64) {
    let target = vec![b'x'; 3000];
    let made = (0..).take_while(|number| {
        let made = fs.symlink(&CX, fs.root(), &link_name(turn, *number), &target);
        room(made).map(|entry| fs.forget(entry.attr.ino, 1)).is_some()
    });
    assert!(made.count() > 0, "there was no room before");
}

fn link_name(turn: u64, number: u64) -> Vec<u8> {
    format!("link {turn} {number}").into_bytes()
}

fn filled(full: Full, left: u64) -> Image {
    let (size, options) = full.mkfs();
    let device = Arc::new(SimDevice::new(Image::zeros(size)));
    btrfs_image::mkfs::make(&*device, &options).expect("mkfs");
    let fs = base::mount(device.clone()).expect("mount");
    match full {
        Full::Data => fill_data(&fs, left * 16_384),
        Full::Mixed => fill_data(&fs, left * 32_768),
        // So that there is no new block group.
        Full::Metadata => {
            fill_data(&fs, 4 * MIB);
            fill_metadata(&fs, 0);
        }
    }
    fs.destroy().expect("close");
    drop(fs);
    device.image().flatten()
}

fn content(file: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(file as u64 + 1).fill(&mut bytes);
    bytes
}

/// A file, and since which place of the device's record what of it was promised.
#[derive(Default)]
struct File {
    /// What has been written without an error.
    len: usize,
    promised: Vec<(usize, usize)>,
    removing: Option<usize>,
    /// Without an error.
    removed: bool,
    gone: Option<usize>,
}

impl File {
    fn promise(&mut self, at: usize) {
        match (self.removing, self.removed) {
            (None, _) => self.promised.push((at, self.len)),
            (Some(_), true) => self.gone = self.gone.or(Some(at)),
            (Some(_), false) => {}
        }
    }
}

struct Client<'a> {
    fs: &'a BtrfsFs,
    device: &'a SimDevice,
    rng: Rng,
    files: Vec<File>,
    refused: usize,
}

fn name(file: usize) -> Vec<u8> {
    format!("file {file}").into_bytes()
}

impl Client<'_> {
    /// Counts what did not succeed.
    fn room<T>(&mut self, result: Result<T, FsError>) -> Option<T> {
        let done = room(result);
        self.refused += usize::from(done.is_none());
        done
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..5 => drop(self.make()),
            5..7 => drop(self.extend()),
            7..9 => drop(self.remove()),
            _ => self.sync(),
        }
        assert_eq!(self.fs.read_only_reason(), None);
    }

    fn make(&mut self) -> Option<()> {
        let made =
            self.fs.mknod(&CX, self.fs.root(), &name(self.files.len()), FileKind::File, 0o644, 0);
        let ino = self.room(made)?.attr.ino;
        self.files.push(File::default());
        let done = self.write(self.files.len() - 1, ino);
        self.fs.forget(ino, 1);
        done
    }

    fn extend(&mut self) -> Option<()> {
        let (number, ino) = self.any()?;
        let done = self.write(number, ino);
        self.fs.forget(ino, 1);
        done
    }

    /// A file that is there, with a reference.
    fn any(&mut self) -> Option<(usize, Ino)> {
        let there = |(_, file): &(usize, &File)| file.removing.is_none();
        let list: Vec<usize> =
            self.files.iter().enumerate().filter(there).map(|(n, _)| n).collect();
        let number = *list.get(self.rng.below(list.len() as u64) as usize)?;
        let entry = self.fs.lookup(&CX, self.fs.root(), &name(number)).expect("lookup");
        Some((number, entry.attr.ino))
    }

    /// Writes at the end, and asks for an fsync.
    fn write(&mut self, file: usize, ino: Ino) -> Option<()> {
        let (from, len) = (self.files[file].len, *self.rng.pick(&[100, 1500, 9000, 70_000]));
        let data = content(file, from + len);
        let flags = WriteFlags::default();
        let written = self.room(self.fs.write(&CX, ino, from as u64, &data[from..], flags));
        self.files[file].len += written.unwrap_or(0);
        self.room(self.fs.fsync(ino, false))?;
        let at = self.device.position();
        self.files[file].promise(at);
        Some(())
    }

    fn remove(&mut self) -> Option<()> {
        let (number, ino) = self.any()?;
        self.fs.forget(ino, 1);
        self.files[number].removing = Some(self.device.position());
        self.fs.unlink(&CX, self.fs.root(), &name(number)).expect("a removal has room");
        self.files[number].removed = true;
        self.room(self.fs.fsync(self.fs.root(), false))?;
        let at = self.device.position();
        self.files[number].promise(at);
        Some(())
    }

    fn sync(&mut self) {
        if self.room(self.fs.sync()).is_some() {
            let at = self.device.position();
            self.files.iter_mut().for_each(|file| file.promise(at));
        }
    }
}

/// What a volume lacks that was promised when `crash` events had happened.
fn lacking(fs: &BtrfsFs, files: &[File], crash: usize) -> Vec<String> {
    let lacks = |(number, file): (usize, &File)| {
        let found = fs.lookup(&CX, fs.root(), &name(number));
        if file.gone.is_some_and(|at| at <= crash) {
            return found.is_ok().then(|| format!("file {number} is there again"));
        }
        let promised = file.promised.iter().rev().find(|(at, _)| *at <= crash);
        let (Some((_, len)), false) = (promised, file.removing.is_some_and(|at| at <= crash))
        else {
            return None;
        };
        let mut seen = vec![0; *len];
        let read = found.and_then(|entry| fs.read(entry.attr.ino, 0, &mut seen));
        match read {
            Ok(read) if read == *len && seen == content(number, *len) => None,
            other => Some(format!("file {number} of {len} bytes: {other:?}")),
        }
    };
    files.iter().enumerate().filter_map(lacks).collect()
}

/// What happened where.
#[derive(Default, Debug)]
struct Seen {
    refused: usize,
    commits_instead: u64,
    states: usize,
    promises: usize,
}

fn run(full: Full, left: u64, seed: u64, seen: &mut Seen) {
    let device = Arc::new(SimDevice::new(filled(full, left)));
    let fs = base::mount(device.clone()).expect("mount");
    if let Full::Metadata = full {
        fill_metadata(&fs, 1);
        let unlink = |number| fs.unlink(&CX, fs.root(), &link_name(0, number)).expect("unlink");
        (0..4 * left).for_each(unlink);
    }
    let mut client =
        Client { fs: &fs, device: &device, rng: Rng::new(seed), files: Vec::new(), refused: 0 };
    (0..40).for_each(|_| client.step());
    let Client { files, refused, .. } = client;
    seen.refused += refused;
    seen.promises += files.iter().map(|f| f.promised.len() + f.gone.iter().len()).sum::<usize>();
    let counted = fs.stats().into_iter().find(|stat| stat.name == "log.fallback_commits");
    seen.commits_instead += counted.expect("a counter").value;
    drop(fs);
    for epoch in device.recording().epochs() {
        for choice in epoch.choices(2, seed) {
            let image = epoch.image(&choice);
            let told = format!("{full:?}, {left} left, seed {seed}, before flush {}", epoch.index);
            seen.states += 1;
            state::check(&image).unwrap_or_else(|why| panic!("{told}: {why}"));
            let device = Arc::new(SimDevice::new(image));
            let fs = base::mount(device.clone()).unwrap_or_else(|e| panic!("{told}: mount: {e}"));
            assert_eq!(lacking(&fs, &files, epoch.end), Vec::<String>::new(), "{told}");
            fs.destroy().expect("close");
            state::check(&device.image()).unwrap_or_else(|why| panic!("{told}, after: {why}"));
        }
    }
}

/// Some find no room and some do; `instead`: fsyncs commit where the log finds none.
fn each(full: Full, instead: bool, lefts: &[u64]) {
    let mut seen = Seen::default();
    for (seed, left) in lefts.iter().copied().enumerate() {
        run(full, left, seed as u64, &mut seen);
    }
    println!("{full:?}: {seen:?}");
    assert!(seen.refused > 0 && seen.promises > 0, "{full:?}: {seen:?}");
    assert!(!instead || seen.commits_instead > 0, "{full:?}: {seen:?}");
}

#[test]
fn no_room_for_data() {
    each(Full::Data, false, &[0, 1, 2, 4, 8, 16]);
}

#[test]
fn no_room_for_metadata() {
    // There is much to check in each state.
    each(Full::Metadata, true, &[0, 1]);
}

#[test]
fn no_room_in_a_mixed_volume() {
    each(Full::Mixed, true, &[0, 1, 2, 4, 8, 16]);
}
