//! Operations on a fresh volume, in lockstep with the reference model; some of them end
//! with a remount.

use blockdev::MemDevice;
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::{MkfsOptions, make};
use std::sync::{Arc, OnceLock};
use testkit::RefFs;
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::ops::{Config, Op, OpKind, Tolerance, generate, lockstep};
use vfs::FileSystem;

const SIZE: u64 = 128 << 20;

fn fresh() -> Arc<MemDevice> {
    static IMAGE: OnceLock<Vec<(u64, Vec<u8>)>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let device = MemDevice::new(SIZE);
        let options =
            MkfsOptions { node_size: Some(4096), seed: Some(1), ..MkfsOptions::default() };
        make(&device, &options).expect("mkfs");
        let bytes = device.to_bytes();
        let blocks = bytes.chunks(4096).enumerate().filter(|(_, b)| b.iter().any(|b| *b != 0));
        blocks.map(|(i, b)| (i as u64 * 4096, b.to_vec())).collect()
    });
    let device = Arc::new(MemDevice::new(SIZE));
    for (at, block) in image {
        blockdev::BlockDevice::write_at(&*device, *at, block).expect("in range");
    }
    device
}

/// Each three bytes choose some operations: where they come from, how many, how they mix.
fn chosen(data: &[u8]) -> Vec<Op> {
    let mut all = Vec::new();
    for part in data.chunks(3).take(40) {
        let [seed, more, count] = [0, 1, 2].map(|i| part.get(i).copied().unwrap_or(0));
        let config = match count >> 6 {
            0 => Config::metadata(),
            1 => Config::data(),
            _ => Config::all(),
        };
        // Large items fit small nodes sooner or later than the model thinks.
        let config = config.without(&[OpKind::Seek, OpKind::SetXattr, OpKind::Symlink]);
        let seed = u64::from(seed) << 8 | u64::from(more);
        all.extend(generate(seed, usize::from(count & 63), &config));
    }
    all
}

pub fn operations(data: &[u8]) -> bool {
    let ops = chosen(data);
    let device = fresh();
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(device.clone(), options.clone()).expect("open");
    let tolerance = Tolerance { tree_every: 500, ..Tolerance::default() };
    if let Err(divergence) = lockstep(&RefFs::default(), &fs, &ops, &tolerance) {
        panic!("{divergence}");
    }
    let expected = TreeSnapshot::of(&fs).expect("walk");
    fs.destroy().expect("close");
    drop(fs);
    let again = BtrfsFs::open_device(device, options).expect("open again");
    let seen = TreeSnapshot::of(&again).expect("walk again");
    let differences = diff(&expected, &seen, &Rules::default());
    assert!(differences.is_empty(), "{} differences, {}", differences.len(), differences[0]);
    !ops.is_empty()
}
