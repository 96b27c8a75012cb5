//! Working inside volumes that are not mounted, by the library (`spinney::tree`): what is added
//! here is what a command says and how it ends.
//!
//! `volumes` opens what a command's words name, `lost` tells what could not be read, `words`
//! are the words of `find`.

mod lost;
pub mod volumes;
pub mod words;

pub use crate::image::context;
pub use lost::Losses;
pub use spinney::tree::{
    CopyRules, Draft, Node, Transfer, TransferEvent, TreeCopy, fill, path, usage,
};
pub use volumes::{Failures, Scope, Volumes};

use crate::error::{Error, Result, say_error};
use crate::image::ImageFile;
use crate::output::human;
use crate::progress::{self, Progress};
use spinney::Volume;
use spinney::tree;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use volumes::At;

/// Copies between this machine and `volume`, with progress.
pub fn transfer(volume: &Volume, rules: CopyRules) -> Transfer<'_> {
    let (progress, skipped) = (Progress::new(), skipped_xattrs());
    Transfer::new(volume, rules).on_event(move |event| match event {
        TransferEvent::LeftOut { path, .. } => {
            progress::wipe();
            let path = path.display();
            say_error(&format!("spinney: {path}: is the image itself, and is left out"));
        }
        TransferEvent::Progress { path, bytes, .. } => {
            progress.show(|| format!("{} {}", human(*bytes), path.display()));
        }
        TransferEvent::SkippedXattr { path, name, .. } => {
            skipped(&path.display().to_string(), name)
        }
        _ => {}
    })
}

/// Tells of attributes that are left out, of each name once: thousands of files may have the same, and losses are
/// not to drown in them.
pub fn skipped_xattrs() -> impl Fn(&str, &[u8]) {
    let told = RefCell::new(BTreeSet::new());
    move |path, name| {
        if !told.borrow_mut().insert(name.to_vec()) {
            return;
        }
        progress::wipe();
        let why = match name.contains(&0) {
            true => "in whose name there is a NUL",
            false => "which the target does not know or which cannot be read",
        };
        let shut = match name == vfs::posix_acl::ACCESS {
            // What it lets others do nothing else says.
            true => ", and the owner alone gets at what has it",
            false => "",
        };
        let name = String::from_utf8_lossy(name);
        say_error(&format!(
            "spinney: {path}: attribute {name} is left out, {why}{shut}; so it is in all that follows"
        ));
    }
}

/// Of a volume in `image`, or in a part of it, that was opened on a device which does not say so.
pub fn in_image<'v>(transfer: Transfer<'v>, image: &Path) -> Transfer<'v> {
    let place = ImageFile::of(image);
    // Where nobody knows which part it is all of it counts.
    transfer.in_part(&place.file, place.span(false).ok().flatten())
}

/// As `spinney::tree::walk`, with this program's errors.
pub mod walk {
    use super::*;

    pub fn until(
        volume: &Volume,
        top: Node,
        path: Vec<u8>,
        failed: &mut dyn FnMut(Error),
        visit: tree::walk::Visit<'_, Error>,
    ) -> Result<()> {
        tree::walk::until(volume, top, path, &mut |error| failed(error.into()), visit)
    }

    /// Changes `top` and everything below it. What fails is told and left out, as by chmod(1), of a subvolume that
    /// takes no changes once; what would fail for all ends it.
    pub fn every(
        volume: &Volume,
        top: Node,
        path: Vec<u8>,
        failures: &Failures,
        change: &mut dyn FnMut(&Node) -> vfs::Result<()>,
    ) -> Result<()> {
        let mut refused = tree::Refused::new(volume);
        until(volume, top, path, &mut |error| failures.tell(&error), &mut |node, path, _| {
            match change(node) {
                Err(error) if error.errno() == libc::ENOSPC => Err(error).at(volume, path),
                Err(error) if refused.was_told(&error, node.ino()) => Ok(true),
                changed => {
                    failures.keep(changed.at(volume, path));
                    Ok(true)
                }
            }
        })
    }
}
