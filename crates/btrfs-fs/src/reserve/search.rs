//! Where there is no room for a promise: what may make some, in which order, and when to stop.
//!
//! What it does not know: how much an operation needs, and why.

use super::bound::Load;
use crate::engine::Engine;
use crate::error::IntoFs;
use btrfs_space::{Kind, Priority};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vfs::Result;

/// What must come back at least for a commit to be worth its while, in nodes.
pub(super) const WORTH: u64 = 64;
/// Commits that a removal asks for before it gives up: others may take what comes back.
const PATIENCE: u32 = 8;
/// How long the readers of old roots are waited for.
const READERS: Duration = Duration::from_secs(1);

/// What one search for room has done so far.
#[derive(Default)]
pub(super) struct Tried {
    commits: u32,
    waited: bool,
}

impl Engine {
    /// Does the next thing that may make room for `wanted` bytes; false: nothing is left.
    pub(super) fn find_room(
        &self,
        tried: &mut Tried,
        kind: Kind,
        wanted: u64,
        priority: Priority,
    ) -> Result<bool> {
        let most = if priority == Priority::Delete { PATIENCE } else { 1 };
        // Where much is held a commit comes first; chunks of the other kind come before
        // many commits that bring little.
        if !self.much_is_held()
            && priority == Priority::Normal
            && self.space.reclaim_for(kind).fs()?
        {
            return Ok(true);
        }
        if tried.commits < most && self.commit_may_help(kind, wanted, priority) {
            *tried = Tried { commits: tried.commits + 1, waited: false };
            // One that found no room itself has told why there is none.
            return match self.commit_for_space() {
                Err(_) if self.is_short_of_room() => Ok(priority == Priority::Delete),
                done => done.map(|()| true),
            };
        }
        if !tried.waited && self.space.pinned(kind) > 0 {
            tried.waited = true;
            self.wait_for_readers(kind);
            return Ok(true);
        }
        self.space.reclaim_for(kind).fs()
    }

    /// Whether most of what is promised of metadata is for one large commit.
    fn much_is_held(&self) -> bool {
        let total = self.space.totals().metadata.total;
        self.promises.metadata_bytes.load(Ordering::Relaxed) > total / 8
    }

    /// Whether a commit can make room for `wanted` bytes. It is expensive, and near the end
    /// every operation would ask for one: so not without a reason.
    fn commit_may_help(&self, kind: Kind, wanted: u64, priority: Priority) -> bool {
        let layers = self.layers.load();
        if layers.sealed.is_some() {
            return true;
        }
        let removals = self.promises.removals.load(Ordering::Relaxed);
        if priority == Priority::Delete || removals != self.promises.seen.load(Ordering::Relaxed) {
            return !layers.current.is_empty();
        }
        let (mut comes, mut may) = (self.space.pinned(kind), 0);
        let held = self.promises.metadata_bytes.load(Ordering::Relaxed);
        if self.space.mixed() || kind == Kind::Data {
            comes += layers.current.extents.dropped();
            // Of content that becomes inline items the promise comes back.
            may += self.dirty_pieces.first() * self.sector();
        }
        if self.space.mixed() || kind != Kind::Data {
            may += held;
        }
        if may >= WORTH * u64::from(self.geometry.node_size) {
            comes += may;
        }
        let enough = comes > 0 && self.space.unpromised(kind) + comes >= wanted;
        enough || kind == Kind::Data && self.space.promises_block_data(held)
    }

    /// What was freed comes back when nobody reads older roots any more.
    pub fn wait_for_readers(&self, kind: Kind) {
        let until = Instant::now() + READERS;
        while self.space.pinned(kind) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// True if the next commit, with `load` more, fits what is free of metadata.
    pub(super) fn has_room(&self, load: Load) -> bool {
        let load = super::load_of(&self.layers.load().current) + load;
        let need = super::bound(&self.trees(), &load);
        need <= self.space.totals().metadata.free
    }

    /// A commit that shall free space; that some content found no room is known then.
    pub fn commit_for_space(&self) -> Result<()> {
        let removals = self.promises.removals.load(Ordering::Relaxed);
        self.promises.seen.store(removals, Ordering::Relaxed);
        self.stats.commits_for_space.add(1);
        self.commit_what_lands()
    }
}
