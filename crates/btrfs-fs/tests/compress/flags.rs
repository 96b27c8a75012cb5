//! What a file's flags say of compression when its content is written back is what counts: not what they said when
//! somebody compressed it beforehand, nor what the mount said when it began.

use crate::common;
use btrfs_fs::{BtrfsFs, Compress, Defragment, Method, Options};
use common::{CX, Image, close_and_judge, new_file, stat};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vfs::{FileSystem, Ino, SetAttr};

const NOCOW: u32 = 0x0080_0000;
const COMPRESS: u32 = 0x4;

fn method(text: &str) -> Method {
    Method::parse(text).expect("a method")
}

/// No commit comes by itself.
fn options(compress: Option<&str>) -> Options {
    let compress = compress.map(|text| Compress { method: method(text), force: false });
    Options { background: false, compress, ..Options::default() }
}

fn text(size: usize) -> Vec<u8> {
    let line = |i: usize| format!("line {i} of {}\n", i.wrapping_mul(i * 31)).into_bytes();
    (0..).flat_map(line).take(size).collect()
}

/// A volume with a file of `content`, which `compressor` is to compress.
struct World {
    image: Image,
    fs: BtrfsFs,
    ino: Ino,
    content: Vec<u8>,
}

/// While `compressor` is at work, the file becomes another one that has the same content without checksums: what it
/// has is not compressed then. How long he is at work, an undisturbed run tells; one that is ready before the file is
/// another one has more to do at the next attempt.
fn is_not_compressed(world: impl Fn(Vec<u8>) -> World, compressor: impl Fn(&World) + Sync) {
    for size in [8 << 20, 32 << 20, 128 << 20] {
        let content = text(size);
        let undisturbed = world(content.clone());
        let begin = Instant::now();
        compressor(&undisturbed);
        let third = begin.elapsed() / 3;
        assert!(stat(&undisturbed.fs, "data.compressed_extents") > 0);
        drop(undisturbed);
        let world = world(content);
        if becomes_nocow(&world, third, || compressor(&world)) {
            return nothing_is_compressed(world);
        }
    }
    panic!("this machine compresses too fast for this test");
}

/// False: `compressor` was ready before.
fn becomes_nocow(world: &World, soon: Duration, compressor: impl FnOnce() + Send) -> bool {
    let (World { fs, ino, content, .. }, ready) = (world, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            compressor();
            ready.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(soon);
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        fs.setattr(&CX, *ino, &empty).expect("truncate");
        fs.set_flags(&CX, *ino, NOCOW).expect("chattr +C");
        for (at, part) in (0..).step_by(64 << 10).zip(content.chunks(64 << 10)) {
            fs.write(&CX, *ino, at, part, Default::default()).expect("write");
        }
        !ready.load(Ordering::SeqCst)
    })
}

fn has(fs: &BtrfsFs, ino: Ino, expected: &[u8]) {
    let mut content = vec![0; expected.len()];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), expected.len());
    assert!(content == expected);
}

fn nothing_is_compressed(World { image, fs, ino, content }: World) {
    fs.sync().expect("sync");
    assert_eq!(stat(&fs, "data.compressed_extents"), 0);
    has(&fs, ino, &content);
    close_and_judge(&image, fs);
}

fn world(compress: Option<&str>, content: Vec<u8>) -> World {
    let image = Image::new(1 << 30, &[]);
    let fs = image.open_with(options(compress));
    let ino = new_file(&fs, "file", &content);
    World { image, fs, ino, content }
}

#[test]
fn what_has_no_checksums_by_now_is_not_compressed_at_a_sync() {
    is_not_compressed(|content| world(Some("zstd:15"), content), |w| w.fs.sync().expect("sync"));
}

#[test]
fn what_has_no_checksums_by_now_is_not_compressed_by_defragment() {
    let synced = |content| {
        let world = world(None, content);
        world.fs.sync().expect("sync");
        world
    };
    let wish = Defragment { compress: Some(method("zstd:15")), ..Defragment::default() };
    is_not_compressed(synced, |w| _ = w.fs.defragment(w.ino, &wish));
}

/// `chattr +c` writes down what the mount compresses with at that moment.
#[test]
fn a_file_that_is_to_be_compressed_is_so_as_the_mount_says_by_now() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open_with(options(Some("lzo")));
    let says = |name: &str| {
        let ino = new_file(&fs, name, b"");
        fs.set_flags(&CX, ino, COMPRESS).expect("chattr +c");
        fs.getxattr(ino, b"btrfs.compression").expect("a property")
    };
    assert_eq!(says("first"), b"lzo");
    fs.set_compression(Some(Compress { method: method("zstd:3"), force: false }));
    assert_eq!(says("second"), b"zstd");
    fs.set_compression(None);
    assert_eq!(says("third"), b"zlib");
    close_and_judge(&image, fs);
}
