//! Crashes of the kernel's btrfs, by copying the image under its mount after the last call.
//!
//! Two things are judged: the demands themselves, since what the kernel keeps through its own
//! replay must be enough (`Rules::KERNEL_LOG` says where we ask more of ourselves); and our
//! mount of what the kernel left, with its log.

use super::outside::{ONE, log_pending};
use super::rig::Case;
use super::state::{self, Extra};
use blocksim::{Image, SimDevice};
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use testkit::PosixFs;
use testkit::compare::TreeSnapshot;
use testkit::durability::{Applied, Demands, History, Rules, Witness};
use testkit::ops::Op;
use testkit::oracle::{KernelMount, TempDir, btrfs_check, with_kernel};
use vfs::{FileSystem, RenameMode};

/// What became of one workload that all agree on.
#[derive(Default, Debug)]
pub struct Seen {
    pub log: bool,
    /// Our mount replays logs.
    pub replayed: bool,
}

/// The kernel's replay loses a whiteout if its name was exchanged and synced before.
pub fn fit(case: &Case) -> bool {
    let whiteout = |op: &Op| {
        use RenameMode::{NoReplaceWhiteout, Whiteout};
        matches!(op, Op::Rename { mode: Whiteout | NoReplaceWhiteout, .. })
    };
    !case.threads[0].iter().any(whiteout)
}

pub fn run(case: &Case) -> Result<Seen, String> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new("kernel-log").map_err(|error| error.to_string())?;
    let (path, copy) = (dir.join("live.img"), dir.join("crashed.img"));
    let base = case.base();
    base.image.export(&path).map_err(|error| error.to_string())?;
    let history = History::new();
    let mount = KernelMount::new(&path, "noatime,commit=300")?;
    let worked = work(case, mount.path(), &history);
    // All that the kernel has submitted is in the file; nothing else of it is.
    let image = at_one_moment(&path).map_err(|error| error.to_string());
    mount.unmount()?;
    worked?;
    let image = image?;
    image.export(&copy).map_err(|error| error.to_string())?;
    judge(&image, &copy, &history.demands(0))
}

/// Somebody on this machine may call `sync`, and the kernel commits while we copy: but what a
/// superblock leads to stays for as long as that does.
fn at_one_moment(path: &Path) -> io::Result<Image> {
    let superblock = || {
        let mut bytes = [0; SUPER_SIZE];
        File::open(path)?.read_exact_at(&mut bytes, COPIES[0])?;
        io::Result::Ok(bytes)
    };
    for _ in 0..20 {
        let before = superblock()?;
        let image = Image::import(path)?;
        if superblock()? == before {
            return Ok(image);
        }
    }
    Err(io::Error::other("the volume changes all the time"))
}

fn work(case: &Case, mount: &Path, history: &History) -> Result<(), String> {
    let fs = PosixFs::open(mount).map_err(|error| error.to_string())?;
    let model = case.base().model();
    let position = || 0;
    let mut witness = Witness::new(history, (&fs, fs.root()), &model, &position)?;
    for op in &case.threads[0] {
        if let Applied::Failed(outcome) = witness.apply(op)? {
            return Err(format!("the kernel says {outcome:?} to {op:?}"));
        }
    }
    Ok(())
}

fn judge(image: &Image, copy: &Path, demands: &Demands<'_>) -> Result<Seen, String> {
    let seen = with_kernel(copy, "noatime", |mount| TreeSnapshot::of_dir(mount.path()))?
        .map_err(|error| format!("reading the kernel's mount: {error}"))?;
    let wrong = demands.judge(&seen, Rules::KERNEL_LOG);
    if !wrong.is_empty() {
        return Err(format!("the kernel's own replay: {}", wrong.join("\n")));
    }
    btrfs_check(copy)?;
    let device = Arc::new(SimDevice::new(image.clone()));
    let replayed = match state::recover(&device, demands, Rules::KERNEL_LOG, &Extra::default()) {
        Ok(()) => true,
        Err(why) if why.contains("log replay is not built") => false,
        Err(why) => return Err(format!("our mount: {why}")),
    };
    if replayed {
        state::check(&device.image()).map_err(|why| format!("after our mount: {why}"))?;
    }
    Ok(Seen { log: log_pending(image), replayed })
}
