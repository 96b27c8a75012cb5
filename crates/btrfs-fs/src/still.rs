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
    /// goes on to do so.
    pub fn writable_again(&self) {
        let _one = self.background.lock();
        let Ok(engine) = self.open() else { return };
        if engine.core.health.stays_open().is_err() {
            return;
        }
        remount::writable_again(engine);
        self.go_on_with_balance();
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
