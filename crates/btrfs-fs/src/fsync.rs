//! Making inodes durable: any number of threads share one log write.
//!
//! Whoever finds no leader becomes one, and writes the log; who comes meanwhile waits, and one
//! of those writes for all of them next (`join.rs`). What the log cannot say is committed; who syncs
//! something in a subvolume that no commit has yet does not join at all.
//!
//! Lock order: the queue is held for moments only.
//!
//! What it does not know: what is in a log, and how content is written back.

use crate::commit::Committer;
use crate::error::IntoFs;
use crate::join::{Queue, Turn};
use crate::log::{Fallback, NotLogged, Request, TreeLog};
use crate::semaphore::{Permit, Semaphore};
use crate::stats::Stats;
use btrfs_disk::TreeId;
use btrfs_txn::{Core, PoisonUnlessDone, Roots};
use std::sync::Arc;
use std::time::Instant;
use vfs::{Errno, Result};

pub(crate) struct Fsync {
    core: Arc<Core>,
    log: Arc<TreeLog>,
    committer: Arc<Committer>,
    stats: Arc<Stats>,
    queue: Queue<Request>,
    /// Those who write content back.
    pub(crate) preparing: Semaphore,
}

impl Fsync {
    pub(crate) fn new(
        core: Arc<Core>,
        log: Arc<TreeLog>,
        committer: Arc<Committer>,
        stats: Arc<Stats>,
    ) -> Fsync {
        let preparing = Semaphore::for_processors();
        Fsync { core, log, committer, stats, queue: Queue::default(), preparing }
    }

    /// What each caller has to do by himself, before [`Fsync::log`], he does while he holds this.
    pub(crate) fn prepare(&self) -> Permit<'_> {
        self.preparing.acquire()
    }

    /// Returns when the inode, as it was when this was called, is durable.
    pub(crate) fn log(&self, request: Request) -> Result<()> {
        if self.commits_new_subvolume(request.id.tree)? {
            return Ok(());
        }
        match self.queue.join(request) {
            Turn::Lead(batch) => {
                let result = self.lead(batch.items());
                if result.is_ok() {
                    batch.done();
                }
                result
            }
            Turn::Settled(done) => {
                self.stats.log_joined.add(1);
                self.core.health.writable().fs()?;
                // The leader has the error; whether there is a way to say yes a commit knows.
                if done { Ok(()) } else { self.committer.commit_written_back() }
            }
        }
    }

    /// A subvolume that the last commit does not have has no log. Who syncs something in it waits for
    /// a commit by himself: who leads has all others wait. False: a commit has the subvolume, and
    /// a log may. True: all of it is durable.
    fn commits_new_subvolume(&self, tree: TreeId) -> Result<bool> {
        self.commits_unless(Fallback::Subvolume, |roots| roots.get(tree).is_some())
    }

    /// Of something without a name: its directory is durable with what came there and went, if the last name
    /// went since the commit, as with the kernel; no log of it says that. True: all of it is durable.
    pub(crate) fn commits_nameless(&self, request: &Request) -> Result<bool> {
        let known = |roots: &Roots| self.log.is_committed_orphan(roots, request.id);
        self.commits_unless(Fallback::Nameless, known)
    }

    /// False: the last commit is `known` to have what a log builds upon. True: all is durable.
    fn commits_unless(&self, why: Fallback, known: impl Fn(&Roots) -> bool) -> Result<bool> {
        loop {
            self.core.health.writable().fs()?;
            let layers = self.core.layers();
            if known(&layers.roots) {
                return Ok(false);
            }
            let committing = layers.sealed.is_some();
            drop(layers);
            if self.commits(why, committing)? {
                return Ok(true);
            }
        }
    }

    /// What no log can say is in the commit at work, if there is one, and otherwise in the next. False: it
    /// was at work, and what it has is to be asked.
    fn commits(&self, fallback: Fallback, at_work: bool) -> Result<bool> {
        let reason = fallback.name();
        if at_work {
            self.stats.log_waits.add(1);
            tracing::debug!(reason, "an fsync waits for a commit");
            self.committer.wait_for_running();
            return Ok(false);
        }
        self.stats.log_fallbacks.add(1);
        tracing::debug!(reason, "an fsync commits");
        self.committer.commit_written_back().map(|()| true)
    }

    /// With the log's lock held.
    fn may_log(&self) -> Result<()> {
        // A commit that failed while we waited for the lock is not to be followed.
        self.core.health.writable().fs()?;
        match self.committer.is_held() {
            // A log would put a part of what is held back on the medium.
            true => Err(Errno::EBUSY.into()),
            false => Ok(()),
        }
    }

    /// One log write for all of `batch`, or the commit that takes its place.
    fn lead(&self, batch: &[Request]) -> Result<()> {
        let start = Instant::now();
        loop {
            self.core.health.writable().fs()?;
            let (written, committing) = {
                let mut state = self.log.lock();
                self.may_log()?;
                let committing = self.core.layers().sealed.is_some();
                // What is half done must not be built upon by who takes the lock next.
                let unwound = PoisonUnlessDone(&self.core.health, "a log write panicked");
                let written = self.log.write(batch, &mut state);
                std::mem::forget(unwound);
                (written, committing)
            };
            match written {
                Ok(()) => {
                    self.stats.log_ns.add(start.elapsed().as_nanos() as u64);
                    self.stats.log_max_ns.max(start.elapsed().as_nanos() as u64);
                    return Ok(());
                }
                Err(NotLogged::Commit(fallback)) => {
                    if self.commits(fallback, committing)? {
                        return Ok(());
                    }
                }
                Err(NotLogged::Failed(error)) => {
                    self.core.health.poison(&format!("a log write failed: {error}"));
                    return Err(error).fs();
                }
            }
        }
    }
}
