//! The check of a whole volume, as `spinney check` does it.

use crate::error::{Error, Result};
use crate::medium::{Access, Medium};
use crate::volume::{At, Volume};
use blockdev::BlockDevice;
use btrfs_check as full;
use btrfs_volume::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use vfs::FsError;

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Severity {
    /// Odd, and harmless to every reader and writer.
    Note,
    /// A spare copy or a hint is damaged; no content and no structure is lost.
    Warning,
    /// The volume contradicts itself or lost something.
    Error,
}

/// One thing that is wrong with a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, as a stable name for programs.
    pub code: &'static str,
    /// What it is and where, for people.
    pub message: String,
    /// What can be done about it.
    pub remedy: &'static str,
    /// The logical address that it is about.
    pub logical: Option<u64>,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CheckReport {
    /// What is wrong; where there is much, the worst of it.
    pub findings: Vec<Finding>,
    /// How many findings there are beyond those.
    pub left_off: u64,
    /// Bytes of content that were read and verified.
    pub verified_bytes: u64,
    clean: bool,
}

impl CheckReport {
    /// Nothing worse than notes was found, what was left off included.
    pub fn is_clean(&self) -> bool {
        self.clean
    }
}

/// Reads every structure of the volume in an image or on a block device, and compares all that
/// they say of each other; with `content` also every block of every file, from all copies.
/// Damage is in the report: an error means that the check could not run.
///
/// What was synced but not committed before a crash is not looked at.
pub fn check(path: impl AsRef<Path>, content: bool) -> Result<CheckReport> {
    let medium = Medium::open(path, Access::Read)?;
    run(medium.device(), medium.path(), content)
}

impl Volume {
    /// As [`check`], of this volume; what was changed is committed first. Nobody may change
    /// anything meanwhile, or what is being written looks like damage.
    pub fn check(&self, content: bool) -> Result<CheckReport> {
        if self.read_only_reason().is_none() {
            self.fs().sync().at(self, b"")?;
        }
        run(self.device().clone(), self.name(), content)
    }
}

fn run(device: Arc<dyn BlockDevice>, name: &Path, content: bool) -> Result<CheckReport> {
    let failed = |error: btrfs_disk::Error| Error::volume_said(name.display(), name, as_fs(error));
    let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    let volume = btrfs_volume::Volume::open(device, options).map_err(failed)?;
    let options = full::CheckOptions { verify_data: content, ..full::CheckOptions::default() };
    let report = full::check(Arc::new(volume), &options).map_err(failed)?;
    Ok(CheckReport {
        findings: report.findings.iter().map(finding).collect(),
        left_off: report.left_off,
        verified_bytes: report.totals.verified_bytes,
        clean: report.is_clean(),
    })
}

fn finding(found: &full::Finding) -> Finding {
    Finding {
        severity: match found.severity {
            full::Severity::Note => Severity::Note,
            full::Severity::Warning => Severity::Warning,
            _ => Severity::Error,
        },
        code: found.kind.code(),
        message: found.to_string(),
        remedy: found.remedy(),
        logical: found.logical.map(|logical| logical.0),
    }
}

fn as_fs(error: btrfs_disk::Error) -> FsError {
    use btrfs_disk::Error as Disk;
    match error {
        Disk::NotBtrfs(why) => FsError::NotAVolume(why.to_string()),
        Disk::Unsupported(what) => FsError::Unsupported(what.to_string()),
        Disk::Corrupt(corrupt) => {
            let mut damage = vfs::Damage::new(corrupt.to_string());
            damage.address = corrupt.logical.map(|logical| logical.0);
            damage.copy = corrupt.copy;
            damage.into()
        }
        other => FsError::Io {
            context: "reading the volume".into(),
            source: std::io::Error::other(other.to_string()),
        },
    }
}
