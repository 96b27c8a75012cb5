//! One crash state, judged: our check, a mount that recovers, the tree against the demands.

use super::base::options;
use super::outside;
use blockdev::BlockDevice;
use blocksim::{Image, SimDevice};
use btrfs_check::{CheckOptions, FindingKind, Severity};
use btrfs_fs::{BtrfsFs, Defect, Injection, Options};
use btrfs_volume::{OpenOptions, Volume};
use std::sync::Arc;
use testkit::compare::TreeSnapshot;
use testkit::durability::{Demands, Rules};
use testkit::ops::Path;
use vfs::{Context, FileKind, FileSystem};

/// What more than mount, compare and check is done with a state.
#[derive(Clone, Copy, Default, Debug)]
pub struct Extra {
    /// Crash again while the mount recovers, so many times per flush.
    pub again: usize,
    /// Delete everything afterwards: whatever is there must be whole enough for that.
    pub empty: bool,
    /// `btrfs check` and the kernel's mount.
    pub outside: bool,
    /// What the recovering mount does wrong.
    pub defect: Option<Defect>,
}

/// The error says what is wrong.
pub fn judge(
    image: &Image,
    demands: &Demands<'_>,
    rules: Rules,
    extra: Extra,
) -> Result<(), String> {
    check(image).map_err(|why| format!("as the crash left it: {why}"))?;
    let device = Arc::new(SimDevice::new(image.clone()));
    recover(&device, demands, rules, &extra)?;
    check(&device.image()).map_err(|why| format!("after recovery: {why}"))?;
    if extra.again > 0 {
        // What the device did when all was deleted must not count as recovery.
        let device = Arc::new(SimDevice::new(image.clone()));
        recover(&device, demands, rules, &Extra::default())?;
        crash_again(&device, demands, rules, extra.again)?;
    }
    if extra.outside {
        outside::judge(image, demands, rules)?;
    }
    Ok(())
}

pub fn recover(
    device: &Arc<SimDevice>,
    demands: &Demands<'_>,
    rules: Rules,
    extra: &Extra,
) -> Result<(), String> {
    let options = Options { injection: Injection::of(extra.defect), ..options() };
    let fs =
        BtrfsFs::open_device(device.clone(), options).map_err(|error| format!("mount: {error}"))?;
    if let Some(why) = fs.read_only_reason() {
        return Err(format!("the mount is read-only: {why}"));
    }
    compare(&fs, demands, rules)?;
    if extra.empty {
        let root = fs.root();
        remove_all(&fs, root).map_err(|error| format!("deleting everything: {error}"))?;
    }
    fs.destroy().map_err(|error| format!("unmount: {error}"))
}

/// Holds the tree of a recovered volume against the demands.
pub fn compare(fs: &dyn FileSystem, demands: &Demands<'_>, rules: Rules) -> Result<(), String> {
    let tree = TreeSnapshot::of(fs).map_err(|error| format!("reading the tree: {error}"))?;
    let wrong = demands.judge(&tree, rules);
    if wrong.is_empty() {
        return Ok(());
    }
    let found: Vec<&Path> = tree.nodes.keys().collect();
    Err(format!("{}\n  found: {found:?}", wrong.join("\n  ")))
}

/// A crash in the middle of recovery costs nothing either.
fn crash_again(
    device: &SimDevice,
    demands: &Demands<'_>,
    rules: Rules,
    budget: usize,
) -> Result<(), String> {
    for epoch in device.recording().epochs().filter(|epoch| !epoch.pending.is_empty()) {
        for choice in epoch.choices(budget, 7) {
            let image = epoch.image(&choice);
            judge(&image, demands, rules, Extra::default()).map_err(|why| {
                format!("second crash, in recovery, before flush {}: {why}", epoch.index)
            })?;
        }
    }
    Ok(())
}

/// Our own check of everything but which copies of the superblock are in force.
pub fn check(image: &Image) -> Result<(), String> {
    let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::new(image.clone()));
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    let volume = Volume::open(device, options).map_err(|error| format!("open: {error}"))?;
    let options = CheckOptions { verify_data: true, ..CheckOptions::default() };
    let report = btrfs_check::check(Arc::new(volume), &options)
        .map_err(|error| format!("check: {error}"))?;
    let copies = |kind: &FindingKind| {
        matches!(kind, FindingKind::SuperCopyBad { .. } | FindingKind::SuperCopyStale { .. })
    };
    let found: Vec<String> = report
        .findings
        .iter()
        .filter(|finding| finding.severity > Severity::Note && !copies(&finding.kind))
        .map(ToString::to_string)
        .collect();
    if found.is_empty() { Ok(()) } else { Err(format!("check finds {found:#?}")) }
}

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };

fn remove_all(fs: &dyn FileSystem, dir: vfs::Ino) -> vfs::Result<()> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push((entry.name.to_vec(), entry.kind));
        }
        true
    })?;
    for (name, kind) in names {
        if kind == FileKind::Dir {
            let child = fs.lookup(&CX, dir, &name)?.attr.ino;
            let emptied = remove_all(fs, child);
            fs.forget(child, 1);
            emptied?;
            fs.rmdir(&CX, dir, &name)?;
        } else {
            fs.unlink(&CX, dir, &name)?;
        }
    }
    Ok(())
}
