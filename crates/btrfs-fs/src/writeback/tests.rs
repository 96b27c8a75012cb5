//! Batches of writeback, one by one, on a small volume in memory.

use super::flush::Pass;
use super::pack::{MOST, pack};
use super::store::WriteMode;
use crate::reserve::tests::{new_file, volume_with};
use crate::{BtrfsFs, Compress, Method, Options};
use btrfs_txn::{Throttle, Urgency};
use vfs::{Context, FileSystem};

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
