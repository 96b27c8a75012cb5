//! Volumes to be filled: sizes, formats, and what is on them before.
//!
//! It knows how to make a volume, and not what fills it.

use crate::common::Image;
use crate::common::kernel::{btrfs, kernel};
use btrfs_fs::{BtrfsFs, Options};
use testkit::ops::Rng;
use vfs::{Context, FileKind, FileSystem, WriteFlags};

const MIB: u64 = 1 << 20;
const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
/// Files of "old", whose nodes snapshots share.
pub const OLD: u64 = 3000;

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
    delta_mib: u64,
    /// Steps between calls of `sync`; 0: none.
    pub sync_every: u64,
    pub before: Before,
}

const PLAIN: Shape =
    Shape { mib: 128, mkfs: &[], delta_mib: 256, sync_every: 0, before: Before::Nothing };

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
    // What takes long, by hand.
    Shape { mib: 256, ..PLAIN },
    Shape { mib: 1024, ..PLAIN },
    Shape { mib: 2048, sync_every: 100_000, ..PLAIN },
];

impl Shape {
    pub fn image(&self) -> Image {
        let image = Image::new(self.mib * MIB, self.mkfs);
        match self.before {
            Before::Nothing => {}
            Before::Snapshots => share(&image),
            Before::Fragments => fragment(&self.open(&image)),
        }
        image
    }

    pub fn open(&self, image: &Image) -> BtrfsFs {
        let delta_bytes = self.delta_mib * MIB;
        image.open_with(Options { background: false, delta_bytes, ..Options::default() })
    }
}

fn share(image: &Image) {
    kernel(&image.path, "noatime", |mount| {
        btrfs(mount, &["subvolume", "create", "/base"]);
        let mut rng = Rng::new(7);
        for number in 0..OLD {
            let len = if number % 500 == 0 { 2 * MIB } else { 1 + rng.below(5000) };
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
    fs.destroy().expect("close");
}

fn name(number: u64) -> Vec<u8> {
    format!("{number}").into_bytes()
}
