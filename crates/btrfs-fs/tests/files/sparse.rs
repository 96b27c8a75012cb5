//! Files of exabytes, nearly all of which is a hole: what goes through a whole file takes as long as what it has, and
//! what takes long all the same ends where its caller says so.

#![allow(dead_code)]

use crate::common;
use blocksim::{Image, SimDevice};
use btrfs_fs::{BtrfsFs, Defragment, Method, Options, VerityWish};
use btrfs_image::mkfs::MkfsOptions;
use std::sync::Arc;
use vfs::{Errno, FileSystem, Ino, SetAttr};

/// The largest that a file can be, in whole sectors.
const LARGEST: u64 = i64::MAX as u64 / 4096 * 4096;
const PIECE: u64 = 64 << 10;

fn a_volume(no_holes: bool) -> (Arc<SimDevice>, BtrfsFs) {
    let device = Arc::new(SimDevice::new(Image::zeros(300 << 20)));
    let mut options = MkfsOptions::default();
    options.features.no_holes = no_holes;
    btrfs_image::mkfs::make(&*device, &options).expect("mkfs");
    let options = Options { background: false, ..Options::default() };
    (device.clone(), BtrfsFs::open_device(device, options).expect("mount"))
}

/// One with an extent at each end.
fn sparse(fs: &BtrfsFs) -> Ino {
    let ino = common::new_file(fs, "sparse", &[]);
    for at in [0, LARGEST - PIECE] {
        fs.write(&common::CX, ino, at, &[7; PIECE as usize], Default::default()).expect("write");
    }
    fs.sync().expect("sync");
    ino
}

#[test]
fn holes_are_not_gone_through_to_defragment() {
    for no_holes in [true, false] {
        let (device, fs) = a_volume(no_holes);
        let ino = sparse(&fs);
        let wish = Defragment { compress: Method::parse("zlib"), ..Defragment::default() };
        let mut steps = 0;
        let mut count = || {
            steps += 1;
            if steps < 100 { Ok(()) } else { Err(Errno::EINTR.into()) }
        };
        let written = fs.defragment_while(ino, &wish, &mut count).expect("it ends by itself");
        assert_eq!(written, 2 * PIECE, "both pieces, with no_holes {no_holes}");
        assert!((4..20).contains(&steps), "{steps} steps");
        let mut last = [0; 100];
        fs.read(ino, LARGEST - 50, &mut last).expect("read");
        assert_eq!((last[..50].to_vec(), last[50..].to_vec()), (vec![7; 50], vec![0; 50]));
        fs.destroy().expect("close");
        common::check_device(device, true, btrfs_check::Severity::Note);
    }
}

/// At the n-th step, whichever that is.
fn called_away(at: u32) -> impl FnMut() -> vfs::Result<()> {
    let mut steps = 0;
    move || {
        steps += 1;
        if steps < at { Ok(()) } else { Err(Errno::EINTR.into()) }
    }
}

#[test]
fn who_is_called_away_leaves_the_file_as_it_was() {
    let (device, fs) = a_volume(true);
    let ino = sparse(&fs);
    let size = Some(1 << 40);
    fs.setattr(&common::CX, ino, &SetAttr { size, ..SetAttr::default() }).expect("a terabyte");
    let wish = VerityWish::of(1, 4096, b"", b"").expect("SHA-256");
    let refused = fs.enable_verity_while(None, ino, &wish, &mut called_away(3));
    assert_eq!(refused.expect_err("it does not go on").errno(), libc::EINTR);
    fs.write(&common::CX, ino, 0, b"changed", Default::default()).expect("it is not verified");
    let wish = Defragment { compress: Method::parse("zlib"), ..Defragment::default() };
    let refused = fs.defragment_while(ino, &wish, &mut called_away(1));
    assert_eq!(refused.expect_err("it does not go on").errno(), libc::EINTR);
    fs.destroy().expect("close");
    common::check_device(device, true, btrfs_check::Severity::Note);
}
