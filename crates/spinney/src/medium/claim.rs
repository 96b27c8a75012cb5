//! Files and devices of this machine that are about to be written over or removed: by mistake one may be
//! an image that is in use, as that which is being read, or lie on one, or behind one.
//!
//! Invariant: what is claimed stays so until the claim is dropped: nobody opens it as an image meanwhile.

use super::below::Ground;
use super::{below, in_use, is_block_device, patiently};
use crate::error::{Cause, Error, Result};
use blockdev::Span;
use btrfs_disk::superblock::COPIES;
use std::fs::{File, Metadata};
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
///
/// Of a partition that part of the disk is claimed, too. Devices are opened only to be read for that, as udev makes a
/// disk's partitions anew whenever somebody closes it who could have written.
///
/// Refused is a path that leads to something else by now, too: whoever has that was asked, and not who has `file`.
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
    if !is_there(&meta, path) {
        return Err(Error::refused(path.display(), "something else is there by now"));
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
    // Who reads by way of what else has the same bytes has a lock of that.
    for (device, part) in over(path, lower) {
        claim.add(&device, part, path)?;
    }
    Ok(claim)
}

/// What else has bytes of `path`, which lies on `lower`: each device once, as a second lock would meet the first.
fn over(path: &Path, lower: Vec<(PathBuf, Option<Span>)>) -> Vec<(PathBuf, Option<Span>)> {
    let mut over: Vec<_> = below::partitions(path).into_iter().map(|there| (there, None)).collect();
    over.extend(over_part(path, None));
    lower.iter().for_each(|(lower, part)| over.extend(over_part(lower, *part)));
    let mut done: Vec<PathBuf> = lower.into_iter().map(|(at, _)| at).collect();
    done.push(path.to_owned());
    // A loop device's partitions are found over the file behind it once more. Those meant whole come first.
    over.retain(|(device, _)| {
        let new = !done.iter().any(|own| below::same(own, device));
        done.extend(new.then(|| device.clone()));
        new
    });
    over
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

/// A part can only be locked to be written by who may write. A device is opened only to be read: `claim` says why.
fn open(path: &Path, part: Option<Span>) -> io::Result<File> {
    if part.is_some()
        && path.is_file()
        && let Ok(file) = File::options().read(true).write(true).open(path)
    {
        return Ok(file);
    }
    File::open(path)
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

/// Whether `path` leads to what is open.
fn is_there(open: &Metadata, path: &Path) -> bool {
    Ground::of(open)
        .is_some_and(|open| path.metadata().ok().and_then(|now| Ground::of(&now)) == Some(open))
}
