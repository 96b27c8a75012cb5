//! What has no name any more stays for who came to it before it was erased, also if he came while the one
//! who erases it waited.

#![allow(dead_code)]

use crate::common;
use blocksim::{GoOn, Hooked, Image, Request, RequestHook, SimDevice};
use btrfs_fs::{BtrfsFs, Options};
use common::CX;
use common::asleep::begun;
use common::places::Places;
use std::sync::Arc;
use vfs::{FileSystem, WriteFlags};

const LEN: usize = 16 * 4096;

#[derive(Default)]
struct Watch(Places);

impl RequestHook for Watch {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        if let (Request::Read { .. }, Some("writer")) = (request, std::thread::current().name()) {
            self.0.pass("read");
        }
        go_on()
    }
}

#[test]
fn who_comes_while_the_eraser_waits_keeps_it() {
    let sim = SimDevice::new(Image::zeros(300 << 20));
    btrfs_image::mkfs::make(&sim, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(Hooked { below: sim, hook: Watch::default() });
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options).expect("mount");
    let ino = common::new_file(&fs, "file", &[1; LEN]);
    fs.sync().expect("sync");
    fs.unlink(&CX, fs.root(), b"file").expect("unlink");
    let places = &device.hook.0;
    places.arm("read");
    let found = std::thread::scope(|scope| {
        let fs = &fs;
        // Not whole sectors: what is around them is read, with the file locked.
        let direct = WriteFlags { direct: true, ..WriteFlags::default() };
        let write = move || fs.write(&CX, ino, 100, &[1; 100], direct).expect("write");
        let writer = std::thread::Builder::new().name("writer".into()).spawn_scoped(scope, write);
        places.wait_until_there("read");
        let forgets = begun(scope, || fs.forget(ino, 1));
        // As who found the name before it went.
        let looks = begun(scope, || fs.lookup(&CX, ino, b"."));
        places.release("read");
        writer.expect("a thread").join().expect("no panic");
        forgets.join().expect("no panic");
        looks.join().expect("no panic")
    });
    assert_eq!(found.expect("it was there").attr.ino, ino);
    let mut content = vec![0; LEN];
    assert_eq!(fs.read(ino, 0, &mut content).expect("it is there still"), LEN);
    assert!(content == [1; LEN]);
    fs.forget(ino, 1);
    assert_eq!(fs.read(ino, 0, &mut content).expect_err("gone").errno(), libc::ESTALE);
    fs.destroy().expect("close");
    drop(fs);
    common::judge_image(&device.below.image());
    common::check_device(device, true, btrfs_check::Severity::Note);
}
