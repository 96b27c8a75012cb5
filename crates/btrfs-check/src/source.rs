//! What every part of the check shares: the volume, the report, reading of nodes.
//!
//! A node is read from every copy the first time, so that a bad spare copy is found
//! while the good one still serves.

use crate::reach::Reached;
use crate::{CheckOptions, Finding, FindingKind, Phase, Progress, Report, Sharing};
use btrfs_disk::check::{self, Limits};
use btrfs_disk::{Error, Expect, Generation, Geometry, Node, TreeId};
use btrfs_volume::Volume;
use std::collections::HashSet;

pub(crate) struct Context<'a> {
    pub volume: &'a Volume,
    pub geometry: Geometry,
    /// Generation of the superblock.
    pub newest: u64,
    pub report: Report,
    /// Where the device ends, if the volume does not end there: in front of it is what is left.
    pub cut: Option<u64>,
    options: &'a CheckOptions<'a>,
    phase: Phase,
    done: u64,
    total: Option<u64>,
    /// Blocks of which no copy is good; each is reported once.
    unreadable: HashSet<u64>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(volume: &'a Volume, options: &'a CheckOptions<'a>) -> Context<'a> {
        Context {
            volume,
            geometry: *volume.geometry(),
            newest: volume.superblock().generation().0,
            report: Report::new(options.max_findings),
            cut: cut(volume),
            options,
            phase: Phase::Superblocks,
            done: 0,
            total: None,
            unreadable: HashSet::new(),
        }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.report.add(finding);
    }

    pub(crate) fn verify_data(&self) -> bool {
        self.options.verify_data
    }

    /// Whether it is to be told who reaches what; for a report on quotas only `with_quotas` to tell of.
    pub(crate) fn asks_who_reaches(&self, with_quotas: bool) -> bool {
        self.options.quota_report && with_quotas || self.options.sharing_of.is_some()
    }

    /// The extents that the tree reaches which the caller asked for, by address.
    pub(crate) fn sharing(&self, reached: &Reached) -> Vec<Sharing> {
        let Some(tree) = self.options.sharing_of else { return Vec::new() };
        let all = reached.extents().filter_map(|(start, len, way)| {
            let mut roots: Vec<u64> = reached.trees(way).collect();
            roots.reverse();
            roots.contains(&tree.0).then_some(Sharing { start, len, roots })
        });
        let mut all: Vec<Sharing> = all.collect();
        all.sort_unstable_by_key(|extent| extent.start);
        all
    }

    pub(crate) fn begin(&mut self, phase: Phase, total: Option<u64>) {
        (self.phase, self.total, self.done) = (phase, total, 0);
        self.tell();
    }

    /// Counts progress; tells the caller every so often.
    pub(crate) fn step(&mut self, amount: u64, every: u64) {
        let before = self.done / every;
        self.done += amount;
        if self.done / every != before {
            self.tell();
        }
    }

    fn tell(&self) {
        if let Some(progress) = self.options.progress {
            progress(Progress { phase: self.phase, done: self.done, total: self.total });
        }
    }

    /// Reads a node of `tree`; from all copies if `every_copy`. `None` if none is good,
    /// which is reported.
    pub(crate) fn read_node(
        &mut self,
        tree: TreeId,
        expect: &Expect,
        every_copy: bool,
    ) -> Option<Node> {
        self.step(1, 512);
        let copies = match self.copies(expect.logical.0) {
            Ok(copies) => copies,
            Err(why) => return self.unreadable(tree, expect, why),
        };
        let mut good = None;
        let mut bad = Vec::new();
        for copy in 0..copies {
            match self.read_copy(expect, copy) {
                Ok(node) => good = good.or(Some(node)),
                Err(why) => bad.push((copy, why)),
            }
            if good.is_some() && !every_copy {
                break;
            }
        }
        if good.is_none() {
            let why = bad.pop().map_or_else(String::new, |(_, why)| why);
            return self.unreadable(tree, expect, why);
        }
        for (copy, why) in bad.into_iter().filter(|_| every_copy) {
            let kind = FindingKind::NodeCopyBad { copy: copy + 1, why };
            self.add(Finding::new(kind).tree(tree).at(expect.logical.0));
        }
        good
    }

    fn copies(&self, logical: u64) -> Result<usize, String> {
        if !logical.is_multiple_of(u64::from(self.geometry.sector_size)) {
            return Err("its address is not aligned".into());
        }
        self.volume.mirrors(btrfs_disk::Logical(logical)).map_err(|e| reason(&e))
    }

    fn read_copy(&self, expect: &Expect, copy: usize) -> Result<Node, String> {
        let mut bytes = vec![0; self.geometry.node_size as usize].into_boxed_slice();
        let read = self.volume.read_mirror(expect.logical, copy, &mut bytes);
        read.map_err(|e| reason(&e))?;
        // A log is of the transaction that the crash interrupted.
        let newest = self.newest + u64::from(expect.owner == Some(TreeId::LOG));
        let limits = Limits { max_generation: Some(Generation(newest)), read_only: true };
        check::node_within(bytes, &self.geometry, expect, &limits).map_err(|c| match c.key {
            Some(key) => format!("item {key}: {}", c.what),
            None => c.what,
        })
    }

    fn unreadable(&mut self, tree: TreeId, expect: &Expect, why: String) -> Option<Node> {
        if self.unreadable.insert(expect.logical.0) {
            let kind = FindingKind::NodeUnreadable { level: expect.level, why };
            self.add(Finding::new(kind).tree(tree).at(expect.logical.0));
        }
        None
    }
}

fn cut(volume: &Volume) -> Option<u64> {
    let end = volume.device().len();
    let sector = u64::from(volume.geometry().sector_size);
    (end < volume.superblock().fields.dev_item.total_bytes).then_some(end / sector * sector)
}

/// The words of an error without the address that the finding carries itself.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::Corrupt(corrupt) => corrupt.what.clone(),
        other => other.to_string(),
    }
}
