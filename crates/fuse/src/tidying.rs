//! When a thread that serves lets go the memory that it keeps for itself.
//!
//! Allocators keep free memory for each thread, and a thread that waits for requests gives none back:
//! nobody else can do it for it. Who knows the allocator says when there is reason to, and how.
//!
//! Invariant: where nobody says anything a request costs a load and a branch more, and no wait has an end.
//! It does not know what is let go.

use std::time::Duration;

/// Nobody asked anything of a thread for so long: it is at rest.
/// Chosen, not measured.
pub(crate) const REST: Duration = Duration::from_millis(500);

/// Whether a thread should let go what it keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: who serves does each; one passed over keeps memory that others need.
pub enum Tidy {
    /// Others do not need it.
    No,
    /// When the thread has been at rest for a moment.
    AtRest,
    /// Before the next request.
    Now,
}

/// How threads that serve let go memory.
#[derive(Clone, Copy, Debug)]
pub struct Tidying {
    /// Is asked by each thread behind each request, before it waits for the next one.
    pub wanted: fn() -> Tidy,
    /// Lets go what the calling thread keeps.
    pub tidy: fn(),
}

impl Default for Tidying {
    /// Never.
    fn default() -> Tidying {
        Tidying { wanted: || Tidy::No, tidy: || {} }
    }
}

impl Tidying {
    /// For who is about to wait: what is wanted now is done, behind what somebody may wait for. Answers whether
    /// it is wanted at rest.
    pub(crate) fn before_a_wait(self, first: impl FnOnce()) -> bool {
        match (self.wanted)() {
            Tidy::No => false,
            Tidy::AtRest => true,
            Tidy::Now => {
                first();
                (self.tidy)();
                false
            }
        }
    }
}
