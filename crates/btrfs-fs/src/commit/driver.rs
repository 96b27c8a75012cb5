//! The background thread: a commit when the interval has passed or somebody asks, and between
//! commits what is to be compressed (writeback/early.rs).
//!
//! It holds the committer weakly, so that it never keeps a volume open. Where it panics nobody would commit any more, nor
//! serve who asks: the volume is poisoned.

use super::Committer;
use btrfs_txn::{Request, Urgency, Wanted};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vfs::Result;

pub(crate) struct Background {
    committer: Weak<Committer>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start(
        committer: &Arc<Committer>,
        interval: Duration,
    ) -> std::io::Result<Background> {
        let weak = Arc::downgrade(committer);
        let for_thread = weak.clone();
        let thread = std::thread::Builder::new()
            .name("spinney-commit".into())
            .spawn(move || run(&for_thread, interval))?;
        Ok(Background { committer: weak, thread: Some(thread) })
    }
}

fn run(committer: &Weak<Committer>, interval: Duration) {
    let (mut last, mut went_well) = (Instant::now(), true);
    // Within each round: it ends before the committer is let go of, which may be the last one to have it.
    let mut round = |committer: &Committer| {
        let health = &committer.core.health;
        let work = || serve(committer, interval, (&mut last, &mut went_well));
        health.poisoned_by_panics("the commit thread panicked", work)
    };
    while committer.upgrade().is_some_and(|committer| round(&committer)) {}
}

/// Waits for one thing to be done, and does it; false: there will be no other.
fn serve(
    committer: &Committer,
    interval: Duration,
    (last, went_well): (&mut Instant, &mut bool),
) -> bool {
    let due = *last + interval;
    // Each commit takes a rescan a step on; what is in memory may stay there.
    let at_once = *went_well && takes_steps(committer);
    let (until, otherwise) = match at_once {
        true if Instant::now() < due => (Instant::now(), Wanted::WrittenBack),
        _ => (due, Wanted::Everything),
    };
    let wanted = match committer.core.requests.wait(until, otherwise) {
        Some(Request::Commit(wanted)) => wanted,
        Some(Request::WriteBack) => {
            committer.writeback.flush_early(due);
            return true;
        }
        None => return false,
    };
    let result = match wanted {
        // Chunks that nobody uses yet: who has to use one that no commit knows waits for it.
        Wanted::WrittenBack => committer.commit_written_back_at(Urgency::Background),
        Wanted::Everything => {
            *last = Instant::now();
            committer.commit_at(Urgency::Background)
        }
    };
    // Where none was made, be it that the mount is still.
    committer.free_retired();
    *went_well = result.is_ok();
    goes_on(committer, result)
}

/// Whether there is a rescan that a commit would take on.
fn takes_steps(committer: &Committer) -> bool {
    committer.reservations.limits.rescans() && committer.core.health.changeable().is_ok()
}

/// Says what became of a commit; false where there will be no other.
fn goes_on(committer: &Committer, result: Result<()>) -> bool {
    match result {
        Err(error) if error.errno() == libc::ENOSPC => {
            tracing::warn!("writeback found no space; it is tried again");
        }
        // Its writers are told; that it is tried again may help.
        Err(error) if committer.core.health.writable().is_ok() => {
            tracing::error!(%error, "a commit");
        }
        Err(error) => {
            tracing::error!(%error, "the background commit failed");
            return false;
        }
        Ok(()) => {}
    }
    true
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(committer) = self.committer.upgrade() {
            committer.core.requests.stop();
        }
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
