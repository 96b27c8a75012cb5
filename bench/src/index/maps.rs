//! The structures that are compared, with one face: a counted reference by number, as a table of
//! open inodes has it. Each as its keepers mean it to be used.
//!
//! What it does not know: who measures.

use inode_index::{Epochs, Index, Ref};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};

/// What stands for an inode: two cache lines beside its count.
#[derive(Debug)]
pub struct Inode(u64, #[allow(dead_code, reason = "it takes its room")] [u64; 15]);

impl Inode {
    pub fn new(number: u64) -> Inode {
        Inode(number, [0; 15])
    }
}

pub trait Map: Sync {
    /// A counted reference.
    type Held: Send;

    fn make(number: u64) -> Self::Held;
    fn insert(&self, number: u64, inode: Self::Held);
    /// Takes a reference to it, reads it, and drops that.
    fn find(&self, number: u64) -> Option<u64>;
    fn remove(&self, number: u64) -> bool;
}

pub struct Radix {
    epochs: Arc<Epochs>,
    index: Index<Inode>,
}

impl Default for Radix {
    fn default() -> Radix {
        let epochs = Arc::new(Epochs::default());
        Radix { index: Index::new(epochs.clone()), epochs }
    }
}

impl Map for Radix {
    type Held = Ref<Inode>;

    fn make(number: u64) -> Ref<Inode> {
        Ref::try_new(Inode::new(number)).expect("memory")
    }

    fn insert(&self, number: u64, inode: Ref<Inode>) {
        self.index.insert(&self.epochs.pin(), number, &inode, 0).expect("a new number");
    }

    fn find(&self, number: u64) -> Option<u64> {
        Some(self.index.find(&self.epochs.pin(), number, 0)?.0)
    }

    fn remove(&self, number: u64) -> bool {
        let pin = self.epochs.pin();
        self.index
            .find(&pin, number, 0)
            .is_some_and(|found| self.index.evict(&pin, number, &found, false))
    }
}

/// As [`Radix`], but by reservation: the memory of what is inserted is part of it.
#[derive(Default)]
pub struct Reserved(Radix);

impl Map for Reserved {
    type Held = ();

    fn make(_: u64) {}

    fn insert(&self, number: u64, (): ()) {
        let reservation = self.0.index.reserve(number).expect("a new number");
        reservation.fill(Inode::new(number), 0);
    }

    fn find(&self, number: u64) -> Option<u64> {
        self.0.find(number)
    }

    fn remove(&self, number: u64) -> bool {
        self.0.remove(number)
    }
}

/// The stand-in for the red-black tree of old.
#[derive(Default)]
pub struct LockedTree(Mutex<BTreeMap<u64, Arc<Inode>>>);

impl Map for LockedTree {
    type Held = Arc<Inode>;

    fn make(number: u64) -> Arc<Inode> {
        Arc::new(Inode::new(number))
    }

    fn insert(&self, number: u64, inode: Arc<Inode>) {
        self.0.lock().expect("nobody panicked").insert(number, inode);
    }

    fn find(&self, number: u64) -> Option<u64> {
        let found = self.0.lock().expect("nobody panicked").get(&number)?.clone();
        Some(found.0)
    }

    fn remove(&self, number: u64) -> bool {
        self.0.lock().expect("nobody panicked").remove(&number).is_some()
    }
}

const SHARDS: u64 = 64;

/// The engine's table before: shards of hash maps under reader-writer locks.
pub struct Sharded(Vec<RwLock<FxHashMap<u64, Arc<Inode>>>>);

impl Default for Sharded {
    fn default() -> Sharded {
        Sharded((0..SHARDS).map(|_| RwLock::default()).collect())
    }
}

impl Sharded {
    fn shard(&self, number: u64) -> &RwLock<FxHashMap<u64, Arc<Inode>>> {
        &self.0[(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % SHARDS as usize]
    }
}

impl Map for Sharded {
    type Held = Arc<Inode>;

    fn make(number: u64) -> Arc<Inode> {
        Arc::new(Inode::new(number))
    }

    fn insert(&self, number: u64, inode: Arc<Inode>) {
        self.shard(number).write().expect("nobody panicked").insert(number, inode);
    }

    fn find(&self, number: u64) -> Option<u64> {
        let found = self.shard(number).read().expect("nobody panicked").get(&number)?.clone();
        Some(found.0)
    }

    fn remove(&self, number: u64) -> bool {
        self.shard(number).write().expect("nobody panicked").remove(&number).is_some()
    }
}

/// Concurrent maps of others, behind the feature `other-maps`.
#[cfg(feature = "other-maps")]
mod others {
    use super::{Arc, Inode, Map};

    pub struct Dash(dashmap::DashMap<u64, Arc<Inode>, rustc_hash::FxBuildHasher>);

    impl Default for Dash {
        fn default() -> Dash {
            Dash(dashmap::DashMap::with_hasher(rustc_hash::FxBuildHasher))
        }
    }

    impl Map for Dash {
        type Held = Arc<Inode>;

        fn make(number: u64) -> Arc<Inode> {
            Arc::new(Inode::new(number))
        }

        fn insert(&self, number: u64, inode: Arc<Inode>) {
            self.0.insert(number, inode);
        }

        fn find(&self, number: u64) -> Option<u64> {
            let found = self.0.get(&number)?.clone();
            Some(found.0)
        }

        fn remove(&self, number: u64) -> bool {
            self.0.remove(&number).is_some()
        }
    }

    pub struct Papaya(papaya::HashMap<u64, Arc<Inode>, rustc_hash::FxBuildHasher>);

    impl Default for Papaya {
        fn default() -> Papaya {
            Papaya(papaya::HashMap::with_hasher(rustc_hash::FxBuildHasher))
        }
    }

    impl Map for Papaya {
        type Held = Arc<Inode>;

        fn make(number: u64) -> Arc<Inode> {
            Arc::new(Inode::new(number))
        }

        fn insert(&self, number: u64, inode: Arc<Inode>) {
            self.0.pin().insert(number, inode);
        }

        fn find(&self, number: u64) -> Option<u64> {
            let found = self.0.pin().get(&number)?.clone();
            Some(found.0)
        }

        fn remove(&self, number: u64) -> bool {
            self.0.pin().remove(&number).is_some()
        }
    }
}

#[cfg(feature = "other-maps")]
pub use others::{Dash, Papaya};
