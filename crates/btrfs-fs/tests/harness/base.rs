//! The volumes that workloads begin with, made once and shared by all.

use super::ops::*;
use blockdev::BlockDevice;
use blocksim::{Image, SimDevice};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::{MkfsOptions, Profile};
use std::sync::{Arc, OnceLock};
use testkit::RefFs;
use testkit::ops::{Op, Outcome, Session};
use vfs::FileSystem;

const SIZE: u64 = 160 << 20;

/// How many directories there are for threads of their own.
pub const THREADS: usize = 4;

pub struct Base {
    pub image: Image,
    pub setup: Vec<Op>,
}

/// What is on every volume, all of it durable.
pub fn setup() -> Vec<Op> {
    let mut ops = vec![
        mkdir("A"),
        mkdir("B"),
        mkdir("A/C"),
        create("A/foo"),
        write("A/foo", 0, 12_000, 1),
        create("A/bar"),
        write("A/bar", 0, 900, 2),
        set_xattr("A/foo", "user.x", 40, 3),
        create("B/big"),
        write("B/big", 0, 200_000, 4),
        symlink("A/foo", "B/sym"),
    ];
    ops.extend((0..THREADS).map(|number| mkdir(&format!("t{number}"))));
    ops
}

fn apply(fs: &dyn FileSystem, ops: &[Op]) {
    let mut session = Session::new(fs);
    for op in ops {
        let outcome = session.apply(op);
        assert!(!matches!(outcome, Outcome::Error(_)), "{op:?}: {outcome:?}");
    }
}

impl Base {
    pub fn make(options: &MkfsOptions) -> Base {
        let device = Arc::new(SimDevice::new(Image::zeros(SIZE)));
        btrfs_image::mkfs::make(&*device, options).expect("mkfs");
        let fs = mount(device.clone()).expect("mount a new volume");
        let setup = setup();
        apply(&fs, &setup);
        fs.destroy().expect("close");
        drop(fs);
        Base { image: device.image().flatten(), setup }
    }

    /// A model that holds what the volume holds.
    pub fn model(&self) -> RefFs {
        let model = RefFs::default();
        apply(&model, &self.setup);
        model
    }
}

/// Two kinds of volume: as mkfs.btrfs makes them, and one with smaller nodes, which are
/// there once.
pub fn base(number: u64) -> &'static Base {
    static BASES: [OnceLock<Base>; 2] = [OnceLock::new(), OnceLock::new()];
    let number = number % 2;
    BASES[number as usize].get_or_init(|| {
        let mut options = MkfsOptions::default();
        if number == 1 {
            options.node_size = Some(8192);
            options.metadata_profile = Some(Profile::Single);
            options.features.block_group_tree = true;
        }
        Base::make(&options)
    })
}

/// Without background threads: what is written depends on the calls alone.
pub fn options() -> Options {
    Options { background: false, cache_bytes: 8 << 20, ..Options::default() }
}

pub fn mount(device: Arc<dyn BlockDevice>) -> vfs::Result<BtrfsFs> {
    BtrfsFs::open_device(device, options())
}
