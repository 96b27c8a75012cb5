//! Which accesses fail: the n-th read, write or flush, once or from then on.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    Flush,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Span {
    Once,
    FromThenOn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    pub access: Access,
    /// From 0.
    pub nth: u64,
    pub span: Span,
}

impl Fault {
    fn hits(&self, access: Access, number: u64) -> bool {
        let hit = match self.span {
            Span::Once => number == self.nth,
            Span::FromThenOn => number >= self.nth,
        };
        self.access == access && hit
    }
}

/// Accesses so far, failed ones included, and how many failed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub failed: u64,
}

#[derive(Default)]
pub(crate) struct Counter {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    failed: AtomicU64,
}

impl Counter {
    /// Counts an access; the number is how many of its kind came before.
    pub fn count(&self, access: Access) -> u64 {
        let counter = match access {
            Access::Read => &self.reads,
            Access::Write => &self.writes,
            Access::Flush => &self.flushes,
        };
        counter.fetch_add(1, Ordering::SeqCst)
    }

    /// Counts an access, and fails it if `faults` say so.
    pub fn pass(&self, access: Access, faults: &[Fault]) -> io::Result<u64> {
        let number = self.count(access);
        if faults.iter().any(|fault| fault.hits(access, number)) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::other(format!("simulated failure of {access:?} {number}")));
        }
        Ok(number)
    }

    pub fn counts(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Counts {
            reads: get(&self.reads),
            writes: get(&self.writes),
            flushes: get(&self.flushes),
            failed: get(&self.failed),
        }
    }
}
