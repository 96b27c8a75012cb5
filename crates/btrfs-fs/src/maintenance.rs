//! Balances and scrubs as programs see them: work that goes on in a thread of its own beside operations.
//!
//! The face alone: what the work is, and how far it is, `balance` and `scrub` know.

use crate::engine::Engine;
use crate::fs::BtrfsFs;
use std::sync::mpsc::{Receiver, channel};
use vfs::Result;

/// For tests: without filters, a status or an item on the volume, and the call waits.
#[cfg(feature = "fault-injection")]
impl BtrfsFs {
    /// Moves all nodes of metadata elsewhere, and gives the block groups that they lay in back to the
    /// device; snapshots go on sharing what they share. Operations may go on meanwhile. What was
    /// done up to an error stays done. ENOSPC: there is no room for the nodes elsewhere.
    pub fn balance_metadata(&self) -> Result<crate::BalanceReport> {
        use btrfs_disk::ids::block_group::{METADATA, TYPE_MASK};
        self.balance_groups(|flags| flags & TYPE_MASK == METADATA)
    }

    /// The same of all block groups of which `which` is true, given their flags.
    pub fn balance_groups(&self, which: impl Fn(u64) -> bool) -> Result<crate::BalanceReport> {
        self.open()?.balancer.balance(which)
    }
}

impl BtrfsFs {
    /// Begins a balance, which goes on in a thread of its own. EINPROGRESS: one is at work. EINVAL: the
    /// filters make no sense, the profile cannot be had, there would be fewer copies of nodes
    /// and `FORCE` does not say that this is meant, or another balance is paused.
    pub fn start_balance(&self, item: btrfs_disk::items::BalanceItem) -> Result<()> {
        self.open()?.balancer.begin(item)?;
        self.work_off_balance()
    }

    /// Goes on with a paused one. ESRCH: there is none. EINPROGRESS: it is at work.
    pub fn resume_balance(&self) -> Result<()> {
        self.open()?.balancer.begin_again()?;
        self.work_off_balance()
    }

    fn work_off_balance(&self) -> Result<()> {
        self.beside.start(
            &self.engine,
            "balance",
            |e| e.balancer.run(),
            |e| e.balancer.not_started(),
        )
    }

    /// Pauses it; returns when it has. ESRCH: none is at work.
    pub fn pause_balance(&self) -> Result<()> {
        self.open()?.balancer.pause()
    }

    /// Cancels it, also a paused one. ESRCH: there is none.
    pub fn cancel_balance(&self) -> Result<()> {
        self.open()?.balancer.cancel()
    }

    /// How far it is, or how the last one ended.
    pub fn balance_status(&self) -> Result<crate::BalanceStatus> {
        Ok(self.open()?.balancer.status())
    }

    /// As `resize`, in a thread of its own from which the answer comes; none comes where it panicked.
    pub(crate) fn resize_beside(&self, total: u64) -> Result<Receiver<Result<()>>> {
        self.open()?;
        let (tell, told) = channel();
        let work = move |engine: &Engine| {
            let _nobody_may_listen = tell.send(engine.balancer.resize(total).map(drop));
        };
        self.beside.start(&self.engine, "resize", work, |_| {})?;
        Ok(told)
    }

    /// Begins a scrub, which goes on in a thread of its own. EINPROGRESS: one is at work. EROFS: nothing
    /// can be written, and it is not `read_only`.
    pub fn start_scrub(&self, read_only: bool) -> Result<()> {
        self.start_scrub_at(read_only, None)
    }

    /// The same, with a limit as long as it is at work: bytes that it reads in a second at most.
    pub fn start_scrub_at(&self, read_only: bool, limit: Option<u64>) -> Result<()> {
        self.open()?.scrubber.begin(read_only, limit)?;
        self.work_off_scrub()
    }

    /// Goes on with one that was cancelled. ESRCH: there is none. EINPROGRESS: it is at work.
    pub fn resume_scrub(&self) -> Result<()> {
        self.open()?.scrubber.begin_again()?;
        self.work_off_scrub()
    }

    /// Goes on with one of an earlier mount, of which that one's `scrub_status` is known. Errors: as
    /// `start_scrub`.
    pub fn continue_scrub(&self, earlier: crate::ScrubStatus) -> Result<()> {
        self.open()?.scrubber.begin_from(earlier, None)?;
        self.work_off_scrub()
    }

    fn work_off_scrub(&self) -> Result<()> {
        self.beside.start(&self.engine, "scrub", |e| e.scrubber.run(), |e| e.scrubber.not_started())
    }

    /// Stops it; returns when it has. ENOTCONN: none is at work.
    pub fn cancel_scrub(&self) -> Result<()> {
        self.open()?.scrubber.cancel()
    }

    /// How far it is, or how the last one ended.
    pub fn scrub_status(&self) -> Result<crate::ScrubStatus> {
        Ok(self.open()?.scrubber.told())
    }
}
