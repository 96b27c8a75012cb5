//! Content stays where it is while somebody is about to say its address to the delta.
//!
//! Extents are named by address in the delta and in what operations have read. A commit that moves
//! content changes the trees alone: so nobody may be between reading an extent's address and
//! entering it into the delta, from before its seal until its roots are published. Who only reads
//! content needs nothing: the roots that it read keep what they lead to.
//!
//! Invariants: taken before an inode's lock, and never by who waits for a commit or the log with
//! it; the one commit that moves content has its turn already when it takes all addresses.
//!
//! What it does not know: what an address is of.

use locks::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See above.
pub struct Addresses(RwLock<()>);

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses(RwLock::new(Rank::Addresses, ()))
    }
}

impl Addresses {
    /// Nothing moves until the answer is dropped.
    #[track_caller]
    pub fn hold_still(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read()
    }

    /// As `hold_still`, for who holds the log: `None` while something moves.
    pub fn try_hold_still(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.0.try_read()
    }

    /// For the commit that moves content: nobody holds an address any more.
    #[track_caller]
    pub fn change(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }
}
