//! What a file's flags say of compression when its content is written back is what counts: not what they said when
//! somebody compressed it beforehand, nor what the mount said when it began.

mod common;

use btrfs_fs::{BtrfsFs, Compress, Defragment, Method, Options};
use common::{CX, Image, close_and_judge, new_file, stat};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
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

/// The slowest method has some seconds of work with it.
fn text() -> Vec<u8> {
    let line = |i: usize| format!("line {i} of {}\n", i.wrapping_mul(i * 31)).into_bytes();
    (0..).flat_map(line).take(8 << 20).collect()
}

/// While `compressor` is at work on the content of `ino`, the file becomes another one that has the same content
/// without checksums. False: he was ready before.
fn becomes_nocow(fs: &BtrfsFs, ino: Ino, content: &[u8], compressor: impl FnOnce() + Send) -> bool {
    let ready = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            compressor();
            ready.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(300));
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        fs.setattr(&CX, ino, &empty).expect("truncate");
        fs.set_flags(&CX, ino, NOCOW).expect("chattr +C");
        for (at, part) in (0..).step_by(64 << 10).zip(content.chunks(64 << 10)) {
            fs.write(&CX, ino, at, part, Default::default()).expect("write");
        }
        !ready.load(Ordering::SeqCst)
    })
}

fn has(fs: &BtrfsFs, ino: Ino, expected: &[u8]) {
    let mut content = vec![0; expected.len()];
    assert_eq!(fs.read(ino, 0, &mut content).expect("read"), expected.len());
    assert!(content == expected);
}

fn nothing_is_compressed(image: &Image, fs: BtrfsFs, ino: Ino, content: &[u8]) {
    fs.sync().expect("sync");
    assert_eq!(stat(&fs, "data.compressed_extents"), 0);
    has(&fs, ino, content);
    close_and_judge(image, fs);
}

#[test]
fn what_has_no_checksums_by_now_is_not_compressed_at_a_sync() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(options(Some("zstd:15")));
    let content = text();
    let ino = new_file(&fs, "file", &content);
    let met = becomes_nocow(&fs, ino, &content, || fs.sync().expect("sync"));
    assert!(met, "this machine compresses too fast for this test");
    nothing_is_compressed(&image, fs, ino, &content);
}

#[test]
fn what_has_no_checksums_by_now_is_not_compressed_by_defragment() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(options(None));
    let content = text();
    let ino = new_file(&fs, "file", &content);
    fs.sync().expect("sync");
    let wish = Defragment { compress: Some(method("zstd:15")), ..Defragment::default() };
    let met = becomes_nocow(&fs, ino, &content, || _ = fs.defragment(ino, &wish));
    assert!(met, "this machine compresses too fast for this test");
    nothing_is_compressed(&image, fs, ino, &content);
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
