//! Emptying block groups: what is in one moves elsewhere, in bounded steps, each in a commit of its
//! own, and the chunk goes back to the device.
//!
//! Invariants: a group is set aside while it is emptied, and is as any other again if that does not
//! succeed; each step leaves a whole volume, so there is nothing to clean up after a crash. Nothing moves while quotas are
//! counted anew: that comes to its end first.
//! Operations go on: nodes are no more than what trees are made of, and no inode knows one.
//!
//! Content is copied, verified, before a commit makes the copy what files have ([`content`]).
//!
//! What it does not know: how a commit moves (`btrfs_space::settle::relocate`), who asks.

mod content;
mod plan;
mod resize;
mod run;
mod step;

pub use resize::NewSize;
pub use run::{BalanceState, BalanceStatus};

use crate::cleaner::Cleaner;
use crate::commit::Committer;
use crate::error::IntoFs;
use crate::qgroup::QuotaStatus;
use crate::reserve::Reservations;
use crate::reserver::Reserver;
use crate::runs::Runs;
use crate::stats::Stats;
use btrfs_disk::Logical;
use btrfs_disk::ids::block_group::DATA;
use btrfs_space::{GroupInfo, Kind, MovedNodes};
use btrfs_txn::Core;
use locks::{Mutex, Rank, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::time::Duration;
use step::Batch;
use vfs::{Errno, FsError, Result};

/// Commits for which nothing may get better.
/// Chosen, not measured.
const PATIENCE: usize = 8;

/// What a balance did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct BalanceReport {
    /// Block groups that were given back.
    pub groups: u64,
    /// Nodes and extents of content that moved.
    pub relocated_extents: u64,
    /// Nodes that were written anew because they point to those.
    pub rewritten_nodes: u64,
    /// How long it took.
    pub time: Duration,
}

impl BalanceReport {
    fn add(&mut self, other: &BalanceReport) {
        self.groups += other.groups;
        self.relocated_extents += other.relocated_extents;
        self.rewritten_nodes += other.rewritten_nodes;
    }
}

/// How the work on a group ended.
#[derive(PartialEq, Eq, Debug)]
enum Ended {
    Emptied,
    /// Somebody else gave it back before.
    Gone,
    /// Whoever asked does not want it any more; the group is as any other.
    Interrupted,
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
    /// Held by who tells the device of all that is free.
    pub(crate) trims: RwLock<()>,
    status: Mutex<BalanceStatus>,
    /// What whoever waits for the balance to stop wants; changed with the status held.
    wish: AtomicU8,
    runs: Runs,
    /// A mount that is still for a while has paused it.
    rests: AtomicBool,
    /// Where the chunks ended that there were when the balance was begun.
    chunks_end: AtomicU64,
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
        let status = Mutex::new(Rank::Leaf, BalanceStatus::default());
        let wish = AtomicU8::new(0);
        Balancer {
            core,
            reservations,
            reserver,
            committer,
            cleaner,
            stats,
            resizing,
            at_work,
            trims: RwLock::new(Rank::Trims, ()),
            status,
            wish,
            runs: Runs::default(),
            rests: AtomicBool::new(false),
            chunks_end: AtomicU64::new(0),
        }
    }

    /// Empties a group, unless `is_to_stop` says between two steps that it is not wanted any more.
    fn empty(
        &self,
        group: &GroupInfo,
        report: &mut BalanceReport,
        is_to_stop: impl Fn() -> bool,
    ) -> Result<Ended> {
        let _one = self.at_work.lock();
        self.core.health.may_go_on().fs()?;
        self.cleaner.drop_left()?;
        // One that ran empty goes where its room is wanted, and a resize may have been here.
        if !self.core.space.set_aside(group.logical).fs()? {
            return Ok(Ended::Gone);
        }
        let aside = Aside { core: &self.core, start: group.logical };
        if !self.move_out(group, report, is_to_stop)? {
            return Ok(Ended::Interrupted);
        }
        drop(aside);
        report.groups += 1;
        Ok(Ended::Emptied)
    }

    /// Step by step, until nothing is left and the group is given back. False: it was to stop before.
    fn move_out(
        &self,
        group: &GroupInfo,
        report: &mut BalanceReport,
        is_to_stop: impl Fn() -> bool,
    ) -> Result<bool> {
        let mut in_vain = 0;
        loop {
            let Some(batch) = self.next(group)? else {
                match self.give_back(group)? {
                    true => return Ok(true),
                    false if in_vain == PATIENCE => return Err(FsError::Posix(Errno::EBUSY)),
                    false => in_vain += 1,
                }
                // What was on its way here when it was set aside, or a log of fsyncs has here, moves then.
                self.committer.commit_what_lands()?;
                continue;
            };
            if is_to_stop() {
                return Ok(false);
            }
            let Some(done) = self.step_of(batch, report, &is_to_stop)? else { return Ok(false) };
            in_vain = match done.moved {
                0 if done.counting => in_vain,
                0 if in_vain == PATIENCE => return Err(stays(group, done.refused)),
                0 => in_vain + 1,
                _ => 0,
            };
        }
    }

    /// A rescan is under way, beside which nothing moves: what is counted already is known by its address.
    fn quotas_are_counted(&self) -> Result<bool> {
        let status = QuotaStatus::of(&self.core.view()).fs()?;
        Ok(status.is_some_and(|status| status.rescan.is_some()))
    }

    /// One of moving, or of counting what quotas have to know before anything moves. `None`: it was to stop before that.
    fn step_of(
        &self,
        batch: Batch,
        report: &mut BalanceReport,
        is_to_stop: impl Fn() -> bool,
    ) -> Result<Option<MovedNodes>> {
        // Who makes the mount still waits.
        self.core.health.may_go_on().fs()?;
        if self.quotas_are_counted()? {
            self.committer.commit_written_back()?;
            return Ok(Some(MovedNodes { counting: true, ..MovedNodes::default() }));
        }
        // What is deleted need not move.
        if !self.cleaner.drop_dead(is_to_stop)? {
            return Ok(None);
        }
        let done = self.step(batch)?;
        report.relocated_extents += done.moved;
        report.rewritten_nodes += done.above;
        self.stats.relocated.add(done.moved);
        Ok(Some(done))
    }

    /// What the moves freed comes back when nobody reads it any more; then the chunk goes. False:
    /// something is in it.
    fn give_back(&self, group: &GroupInfo) -> Result<bool> {
        self.committer.wait_for_readers(Kind::Metadata);
        if group.flags & DATA != 0 {
            self.committer.wait_for_readers(Kind::Data);
        }
        let gone = self.core.space.give_back(group.logical).fs()?;
        if gone {
            self.committer.commit_written_back()?;
        }
        Ok(gone)
    }
}

/// For tests, which want to know what it did: no filters, no status, no item on the volume.
#[cfg(feature = "fault-injection")]
impl Balancer {
    /// Empties all block groups that `which` flags are of and that there are now. One that cannot
    /// be emptied keeps no other from it; the first of the reasons is the answer.
    pub(crate) fn balance(&self, which: impl Fn(u64) -> bool) -> Result<BalanceReport> {
        let start = std::time::Instant::now();
        let (mut report, mut failure) = (BalanceReport::default(), None);
        for group in self.core.space.group_infos().iter().filter(|group| which(group.flags)) {
            if let Err(error) = self.empty(group, &mut report, || false) {
                self.core.health.may_go_on().fs()?;
                tracing::error!("block group {} cannot be emptied: {error}", group.logical);
                failure.get_or_insert(error);
            }
        }
        report.time = start.elapsed();
        failure.map_or(Ok(report), Err)
    }
}

fn stays(group: &GroupInfo, why: Option<String>) -> FsError {
    let why = why.unwrap_or_else(|| "nothing refers to what is in it".into());
    FsError::Unsupported(format!("block group {} cannot be emptied: {why}", group.logical))
}
