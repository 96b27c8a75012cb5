//! The report: findings, how bad they are, and what was seen.

use crate::kind::{FindingKind, Severity};
use btrfs_disk::{Key, Logical, TreeId};
use std::fmt;

/// One thing that is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub severity: Severity,
    pub kind: FindingKind,
    pub tree: Option<TreeId>,
    pub key: Option<Key>,
    pub logical: Option<Logical>,
}

impl Finding {
    pub fn new(kind: FindingKind) -> Finding {
        Finding { severity: kind.severity(), kind, tree: None, key: None, logical: None }
    }

    pub fn tree(mut self, tree: TreeId) -> Finding {
        self.tree = Some(tree);
        self
    }

    pub fn key(mut self, key: Key) -> Finding {
        self.key = Some(key);
        self
    }

    pub fn at(mut self, logical: u64) -> Finding {
        self.logical = Some(Logical(logical));
        self
    }

    /// What the operator can do about it.
    pub fn remedy(&self) -> &'static str {
        self.kind.remedy()
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
    pub tree_blocks: u64,
    pub tree_bytes: u64,
    pub data_extents: u64,
    /// Bytes on disk of all data extents, once each.
    pub data_bytes: u64,
    /// Bytes that files refer to, once for each reference.
    pub referenced_bytes: u64,
    pub subvolumes: u64,
    pub inodes: u64,
    pub directories: u64,
    pub names: u64,
    /// Inodes without a name that wait for the next mount to delete them.
    pub orphans: u64,
    /// Deleted subvolumes that wait for their blocks to be freed.
    pub dead_subvolumes: u64,
    pub chunks: u64,
    pub csum_bytes: u64,
    /// Bytes read and verified from all copies (`verify_data`).
    pub verified_bytes: u64,
    /// The volume has a log that the next mount replays.
    pub pending_log: bool,
    /// Subvolumes that the log is about, and its nodes.
    pub log_trees: u64,
    pub log_blocks: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Findings that were left off because there were more than the options allow.
    pub left_off: u64,
    pub totals: Totals,
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

    pub fn worst(&self) -> Option<Severity> {
        let kept = self.findings.iter().map(|f| f.severity).max();
        if self.left_off > 0 { Some(Severity::Error) } else { kept }
    }

    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.severity == severity).count()
    }
}
