//! Callers of commit, one commit at a time: who is served by another's?

#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/turns.rs"]
mod turns;

use crate::bounded;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use turns::{Turns, Wanted};

/// What there is to commit, and what is durable of it.
#[derive(Default)]
struct Volume {
    turns: Turns,
    /// What has landed, and content in memory.
    done: Mutex<[u64; 2]>,
    durable: Mutex<[u64; 2]>,
    commits: AtomicU64,
}

impl Volume {
    fn change(&self, what: Wanted) {
        self.done.lock().unwrap()[what as usize] += 1;
    }

    fn changes(&self, what: Wanted) -> u64 {
        self.done.lock().unwrap()[what as usize]
    }

    /// As `Committer::commit_once`; `room`: all of the content finds room.
    fn commit(&self, wanted: Wanted, room: bool) {
        let turn = self.turns.take(wanted);
        if turn.is_served() {
            return;
        }
        let number = turn.begin();
        let mut sealed = *self.done.lock().unwrap();
        // Time passes, in which others go on.
        loom::thread::yield_now();
        if wanted == Wanted::WrittenBack || !room {
            sealed[Wanted::Everything as usize] = self.durable(Wanted::Everything);
        }
        *self.durable.lock().unwrap() = sealed;
        self.commits.fetch_add(1, Ordering::Relaxed);
        turn.ended(number, room);
    }

    fn durable(&self, what: Wanted) -> u64 {
        self.durable.lock().unwrap()[what as usize]
    }

    /// Changes something, commits, and finds it durable.
    fn sync(&self, what: Wanted) {
        self.change(what);
        let mine = self.changes(what);
        self.commit(what, true);
        assert!(self.durable(what) >= mine, "said to be durable, and is not");
    }
}

fn with_others(mine: Wanted, others: [Wanted; 2], room: bool) {
    bounded(2).check(move || {
        let volume = Arc::new(Volume::default());
        let others = others.map(|what| {
            let volume = volume.clone();
            thread::spawn(move || volume.sync(what))
        });
        if room {
            volume.sync(mine);
        } else {
            volume.commit(mine, false);
        }
        others.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(volume.commits.load(Ordering::Relaxed) <= 3);
    });
}

/// Nobody is told that his changes are durable by a commit that may have left them out.
#[test]
fn who_returns_from_a_commit_finds_his_changes_durable() {
    with_others(Wanted::Everything, [Wanted::Everything; 2], true);
}

/// A commit of what has landed serves nobody who wants everything.
#[test]
fn a_lesser_commit_serves_lesser_wishes_alone() {
    with_others(Wanted::WrittenBack, [Wanted::Everything, Wanted::WrittenBack], true);
}

/// Nor does one for whose content there was no room.
#[test]
fn a_commit_without_the_content_serves_who_wants_none() {
    with_others(Wanted::Everything, [Wanted::Everything, Wanted::WrittenBack], false);
}

/// Of several who have changed something and wait, one commits for all.
#[test]
fn those_who_wait_share_a_commit() {
    let fewest = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(u64::MAX));
    let seen = fewest.clone();
    bounded(2).check(move || {
        let volume = Arc::new(Volume::default());
        let others = [(), ()].map(|()| {
            let volume = volume.clone();
            thread::spawn(move || volume.sync(Wanted::Everything))
        });
        volume.sync(Wanted::Everything);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        seen.fetch_min(volume.commits.load(Ordering::Relaxed), Ordering::Relaxed);
    });
    assert_eq!(fewest.load(Ordering::Relaxed), 1, "one commit can serve all three");
}
