//! A mount that is read-only for a while, as its caller asks for it, and what goes on behind that.
//!
//! Invariant: only a balance that was paused for this goes on, not one that somebody has paused before.
//!
//! What it does not know: what keeps the volume still (`ops::remount`).

use crate::fs::BtrfsFs;
use crate::ops::remount;
use vfs::Result;

impl BtrfsFs {
    /// Makes everything durable and writes nothing more, until `writable_again`. The caller
    /// has made sure that nobody changes files. A balance that is at work pauses meanwhile, and a resize
    /// that has not come to its end fails with EROFS.
    pub fn still(&self) -> Result<()> {
        remount::still(self.open()?).inspect_err(|_| self.go_on_with_balance())
    }

    /// Ends `still`, and goes on with a balance that it paused. What refuses writes for other reasons
    /// goes on to do so.
    pub fn writable_again(&self) {
        let Ok(engine) = self.open() else { return };
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
