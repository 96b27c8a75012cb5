//! The engine on a simulated device: a sequence, a crash, a mount.

use crate::common::kernel::kernel;
use crate::facts::{Facts, kept};
use crate::words::{self, BASE};
use blocksim::{Image, SimDevice};
use btrfs_fs::{BtrfsFs, Options};
use btrfs_image::mkfs::MkfsOptions;
use std::sync::{Arc, OnceLock};
use testkit::compare::TreeSnapshot;
use testkit::ops::Session;
use testkit::oracle::{self, KernelMount, TempDir};
use vfs::FileSystem;

struct Base {
    image: Image,
    tree: TreeSnapshot,
}

fn base() -> &'static Base {
    static MADE: OnceLock<Base> = OnceLock::new();
    MADE.get_or_init(|| {
        let device = Arc::new(SimDevice::new(Image::zeros(160 << 20)));
        btrfs_image::mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
        let fs = open(&device);
        let mut session = Session::new(&fs);
        BASE.iter().for_each(|text| words::apply(&mut session, text).expect("the base"));
        let tree = TreeSnapshot::of(&fs).expect("walk");
        drop(session);
        fs.destroy().expect("close");
        drop(fs);
        Base { image: device.image().flatten(), tree }
    })
}

fn open(device: &Arc<SimDevice>) -> BtrfsFs {
    let options = Options { background: false, cache_bytes: 4 << 20, ..Options::default() };
    BtrfsFs::open_device(device.clone(), options).expect("mount")
}

/// What a crash leaves of a sequence, all that it did, and whether its sync committed.
pub struct Left {
    pub kept: Facts,
    pub all: Facts,
    pub committed: bool,
}

pub fn run(case: &[String]) -> Left {
    let (left, _) = crash(case);
    left
}

/// As `run`; also what the kernel's replay has of the same crash, and what `btrfs check` says
/// of that.
pub fn run_with_kernel(case: &[String], dir: &TempDir) -> (Left, Facts) {
    let (left, crashed) = crash(case);
    let path = dir.join("crashed.img");
    crashed.image.export(&path).expect("export");
    let look = |mount: &KernelMount| TreeSnapshot::of_dir(mount.path()).expect("walk");
    let seen = kernel(&path, "noatime", look);
    oracle::assert_clean(&path);
    (left, kept(&base().tree, &crashed.last, &seen))
}

struct Crashed {
    image: Image,
    last: TreeSnapshot,
}

fn crash(case: &[String]) -> (Left, Crashed) {
    let base = base();
    let device = Arc::new(SimDevice::new(base.image.clone()));
    let fs = open(&device);
    let mut session = Session::new(&fs);
    case.iter().for_each(|text| words::apply(&mut session, text).expect("as in the model"));
    let committed = crate::common::stat(&fs, "log.fallback_commits") > 0;
    let image = device.image();
    let last = TreeSnapshot::of(&fs).expect("walk");
    drop(session);
    drop(fs);
    let again = open(&Arc::new(SimDevice::new(image.clone())));
    let found = TreeSnapshot::of(&again).expect("walk what is left");
    assert_eq!(found.contradictions(), Vec::<String>::new(), "{case:?}");
    let all = kept(&base.tree, &last, &last);
    let left = Left { kept: kept(&base.tree, &last, &found), all, committed };
    (left, Crashed { image, last })
}
