//! Volumes to be filled: sizes, formats, and what is on them before.
//!
//! It knows how to make a volume, and not what fills it.

use crate::common::Image;
use crate::common::kernel::{btrfs, kernel};
use blocksim::SimDevice;
use btrfs_fs::{BtrfsFs, Options};
use std::sync::{Arc, OnceLock};
use testkit::ops::Rng;
use vfs::{Context, FallocateMode, FileKind, FileSystem, WriteFlags};

const MIB: u64 = 1 << 20;
const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
/// Files of "base", whose nodes snapshots share.
const OLD: u64 = 3000;
/// What is preallocated lies there.
const TAKEN: &[u8] = b"taken";

/// What a volume has before it is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    Nothing,
    /// Files that three snapshots share with "old", made by the kernel; large and small.
    Snapshots,
    /// Free space in pieces of a few sectors: small files to the end, and every other one gone.
    Fragments,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    mib: u64,
    mkfs: &'static [&'static str],
    /// Preallocated before, so that a small part of the volume has to be filled.
    taken_mib: u64,
    delta_mib: u64,
    /// Steps between calls of `sync`; 0: none.
    pub sync_every: u64,
    pub before: Before,
}

const PLAIN: Shape = Shape {
    mib: 128,
    mkfs: &[],
    taken_mib: 0,
    delta_mib: 256,
    sync_every: 0,
    before: Before::Nothing,
};

/// Of `SHAPES` those from here on take long.
pub const LONG: usize = 10;

pub const SHAPES: [Shape; 13] = [
    PLAIN,
    Shape { mkfs: &["-m", "single"], ..PLAIN },
    Shape { mib: 64, mkfs: &["--mixed"], ..PLAIN },
    Shape { mkfs: &["-n", "4096"], ..PLAIN },
    Shape { delta_mib: 4, ..PLAIN },
    Shape { mib: 200, sync_every: 5000, ..PLAIN },
    Shape { mib: 200, mkfs: &["-n", "65536", "-m", "single"], ..PLAIN },
    Shape { mib: 160, mkfs: &["--mixed", "-m", "dup", "-d", "dup"], ..PLAIN },
    Shape { mib: 200, before: Before::Snapshots, ..PLAIN },
    Shape { mib: 160, before: Before::Fragments, ..PLAIN },
    Shape { mib: 512, ..PLAIN },
    Shape { mib: 1024, ..PLAIN },
    Shape { mib: 2048, sync_every: 100_000, ..PLAIN },
];

const LITTLE: Shape = Shape { mib: 96, mkfs: &["-m", "single"], taken_mib: 76, ..PLAIN };

/// The same, each with so little room that it is full within seconds.
pub const SMALL: [Shape; LONG] = [
    Shape { mib: 112, taken_mib: 24, ..PLAIN },
    LITTLE,
    // The superblock is there twice.
    Shape { mib: 80, mkfs: &["--mixed"], taken_mib: 64, ..PLAIN },
    Shape { mkfs: &["-n", "4096", "-m", "single"], ..LITTLE },
    Shape { delta_mib: 1, ..LITTLE },
    Shape { sync_every: 500, ..LITTLE },
    Shape { taken_mib: 74, mkfs: &["-n", "65536", "-m", "single"], ..LITTLE },
    Shape { mib: 160, mkfs: &["--mixed", "-m", "dup", "-d", "dup"], taken_mib: 64, ..PLAIN },
    Shape { mib: 128, taken_mib: 84, before: Before::Snapshots, ..LITTLE },
    Shape { before: Before::Fragments, ..LITTLE },
];

/// Large chunks, and not much to fill.
pub const HALF_GIB: Shape = Shape { mib: 512, taken_mib: 340, ..PLAIN };

/// A volume as it is before it is filled.
pub struct Base {
    pub image: blocksim::Image,
    /// Blocks that were free on it when it was new.
    pub free: u64,
}

/// Of `SMALL` by number, made once.
pub fn small_base(number: usize) -> &'static Base {
    static BASES: [OnceLock<Base>; LONG] = [const { OnceLock::new() }; LONG];
    BASES[number].get_or_init(|| SMALL[number].base())
}

impl Shape {
    /// Blocks that an emptied volume may have in use beside a new one: each of the trees of files,
    /// extents and free space may stay in two leaves and a root, if one shrank to little and
    /// the other then to just above a quarter, below which a leaf looks for a neighbour.
    pub fn stays(&self) -> u64 {
        let words = self.mkfs.windows(2).find(|words| words[0] == "-n");
        let mixed = if self.mkfs.contains(&"--mixed") { 4096 } else { 16384 };
        let node = words.map_or(mixed, |words| words[1].parse().expect("bytes"));
        let copies = 2;
        3 * 2 * copies * node / 4096
    }

    /// With what is on it before.
    pub fn image(&self) -> Image {
        let image = Image::new(self.mib * MIB, self.mkfs);
        if self.before == Before::Snapshots {
            share(&image, self.old());
        }
        let fs = self.open(&image);
        take(&fs, self.taken_mib * MIB);
        if self.before == Before::Fragments {
            fragment(&fs);
        }
        fs.destroy().expect("close");
        image
    }

    /// Files that snapshots share.
    fn old(&self) -> u64 {
        if self.taken_mib > 0 { OLD / 5 } else { OLD }
    }

    /// The same in memory.
    pub fn base(&self) -> Base {
        let image = Image::new(self.mib * MIB, self.mkfs);
        if self.before == Before::Snapshots {
            share(&image, self.old());
        }
        let device = blocksim::Image::import(&image.path).expect("read the image");
        let device = Arc::new(SimDevice::new(device));
        let fs = self.mount(device.clone());
        let free = fs.statfs().expect("statfs").blocks_free;
        take(&fs, self.taken_mib * MIB);
        if self.before == Before::Fragments {
            fragment(&fs);
        }
        fs.destroy().expect("close");
        drop(fs);
        Base { image: device.image().flatten(), free }
    }

    fn options(&self) -> Options {
        let delta_bytes = self.delta_mib * MIB;
        Options { background: false, delta_bytes, ..Options::default() }
    }

    pub fn open(&self, image: &Image) -> BtrfsFs {
        image.open_with(self.options())
    }

    pub fn mount(&self, device: Arc<SimDevice>) -> BtrfsFs {
        BtrfsFs::open_device(device, self.options()).expect("mount")
    }

    /// Directories of the root that no filler works in.
    pub fn others(&self) -> &'static [&'static [u8]] {
        match self.before {
            Before::Nothing => &[],
            Before::Snapshots => &[b"snapshot-0", b"snapshot-1", b"snapshot-2"],
            Before::Fragments => &[b"fragments"],
        }
    }
}

fn share(image: &Image, files: u64) {
    kernel(&image.path, "noatime", |mount| {
        btrfs(mount, &["subvolume", "create", "/base"]);
        let mut rng = Rng::new(7);
        for number in 0..files {
            let len = if number % (files / 6) == 0 { 2 * MIB } else { 1 + rng.below(5000) };
            let mut content = vec![0; len as usize];
            rng.fill(&mut content);
            let name = mount.path().join("base").join(number.to_string());
            std::fs::write(name, content).expect("write");
        }
        for number in 0..3 {
            let to = format!("/snapshot-{number}");
            btrfs(mount, &["subvolume", "snapshot", "/base", &to]);
        }
    });
}

/// A directory with so much content.
fn take(fs: &BtrfsFs, len: u64) {
    if len == 0 {
        return;
    }
    let dir = fs.mkdir(&CX, fs.root(), TAKEN, 0o755).expect("mkdir").attr.ino;
    let ino = fs.mknod(&CX, dir, b"all", FileKind::File, 0o644, 0).expect("mknod").attr.ino;
    fs.fallocate(&CX, ino, FallocateMode::Allocate, 0, len).expect("fallocate");
    fs.forget(ino, 1);
    fs.forget(dir, 1);
}

fn fragment(fs: &BtrfsFs) {
    let mut rng = Rng::new(9);
    let dir = fs.mkdir(&CX, fs.root(), b"fragments", 0o755).expect("mkdir").attr.ino;
    let content = vec![7; 3 * 4096];
    let mut number = 0;
    while let Ok(entry) = fs.mknod(&CX, dir, &name(number), FileKind::File, 0o644, 0) {
        number += 1;
        let len = 4096 * (1 + rng.below(3)) as usize;
        let written = fs.write(&CX, entry.attr.ino, 0, &content[..len], WriteFlags::default());
        fs.forget(entry.attr.ino, 1);
        if written.is_err() {
            break;
        }
    }
    for number in (0..number).step_by(2) {
        fs.unlink(&CX, dir, &name(number)).expect("unlink");
    }
    fs.forget(dir, 1);
}

fn name(number: u64) -> Vec<u8> {
    format!("{number}").into_bytes()
}
