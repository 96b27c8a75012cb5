//! Who remembers attributes is told when they change without a call, and only then; who remembers names, of those that
//! a failed call has made.

use crate::common;
use btrfs_fs::{Caller, Options};
use common::{Image, errno, find};
use std::sync::{Arc, Mutex};
use vfs::{Context, Entry, FileKind, FileSystem, Ino, Observer, WriteFlags};

const SECTOR: usize = 4096;

#[derive(Default)]
struct Heard(Mutex<Vec<Ino>>, Mutex<Vec<(Ino, Vec<u8>)>>);

impl Observer for Heard {
    fn attributes_changed(&self, ino: Ino) {
        self.0.lock().unwrap().push(ino);
    }

    fn name_changed(&self, dir: Ino, name: &[u8]) {
        self.1.lock().unwrap().push((dir, name.to_vec()));
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

/// Its commit finds no room, and a later one has it.
#[test]
fn the_name_of_a_snapshot_that_comes_later_is_told() {
    testkit::require!(btrfs_progs);
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    let heard = Arc::new(Heard::default());
    fs.observe(heard.clone());
    let (root, caller) = (fs.root(), Caller::root());
    let told = || std::mem::take(&mut *heard.1.lock().unwrap());
    let (_, source) = fs.create_subvolume(&caller, root, b"source").unwrap();
    fs.sync().unwrap();
    let snap = || fs.snapshot(&caller, source.attr.ino, root, b"snap", false);
    assert_eq!(find(&fs, root, "snap"), None);
    fs.space().fail_allocations(fs.space().allocations()..u64::MAX);
    assert_eq!(errno(snap()), libc::ENOSPC);
    assert_eq!(told(), [(root, b"snap".to_vec())]);
    fs.space().fail_allocations(0..0);
    fs.sync().unwrap();
    assert!(find(&fs, root, "snap").is_some());
    // Something may be mounted over a name that stays what it was: who forgot it would take that away.
    assert_eq!(errno(snap()), libc::EEXIST);
    assert_eq!(told(), []);
    fs.destroy().unwrap();
}
