//! Counters, always on: one relaxed add each.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that threads add to; relaxed, so it says nothing of other memory.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    /// What it has come to.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Makes it `n` if that is more.
    pub fn max(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }
}

/// A struct of counters, and a list of them by the names that users see.
#[macro_export]
macro_rules! counters {
    ($type:ident { $($field:ident = $name:literal),* $(,)? }) => {
        #[derive(Default)]
        #[doc = "Counters, each by the name that users see."]
        pub struct $type { $(#[doc = concat!("`", $name, "`")] pub $field: $crate::Counter),* }

        impl $type {
            #[doc = "All of them, by the names that users see."]
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field.get())),*]
            }
        }
    };
}

counters!(TxnStats {
    operations = "operations.changes",
    commit_rests = "commit.rests",
    commit_rest_ns = "commit.rest_ns",
    commit_merge_ns = "commit.merge_ns",
    commit_settle_ns = "commit.settle_ns",
    quota_extents = "quota.extents",
    commit_write_ns = "commit.write_ns",
    commit_nodes = "commit.nodes_written",
    commit_items = "commit.items_merged",
});
