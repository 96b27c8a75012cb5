//! What gives space back works on the fullest of volumes: one that the kernel filled to its last byte, with nodes
//! that a snapshot shares.

use crate::common;
use btrfs_fs::BtrfsFs;
use common::kernel::{btrfs, kernel};
use common::{CX, Image, close_and_judge, find, read};
use std::path::Path;
use testkit::oracle::KernelMount;
use vfs::{FallocateMode, FileSystem, SetAttr};

const MIB: u64 = 1 << 20;
const FILES: usize = 30;

/// Content of a file of `fill`.
fn content(n: usize) -> Vec<u8> {
    vec![n as u8 + 1; 20_000]
}

fn fill(mount: &KernelMount) {
    btrfs(mount, &["subvolume", "create", "/sub"]);
    for n in 0..FILES {
        let (dir, file) = (mount.join(&format!("sub/d{n}")), mount.join(&format!("sub/d{n}/file")));
        std::fs::create_dir(dir).expect("mkdir");
        std::fs::write(&file, content(n)).expect("write");
        let path = file.to_string_lossy().into_owned();
        testkit::oracle::sh("setfattr", &["-n", "user.one", "-v", "two", &path]).expect("setfattr");
    }
    sync(mount.path());
    btrfs(mount, &["subvolume", "snapshot", "/sub", "/snap"]);
    let full = |n: usize| std::fs::write(mount.join(&format!("sub/x{n}")), [7; 1800]).is_err();
    let made = (0..1_000_000).find(|n| full(*n)).expect("it gets full");
    sync(mount.path());
    let full = |n: &usize| std::fs::write(mount.join(&format!("y{n}")), [7; 10]).is_err();
    println!("{made} files, and {} more", (0..1000).find(full).expect("it is full"));
    sync(mount.path());
}

fn sync(dir: &Path) {
    testkit::oracle::sh("sync", &["-f", &dir.to_string_lossy()]).expect("sync");
}

fn shorten(fs: &BtrfsFs, ino: vfs::Ino, size: u64) -> vfs::Result<()> {
    fs.setattr(&CX, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

#[test]
fn a_volume_that_the_kernel_filled_can_be_emptied_in_every_way() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(64 * MIB, &["--mixed"]);
    kernel(&image.path, "noatime", fill);
    type Way = (&'static str, fn(&BtrfsFs, vfs::Ino) -> vfs::Result<()>, fn(&mut Vec<u8>));
    let ways: [Way; 4] = [
        ("cut", |fs, ino| shorten(fs, ino, 0), |content| content.clear()),
        ("shorten", |fs, ino| shorten(fs, ino, 8192), |content| content.truncate(8192)),
        (
            "punch",
            |fs, ino| fs.fallocate(&CX, ino, FallocateMode::PunchHole, 4096, 16_384),
            |content| content[4096..].fill(0),
        ),
        ("xattr", |fs, ino| fs.removexattr(&CX, ino, b"user.one"), |_| ()),
    ];
    // Each is the first on a volume of its own, and goes on with the files behind it.
    for (name, way, expected) in ways {
        let copy = image.copy(name);
        let fs = copy.open();
        let sub = find(&fs, fs.root(), "sub").expect("there");
        for n in 0..FILES {
            let dir = find(&fs, sub, &format!("d{n}")).expect("there");
            let ino = find(&fs, dir, "file").expect("there");
            way(&fs, ino).unwrap_or_else(|error| panic!("{name} of file {n}: {error}"));
            let mut wanted = content(n);
            expected(&mut wanted);
            assert!(read(&fs, dir, "file") == wanted, "{name} of file {n}");
            [ino, dir].into_iter().for_each(|ino| fs.forget(ino, 1));
        }
        fs.forget(sub, 1);
        close_and_judge(&copy, fs);
    }
}
