//! The block groups of one class, in the order in which allocations go through them.
//!
//! Invariant: the class has been told of each group in the list, and of no other. Who has a list has
//! it as it was: a change makes another.
//!
//! What it does not know: which of them an allocation takes (alloc.rs), and what is free in one.

use super::class::Class;
use super::group::Group;
use btrfs_disk::ids::block_group::PROFILE_MASK;
use locks::{Rank, RwLock};
use std::sync::Arc;
#[cfg(feature = "fault-injection")]
use std::sync::atomic::{AtomicU64, Ordering};

/// Groups, as one moment has them.
type Snapshot = Arc<Vec<Arc<Group>>>;

pub(super) struct List {
    class: Arc<Class>,
    groups: RwLock<Snapshot>,
    /// How often it was made anew.
    #[cfg(feature = "fault-injection")]
    made: AtomicU64,
}

impl List {
    pub(super) fn new(class: Class) -> List {
        List {
            class: Arc::new(class),
            groups: RwLock::new(Rank::ClassGroups, Arc::default()),
            #[cfg(feature = "fault-injection")]
            made: AtomicU64::new(0),
        }
    }

    pub(super) fn class(&self) -> &Arc<Class> {
        &self.class
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.groups.read())
    }

    /// All of them at once: each call makes another list.
    pub(super) fn add(&self, new: Vec<Arc<Group>>) {
        for group in &new {
            let profile = group.flags & PROFILE_MASK;
            self.class.group_came(group.len, group.excluded(), group.used(), profile);
        }
        #[cfg(feature = "fault-injection")]
        self.made.fetch_add(1, Ordering::Relaxed);
        let mut groups = self.groups.write();
        *groups = Arc::new(groups.iter().cloned().chain(new).collect());
    }

    /// A closed group goes; what it had free has gone before.
    pub(super) fn remove(&self, gone: &Arc<Group>) {
        self.class.group_went(gone.len, gone.excluded());
        let mut groups = self.groups.write();
        let left: Vec<_> = groups.iter().filter(|g| !Arc::ptr_eq(g, gone)).cloned().collect();
        if !left.is_empty() {
            self.class.has_profiles(left.iter().fold(0, |all, g| all | g.flags & PROFILE_MASK));
        }
        *groups = Arc::new(left);
    }

    /// Commits alone change what is used, and one has just ended: what the groups say is what
    /// the class was told.
    pub(super) fn assert_settled(&self) {
        if cfg!(debug_assertions) {
            let used: u64 = self.snapshot().iter().map(|group| group.used()).sum();
            self.class.assert_used(used);
        }
    }

    /// How often it was made anew.
    #[cfg(feature = "fault-injection")]
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}
