//! What is held against the state of a device after a power cut.

use crate::bases::{SIZE, superblock};
use crate::{Device, Verb};
use blocksim::{Image, SimDevice};
use btrfs_check::{CheckOptions, Severity};
use btrfs_disk::Superblock;
use btrfs_disk::ids::compat_ro;
use btrfs_disk::superblock::COPIES;
use btrfs_volume::OpenOptions;
use spinney::VolumeOptions;
use spinney::rescue::Superblocks;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::{self, KernelMount, TempDir};

type Judged = Result<(), String>;

pub struct Judge {
    verb: Verb,
    /// Copies of the superblock that were no use before.
    bad: BTreeSet<u64>,
    /// What our check says of the volume before and after.
    known: BTreeSet<String>,
    /// Of it after, with what is but a note.
    end: BTreeSet<String>,
    /// What is in it before and after.
    trees: Vec<TreeSnapshot>,
    outside: Option<Outside>,
}

/// `btrfs check` and the kernel.
struct Outside {
    /// Where each image is put that they look at: what they say has its name.
    path: PathBuf,
    _dir: TempDir,
    known: BTreeSet<String>,
    /// The superblock of a volume that the kernel refuses before, and with the same trees later.
    refused: Option<Superblock>,
}

impl Judge {
    /// Of a verb that makes `after` of `before`.
    pub fn new(verb: Verb, before: &Image, after: &Image) -> Result<Judge, String> {
        let ends = [recovered(before)?, after.clone()];
        let mut judge = Judge {
            verb,
            bad: bad_copies(before),
            known: BTreeSet::new(),
            end: findings(after, Severity::Note)?,
            trees: Vec::new(),
            outside: outside(&ends)?,
        };
        for image in &ends {
            judge.known.extend(findings(image, Severity::Warning)?);
            judge.trees.push(tree(image)?);
        }
        judge.at_its_end(after)?;
        Ok(judge)
    }

    pub fn state(&self, image: &Image, outside: bool) -> Judged {
        let bad = bad_copies(image);
        let torn = bad.difference(&self.bad).count();
        if bad.len() == COPIES.len() || torn > 1 {
            return Err(format!("the copies at {bad:?} are no use"));
        }
        let seen = recovered(image)?;
        let more: Vec<_> =
            findings(&seen, Severity::Warning)?.difference(&self.known).cloned().collect();
        if !more.is_empty() {
            return Err(format!("our check says {more:#?}"));
        }
        self.holds(&tree(&seen)?)?;
        if let Some(judges) = self.outside.as_ref().filter(|_| outside) {
            judges.state(self, &seen)?;
        }
        let device = Arc::new(SimDevice::new(image.clone()));
        (self.verb)(device.clone()).map_err(|e| format!("run again: {e}"))?;
        self.at_its_end(&device.image()).map_err(|why| format!("run again: {why}"))
    }

    /// The verb has returned.
    fn at_its_end(&self, image: &Image) -> Judged {
        let found = findings(image, Severity::Note)?;
        if found != self.end {
            return Err(format!("our check says {found:#?}, and not {:#?}", self.end));
        }
        let all = COPIES.map(|at| {
            superblock(image, at).map(|mut sb| {
                (sb.fields.bytenr, sb.fields.csum) = Default::default();
                sb
            })
        });
        if all[0].is_none() || all.iter().any(|copy| *copy != all[0]) {
            return Err("the copies of the superblock differ".into());
        }
        self.holds(&tree(image)?)
    }

    fn holds(&self, seen: &TreeSnapshot) -> Judged {
        let differences = self.trees.iter().map(|tree| diff(tree, seen, &Rules::default()));
        let least = differences.min_by_key(Vec::len).expect("two trees");
        if least.is_empty() { Ok(()) } else { Err(format!("the content differs: {least:#?}")) }
    }
}

impl Outside {
    fn state(&self, judge: &Judge, image: &Image) -> Judged {
        let path = &self.path;
        image.export(path).map_err(|e| e.to_string())?;
        let more: Vec<_> = complaints(path).difference(&self.known).cloned().collect();
        if !more.is_empty() {
            return Err(format!("btrfs check says {more:#?}"));
        }
        let mount = match KernelMount::new(path, "noatime") {
            Err(_) if self.refused.is_some() && trees_of(image) == self.refused => return Ok(()),
            mount => mount?,
        };
        let seen = TreeSnapshot::of_dir(mount.path()).map_err(|e| e.to_string());
        std::fs::write(mount.join("by the kernel"), "x").map_err(|e| e.to_string())?;
        mount.unmount()?;
        judge.holds(&seen?).map_err(|why| format!("by the kernel {why}"))
    }
}

fn outside(ends: &[Image]) -> Result<Option<Outside>, String> {
    if let Some(why) = oracle::capabilities().lacking_kernel_btrfs() {
        oracle::record_skip(file!(), why);
        return Ok(None);
    }
    let dir = TempDir::new("rescue-crash").map_err(|e| e.to_string())?;
    let path = dir.join("state.img");
    let (mut known, mut refused) = (BTreeSet::new(), None);
    for image in ends {
        image.export(&path).map_err(|e| e.to_string())?;
        known.extend(complaints(&path));
        match KernelMount::new(&path, "noatime") {
            Ok(mount) => mount.unmount()?,
            Err(_) => refused = trees_of(image),
        }
    }
    Ok(Some(Outside { path, _dir: dir, known, refused }))
}

/// The superblock, whatever it says of the free-space tree.
fn trees_of(image: &Image) -> Option<Superblock> {
    let mut sb = superblock(image, COPIES[0])?;
    sb.fields.compat_ro_flags &= !compat_ro::FREE_SPACE_TREE_VALID;
    sb.fields.csum = Default::default();
    Some(sb)
}

/// Lines of `btrfs check` that a sound volume has not, but for their numbers.
fn complaints(path: &Path) -> BTreeSet<String> {
    match oracle::btrfs_check(path) {
        Ok(()) => BTreeSet::new(),
        Err(why) => {
            why.lines().map(|line| line.replace(|c: char| c.is_ascii_digit(), "")).collect()
        }
    }
}

fn bad_copies(image: &Image) -> BTreeSet<u64> {
    COPIES.into_iter().filter(|at| superblock(image, *at).is_none()).collect()
}

/// With a first copy that is valid, and of the newest commit.
fn recovered(image: &Image) -> Result<Image, String> {
    assert_eq!(image.len(), SIZE, "all copies have a place");
    let device = Arc::new(SimDevice::new(image.clone()));
    let copies = Superblocks::survey(device.clone()).map_err(|e| e.to_string())?;
    if copies.bad().contains(&COPIES[0]) {
        copies.recover().map_err(|e| format!("super-recover: {e}"))?;
    }
    Ok(device.image())
}

/// What our check says, as bad as `least` and worse.
fn findings(image: &Image, least: Severity) -> Result<BTreeSet<String>, String> {
    let device: Device = Arc::new(SimDevice::new(image.clone()));
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    let volume = btrfs_volume::Volume::open(device, options).map_err(|e| e.to_string())?;
    let options = CheckOptions { verify_data: true, ..CheckOptions::default() };
    let report = btrfs_check::check(Arc::new(volume), &options).map_err(|e| e.to_string())?;
    let bad = report.findings.iter().filter(|finding| finding.severity >= least);
    Ok(bad.map(ToString::to_string).collect())
}

/// As who opens it to read sees it, with what its log has.
fn tree(image: &Image) -> Result<TreeSnapshot, String> {
    let device = Arc::new(SimDevice::new(image.clone()));
    let volume = VolumeOptions::new().open_device(device).map_err(|e| e.to_string())?;
    TreeSnapshot::of(&**volume.fs()).map_err(|e| e.to_string())
}
