//! Files and devices of this machine that are about to be written over or removed: by mistake one may be
//! an image that is in use, as that which is being read, or lie on one, or behind one.
//!
//! Invariant: what is claimed stays so until the claim is dropped: nobody opens it as an image meanwhile.

use super::{below, in_use, is_block_device, patiently};
use crate::error::{Cause, Error, Result};
use blockdev::Span;
use btrfs_disk::superblock::COPIES;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// What keeps others away from something that is about to be written over.
#[derive(Debug)]
#[must_use = "who drops it lets others open what is written over"]
pub struct Claim {
    /// Other files that the same bytes are in.
    others: Vec<File>,
}

/// Claims `file`, which was opened at `path`, to write it over or to take it away. Refused is an image or a device
/// in use, also by this program: one that is open in any Spinney, that the kernel has mounted, and a loop device
/// over such a file, or the file behind such a device.
pub fn claim(file: &File, path: &Path) -> Result<Claim> {
    let meta = file.metadata().map_err(|e| Error::host(path, e))?;
    let is_device = meta.file_type().is_block_device();
    // What ends in front of the first superblock is no image; trees are full of such, and others may have locked them.
    if !is_device && (!meta.is_file() || meta.len() <= COPIES[0]) {
        return Ok(Claim { others: Vec::new() });
    }
    alone(file, None, path, || "as an image, or by another program".into())?;
    if let Some(who) = in_use::holder(path, None, false) {
        return Err(refused(path, who));
    }
    let mut claim = Claim { others: Vec::new() };
    let lower = below::all(path);
    for (lower, part) in &lower {
        // Of a disk whose other partitions are in use the kernel says that it is.
        if let Some(who) = in_use::holder(lower, *part, false).filter(|_| !is_block_device(lower)) {
            return Err(refused(path, who));
        }
        claim.add(lower, *part, path)?;
    }
    // What else has the same bytes: who reads by way of that has a lock of that.
    let all: Vec<&Path> = lower.iter().map(|(at, _)| at.as_path()).chain([path]).collect();
    let mut over: Vec<_> = below::partitions(path).into_iter().map(|there| (there, None)).collect();
    over.extend(over_part(path, None));
    lower.iter().for_each(|(lower, part)| over.extend(over_part(lower, *part)));
    for (device, part) in over {
        if !all.iter().any(|own| below::same(own, &device)) {
            claim.add(&device, part, path)?;
        }
    }
    Ok(claim)
}

/// The loop devices over `part` of `lower`, each with the part of its own bytes that is meant, if not all.
fn over_part(lower: &Path, part: Option<Span>) -> Vec<(PathBuf, Option<Span>)> {
    let own = |(device, has): (PathBuf, Span)| {
        let part = part.filter(|part| !part.contains(has)).map(|part| {
            let start = part.start.max(has.start);
            Span { start: start - has.start, len: part.end().min(has.end()) - start }
        });
        (device, part)
    };
    in_use::devices_over(lower, part).into_iter().map(own).collect()
}

/// A part can only be locked to be written by who may write.
fn open(path: &Path, part: Option<Span>) -> io::Result<File> {
    let writes = part.map(|_| File::options().read(true).write(true).open(path));
    writes.and_then(io::Result::ok).map_or_else(|| File::open(path), Ok)
}

impl Claim {
    /// Of what may not be read nobody can be asked.
    fn add(&mut self, other: &Path, part: Option<Span>, path: &Path) -> Result<()> {
        let Ok(file) = open(other, part) else { return Ok(()) };
        let who = || format!("{} has the same bytes, and is in use", other.display());
        alone(&file, part, path, who)?;
        self.others.push(file);
        Ok(())
    }
}

fn refused(path: &Path, who: String) -> Error {
    Error::new(path.display(), Cause::InUse(Some(who)))
}

fn alone(file: &File, part: Option<Span>, path: &Path, who: impl FnOnce() -> String) -> Result<()> {
    match patiently(|| blockdev::lock(file, true, part)) {
        Err(e) if e.kind() == ErrorKind::ResourceBusy => Err(refused(path, who())),
        // Where nothing can be locked nothing is.
        _ => Ok(()),
    }
}
