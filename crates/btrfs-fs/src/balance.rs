//! Emptying block groups: what is in one moves elsewhere, in bounded steps, each in a commit of its
//! own, and the chunk goes back to the device.
//!
//! Invariants: a group is set aside while it is emptied, and is as any other again if that does not
//! succeed; each step leaves a whole volume, so there is nothing to clean up after a crash.
//! Operations go on: nodes are no more than what trees are made of, and no inode knows one.
//!
//! What it does not know: how a commit moves nodes (`btrfs_space::settle::relocate`), who asks.
//! Content of files does not move yet: changes in memory name its extents by address.

use crate::cleaner::Cleaner;
use crate::commit::Committer;
use crate::error::IntoFs;
use crate::reserve::{Reservations, cost};
use crate::reserver::Reserver;
use crate::stats::Stats;
use btrfs_disk::ids::block_group::{DATA, METADATA, SYSTEM};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Logical, TreeId};
use btrfs_space::{GroupInfo, Items, Kind, MoveNodes, MovedNodes, Priority, TreeItems};
use btrfs_txn::Core;
use btrfs_txn::delta::TreeAction;
use locks::{Mutex, Rank};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{Errno, FsError, Result};

/// Nodes that one step moves at most; what lies above them comes on top.
const STEP_NODES: usize = 1024;
/// Copies that a step may come to need more than were counted, while operations go on.
const SLACK: u64 = 64;
/// Commits for which nothing may get better.
const PATIENCE: usize = 8;

/// No volume is made smaller than this; the kernel makes none, either.
const LEAST: u64 = 256 << 20;

/// What a balance did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct BalanceReport {
    /// Block groups that were given back.
    pub groups: u64,
    /// Nodes that moved.
    pub relocated_extents: u64,
    /// Nodes that were written anew because they point to those.
    pub rewritten_nodes: u64,
    /// How long it took.
    pub time: Duration,
}

pub(crate) struct Balancer {
    core: Arc<Core>,
    reservations: Arc<Reservations>,
    reserver: Arc<Reserver>,
    committer: Arc<Committer>,
    cleaner: Arc<Cleaner>,
    stats: Arc<Stats>,
    resizing: Mutex<()>,
    /// Held by who empties block groups.
    at_work: Mutex<()>,
}

/// Ends the emptying of a group, however it ended.
struct Aside<'a> {
    core: &'a Core,
    start: Logical,
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.core.space.take_back(self.start) {
            self.core.health.poison(&format!("a block group that was emptied: {error}"));
        }
    }
}

impl Balancer {
    pub(crate) fn new(
        core: &Arc<Core>,
        reservations: &Arc<Reservations>,
        reserver: &Arc<Reserver>,
        committer: &Arc<Committer>,
        cleaner: &Arc<Cleaner>,
        stats: &Arc<Stats>,
    ) -> Balancer {
        let (core, reservations, reserver) = (core.clone(), reservations.clone(), reserver.clone());
        let (committer, cleaner, stats) = (committer.clone(), cleaner.clone(), stats.clone());
        let resizing = Mutex::new(Rank::Resize, ());
        let at_work = Mutex::new(Rank::Balance, ());
        Balancer { core, reservations, reserver, committer, cleaner, stats, resizing, at_work }
    }

    /// Empties all block groups of metadata that there are now, and gives them back.
    pub(crate) fn balance_metadata(&self) -> Result<BalanceReport> {
        let start = Instant::now();
        let groups = self.core.space.group_infos();
        let metadata = |group: &&GroupInfo| group.flags & (DATA | METADATA | SYSTEM) == METADATA;
        if groups.iter().any(|group| group.flags & (DATA | METADATA) == DATA | METADATA) {
            let what = "nodes move out of block groups that have no files' content in them alone";
            return Err(FsError::Unsupported(what.into()));
        }
        let mut report = BalanceReport::default();
        for group in groups.iter().filter(metadata) {
            self.empty(group, &mut report)?;
        }
        report.time = start.elapsed();
        Ok(report)
    }

    /// The volume takes `total` bytes of its device, rounded down to whole sectors. Nodes that lie behind
    /// a nearer end move; files' content does not yet.
    pub(crate) fn resize(&self, total: u64) -> Result<BalanceReport> {
        self.core.health.changeable().fs()?;
        let _one = self.resizing.lock();
        let (start, mut report) = (Instant::now(), BalanceReport::default());
        let total = total / self.core.sector() * self.core.sector();
        let space = &self.core.space;
        let now = space.device_bytes();
        if total > self.core.volume.device_len() {
            return Err(Errno::EFBIG.into());
        }
        if total >= now {
            space.grow(total).fs()?;
        } else if total < LEAST {
            return Err(Errno::EINVAL.into());
        } else {
            space.will_shrink(total).fs()?;
            if let Err(error) = self.clear_behind(total, &mut report) {
                space.do_not_shrink();
                return Err(error);
            }
        }
        self.committer.commit_written_back()?;
        report.time = start.elapsed();
        Ok(report)
    }

    fn clear_behind(&self, total: u64, report: &mut BalanceReport) -> Result<()> {
        let space = &self.core.space;
        // Deleted content may be all that is there.
        self.committer.commit_what_lands()?;
        let behind = space.behind(total);
        let stuck = |group: &&GroupInfo| {
            group.used > 0 && group.flags & (DATA | METADATA | SYSTEM) != METADATA
        };
        if let Some(group) = behind.iter().find(stuck) {
            let what = "is in the way, and its content cannot be moved yet";
            return Err(FsError::Unsupported(format!("block group {} {what}", group.logical)));
        }
        behind.iter().try_for_each(|group| self.empty(group, report))?;
        space.shrink().fs()
    }

    fn empty(&self, group: &GroupInfo, report: &mut BalanceReport) -> Result<()> {
        self.core.health.changeable().fs()?;
        let _one = self.at_work.lock();
        self.core.space.set_aside(group.logical).fs()?;
        let aside = Aside { core: &self.core, start: group.logical };
        let mut in_vain = 0;
        while let Some(range) = self.next(group)? {
            // A tree that is half dropped cannot be walked.
            self.cleaner.wait_until_gone(&[], None, true)?;
            let moved = self.step(range)?;
            report.relocated_extents += moved.moved;
            report.rewritten_nodes += moved.above;
            self.stats.relocated.add(moved.moved);
            match (moved.moved, moved.refused) {
                (0, why) if in_vain == PATIENCE => {
                    let why = why.unwrap_or_else(|| "nothing refers to what is in it".into());
                    let what = format!("block group {} cannot be emptied: {why}", group.logical);
                    return Err(FsError::Unsupported(what));
                }
                (0, _) => in_vain += 1,
                _ => in_vain = 0,
            }
        }
        self.give_back(group.logical)?;
        drop(aside);
        report.groups += 1;
        Ok(())
    }

    /// Where the nodes of the group lie that come next, as of the last commit.
    fn next(&self, group: &GroupInfo) -> Result<Option<Range<u64>>> {
        let roots = self.core.roots();
        let Some(extents) = roots.get(TreeId::EXTENT) else { return Ok(None) };
        let (first, end) = (group.logical.0, group.logical.0 + group.len);
        let mut nodes = Vec::new();
        let mut items = TreeItems::new(&self.core.store, &extents.root);
        let mut from = Key::new(first, 0, 0);
        while nodes.len() < STEP_NODES {
            let found = items.at_or_after(&from).fs()?;
            let Some((key, _)) = found.filter(|(key, _)| key.objectid < end) else { break };
            if matches!(key.kind, kind::METADATA_ITEM | kind::EXTENT_ITEM) {
                nodes.push(key.objectid);
            }
            from = Key::new(key.objectid + 1, 0, 0);
        }
        Ok(nodes.first().zip(nodes.last()).map(|(first, last)| *first..*last + 1))
    }

    /// Moves them, in a commit.
    fn step(&self, range: Range<u64>) -> Result<MovedNodes> {
        let roots = self.core.roots();
        let trees: Vec<_> = roots.trees.iter().map(|(_, root)| root.root).collect();
        let copies = btrfs_space::count_moves(&self.core.store, trees, &range).fs()?;
        let limit = copies + copies / 8 + SLACK;
        let subvolumes = roots.trees.sum().trees;
        drop(roots);
        let cost = cost::move_nodes(&self.core.geometry, limit, subvolumes);
        let whole = cost::with(cost::Cost::default(), cost);
        let room = match self.reservations.hold(whole, Priority::Delete) {
            Ok(room) => room,
            Err(_) => self.reserver.reserve_removal(whole)?,
        };
        let outcome = Arc::new(Mutex::new(Rank::Leaf, None));
        let what = MoveNodes { range, limit: limit as usize };
        let op = self.core.begin();
        op.act(TreeAction::Move { what, outcome: outcome.clone() }, cost);
        drop(op);
        drop(room);
        self.committer.commit_written_back()?;
        let moved = outcome.lock().take();
        Ok(moved.unwrap_or_default())
    }

    /// What the moves freed comes back when nobody reads it any more; then the chunk goes.
    fn give_back(&self, start: Logical) -> Result<()> {
        for _ in 0..PATIENCE {
            self.committer.wait_for_readers(Kind::Metadata);
            if self.core.space.give_back(start).fs()? {
                return self.committer.commit_written_back();
            }
            // A log of fsyncs may have nodes in it until the next commit.
            self.committer.commit_written_back()?;
        }
        Err(FsError::Posix(Errno::EBUSY))
    }
}
