//! A balance from its start to its end: which chunks, how far, and what stands on the volume meanwhile.
//!
//! Invariants: while a balance is not finished its item is on the volume, in the kernel's format, so
//! that whoever mounts after a crash can go on or give up; one that ended, well or not, or was
//! cancelled, has none, and one that was paused has. One balance at a time.
//!
//! What it does not know: how a block group is emptied.

use super::{BalanceReport, Balancer, Ended, plan};
use crate::error::IntoFs;
use crate::reserve::cost;
use btrfs_disk::ids::BALANCE_OBJECTID;
use btrfs_disk::ids::block_group::{DATA, METADATA, PROFILE_MASK, SYSTEM, TYPE_MASK};
use btrfs_disk::items::{BalanceItem, balance_filter};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, Result as DiskResult, TreeId};
use btrfs_space::{GroupInfo, Kind};
use btrfs_txn::{Core, ObjectId, Op};
use btrfs_volume::ChunkInfo;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Instant;
use vfs::{Errno, FsError, Result};

/// Where a balance is, or how the last one ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
// Exhaustive: each has a number in the records of the control door and a word in the commands; one
// without would be told as none.
pub enum BalanceState {
    /// There is none, and was none since the mount.
    #[default]
    None,
    /// At work.
    Running,
    /// Its item is on the volume, and nobody is at work.
    Paused,
    /// It has done all that it could.
    Done,
    /// It was cancelled.
    Cancelled,
}

/// What there is to say of a balance.
#[derive(Clone, Copy, Default, Debug)]
pub struct BalanceStatus {
    /// Where it is.
    pub state: BalanceState,
    /// Somebody waits for it to pause, or to be cancelled.
    pub stopping: bool,
    /// What it is to do.
    pub item: BalanceItem,
    /// Chunks that it will move, about.
    pub expected: u64,
    /// Chunks that it has looked at.
    pub considered: u64,
    /// Chunks that it has moved.
    pub completed: u64,
    /// Chunks that could not be moved.
    pub failed: u64,
    /// Why the first of them could not: an errno.
    pub errno: i32,
    /// What was moved.
    pub report: BalanceReport,
}

const GO: u8 = 0;
const PAUSE: u8 = 1;
const CANCEL: u8 = 2;

/// The item on the volume, if there is one.
fn stored(core: &Core) -> DiskResult<Option<BalanceItem>> {
    let key = Key::new(BALANCE_OBJECTID, kind::TEMPORARY_ITEM, 0);
    let found = core.view().get(TreeId::ROOT, &key)?;
    found.map(|data| BalanceItem::read(&data).map_err(|c| c.key(key).into())).transpose()
}

impl Balancer {
    /// At mount: what the volume says of a balance.
    pub(crate) fn load(&self) -> Result<bool> {
        let Some(item) = stored(&self.core).fs()? else { return Ok(false) };
        let mut status = self.status.lock();
        *status = BalanceStatus { state: BalanceState::Paused, item, ..Default::default() };
        Ok(true)
    }

    pub(crate) fn status(&self) -> BalanceStatus {
        let status = self.status.lock();
        let stopping = status.state == BalanceState::Running && self.is_to_stop();
        BalanceStatus { stopping, ..*status }
    }

    /// From now on there is this balance, which `run` has to work off. EINPROGRESS: another is at
    /// work. EINVAL: it makes no sense, or another is paused.
    pub(crate) fn begin(&self, item: BalanceItem) -> Result<()> {
        self.core.health.changeable().fs()?;
        let now = |kind| self.core.space.profile_of(kind_of(kind));
        if !plan::is_sound(&item, self.core.space.mixed(), now) {
            return Err(Errno::EINVAL.into());
        }
        self.claim(|status| match status.state {
            BalanceState::Running => Err(Errno::EINPROGRESS.into()),
            BalanceState::Paused => Err(Errno::EINVAL.into()),
            _ => Ok(()),
        })?;
        let item = plan::cleared(&item);
        self.status.lock().item = item;
        self.put(None, Some(&item)).inspect_err(|_| self.status.lock().state = BalanceState::None)
    }

    /// A paused one is to go on. ESRCH: there is none. EINPROGRESS: it is at work. EOPNOTSUPP: it converts to
    /// a profile that is not made here, and stays as it is for who makes it.
    pub(crate) fn begin_again(&self) -> Result<()> {
        self.core.health.changeable().fs()?;
        self.claim(|status| match status.state {
            BalanceState::Paused if !plan::can_be_made(&status.item) => Err(not_made()),
            BalanceState::Paused => Ok(()),
            BalanceState::Running => Err(Errno::EINPROGRESS.into()),
            _ => Err(Errno::ESRCH.into()),
        })?;
        let mut status = self.status.lock();
        status.item = plan::resumed(&status.item);
        Ok(())
    }

    fn claim(&self, may: impl FnOnce(&BalanceStatus) -> Result<()>) -> Result<()> {
        // Its own commits make chunks, too.
        let end = self.core.volume.chunks().iter().map(ChunkInfo::end).max();
        let mut status = self.status.lock();
        // Who makes the mount still, or closes it, says so first, and looks here then.
        self.core.health.may_go_on().fs()?;
        may(&status)?;
        self.runs.begin();
        self.wish.store(GO, Ordering::Release);
        self.chunks_end.store(end.unwrap_or(u64::MAX), Ordering::Release);
        let item = status.item;
        *status = BalanceStatus { state: BalanceState::Running, item, ..Default::default() };
        Ok(())
    }

    /// What was begun cannot be worked off now; it stands on the volume, and can be gone on with.
    pub(crate) fn not_started(&self) {
        self.status.lock().state = BalanceState::Paused;
    }

    /// Works a balance off that was begun.
    pub(crate) fn run(&self) {
        let item = self.status.lock().item;
        let start = Instant::now();
        let worked = self.work(&item);
        self.convert(&item, false);
        let mut ended = match self.wish.load(Ordering::Acquire) {
            CANCEL => BalanceState::Cancelled,
            _ if matches!(worked, Ok(true)) => BalanceState::Done,
            // It was to pause, or nothing may be written any more: who may will go on.
            _ => BalanceState::Paused,
        };
        let mut failure = match worked {
            Err(_) if self.is_held_off() => Ok(()),
            worked => worked.map(drop),
        };
        if ended != BalanceState::Paused
            && let Err(error) = self.put(Some(&item), None)
        {
            // It stands on the volume still.
            (ended, failure) = (BalanceState::Paused, failure.and(Err(error)));
        }
        let mut status = self.status.lock();
        if let Err(error) = failure {
            status.errno = if status.errno == 0 { error.errno() } else { status.errno };
        }
        status.state = ended;
        status.report.time = start.elapsed();
        let (done, all) = (status.completed, status.considered);
        tracing::info!(?ended, "balance: {done} of {all} chunks moved");
    }

    /// What ended it is that changes are refused for a while, if not for good. Where nobody has told it to pause it has
    /// met that first, and rests as if he had.
    fn is_held_off(&self) -> bool {
        let held = self.core.health.writable().is_ok() && self.core.health.refuses_changes();
        if held && !self.is_to_stop() {
            self.rests.store(true, Ordering::Release);
        }
        held
    }

    /// Pauses; returns when nobody is at work. ESRCH: nobody was.
    pub(crate) fn pause(&self) -> Result<()> {
        self.stop(PAUSE)
    }

    /// Cancels, also one that is paused. ESRCH: there is none. EROFS: its item has to stay.
    pub(crate) fn cancel(&self) -> Result<()> {
        self.core.health.changeable().fs()?;
        let mut stopped = false;
        loop {
            let item = {
                let mut status = self.status.lock();
                match status.state {
                    BalanceState::Paused => {
                        // Nobody begins another, or goes on with it, until it is forgotten.
                        status.state = BalanceState::Running;
                        self.runs.begin();
                        Some(status.item)
                    }
                    BalanceState::Running => None,
                    _ if stopped => return Ok(()),
                    _ => return Err(Errno::ESRCH.into()),
                }
            };
            match item {
                Some(item) => return self.forget(&item),
                // It may have paused before it heard of this.
                None => stopped = self.stop(CANCEL).is_ok(),
            }
        }
    }

    /// One that is paused, and that `cancel` has claimed.
    fn forget(&self, item: &BalanceItem) -> Result<()> {
        let forgotten = self.put(Some(item), None);
        self.status.lock().state = match forgotten {
            Ok(()) => BalanceState::Cancelled,
            Err(_) => BalanceState::Paused,
        };
        forgotten
    }

    /// Before the volume is closed, and has been told so: what is at work pauses, and resizes and trims end.
    pub(crate) fn rest(&self) {
        let _none_is_well = self.stop(PAUSE);
        self.wait_for_those_at_work();
    }

    /// Returns when nobody empties block groups, nor begins to: changes are refused, and stay so. What was at work
    /// is paused, and `wakes` says so.
    pub(crate) fn rest_while_still(&self) {
        if self.stop(PAUSE).is_ok() && self.status.lock().state == BalanceState::Paused {
            self.rests.store(true, Ordering::Release);
        }
        self.wait_for_those_at_work();
    }

    /// Each looks whether it may once it has its lock.
    fn wait_for_those_at_work(&self) {
        drop(self.resizing.lock());
        drop(self.at_work.lock());
        drop(self.trims.write());
    }

    /// Whether there is a balance that was paused because the mount was still.
    pub(crate) fn wakes(&self) -> bool {
        let rested = self.rests.swap(false, Ordering::AcqRel);
        rested && self.status.lock().state == BalanceState::Paused
    }

    fn stop(&self, wish: u8) -> Result<()> {
        let running = |status: &BalanceStatus| status.state == BalanceState::Running;
        // Who cancels means it, whoever else is content with less.
        let wish = || _ = self.wish.fetch_max(wish, Ordering::AcqRel);
        self.runs.end(&self.status, running, wish, Errno::ESRCH)
    }

    fn is_to_stop(&self) -> bool {
        self.wish.load(Ordering::Acquire) != GO
    }

    /// The item of a balance comes to stand on the volume, or goes; after an error there is what was before.
    fn put(&self, before: Option<&BalanceItem>, item: Option<&BalanceItem>) -> Result<()> {
        // For what is said, and for taking that back.
        let _room = self.reserver.reserve_removal(cost::balance_item() + cost::balance_item())?;
        self.say(item, self.core.begin_change().fs()?);
        // Or a later commit would have it.
        self.committer.commit_written_back().inspect_err(|_| self.say(before, self.core.begin()))
    }

    fn say(&self, item: Option<&BalanceItem>, op: Op<'_>) {
        let root = ObjectId { tree: TreeId::ROOT, objectid: BALANCE_OBJECTID };
        match item {
            Some(item) => op.put(root, kind::TEMPORARY_ITEM, 0, item.to_vec().into()),
            None => op.delete(root, kind::TEMPORARY_ITEM, 0),
        }
    }

    fn convert(&self, item: &BalanceItem, on: bool) {
        for (kind, filter) in item.filters() {
            if item.flags & kind != 0 && filter.has(balance_filter::CONVERT) {
                let target = plan::target(filter.target).filter(|_| on);
                self.core.space.convert_to(kind_of(kind), target);
            }
        }
    }

    /// All chunks that there were when it was begun, the last one first. False: it was to stop before the last of
    /// those that move was done.
    fn work(&self, item: &BalanceItem) -> Result<bool> {
        let mut chunks = self.core.volume.chunks();
        let end = self.chunks_end.load(Ordering::Acquire);
        chunks.retain(|chunk| chunk.logical.0 < end);
        chunks.sort_by_key(|chunk| std::cmp::Reverse(chunk.logical));
        let groups = self.core.space.group_infos();
        let groups: HashMap<u64, GroupInfo> =
            groups.into_iter().map(|group| (group.logical.0, group)).collect();
        let (chosen, enough) = choose(item, &chunks, &groups);
        self.status.lock().expected = chosen.len() as u64;
        self.convert(item, true);
        let mut turn = Judge::new(item);
        for chunk in &chunks {
            self.status.lock().considered += 1;
            let Some(group) = groups.get(&chunk.logical.0) else { continue };
            let used = self.core.space.used_of(chunk.logical);
            let moves = enough.has_enough(chunk) && used.is_some_and(|used| turn.lets(chunk, used));
            self.expect(chosen.contains(&chunk.logical.0), moves);
            if !moves {
                continue;
            }
            let others = plan::filter_of(item, group.flags).is_some_and(plan::converts_all)
                && self.all_convert(group, &groups, &chosen);
            if self.is_to_stop() || !self.one(group, others)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A chunk whose turn has come moves, or does not, whether or not it was `chosen` at the beginning.
    fn expect(&self, chosen: bool, moves: bool) {
        let mut status = self.status.lock();
        status.expected += u64::from(moves && !chosen);
        status.expected -= u64::from(chosen && !moves);
    }

    /// Whether all that a balance of this group does not want any more is to be converted, so that what has to
    /// go there for now does not stay.
    fn all_convert(
        &self,
        group: &GroupInfo,
        groups: &HashMap<u64, GroupInfo>,
        chosen: &HashSet<u64>,
    ) -> bool {
        let now = self.core.space.profile_of(kind_of_group(group));
        let alike = groups.values().filter(|g| g.flags & PROFILE_MASK != now);
        let mut alike = alike.filter(|g| (g.flags ^ group.flags) & TYPE_MASK == 0);
        alike.all(|g| chosen.contains(&g.logical.0))
    }

    /// One that cannot be emptied keeps no other from it. While all `others` are converted as well, their room
    /// will do where a chunk of the new profile finds none. False: it was to stop within.
    fn one(&self, group: &GroupInfo, others: bool) -> Result<bool> {
        let mut report = BalanceReport::default();
        let mut ended = self.empty(group, &mut report, || self.is_to_stop());
        if others && ended.as_ref().is_err_and(|error| error.errno() == libc::ENOSPC) {
            let kind = kind_of_group(group);
            self.core.space.convert_by_others(kind, true);
            ended = self.empty(group, &mut report, || self.is_to_stop());
            self.core.space.convert_by_others(kind, false);
        }
        let mut status = self.status.lock();
        status.report.add(&report);
        match ended {
            Ok(Ended::Emptied) => status.completed += 1,
            Ok(Ended::Gone) => status.expected -= 1,
            Ok(Ended::Interrupted) => return Ok(false),
            Err(error) => {
                self.core.health.may_go_on().fs()?;
                tracing::error!("block group {} cannot be emptied: {error}", group.logical);
                status.failed += 1;
                status.errno = if status.errno == 0 { error.errno() } else { status.errno };
            }
        }
        Ok(true)
    }
}

fn not_made() -> FsError {
    let what = "the balance converts to a profile that this program does not make: it stays paused, \
                until the kernel goes on with it, or it is cancelled";
    FsError::Unsupported(what.into())
}

fn kind_of_group(group: &GroupInfo) -> Kind {
    let kinds = [DATA, METADATA, SYSTEM];
    kinds.into_iter().find(|kind| group.flags & kind != 0).map_or(Kind::System, kind_of)
}

fn kind_of(flags: u64) -> Kind {
    match flags {
        DATA => Kind::Data,
        METADATA => Kind::Metadata,
        _ => Kind::System,
    }
}

/// Lets chunks through by the filters and their limits, in the order in which it is asked. The kernel goes over the
/// chunks twice, and so does this: once to count them, and once to move them, with what is in use of each when its
/// turn comes: it may be full by then of what this very balance has put there.
struct Judge<'a> {
    item: &'a BalanceItem,
    /// How many it has let through, by their types.
    through: HashMap<u64, u64>,
}

impl<'a> Judge<'a> {
    fn new(item: &'a BalanceItem) -> Judge<'a> {
        Judge { item, through: HashMap::new() }
    }

    fn lets(&mut self, chunk: &ChunkInfo, used: u64) -> bool {
        let Some(filter) = plan::filter_of(self.item, chunk.flags) else { return false };
        let through = self.through.entry(chunk.flags & TYPE_MASK).or_default();
        let lets = plan::chooses(filter, chunk, used) && *through < plan::limits(filter).1;
        *through += u64::from(lets);
        lets
    }

    /// Whether it has let as many of this type through as the filter wants at least.
    fn has_enough(&self, chunk: &ChunkInfo) -> bool {
        let least = plan::filter_of(self.item, chunk.flags).map_or(0, |f| plan::limits(f).0);
        self.through.get(&(chunk.flags & TYPE_MASK)).copied().unwrap_or(0) >= least
    }
}

/// Where the chunks begin that are to move as things are now, and who has counted them.
fn choose<'a>(
    item: &'a BalanceItem,
    chunks: &[ChunkInfo],
    groups: &HashMap<u64, GroupInfo>,
) -> (HashSet<u64>, Judge<'a>) {
    let mut judge = Judge::new(item);
    let used = |chunk: &ChunkInfo| groups.get(&chunk.logical.0).map(|group| group.used);
    let mut chosen: Vec<&ChunkInfo> = chunks.iter().collect();
    chosen.retain(|chunk| used(chunk).is_some_and(|used| judge.lets(chunk, used)));
    let enough = chosen.into_iter().filter(|chunk| judge.has_enough(chunk));
    (enough.map(|chunk| chunk.logical.0).collect(), judge)
}
