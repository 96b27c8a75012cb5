//! Snapshots through the door: of what the caller has come to.
//!
//! The kernel's call has the source's descriptor, for which the caller went through all the directories
//! above. A number says nothing of that: whoever could name one would get at what lies behind
//! directories that are closed to him, or outside all that is mounted where he is.

use super::{administrator, caller};
use crate::control::wire::{SnapshotArgs, Source};
use crate::fs::BtrfsFs;
use crate::ops::subvolume;
use vfs::{Asker, Controlled, Errno, FileSystem, Ino, Result};

/// A word for who owns the source, and has it open.
pub(super) fn leave(fs: &BtrfsFs, asker: &dyn Asker, root: Ino) -> Result<Controlled> {
    let caller = caller(asker)?;
    subvolume::may_be_source(fs.open()?, &caller, root)?;
    Ok(Controlled::answer(fs.engine.sources.give(root, caller.uid).to_vec()))
}

/// The root directory of the source. EPERM: only administrators name it by a number; ESTALE: that word
/// was never given, or not lately.
pub(super) fn source(fs: &BtrfsFs, asker: &dyn Asker, source: Source) -> Result<Ino> {
    match source {
        Source::Number(root) => administrator(asker).map(|()| root),
        Source::Word(word) => fs.engine.sources.take(&word).ok_or(Errno::ESTALE.into()),
    }
}

pub(super) fn snapshot(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    dir: Ino,
    input: &[u8],
) -> Result<Controlled> {
    let args = SnapshotArgs::parse(input).ok_or(Errno::EINVAL)?;
    let source = source(fs, asker, args.source)?;
    let (_, entry) = fs.snapshot(&caller(asker)?, source, dir, args.name, args.read_only)?;
    fs.forget(entry.attr.ino, 1);
    Ok(Controlled::name(dir, args.name))
}
