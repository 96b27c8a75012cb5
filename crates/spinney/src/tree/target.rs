//! What content may be written to when something has the copy's name already, by the rules of
//! cp(1): where a symbolic link leads, but not where it leads nowhere; and never a directory.
//!
//! On this machine a device or fifo is written to. In a volume that is not mounted nobody is
//! behind them, so they are refused; only a copy that is itself no file takes their place.

use super::host::HostName;
use super::node::Node;
use crate::error::{Error, Result};
use crate::volume::{At, Volume};
use btrfs_image::HostStat;
use std::cell::RefCell;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use vfs::{Errno, FileKind, FsError, Ino};

const NOWHERE: &str = "is a symbolic link that leads nowhere; nothing is written through it";

const JUST_MADE: &str = "is a symbolic link that was just made; nothing is written through it";

/// What a file's content goes to instead of `old`, which has the name `path`.
/// With `kept` what is there stays as it is, and is only looked for.
pub(super) fn inside(
    volume: &Volume,
    own: &MadeInside,
    old: Node,
    path: &[u8],
    kept: bool,
) -> Result<Node> {
    let refused = |what: &str| Error::refused(volume.show(path), what);
    let node = match old.is_symlink() {
        false => old,
        true if !kept && own.has_link(old.ino()) => return Err(refused(JUST_MADE)),
        true => match volume.find(path, true) {
            Err(FsError::Posix(Errno::ENOENT)) => return Err(refused(NOWHERE)),
            found => found.at(volume, path)?,
        },
    };
    match node.attr.kind {
        FileKind::File | FileKind::Dir => Ok(node),
        _ if kept => Ok(node),
        _ => Err(refused("is a device, fifo or socket, and nobody is behind it here")
            .remedied("remove it first to have a file in its place")),
    }
}

/// Symbolic links that a command made on this machine. One source must not put a link where the
/// content of another goes: the first may come from a stranger's volume.
#[derive(Clone, Default)]
pub(super) struct OwnLinks(Rc<RefCell<HashSet<(u64, u64)>>>);

impl OwnLinks {
    pub(super) fn add(&self, path: &Path) {
        if let Ok(meta) = path.symlink_metadata() {
            self.0.borrow_mut().insert((meta.dev(), meta.ino()));
        }
    }

    fn has(&self, link: &HostStat) -> bool {
        self.0.borrow().contains(&link.key)
    }
}

/// What all copies of a command made in one volume, from wherever.
#[derive(Clone, Default)]
pub(super) struct MadeInside {
    links: Rc<RefCell<HashSet<Ino>>>,
    /// Files that other names may still become links to: nothing else is written into them.
    copies: Rc<RefCell<HashSet<Ino>>>,
}

impl MadeInside {
    pub(super) fn add_link(&self, link: Ino) {
        self.links.borrow_mut().insert(link);
    }

    fn has_link(&self, link: Ino) -> bool {
        self.links.borrow().contains(&link)
    }

    pub(super) fn add_copy(&self, file: Ino) {
        self.copies.borrow_mut().insert(file);
    }

    pub(super) fn is_copy(&self, file: Ino) -> bool {
        self.copies.borrow().contains(&file)
    }
}

/// The same on this machine; `None` if nothing has the name.
pub(super) fn on_host(at: &HostName<'_>, own: &OwnLinks) -> Result<Option<HostStat>> {
    let Some(there) = at.stat()? else { return Ok(None) };
    if !there.is(FileKind::Symlink) {
        return Ok(Some(there));
    }
    if own.has(&there) {
        return Err(at.refused(JUST_MADE));
    }
    match at.dir.stat(at.name, true).map_err(|e| at.failed(e))? {
        None => Err(at.refused(NOWHERE)),
        found => Ok(found),
    }
}
