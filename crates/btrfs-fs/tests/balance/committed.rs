//! Who holds the trees of a commit reads what they name, also when a balance has given it other addresses since.

use crate::common;
use blocksim::SimDevice;
use btrfs_disk::ids::block_group::DATA;
use btrfs_disk::items::{BalanceItem, FileExtent, FileExtentFields};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BalanceState, BtrfsFs, Committed, Compress, Method, Options};
use btrfs_tree::scan;
use common::new_file;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::FileSystem;

fn compressing() -> BtrfsFs {
    let sim = Arc::new(SimDevice::new(blocksim::Image::zeros(1 << 30)));
    btrfs_image::mkfs::make(&*sim, &btrfs_image::mkfs::MkfsOptions::default()).expect("mkfs");
    let method = Method::parse("zstd").expect("a method");
    let compress = Some(Compress { method, force: false });
    let options = Options { background: false, compress, ..Options::default() };
    BtrfsFs::open_device(sim, options).expect("mount")
}

fn extents(committed: &Committed<'_>) -> Vec<FileExtentFields> {
    let (root, _) = committed.tree(TreeId::FS).expect("there");
    let items = scan(committed.nodes(), &root, Key::MIN..=Key::MAX);
    let items = items.map(|item| item.expect("reads"));
    let found = items.filter(|item| item.key().kind == kind::EXTENT_DATA).filter_map(|item| {
        match FileExtent::parse(item.data()).expect("an extent item") {
            FileExtent::Extent { fields, .. } => Some(fields),
            FileExtent::Inline { .. } => None,
        }
    });
    found.collect()
}

fn stored(committed: &Committed<'_>, extents: &[FileExtentFields]) -> Vec<Vec<u8>> {
    let read = |fields: &FileExtentFields| {
        let mut buf = vec![0; fields.disk_num_bytes as usize];
        committed.read_stored(0, fields, 0, &mut buf).expect("it is there still");
        buf
    };
    extents.iter().map(read).collect()
}

#[test]
fn what_a_held_commit_names_is_read_by_its_checksums() {
    let fs = compressing();
    let line = |n: usize| format!("line {n} of {}\n", n * n * 31).into_bytes();
    let content: Vec<u8> = (0..100_000).flat_map(line).collect();
    new_file(&fs, "file", &content);
    fs.sync().expect("commit");
    let held = fs.committed().expect("the trees of now");
    let before = extents(&held);
    assert!(before.len() > 10 && before.iter().all(|fields| fields.compression != 0));
    let bytes = stored(&held, &before);
    fs.start_balance(BalanceItem { flags: DATA, ..BalanceItem::default() }).expect("begin");
    let end = Instant::now() + Duration::from_secs(60);
    let moved = || {
        let now = extents(&fs.committed().expect("the trees of now"));
        now.iter().zip(&before).all(|(now, before)| now.disk_bytenr != before.disk_bytenr)
    };
    while !moved() {
        assert!(Instant::now() < end, "the balance moves the file");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(stored(&held, &before) == bytes);
    drop(held);
    while fs.balance_status().expect("status").state == BalanceState::Running {
        assert!(Instant::now() < end, "the balance ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    fs.destroy().expect("close");
}
