//! What one log write is made of: inodes at one moment.
//!
//! Invariant: after `freeze` everything in `objects` is of one moment, whatever was asked
//! for in which round: each round takes all objects anew, and what was taken before stays
//! where nothing newer came.

use super::committed::{Committed, Name, collect};
use crate::ino::InodeId;
use btrfs_disk::items::{FileExtent, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Result};
use btrfs_txn::delta::{Ask, Frozen, Level, Pending, is_ref};
use std::collections::{BTreeMap, BTreeSet};

/// Names that the log makes in a directory of the commit, by directory and hash, where the commit
/// has others of that hash.
pub(crate) type Crowded = BTreeMap<(InodeId, u64), BTreeSet<Vec<u8>>>;

#[derive(Default)]
pub(crate) struct Work {
    /// Inodes to log, and how.
    pub wanted: BTreeMap<InodeId, Level>,
    /// Those that somebody synced: the others come along.
    pub asked: BTreeSet<InodeId>,
    /// Somebody waits, and can have a commit instead.
    pub may_commit: bool,
    /// More is wanted of an inode than was frozen.
    raised: bool,
    pub objects: BTreeMap<InodeId, Frozen>,
    /// Entries of directories that the log takes away, by index.
    pub cuts: BTreeSet<(InodeId, u64)>,
    /// Inodes of which all extents are needed.
    pub contents: BTreeSet<InodeId>,
    /// Inodes that are gone: the log must not have them.
    pub dropped: BTreeSet<InodeId>,
    pub crowded: Crowded,
}

/// Whether an inode is there at the moment of the log, and what it is.
pub(crate) enum Now {
    Here(InodeItem),
    /// Without names, or erased.
    Gone,
}

impl Work {
    /// What was synced earlier, for a log on top of another commit.
    pub(crate) fn carried(synced: BTreeMap<InodeId, Level>) -> Work {
        let asked = synced.keys().copied().collect();
        Work { wanted: synced, asked, ..Work::default() }
    }

    /// What somebody syncs now.
    pub(crate) fn ask(&mut self, id: InodeId, level: Level) {
        self.may_commit = true;
        self.asked.insert(id);
        self.want(id, level);
    }

    pub(crate) fn want(&mut self, id: InodeId, level: Level) {
        let entry = self.wanted.entry(id).or_default();
        self.raised |= *entry < level && self.objects.contains_key(&id);
        *entry = (*entry).max(level);
    }

    /// True if something is wanted that was not frozen with the rest.
    pub(crate) fn is_short(&self) -> bool {
        self.raised || self.wanted.keys().any(|id| !self.objects.contains_key(id))
    }

    /// Takes all that is wanted. The current delta is held still. `ask` says how much of an
    /// inode the log does not have yet.
    pub(crate) fn freeze(&mut self, pending: &Pending<'_>, ask: impl Fn(&InodeId, Level) -> Ask) {
        self.raised = false;
        for (id, level) in &self.wanted {
            let mut ask = ask(id, *level);
            ask.content |= self.contents.contains(id);
            let newer = pending.freeze(id.tree, id.objectid, ask);
            mark_extents(pending, &newer);
            match self.objects.get_mut(id) {
                Some(old) => old.absorb(newer),
                None => {
                    self.objects.insert(*id, newer);
                }
            }
        }
    }

    /// Asks for all extents of files of which the commit has content where they may have
    /// holes now. True: freeze again.
    pub(crate) fn want_contents(&mut self, committed: &Committed<'_>, sector: u64) -> Result<bool> {
        let mut more = false;
        for (id, frozen) in &self.objects {
            let asked = frozen.whole || frozen.born || self.contents.contains(id);
            if !asked && committed.has_content(*id, sector, &frozen.gaps)? {
                more |= self.contents.insert(*id);
            }
        }
        Ok(more)
    }

    /// The inode as it is now; `None`: neither the commit nor the epoch has it.
    pub(crate) fn now(&self, committed: &Committed<'_>, id: InodeId) -> Result<Option<Now>> {
        let frozen = self.objects.get(&id);
        let slot = frozen.and_then(|f| f.slots.get(&(kind::INODE_ITEM, 0)));
        let item = match slot {
            Some(Some(bytes)) => InodeItem::read(bytes)?,
            Some(None) => return Ok(Some(Now::Gone)),
            None if frozen.is_some_and(|f| f.born) => return Ok(None),
            None => match committed.inode(id)? {
                Some(item) => item,
                None => return Ok(None),
            },
        };
        Ok(Some(if item.nlink == 0 { Now::Gone } else { Now::Here(item) }))
    }

    /// The names that the inode has now.
    pub(crate) fn names(&self, committed: &Committed<'_>, id: InodeId) -> Result<BTreeSet<Name>> {
        let Some(frozen) = self.objects.get(&id) else { return committed.names(id) };
        let mut names = BTreeSet::new();
        for (&(kind, offset), value) in frozen.slots.iter().filter(|(k, _)| is_ref(k.0)) {
            if let Some(bytes) = value {
                collect(kind, offset, bytes, &mut names)?;
            }
        }
        if !frozen.born {
            committed.scan(id, kind::INODE_REF..=kind::INODE_EXTREF, 0, |key, data| {
                if !frozen.slots.contains_key(&(key.kind, key.offset)) {
                    collect(key.kind, key.offset, data, &mut names)?;
                }
                Ok(true)
            })?;
        }
        Ok(names)
    }
}

/// Extents of this epoch that the log is about to refer to must stay until the commit.
fn mark_extents(pending: &Pending<'_>, frozen: &Frozen) {
    let content = (kind::EXTENT_DATA, 0)..=(kind::EXTENT_DATA, u64::MAX);
    for bytes in frozen.slots.range(content).filter_map(|(_, value)| value.as_ref()) {
        if let Ok(FileExtent::Extent { fields, .. }) = FileExtent::parse(bytes)
            && fields.disk_bytenr.0 != 0
        {
            pending.mark_logged(fields.disk_bytenr);
        }
    }
}
