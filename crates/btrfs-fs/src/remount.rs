//! A mount that is read-only for a while, as its caller asks for it, and what goes on behind that.
//!
//! Invariants: only a balance that was paused for this goes on, not one that somebody has paused before; who
//! closes the volume waits for what is under way here, and nothing is begun behind that.
//!
//! What it does not know: what keeps the volume still (`ops::remount`).

use crate::error::IntoFs;
use crate::fs::BtrfsFs;
use crate::ops::remount;
use vfs::Result;

impl BtrfsFs {
    /// Makes everything durable and writes nothing more, until `writable_again`. The caller
    /// has made sure that nobody changes files. A balance that is at work pauses meanwhile, and a resize
    /// that has not come to its end fails with EROFS.
    pub fn still(&self) -> Result<()> {
        let _one = self.background.lock();
        let engine = self.open()?;
        // All that is left is done by who closes it.
        engine.core.health.stays_open().fs()?;
        remount::still(engine).inspect_err(|_| self.go_on_with_balance())
    }

    /// Ends `still`, and goes on with a balance that it paused. What refuses writes for other reasons
    /// goes on to do so. EROFS: the volume is being closed, or was, and stays as it is.
    pub fn writable_again(&self) -> Result<()> {
        let _one = self.background.lock();
        let engine = self.open()?;
        engine.core.health.stays_open().fs()?;
        remount::writable_again(engine);
        self.go_on_with_balance();
        Ok(())
    }

    /// Whether somebody has begun to close the volume: it will be neither still nor writable again.
    pub fn is_being_closed(&self) -> bool {
        self.engine.core.health.stays_open().is_err()
    }

    /// With one that was paused because the mount was to be still.
    fn go_on_with_balance(&self) {
        if self.engine.balancer.wakes()
            && let Err(error) = self.resume_balance()
        {
            tracing::error!(%error, "a balance stays paused");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::BalanceState;
    use crate::reserve::tests::volume;
    use std::time::{Duration, Instant};
    use vfs::FileSystem;

    #[test]
    fn what_is_being_closed_says_that_it_is_not_writable_again() {
        let fs = volume(128, 16384);
        fs.still().expect("still");
        fs.writable_again().expect("it is open");
        fs.still().expect("still");
        assert!(!fs.is_being_closed());
        fs.beside.end(&fs.engine);
        assert!(fs.is_being_closed());
        let told = fs.writable_again().expect_err("it is being closed");
        assert_eq!((told.errno(), fs.is_still()), (libc::EROFS, true));
        fs.destroy().expect("close");
        assert_eq!(fs.writable_again().expect_err("it is closed").errno(), libc::EROFS);
    }

    /// It hears that nothing may be changed before anybody tells it to pause.
    #[test]
    fn a_balance_that_is_refused_first_goes_on_as_well() {
        let fs = volume(512, 16384);
        let status = || fs.balance_status().expect("a status");
        let flags = btrfs_disk::ids::block_group::METADATA;
        let item = btrfs_disk::items::BalanceItem { flags, ..Default::default() };
        fs.engine.balancer.begin(item).expect("begins");
        fs.engine.core.health.refuse_changes(true);
        fs.engine.balancer.run();
        assert_eq!((status().state, status().errno), (BalanceState::Paused, 0));
        fs.still().expect("still");
        assert_eq!(status().state, BalanceState::Paused);
        fs.writable_again().expect("it is open");
        let begun = Instant::now();
        while status().state == BalanceState::Running {
            assert!(begun.elapsed() < Duration::from_secs(20), "it goes on");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(status().state, BalanceState::Done);
        fs.destroy().expect("close");
    }
}
