//! Counters, always on: one relaxed add each.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    pub fn max(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }
}

macro_rules! stats {
    ($($field:ident = $name:literal),* $(,)?) => {
        #[derive(Default)]
        pub struct Stats { $(pub $field: Counter),* }

        impl Stats {
            pub fn list(&self) -> Vec<vfs::Stat> {
                vec![$(vfs::Stat { name: $name, value: self.$field.get() }),*]
            }
        }
    };
}

stats! {
    operations = "operations.changes",
    commits = "commit.count",
    commits_doubled = "commit.doubled",
    commits_for_space = "commit.for_space",
    commits_short = "commit.short",
    commits_over_promise = "commit.over_promise",
    commit_ns = "commit.total_ns",
    commit_max_ns = "commit.max_ns",
    commit_flush_data_ns = "commit.flush_data_ns",
    commit_seal_ns = "commit.seal_ns",
    commit_rests = "commit.rests",
    commit_seal_max_ns = "commit.seal_max_ns",
    commit_merge_ns = "commit.merge_ns",
    commit_settle_ns = "commit.settle_ns",
    commit_write_ns = "commit.write_ns",
    commit_end_max_ns = "commit.end_max_ns",
    commit_nodes = "commit.nodes_written",
    commit_items = "commit.items_merged",
    data_written_bytes = "data.written_bytes",
    data_read_bytes = "data.read_bytes",
    data_extents = "data.extents_written",
    inline_extents = "data.inline_extents",
    fsyncs = "fsync.count",
    replay_subvolumes = "replay.subvolumes",
    replay_inodes = "replay.inodes",
    replay_items = "replay.items",
    replay_extents = "replay.extents",
    log_writes = "log.writes",
    log_joined = "log.joined",
    log_nothing = "log.nothing_to_write",
    log_fallbacks = "log.fallback_commits",
    log_waits = "log.waits_for_commit",
    log_in_commit = "log.writes_in_commit",
    log_carried = "log.inodes_carried",
    log_inodes = "log.inodes",
    log_first = "log.inodes_first",
    log_tree_reads = "log.tree_reads",
    log_drops = "log.inodes_dropped",
    log_items = "log.items",
    log_nodes = "log.nodes_written",
    log_ns = "log.total_ns",
    log_max_ns = "log.max_ns",
    log_still_max_ns = "log.still_max_ns",
    throttled = "delta.throttled",
}
