//! Batches of writeback, one by one, on a small volume in memory.

use super::flush::Pass;
use super::pack::{MOST, pack};
use super::store::WriteMode;
use crate::extents::map_range;
use crate::inode::PIECES_SEEN;
use crate::reserve::tests::{new_file, volume_with};
use crate::{BtrfsFs, Compress, Method, Options};
use blockdev::MemDevice;
use btrfs_txn::{Injection, Place, Throttle, Urgency};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vfs::{Context, FileKind, FileSystem, Ino, SeekWhence};

fn stat(fs: &BtrfsFs, name: &str) -> u64 {
    fs.stats().into_iter().find(|stat| stat.name == name).expect("a counter").value
}

/// Two write the same file back, and both have compressed its front: what lies behind that is still compressed
/// before it is stored.
#[test]
fn what_lies_behind_content_that_somebody_else_stored_is_compressed_first() {
    const PIECES: u64 = MOST / (128 << 10);
    let compress =
        Some(Compress { method: Method::parse("zstd:1").expect("a method"), force: true });
    let fs = volume_with(Options { background: false, compress, ..Options::default() });
    let file = new_file(&fs);
    let content = vec![b'a'; MOST as usize + 5000];
    fs.write(&Context::default(), file, 0, &content, Default::default()).expect("write");
    let (writeback, inode) = (&fs.engine.writeback, fs.engine.inodes.get(file).expect("open"));
    let throttle = &mut Throttle::new(&fs.engine.core, Urgency::Awaited);
    let one = pack(writeback, &inode, 0).expect("to be compressed");
    let other = pack(writeback, &inode, 0).expect("to be compressed");
    for packed in [one, other] {
        let how = (WriteMode::Buffered, Some(&packed));
        let done = writeback.flush_batch_throttled(&inode, throttle, how, &mut Pass::default());
        assert!(!done.expect("flush"), "what is behind it is left");
        assert_eq!(stat(&fs, "data.compressed_extents"), PIECES);
        assert_eq!(stat(&fs, "data.extents_written"), PIECES, "nothing is stored as it is");
    }
    writeback.flush_inode(&inode).expect("flush");
    assert_eq!(stat(&fs, "data.compressed_extents"), PIECES + 1);
    drop(inode);
    fs.destroy().expect("close");
}

/// What was compressed is not stored before what came in front of it meanwhile: a commit between the two would have it
/// behind the end of the file.
#[test]
fn what_came_in_front_of_what_was_compressed_lands_first() {
    let compress =
        Some(Compress { method: Method::parse("zstd:1").expect("a method"), force: true });
    let fs = volume_with(Options { background: false, compress, ..Options::default() });
    let file = new_file(&fs);
    let write = |at: u64, content: &[u8]| {
        fs.write(&Context::default(), file, at, content, Default::default()).expect("write");
    };
    write(MOST, &[b'a'; 1 << 20]);
    let (writeback, inode) = (&fs.engine.writeback, fs.engine.inodes.get(file).expect("open"));
    let packed = pack(writeback, &inode, 0).expect("to be compressed");
    write(0, &[b'b'; 8192]);
    let throttle = &mut Throttle::new(&fs.engine.core, Urgency::Awaited);
    let how = (WriteMode::Buffered, Some(&packed));
    let done = writeback.flush_batch_throttled(&inode, throttle, how, &mut Pass::default());
    assert!(!done.expect("flush"), "the rest is left");
    let view = fs.engine.core.view();
    let mapped = map_range(&view, inode.id, SECTOR, 0, u64::MAX).expect("extents");
    drop(view);
    let size = inode.read().expect("there").item_for_disk().size;
    assert!(!mapped.is_empty());
    assert!(mapped.iter().all(|m| m.end <= size), "behind {size}: {mapped:?}");
    drop(packed);
    writeback.flush_inode(&inode).expect("flush");
    assert_eq!(stat(&fs, "data.compressed_extents"), 8, "that is compressed still");
    drop(inode);
    fs.destroy().expect("close");
}

/// How many pieces of unwritten content `work` looks at.
fn looks<T>(work: impl FnOnce() -> T) -> u64 {
    PIECES_SEEN.set(0);
    work();
    PIECES_SEEN.get()
}

const SECTOR: u64 = 4096;

/// A file of so many sectors that were written from behind, so that each of them is a piece, in a volume that is
/// opened with these options.
fn in_pieces(pieces: u64, options: Options) -> (BtrfsFs, Ino) {
    let device = Arc::new(MemDevice::new(1 << 30));
    btrfs_image::mkfs::make(&*device, &Default::default()).expect("mkfs");
    let fs = BtrfsFs::open_device(device, Options { background: false, ..options }).expect("open");
    let file = new_file(&fs);
    for piece in (0..pieces).rev() {
        let content = [piece as u8; SECTOR as usize];
        let written =
            fs.write(&Context::default(), file, piece * SECTOR, &content, Default::default());
        written.expect("write");
    }
    assert_eq!(fs.engine.writeback.pieces().all(), pieces, "nothing has landed yet");
    (fs, file)
}

/// A run of unwritten content may be in as many pieces as it has sectors; who wants a part of it looks at that part,
/// and not at the rest each time.
#[test]
fn nobody_looks_at_all_pieces_of_a_run_for_a_part_of_it() {
    const PIECES: u64 = 60_000;
    const READ: u64 = 32;
    let options = |compress| {
        let (memory_bytes, dirty_bytes) = (4 << 30, 1 << 30);
        Options { compress, memory_bytes, dirty_bytes, ..Options::default() }
    };
    let force = Some(Compress { method: Method::parse("zstd:1").expect("a method"), force: true });
    for compress in [None, force] {
        let (fs, file) = in_pieces(PIECES, options(compress));
        let mut buf = vec![0; (READ * SECTOR) as usize];
        for piece in (0..PIECES - READ).step_by(1000) {
            let read = looks(|| fs.read(file, piece * SECTOR, &mut buf).expect("read"));
            assert!(read < 4 * READ, "{read} pieces for {READ}");
            assert!(buf.chunks(SECTOR as usize).zip(piece..).all(|(part, n)| part[0] == n as u8));
        }
        let sought = looks(|| fs.seek(file, SECTOR, SeekWhence::Data).expect("seek"));
        assert!(sought < 10, "{sought} pieces for one byte");
        assert_eq!(fs.seek(file, SECTOR, SeekWhence::Hole).expect("seek"), PIECES * SECTOR);
        let inode = fs.engine.inodes.get(file).expect("open");
        let landed = looks(|| fs.engine.writeback.flush_inode(&inode).expect("flush"));
        assert!(landed < 10 * PIECES, "{landed} pieces for {PIECES}");
        assert_eq!(stat(&fs, "data.compressed_extents") > 0, compress.is_some());
        drop(inode);
        fs.destroy().expect("close");
    }
}

/// What was taken out of the queue of dirty inodes, or out of an inode, is in no hands behind a panic: nobody claims
/// that it is durable.
#[test]
fn behind_a_panic_in_writeback_nothing_is_called_durable() {
    type Flush = fn(&BtrfsFs, Ino);
    let some: Flush = |fs, _| drop(fs.engine.writeback.flush_some());
    let one: Flush = |fs, file| {
        let inode = fs.engine.inodes.get(file).expect("open");
        drop(fs.engine.writeback.flush_inode(&inode));
    };
    for (place, flush) in [(Place::Flushes, some), (Place::Packs, some), (Place::Flushes, one)] {
        let armed = Arc::new(AtomicBool::new(false));
        let arm = armed.clone();
        let injection = Injection::at_places(move |now| {
            assert!(now != place || !arm.swap(false, Ordering::SeqCst), "as a test wants it");
        });
        // Where nothing is compressed nobody packs.
        let method = Method::parse("zstd:1").expect("a method");
        let compress = (place == Place::Packs).then_some(Compress { method, force: true });
        let options = Options { background: false, compress, injection, ..Options::default() };
        let fs = volume_with(options);
        let cx = Context::default();
        let files = [b"one", b"two"].map(|name| {
            let made = fs.mknod(&cx, fs.root(), name, FileKind::File, 0o644, 0).expect("create");
            fs.write(&cx, made.attr.ino, 0, &[7; 5000], Default::default()).expect("write");
            made.attr.ino
        });
        armed.store(true, Ordering::SeqCst);
        assert!(catch_unwind(AssertUnwindSafe(|| flush(&fs, files[0]))).is_err(), "{place:?}");
        fs.sync().expect_err("content is lost");
        fs.fsync(files[1], false).expect_err("of others, too");
        assert!(fs.read_only_reason().is_some_and(|why| why.contains("panicked")));
        fs.destroy().expect_err("nor at the end");
    }
}
