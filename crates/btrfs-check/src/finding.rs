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
    /// What is wrong, in the order in which it was found. Where there is more than the options allow the worst stay.
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
    gathered: Gathered,
}

/// Findings by their severity, each list in the order in which they were found.
#[derive(Clone, Debug, Default)]
struct Gathered {
    limit: usize,
    /// Findings so far; gives each its place.
    seen: u64,
    kept: [Vec<(u64, Finding)>; SEVERITIES],
    left_off: [u64; SEVERITIES],
}

const SEVERITIES: usize = Severity::Error as usize + 1;

impl Gathered {
    /// The last of the least ones gives way to a worse one.
    fn add(&mut self, finding: Finding) {
        let rank = finding.severity as usize;
        self.seen += 1;
        if self.kept.iter().map(Vec::len).sum::<usize>() >= self.limit {
            let least = (0..rank).find(|rank| !self.kept[*rank].is_empty());
            self.left_off[least.unwrap_or(rank)] += 1;
            let Some(least) = least else { return };
            self.kept[least].pop();
        }
        self.kept[rank].push((self.seen, finding));
    }
}

impl Report {
    pub(crate) fn new(limit: usize) -> Report {
        Report { gathered: Gathered { limit, ..Gathered::default() }, ..Report::default() }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.gathered.add(finding);
    }

    /// Nothing is added any more.
    pub(crate) fn finish(mut self) -> Report {
        let mut all: Vec<_> = self.gathered.kept.iter_mut().flat_map(std::mem::take).collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        self.findings = all.into_iter().map(|(_, finding)| finding).collect();
        self.left_off = self.gathered.left_off.iter().sum();
        self
    }

    /// Nothing worse than notes.
    pub fn is_clean(&self) -> bool {
        self.worst().is_none_or(|worst| worst == Severity::Note)
    }

    /// The worst that was found, also of what was left off.
    pub fn worst(&self) -> Option<Severity> {
        let all = [Severity::Error, Severity::Warning, Severity::Note];
        all.into_iter().find(|severity| self.count(*severity) > 0)
    }

    /// How many findings are of this severity, those that were left off among them.
    pub fn count(&self, severity: Severity) -> u64 {
        let kept = self.findings.iter().filter(|f| f.severity == severity).count();
        kept as u64 + self.gathered.left_off[severity as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limit: usize, found: &[FindingKind]) -> Report {
        let mut report = Report::new(limit);
        found.iter().for_each(|kind| report.add(Finding::new(kind.clone())));
        report.finish()
    }

    /// Many snapshots do no harm.
    #[test]
    fn what_is_not_counted_is_no_damage() {
        assert!(of(1, &[FindingKind::SharingUncounted]).is_clean());
    }

    #[test]
    fn notes_that_are_left_off_are_notes() {
        for limit in 0..3 {
            let report = of(limit, &[FindingKind::SharingUncounted, FindingKind::FreeSpaceLeft]);
            let (kept, left) = (report.findings.len(), report.left_off as usize);
            assert_eq!((kept, left), (limit, 2 - limit));
            assert_eq!(report.count(Severity::Note), 2);
            assert!(report.is_clean() && report.worst() == Some(Severity::Note), "{limit}");
        }
    }

    #[test]
    fn what_is_worse_is_not_pushed_out() {
        let (note, bad) = (FindingKind::FreeSpaceLeft, FindingKind::CsumOverlap);
        let other = FindingKind::CsumStray { len: 7 };
        let found = [&note, &note, &bad, &note, &other, &bad].map(FindingKind::clone);
        let kinds = |limit| {
            let report = of(limit, &found);
            assert_eq!((report.count(Severity::Note), report.count(Severity::Error)), (3, 3));
            assert_eq!(report.left_off as usize, 6 - report.findings.len());
            report.findings.into_iter().map(|f| f.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(9), found);
        assert_eq!(kinds(4), [&note, &bad, &other, &bad].map(FindingKind::clone));
        assert_eq!(kinds(2), [&bad, &other].map(FindingKind::clone));
        assert!(kinds(0).is_empty());
    }
}
