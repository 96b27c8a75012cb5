//! The allocator refuses the memory of an inode: ENOMEM for the caller, before anything is changed.
//!
//! [unsafe] A global allocator that says no.

mod common;

use btrfs_fs::Options;
use common::{CX, Image, close_and_judge};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use vfs::{FileKind, FileSystem, Ino, RenameMode};

struct Refusing;

thread_local! {
    /// What this thread does not get.
    static REFUSED: Cell<Option<Layout>> = const { Cell::new(None) };
}

// SAFETY: the system's allocator, or nothing, which whoever asked must expect.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if REFUSED.try_with(Cell::get).ok().flatten() == Some(layout) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: of `alloc`, so of the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// What `work` answers without memory for an inode.
fn refused<T>(work: impl FnOnce() -> vfs::Result<T>) -> i32 {
    REFUSED.set(Some(btrfs_fs::inode_layout()));
    let answer = work();
    REFUSED.set(None);
    answer.map_or_else(|error| error.errno(), |_| 0)
}

#[test]
fn who_gets_no_memory_for_an_inode_is_told() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let options = Options { background: false, ..Options::default() };
    let fs = image.open_with(options.clone());
    let root = fs.root();
    let make = |name: &[u8]| fs.mknod(&CX, root, name, FileKind::File, 0o644, 0);
    make(b"kept").expect("create");
    fs.sync().expect("commit");
    let move_away = || fs.rename(&CX, root, b"kept", root, b"moved", RenameMode::Whiteout);
    let attempts: [&dyn Fn() -> vfs::Result<()>; 5] = [
        &|| make(b"new").map(drop),
        &|| fs.mkdir(&CX, root, b"new", 0o755).map(drop),
        &|| fs.symlink(&CX, root, b"new", b"target").map(drop),
        &|| fs.tmpfile(&CX, root, 0o600).map(drop),
        &move_away,
    ];
    for (n, attempt) in attempts.iter().enumerate() {
        assert_eq!(refused(attempt), libc::ENOMEM, "attempt {n}");
    }
    // Nothing of them is there.
    let names = common::snapshot(&fs);
    assert_eq!(names.nodes.len(), 2, "the root and one file");
    make(b"new").expect("create");
    move_away().expect("rename");
    close_and_judge(&image, fs);
    // What must be loaded is not, and is there all the same.
    let fs = image.open_with(options);
    let look = |name: &[u8]| fs.lookup(&CX, fs.root(), name);
    for name in [&b"new"[..], b"moved"] {
        assert_eq!(refused(|| look(name)), libc::ENOMEM);
        let entry = look(name).expect("it is there");
        assert_ne!(entry.attr.ino, Ino(0));
    }
    close_and_judge(&image, fs);
}
