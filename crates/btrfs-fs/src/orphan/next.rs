//! The next items of an inode whose items go in steps.
//!
//! Invariant: a step begins where the one before ended. What was deleted stands in the delta still, so who began in
//! front of all of it each time needed ever more time for a step.
//!
//! What it does not know: how they go, and whose they are.

use crate::error::IntoFs;
use crate::extents::Mapped;
use crate::ino::InodeId;
use btrfs_disk::Key;
use btrfs_disk::key::kind;
use btrfs_txn::View;
use vfs::Result;

pub(super) struct Next {
    pub(super) keys: Vec<Key>,
    /// What those say that are extents.
    pub(super) extents: Vec<Mapped>,
    /// Where the next step begins; `None`: nothing is left behind these.
    pub(super) from: Option<Key>,
}

/// From a key on, so many at most.
pub(super) fn next(
    view: &View<'_>,
    id: InodeId,
    (from, most): (Key, usize),
    sector: u64,
) -> Result<Next> {
    let (mut keys, mut extents) = (Vec::new(), Vec::new());
    let mut scan = view.scan(id.tree, from);
    while keys.len() < most {
        let Some((key, bytes)) = scan.next().fs()? else { break };
        if key.kind == kind::EXTENT_DATA {
            extents.push(Mapped::parse(&key, &bytes, sector).fs()?);
        }
        keys.push(key);
    }
    let last = keys.last().filter(|_| keys.len() == most);
    let from = last.and_then(|last| last.successor()).filter(|key| key.objectid == id.objectid);
    Ok(Next { keys, extents, from })
}
