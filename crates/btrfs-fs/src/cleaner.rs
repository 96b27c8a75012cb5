//! Dropping the trees of deleted subvolumes: in bounded steps, each in a commit of its own, behind
//! everybody's back.
//!
//! Invariants: only a tree that a durable commit calls dead is dropped; nothing is held between the
//! steps, so operations wait for none. The root item says after each step how far it came, so
//! a crash, or another program, goes on there. A tree of which something cannot be read stays as far as
//! it was dropped, and is left alone until the next mount. Where the thread panics nothing would be dropped any more, and
//! who waits for it would wait for ever: the volume is poisoned.
//!
//! What it does not know: names, and who deleted.

use crate::commit::Committer;
use crate::error::IntoFs;
use crate::reserve::Reservations;
use crate::reserve::cost;
use crate::reserver::Reserver;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_space::Priority;
use btrfs_tree::{Cursor, NodeStore, TreeRoot};
use btrfs_txn::delta::{ActionCost, Dropping, TreeAction};
use btrfs_txn::{Core, Defect, Place, Urgency};
use locks::{Condvar, Mutex, Rank};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vfs::{Damage, Errno, FsError, Result};

/// Nodes that one step reads at most, and trees that it works on.
/// Chosen, not measured.
const STEP_NODES: u64 = 512;
/// Chosen, not measured.
const STEP_TREES: usize = 256;
/// Nodes in a step at mount.
/// Chosen, not measured.
const RELOCATION_NODES: u64 = 4096;
/// Where a test wants many steps.
const TINY_STEP: u64 = 7;
/// After a step that failed for want of room.
/// Chosen, not measured.
const REST: Duration = Duration::from_secs(5);

pub(crate) struct Cleaner {
    core: Arc<Core>,
    reservations: Arc<Reservations>,
    reserver: Arc<Reserver>,
    committer: Arc<Committer>,
    signal: Mutex<Signal>,
    changed: Condvar,
    /// What is known of the trees at work; who holds it takes a step.
    at_work: Mutex<Vec<Dropping>>,
    /// Trees that cannot be dropped, and why.
    stuck: Mutex<BTreeMap<TreeId, String>>,
    /// What a relocation of the kernel's left is there still: there was no room to free it.
    left: AtomicBool,
}

#[derive(Default)]
struct Signal {
    due: bool,
    stop: bool,
}

impl Cleaner {
    pub(crate) fn new(
        core: &Arc<Core>,
        reservations: &Arc<Reservations>,
        reserver: &Arc<Reserver>,
        committer: &Arc<Committer>,
    ) -> Cleaner {
        Cleaner {
            core: core.clone(),
            reservations: reservations.clone(),
            reserver: reserver.clone(),
            committer: committer.clone(),
            signal: Mutex::new(Rank::Leaf, Signal::default()),
            changed: Condvar::default(),
            at_work: Mutex::new(Rank::Cleaner, Vec::new()),
            stuck: Mutex::new(Rank::Leaf, BTreeMap::new()),
            left: AtomicBool::new(false),
        }
    }

    /// A commit has ended: what was deleted before it is dead now, and not before.
    pub(crate) fn wake_for_dead(&self) {
        if self.core.roots().trees.sum().dead > 0 {
            self.wake();
        }
    }

    /// Changes are let in again: who went to sleep over that goes on.
    pub(crate) fn wake_again(&self) {
        if self.core.roots().trees.sum().dead > 0 || self.left.load(Ordering::Acquire) {
            self.wake();
        }
    }

    fn wake(&self) {
        self.signal.lock().due = true;
        self.changed.notify_one();
    }

    /// Dead trees of the last commit, by number.
    pub(crate) fn dead(&self) -> Vec<TreeId> {
        self.core.roots().trees.dead().collect()
    }

    /// Takes one step, and the commit that it is in; false: nothing is left.
    pub(crate) fn step(&self, urgency: Urgency) -> Result<bool> {
        self.core.injection.passes(Place::Sweeps);
        let mut at_work = self.at_work.lock();
        let stuck: Vec<TreeId> = self.stuck.lock().keys().copied().collect();
        let roots = self.core.roots();
        let dead = roots.trees.dead().filter(|id| !stuck.contains(id));
        let dead: Vec<TreeId> = dead.take(STEP_TREES).collect();
        drop(roots);
        if dead.is_empty() {
            at_work.clear();
            return Ok(false);
        }
        at_work.retain(|known| dead.contains(&known.id));
        for id in dead {
            if !at_work.iter().any(|known| known.id == id) {
                at_work.push(Dropping::new(id));
            }
        }
        self.drop_some(&at_work, STEP_NODES, urgency)?;
        at_work.iter().for_each(|known| self.note_stuck(known));
        Ok(true)
    }

    fn note_stuck(&self, known: &Dropping) {
        let Some(why) = known.stuck() else { return };
        tracing::error!(tree = %known.id, why, "a deleted subvolume cannot be dropped any further");
        self.stuck.lock().insert(known.id, why);
    }

    /// One of these that cannot be dropped.
    fn stuck_of(&self, ids: &[TreeId]) -> Option<FsError> {
        let stuck = self.stuck.lock();
        let (id, why) = ids.iter().find_map(|id| stuck.get_key_value(id))?;
        let what = format!("tree {id} of a deleted subvolume cannot be dropped: {why}");
        Some(Damage::new(what).into())
    }

    /// Returns when no step is under way that began before the call.
    pub(crate) fn wait_for_step(&self) {
        drop(self.at_work.lock());
    }

    /// Before something moves: nothing can beside what a relocation left.
    pub(crate) fn drop_left(&self) -> Result<()> {
        let _one = self.at_work.lock();
        if self.left.load(Ordering::Acquire) { self.drop_relocations() } else { Ok(()) }
    }

    /// False: there may be room soon, or commits.
    fn has_dropped_left(&self) -> bool {
        match self.drop_left() {
            Err(error) if [libc::ENOSPC, libc::EBUSY].contains(&error.errno()) => return false,
            // Who lets changes in again wakes it.
            Err(FsError::ReadOnly(_)) if self.core.health.writable().is_ok() => {}
            Err(error) => tracing::error!(%error, "what a relocation left stays"),
            Ok(()) => {}
        }
        true
    }

    /// Drops the trees that a relocation of the kernel's left when it was interrupted: nothing can move
    /// beside them, so nobody is served before, unless there is no room for it (ENOSPC).
    pub(crate) fn drop_relocations(&self) -> Result<()> {
        let left = || match self.core.roots().get(TreeId::ROOT) {
            Some(root) => relocation_left(&self.core.store, &root.root),
            None => Ok(false),
        };
        let (all, mut freed) = ([Dropping::new(TreeId::RELOC)], false);
        while left().fs()? {
            self.left.store(true, Ordering::Release);
            if self.core.injection.has(Defect::NoRoomToDrop) {
                return Err(Errno::ENOSPC.into());
            }
            self.drop_some(&all, RELOCATION_NODES, Urgency::Awaited)?;
            if let Some(why) = all[0].stuck() {
                let what = format!("what a relocation left cannot be freed: {why}");
                return Err(Damage::new(what).into());
            }
            freed = true;
        }
        self.left.store(false, Ordering::Release);
        if freed {
            tracing::info!("freed what an interrupted relocation of the kernel's had left");
        }
        Ok(())
    }

    /// A step, and the commit that it is in.
    fn drop_some(&self, trees: &[Dropping], nodes: u64, urgency: Urgency) -> Result<()> {
        self.core.health.changeable().map_err(crate::error::to_fs)?;
        if self.reservations.is_short() {
            // With this the next commit would find even less.
            return Err(Errno::ENOSPC.into());
        }
        let tiny = self.core.injection.has(Defect::TinySteps);
        let mut budget = if tiny { TINY_STEP } else { nodes };
        loop {
            // Of each that it works on it reads a node.
            let trees = &trees[..trees.len().min(budget as usize)];
            let cost = cost::drop_nodes(&self.core.geometry, budget, trees.len() as u64);
            let whole = cost::with(cost::Cost::default(), cost);
            let room = match self.reservations.hold(whole, Priority::Delete) {
                Ok(room) => room,
                Err(_) if budget > 1 => {
                    budget = (budget / 8).max(1);
                    continue;
                }
                Err(_) => self.reserver.reserve_removal(whole)?,
            };
            self.act(trees.to_vec(), budget, cost);
            drop(room);
            break;
        }
        self.committer.commit_written_back_at(urgency)
    }

    fn act(&self, trees: Vec<Dropping>, budget: u64, cost: ActionCost) {
        let op = self.core.begin();
        op.act(TreeAction::Drop { trees, budget: budget as usize }, cost);
    }

    /// Before all trees are walked: those that are dead now are dropped, or as far as they can be. False: `is_to_stop`
    /// said so between two steps.
    pub(crate) fn drop_dead(&self, is_to_stop: impl Fn() -> bool) -> Result<bool> {
        match self.drop_all_dead(is_to_stop) {
            Err(error) if error.is_of_medium() && self.core.health.writable().is_ok() => Ok(true),
            done => done,
        }
    }

    fn drop_all_dead(&self, is_to_stop: impl Fn() -> bool) -> Result<bool> {
        let wanted = self.wanted(&[])?;
        while !self.are_gone(&wanted)? {
            if is_to_stop() {
                return Ok(false);
            }
            self.core.health.may_go_on().fs()?;
            self.step(Urgency::Awaited)?;
        }
        Ok(true)
    }

    /// Those of which `are_gone` will tell; none: all that are dead now. EEXIST: nobody deletes one of them.
    pub(crate) fn wanted(&self, ids: &[TreeId]) -> Result<Vec<TreeId>> {
        // What was deleted a moment ago is dead in no commit yet.
        self.committer.commit_written_back()?;
        self.none_lives(ids)?;
        self.wake();
        Ok(if ids.is_empty() { self.dead() } else { ids.to_vec() })
    }

    /// An error: one of them cannot be dropped, and the others are.
    pub(crate) fn are_gone(&self, wanted: &[TreeId]) -> Result<bool> {
        let left = self.still_there(wanted);
        if left.iter().all(|id| self.stuck.lock().contains_key(id)) {
            return self.stuck_of(&left).map_or(Ok(true), Err);
        }
        Ok(false)
    }

    /// Waits until all of `ids` (none: all that are dead now) are gone; false: `timeout` passed.
    /// `alone`: no thread does it. An error: one of them cannot be dropped, and the others are. What `hold` gives is
    /// held for each step, a look and its commit.
    pub(crate) fn wait_until_gone<H>(
        &self,
        ids: &[TreeId],
        timeout: Option<Duration>,
        alone: bool,
        hold: impl Fn() -> Result<H>,
    ) -> Result<bool> {
        let first = hold()?;
        let wanted = self.wanted(ids)?;
        drop(first);
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let held = hold()?;
            if self.are_gone(&wanted)? {
                return Ok(true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            let health = &self.core.health;
            if alone {
                health.may_go_on().fs()?;
                self.step(Urgency::Awaited)?;
            } else {
                health.writable().and_then(|()| health.stays_open()).fs()?;
                drop(held);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn still_there(&self, wanted: &[TreeId]) -> Vec<TreeId> {
        let roots = self.core.roots();
        wanted.iter().copied().filter(|id| roots.get(*id).is_some()).collect()
    }

    /// EEXIST: one of them is there, and nobody deletes it.
    fn none_lives(&self, ids: &[TreeId]) -> Result<()> {
        let (roots, dead) = (self.core.roots(), self.dead());
        let lives = |id: &TreeId| roots.get(*id).is_some() && !dead.contains(id);
        if ids.iter().any(lives) { Err(Errno::EEXIST.into()) } else { Ok(()) }
    }

    /// Waits for work; false when it is time to stop.
    fn wait(&self) -> bool {
        let mut signal = self.signal.lock();
        while !signal.due && !signal.stop {
            self.changed.wait_until(&mut signal, Instant::now() + REST);
        }
        signal.due = false;
        !signal.stop
    }

    fn rest(&self) {
        let mut signal = self.signal.lock();
        if !signal.stop {
            self.changed.wait_until(&mut signal, Instant::now() + REST);
        }
        signal.due = true;
    }

    fn is_stopped(&self) -> bool {
        self.signal.lock().stop
    }
}

/// Whether there are trees of a relocation that was interrupted.
fn relocation_left(store: &NodeStore, root: &TreeRoot) -> btrfs_disk::Result<bool> {
    let mut cursor = Cursor::new(store, root);
    cursor.seek(&Key::new(TreeId::RELOC.0, kind::ROOT_ITEM, 0))?;
    Ok(cursor.item().is_some_and(|(key, _)| key.objectid == TreeId::RELOC.0))
}

/// The thread. It holds the cleaner weakly, so that it never keeps a volume open.
pub(crate) struct Sweeper {
    cleaner: Weak<Cleaner>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    pub(crate) fn start(cleaner: &Arc<Cleaner>) -> std::io::Result<Sweeper> {
        let weak = Arc::downgrade(cleaner);
        let for_thread = weak.clone();
        if !cleaner.dead().is_empty() || cleaner.left.load(Ordering::Acquire) {
            cleaner.wake();
        }
        let thread = std::thread::Builder::new()
            .name("spinney-cleaner".into())
            .spawn(move || run(&for_thread))?;
        Ok(Sweeper { cleaner: weak, thread: Some(thread) })
    }
}

fn run(cleaner: &Weak<Cleaner>) {
    let round = |cleaner: &Cleaner| {
        let why = "the thread that drops deleted subvolumes panicked";
        cleaner.core.health.poisoned_by_panics(why, || cleaner.wait() && sweep(cleaner))
    };
    while cleaner.upgrade().is_some_and(|cleaner| round(&cleaner)) {}
}

/// Drops what there is; false: nothing will be dropped any more.
fn sweep(cleaner: &Cleaner) -> bool {
    while !cleaner.is_stopped() {
        match cleaner.step(Urgency::Background) {
            Ok(true) => {}
            Ok(false) if cleaner.has_dropped_left() => break,
            Ok(false) => {
                cleaner.rest();
                break;
            }
            Err(_) if cleaner.core.health.writable().is_err() => return false,
            // Who lets changes in again wakes it, or has done so by now.
            Err(FsError::ReadOnly(_)) => break,
            Err(error) => {
                tracing::warn!(%error, "a deleted subvolume waits to be dropped");
                cleaner.rest();
                break;
            }
        }
    }
    true
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(cleaner) = self.cleaner.upgrade() {
            cleaner.signal.lock().stop = true;
            cleaner.changed.notify_one();
        }
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
