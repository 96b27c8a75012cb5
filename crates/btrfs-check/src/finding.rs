//! The report: findings, how bad they are, and what was seen.

use crate::kind::{FindingKind, Severity, remedy};
use btrfs_disk::superblock::COPIES;
use btrfs_disk::{Key, Logical, TreeId};
use std::fmt;

/// One thing that is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is: its kind's.
    pub severity: Severity,
    /// What is wrong, with the figures.
    pub kind: FindingKind,
    /// The tree that it was found in.
    pub tree: Option<TreeId>,
    /// The item that it is about.
    pub key: Option<Key>,
    /// The logical address, in bytes, of the node, extent or chunk that it is about.
    pub logical: Option<Logical>,
}

impl Finding {
    /// One that is nowhere yet.
    pub fn new(kind: FindingKind) -> Finding {
        Finding { severity: kind.severity(), kind, tree: None, key: None, logical: None }
    }

    /// The same, in this tree.
    pub fn tree(mut self, tree: TreeId) -> Finding {
        self.tree = Some(tree);
        self
    }

    /// The same, at this item.
    pub fn key(mut self, key: Key) -> Finding {
        self.key = Some(key);
        self
    }

    /// The same, at this logical address.
    pub fn at(mut self, logical: u64) -> Finding {
        self.logical = Some(Logical(logical));
        self
    }

    /// What the operator can do about it.
    pub fn remedy(&self) -> &'static str {
        match (&self.kind, self.tree) {
            (FindingKind::NodeUnreadable { .. }, Some(TreeId::FREE_SPACE)) => {
                remedy::REBUILD_FREE_SPACE
            }
            (FindingKind::NodeUnreadable { .. }, Some(TreeId::UUID)) => remedy::FORGET_UUIDS,
            (FindingKind::NodeUnreadable { .. }, Some(TreeId::QUOTA)) => remedy::END_QUOTAS,
            (
                FindingKind::NodeUnreadable { .. }
                | FindingKind::NodePlacement { .. }
                | FindingKind::ItemMalformed { .. },
                Some(TreeId::LOG),
            ) => remedy::FORGET_LOG,
            // By a spare one a volume may be mounted read-only alone, and by an older first one the kernel
            // mounts what was before the last commit.
            (
                FindingKind::SuperCopyBad { offset, .. }
                | FindingKind::SuperCopyStale { offset, .. },
                _,
            ) if *offset == COPIES[0] => remedy::RECOVER_SUPER,
            (kind, _) => kind.remedy(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tree) = self.tree {
            write!(f, "tree {}: ", tree.0 as i64)?;
        }
        if let Some(key) = self.key {
            write!(f, "item {key}: ")?;
        }
        if let Some(logical) = self.logical {
            write!(f, "logical {logical}: ")?;
        }
        self.kind.fmt(f)
    }
}

/// What the check came by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Nodes of all trees but the log's, once each however many trees share them.
    pub tree_blocks: u64,
    /// Bytes of these, once for all copies.
    pub tree_bytes: u64,
    /// Of these bytes, those of subvolumes and of the tree that a balance moves content by.
    pub fs_tree_bytes: u64,
    /// Of these bytes, those of the extent tree.
    pub extent_tree_bytes: u64,
    /// Of these bytes, those that nothing stands in.
    pub waste_bytes: u64,
    /// Extents of file content, once each.
    pub data_extents: u64,
    /// Bytes on disk of all data extents, once each.
    pub data_bytes: u64,
    /// Bytes on disk of the extents that items of files name, once for each item.
    pub allocated_bytes: u64,
    /// Bytes that files refer to, once for each reference.
    pub referenced_bytes: u64,
    /// Subvolumes and snapshots, the top level among them; not those that are being deleted.
    pub subvolumes: u64,
    /// Inodes of all subvolumes, directories among them.
    pub inodes: u64,
    /// Directories of all subvolumes.
    pub directories: u64,
    /// Directory entries of all subvolumes.
    pub names: u64,
    /// Inodes without a name that wait for the next mount to delete them.
    pub orphans: u64,
    /// Deleted subvolumes that wait for their blocks to be freed.
    pub dead_subvolumes: u64,
    /// Chunks, once for all copies.
    pub chunks: u64,
    /// Bytes of content that have checksums.
    pub csum_bytes: u64,
    /// Bytes read and verified from all copies (`verify_data`).
    pub verified_bytes: u64,
    /// Bytes of content of files with fs-verity that were held against their trees (`verify_data`).
    pub verity_bytes: u64,
    /// The volume has a log that the next mount replays.
    pub pending_log: bool,
    /// Subvolumes that the log is about, and its nodes.
    pub log_trees: u64,
    /// Nodes of the log's trees.
    pub log_blocks: u64,
}

/// What quota groups hold, as the volume says and as counted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct QuotaReport {
    /// The volume says that its numbers are wrong.
    pub inconsistent: bool,
    /// The volume is being counted, so its numbers are not to be right.
    pub rescanning: bool,
    /// By number.
    pub groups: Vec<QuotaCount>,
}

/// What one quota group holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaCount {
    /// Its level in the upper 16 bits.
    pub id: u64,
    /// As the volume says.
    pub stored: QuotaBytes,
    /// As counted.
    pub counted: QuotaBytes,
}

/// Bytes of a quota group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QuotaBytes {
    /// Of extents that one of its subvolumes reaches.
    pub referenced: u64,
    /// Of those that nobody else reaches.
    pub exclusive: u64,
}

/// An extent, of content or a node, and who reaches it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// Its logical address.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
    /// Subvolumes, by number.
    pub roots: Vec<u64>,
}

/// What a check has to say.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Findings that were left off because there were more than the options allow.
    pub left_off: u64,
    /// What was seen.
    pub totals: Totals,
    /// Quota groups by their number, where they could be counted, and where that was asked for.
    pub quotas: Option<QuotaReport>,
    /// By address, where that was asked for.
    pub sharing: Vec<Sharing>,
    /// Who reaches what was to be known, and subvolumes share in more ways than are counted: `sharing` is
    /// empty, and only simple quotas are in `quotas`.
    pub uncounted: bool,
    limit: usize,
}

impl Report {
    pub(crate) fn new(limit: usize) -> Report {
        Report { limit, ..Report::default() }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        if self.findings.len() < self.limit {
            self.findings.push(finding);
        } else {
            self.left_off += 1;
        }
    }

    /// Nothing worse than notes.
    pub fn is_clean(&self) -> bool {
        self.worst().is_none_or(|worst| worst == Severity::Note)
    }

    /// The worst that was found; `Error` if findings were left off.
    pub fn worst(&self) -> Option<Severity> {
        let kept = self.findings.iter().map(|f| f.severity).max();
        if self.left_off > 0 { Some(Severity::Error) } else { kept }
    }

    /// How many findings are of this severity, those left off not among them.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.severity == severity).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many snapshots do no harm.
    #[test]
    fn what_is_not_counted_is_no_damage() {
        let mut report = Report::new(1);
        report.add(Finding::new(FindingKind::SharingUncounted));
        assert!(report.is_clean());
    }
}
