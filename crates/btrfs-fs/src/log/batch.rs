//! One log write, for a batch of inodes that are to be durable, or for what a commit takes along.
//!
//! While a commit is at work, fsyncs go into the log on top of the commit before: what no
//! commit has is then in two deltas. Before the new commit's superblock is written, what was
//! synced meanwhile and is not in that commit goes into a log on top of it ([`TreeLog::carry`]),
//! so the superblock has both.
//!
//! What it does not know: who waits for the write, and what becomes of what the log cannot say.

use super::closure::Closure;
use super::committed::Committed;
use super::freeze::Work;
use super::project::{Edits, Project};
use super::state::LogState;
use super::write::Written;
use super::{Fallback, Logged, NotLogged, Request, TreeLog, write};
use crate::ino::InodeId;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::key::kind::ORPHAN_ITEM;
use btrfs_disk::{Error, Generation};
use btrfs_space::Priority;
use btrfs_txn::delta::{Gate, Level, Pending};
use btrfs_txn::{Defect, Roots, View};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Inodes that one log write takes at most.
/// Chosen, not measured, when the log was first written.
const MOST: usize = 20_000;
/// Rounds after which the names concerned change faster than they can be followed.
/// Chosen, not measured.
const ROUNDS: usize = 64;

/// The epoch is held still while this is there.
struct Quiesced<'a>(&'a Gate);

impl Quiesced<'_> {
    fn begin(gate: &Gate) -> Quiesced<'_> {
        gate.seal();
        Quiesced(gate)
    }
}

impl Drop for Quiesced<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

/// With the epoch held still: what went on in it may be more than any log can say.
fn says_enough(pending: &Pending<'_>) -> Logged<()> {
    if pending.renamed_subvolume() {
        return Err(Fallback::Subvolume.into());
    }
    if pending.lost_long_item() {
        return Err(Fallback::LongItem.into());
    }
    Ok(())
}

impl TreeLog {
    /// Whether a commit has the inode as one without a name. What cannot be read says no.
    pub(crate) fn is_committed_orphan(&self, roots: &Roots, id: InodeId) -> bool {
        let reads = &self.stats.log_tree_reads;
        let committed = Committed { store: &self.core.store, roots, reads };
        let orphans = InodeId::new(id.tree, ORPHAN_OBJECTID);
        committed.get(orphans, ORPHAN_ITEM, id.objectid).is_ok_and(|item| item.is_some())
    }

    /// Writes what of `batch` the last commit does not have; or says why a commit must.
    pub(crate) fn write(&self, batch: &[Request], state: &mut LogState) -> Logged<()> {
        let view = self.core.view();
        let committed = view.layers.roots.generation;
        let mut work = Work::default();
        if state.stale {
            // Of two commits that become one the first is published; it is durable with the second.
            return Err(Fallback::Stale.into());
        }
        // The tree of one that is not is gone since its caller asked whether it is there.
        let known = |request: &&Request| view.layers.roots.get(request.id.tree).is_some();
        for request in batch.iter().filter(known).filter(|r| r.generation > committed) {
            work.ask(request.id, request.level);
        }
        let wanted = work.wanted.clone();
        match self.write_nodes(&view, work, state, Priority::Normal) {
            Ok(Some(written)) => write::publish(&self.core, state, written)?,
            Ok(None) => {}
            Err(why) => {
                state.stale |= matches!(why, NotLogged::Commit(_));
                return Err(why);
            }
        }
        if view.layers.sealed.is_some() {
            self.stats.log_in_commit.add(1);
            for (id, level) in wanted {
                let known = state.synced.entry(id).or_default();
                *known = level.max(*known);
            }
        }
        let all = batch.iter().all(|request| known(&request));
        if all { Ok(()) } else { Err(Fallback::Subvolume.into()) }
    }

    /// A log on top of the commit that was just published, of what was synced while it was
    /// at work: its root, if there is anything. The superblock of that commit shall lead to it
    /// when all is flushed.
    pub(crate) fn carry(&self, synced: BTreeMap<InodeId, Level>, log: &mut LogState) -> Logged<()> {
        let view = self.core.view();
        assert!(view.layers.sealed.is_none(), "carried onto a commit that is published");
        // The log of a subvolume that is deleted says nothing.
        let lives = |id: &InodeId| {
            view.layers.roots.get(id.tree).is_some_and(|root| !root.item.is_deleted())
        };
        let work = Work::carried(synced.into_iter().filter(|(id, _)| lives(id)).collect());
        let injection = &self.core.injection;
        if injection.has(Defect::CommitForgetsSynced) {
            return Ok(());
        }
        if injection.has(Defect::DoubledCommits) && !work.wanted.is_empty() {
            return Err(Fallback::Stale.into());
        }
        // Without room for it another commit would follow, before what this one freed has come back.
        if let Some(written) = self.write_nodes(&view, work, log, Priority::Delete)? {
            self.stats.log_carried.add(log.members.len() as u64);
            log.root = Some(written.root);
        }
        Ok(())
    }

    /// Writes what is to be logged of `work` and of all that belongs to it; `None`: nothing.
    fn write_nodes(
        &self,
        view: &View<'_>,
        mut work: Work,
        state: &mut LogState,
        priority: Priority,
    ) -> Logged<Option<Written>> {
        if work.wanted.is_empty() {
            return Ok(None);
        }
        if state.stale {
            return Err(Fallback::Stale.into());
        }
        let generation = Generation(view.layers.roots.generation.0 + 1);
        let edits = self.say(view, &mut work, state, generation).map_err(commit_if_damaged)?;
        if edits.is_empty() {
            self.stats.log_nothing.add(1);
            return Ok(None);
        }
        self.stats.log_writes.add(1);
        write::write(self, state, generation, edits, priority).map(Some)
    }

    /// What is to be logged of `work`, and of all that belongs to it.
    fn say(
        &self,
        view: &View<'_>,
        work: &mut Work,
        state: &mut LogState,
        generation: Generation,
    ) -> Logged<Edits> {
        let layers = &view.layers;
        let pending = Pending { current: &layers.current, sealed: layers.sealed.as_deref() };
        let reads = &self.stats.log_tree_reads;
        let committed = Committed { store: &self.core.store, roots: &layers.roots, reads };
        self.gather(pending, &committed, work, state)?;
        let project = Project { log: self, view, committed: &committed, generation };
        Ok(project.all(work, state)?)
    }

    /// Writes back the content of inodes that come along with those that were asked for:
    /// nobody should be seen halfway through a write. `landed` have been written back.
    fn flush_content(&self, work: &Work, landed: &mut BTreeSet<InodeId>) {
        for id in work.wanted.keys() {
            if landed.insert(*id)
                && let Some(inode) = self.inodes.table().find(*id, 0)
            {
                // What finds no room or was refused stays in memory, and the log has what has
                // landed. It is no loss of who syncs now; the file's own fsync tries again, and
                // tells.
                if let Err(error) = self.writeback.flush_if_still(&inode) {
                    tracing::warn!(inode = id.objectid, %error, "content stays unwritten");
                }
            }
        }
    }

    /// Freezes what is wanted and all that belongs to it, at one moment.
    fn gather(
        &self,
        pending: Pending<'_>,
        committed: &Committed<'_>,
        work: &mut Work,
        state: &LogState,
    ) -> Logged<()> {
        let max_item = self.core.geometry.max_item_size();
        let mut landed: BTreeSet<InodeId> = work.wanted.keys().copied().collect();
        want_renamed(work, state, &pending);
        for _ in 0..ROUNDS {
            self.stats.log_rounds.add(1);
            self.flush_content(work, &mut landed);
            let still = Instant::now();
            let stillness = Quiesced::begin(&pending.current.gate);
            // An operation that failed halfway has said so before it left.
            if let Some(why) = self.core.health.poisoned() {
                return Err(Error::ReadOnly(why.to_owned()).into());
            }
            says_enough(&pending)?;
            want_renamed(work, state, &pending);
            assert!(!self.core.injection.has(Defect::LogPanics), "as it was asked to");
            work.freeze(&pending, |id, level| state.ask(id, level));
            drop(stillness);
            self.stats.log_still_max_ns.max(still.elapsed().as_nanos() as u64);
            Closure { max_item, committed, pending, state, work, removed: 0 }.round()?;
            let again = work.want_contents(committed, self.core.sector())?;
            if !work.is_short() && !again {
                return Ok(());
            }
            if work.wanted.len() > MOST {
                return Err(Fallback::TooMany.into());
            }
        }
        Err(Fallback::TooMany.into())
    }
}

/// What a log would have to say and cannot be read is committed: a commit need not know it.
fn commit_if_damaged(why: NotLogged) -> NotLogged {
    match why {
        NotLogged::Failed(error) if error.is_damage() => Fallback::damaged(&error).into(),
        other => other,
    }
}

/// Names of something logged changed, or of something in a directory that is logged with its
/// entries: the log must say so with whatever it says next.
fn want_renamed(work: &mut Work, state: &LogState, pending: &Pending<'_>) {
    let id = |(tree, objectid)| InodeId::new(tree, objectid);
    for id in pending.take_renamed().into_iter().map(id) {
        if state.members.contains_key(&id) {
            work.want(id, Level::Inode);
        }
    }
    for id in pending.take_left().into_iter().map(id) {
        work.want(id, Level::Inode);
    }
}
