//! Whether anything may be written, and if not, why.
//!
//! Invariants: a volume that was poisoned stays so; the first reason is the one that is told.
//! A failed write of metadata poisons, so nothing that follows can claim to be durable.
//!
//! What it does not know: who asks, and what for.

use btrfs_disk::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the volume can be written.
#[derive(Default)]
pub struct Health {
    /// From the start.
    read_only: Option<String>,
    /// Something failed that memory is ahead of for good.
    poisoned: OnceLock<String>,
    /// Remounted read-only: no operation may begin to change anything.
    no_changes: AtomicBool,
    /// And all that was changed is durable: nothing is written.
    still: AtomicBool,
    /// The volume is being closed: work of many steps ends.
    closing: AtomicBool,
    /// Stopped as by a crash, by a call that is made for that.
    shut_down: AtomicBool,
}

impl Health {
    /// With the reason why nothing can be written from the start, if there is one.
    pub fn new(read_only: Option<String>) -> Health {
        Health { read_only, ..Health::default() }
    }

    /// Why nothing could be written from the start.
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// Nothing could be written from the start.
    pub fn is_read_only(&self) -> bool {
        self.read_only.is_some()
    }

    /// Why nothing may be written any more.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.get().map(String::as_str)
    }

    /// Turns the volume read-only for good.
    pub fn poison(&self, why: &str) {
        if self.poisoned.set(why.to_owned()).is_ok() {
            tracing::error!(why, "the volume turns read-only");
        }
    }

    /// Runs what is not to be gone on with where it panics, since memory may be half changed: `why`, if it does.
    pub fn poisoned_by_panics<T>(&self, why: &'static str, work: impl FnOnce() -> T) -> T {
        let unwound = PoisonUnlessDone(self, why);
        let result = work();
        std::mem::forget(unwound);
        result
    }

    /// `Error::ReadOnly` with the reason, if nothing may be written.
    pub fn writable(&self) -> Result<()> {
        match self.poisoned().or(self.read_only()) {
            Some(why) => Err(Error::ReadOnly(why.to_owned())),
            None => Ok(()),
        }
    }

    /// As `writable`, where an operation begins to change something.
    pub fn changeable(&self) -> Result<()> {
        self.writable()?;
        if self.refuses_changes() {
            let closing = self.closing.load(Ordering::SeqCst);
            let why = if closing { "the volume is being closed" } else { "remounted read-only" };
            return Err(Error::ReadOnly(why.into()));
        }
        Ok(())
    }

    /// As `changeable`, for work of many steps: whether it may take another one.
    pub fn may_go_on(&self) -> Result<()> {
        self.changeable()?;
        self.stays_open()
    }

    /// As `may_go_on`, for who waits for others' work, and changes nothing himself.
    pub fn stays_open(&self) -> Result<()> {
        match self.closing.load(Ordering::SeqCst) {
            true => Err(Error::ReadOnly("the volume is being closed".into())),
            false => Ok(()),
        }
    }

    /// From now on what takes many steps takes none.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// No operation may begin to change anything: the mount is read-only for a while.
    pub fn refuses_changes(&self) -> bool {
        self.no_changes.load(Ordering::SeqCst)
    }

    /// No operation may begin to change anything; true: that is over. Answers what was before.
    pub fn refuse_changes(&self, refuse: bool) -> bool {
        self.no_changes.swap(refuse, Ordering::SeqCst)
    }

    /// All that was changed is durable, and nothing is written.
    pub fn is_still(&self) -> bool {
        self.still.load(Ordering::SeqCst)
    }

    /// That is so from now on, or over.
    pub fn set_still(&self, still: bool) {
        self.still.store(still, Ordering::SeqCst);
    }

    /// It was stopped as by a crash.
    pub fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Stops it as by a crash: poisoned, and every call is to fail.
    pub fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        self.poison("it was shut down");
    }
}

/// Poisons the volume unless it is forgotten: for a thread that panics halfway through what
/// others wait for.
pub struct PoisonUnlessDone<'h>(pub &'h Health, pub &'static str);

impl Drop for PoisonUnlessDone<'_> {
    fn drop(&mut self) {
        self.0.poison(self.1);
    }
}
