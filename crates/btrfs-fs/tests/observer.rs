//! Who remembers attributes is told when they change without a call, and only then.

mod common;

use common::Image;
use std::sync::{Arc, Mutex};
use vfs::{Context, Entry, FileKind, FileSystem, Ino, Observer, WriteFlags};

const SECTOR: usize = 4096;

#[derive(Default)]
struct Heard(Mutex<Vec<Ino>>);

impl Observer for Heard {
    fn attributes_changed(&self, ino: Ino) {
        self.0.lock().unwrap().push(ino);
    }
}

impl Heard {
    fn take(&self) -> Vec<Ino> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn block_counts_that_settle_are_told() {
    testkit::require!(btrfs_progs);
    let image = Image::new(512 << 20, &[]);
    let fs = image.open();
    let heard = Arc::new(Heard::default());
    fs.observe(heard.clone());
    let cx = Context::default();
    let make = |name: &[u8]| -> Entry {
        fs.mknod(&cx, fs.root(), name, FileKind::File, 0o644, 0).unwrap()
    };
    let write = |ino: Ino, sectors: usize| {
        let data = vec![1; sectors * SECTOR];
        assert_eq!(fs.write(&cx, ino, 0, &data, WriteFlags::default()).unwrap(), data.len());
    };
    let (asked, unasked) = (make(b"asked").attr.ino, make(b"unasked").attr.ino);
    write(asked, 12);
    write(unasked, 12);
    let told = fs.getattr(asked).unwrap().blocks;
    fs.sync().unwrap();
    // As many as were told; and of the other nobody knows anything after the write.
    assert_eq!(fs.getattr(asked).unwrap().blocks, told);
    assert_eq!(heard.take(), []);

    write(asked, 5);
    write(unasked, 5);
    // What replaces content counts once, written or not.
    assert_eq!(fs.getattr(asked).unwrap().blocks, told);
    fs.sync().unwrap();
    assert_eq!(heard.take(), []);
    assert_eq!(fs.getattr(asked).unwrap().blocks, told);
    write(asked, 15);
    assert_eq!(fs.getattr(asked).unwrap().blocks, told + 3 * 8);
    fs.sync().unwrap();
    assert_eq!(fs.getattr(asked).unwrap().blocks, told + 3 * 8);
    assert_eq!(heard.take(), []);
    fs.destroy().unwrap();
}
