//! Slowing down who changes something before memory or room for metadata is gone
//! ([`btrfs_txn::Pacing`]), and asking for the commit that gives them back.
//!
//! What it does not know: what an operation needs, and what becomes of one that finds nothing left.

use super::Reserver;
use btrfs_space::Kind;
use btrfs_txn::Usage;
use std::sync::atomic::Ordering;

/// Where the next commit holds less than this there is little to come back, and nobody rests for it.
/// Chosen, not measured.
const LARGE_COMMIT: u64 = 128 << 20;
/// A delta is worth a commit for room alone from such a share of its memory on.
/// Chosen, not measured.
const WORTH: u64 = 16;

impl Reserver {
    /// Asks for a commit and rests while the delta takes more memory, or leaves less room for metadata, than
    /// commits make up for in time. Answers the delta's bytes as they are then.
    pub(super) fn keep_pace(&self) -> u64 {
        let core = &self.core;
        let delta = core.note_memory();
        let memory = Usage { used: delta, limit: core.memory.most_delta() };
        if memory.is_over() {
            core.requests.wake();
        }
        if self.alone || self.committer.is_held() {
            return delta;
        }
        let free = core.space.unreserved(Kind::Metadata);
        let room = last_room(self.reservations.held(), free);
        let for_room = room.is_over() && delta > memory.limit / WORTH;
        if for_room && self.is_first_to_ask() {
            core.requests.wake();
        }
        // Where no commit is asked for, time brings no room back.
        let room = if self.commit_is_coming() { room } else { NOTHING };
        if !core.pacing.pay(delta, [memory, room]) {
            return delta;
        }
        self.stats.paced.add(1);
        core.note_memory()
    }

    /// Once in an epoch: what its commit does not give back the next one would not, either. And not
    /// while a commit is at work: most of what is held beside it, for trees that may have grown by all
    /// that it was promised, comes back when it ends. Of large trees a commit for the little that
    /// came meanwhile would rewrite as many nodes as one for all that memory has place for.
    pub(super) fn is_first_to_ask(&self) -> bool {
        if self.reservations.trees_are_growing() {
            return false;
        }
        let epoch = self.core.layers().current.generation.0;
        self.asked.swap(epoch, Ordering::Relaxed) != epoch
    }

    /// A commit that gives room back is at work, or somebody has asked for it.
    pub(super) fn commit_is_coming(&self) -> bool {
        self.reservations.trees_are_growing()
            || self.asked.load(Ordering::Relaxed) == self.core.layers().current.generation.0
    }
}

const NOTHING: Usage = Usage { used: 0, limit: 1 };

/// How much is gone of the last room for metadata, which is half as much as the next commit holds.
fn last_room(held: u64, free: u64) -> Usage {
    let last = held / 2;
    let used = if held > LARGE_COMMIT { last.saturating_sub(free) } else { 0 };
    Usage { used, limit: last / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn room_is_short_when_a_quarter_of_what_is_held_is_left() {
        assert!(!last_room(1024 * MIB, 256 * MIB).is_over());
        assert!(last_room(1024 * MIB, 255 * MIB).is_over());
        let all = last_room(1024 * MIB, 0);
        assert_eq!(all.used, 2 * all.limit, "everybody waits");
    }

    #[test]
    fn a_small_commit_is_not_rested_for() {
        assert!(!last_room(128 * MIB, 0).is_over());
        assert!(!last_room(0, 0).is_over());
    }
}
