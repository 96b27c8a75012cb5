//! Read-only for a while, and back: for mounts whose kernel side was remounted.
//!
//! Whoever asks must have made sure that nothing changes files any more. Control operations (subvolumes, groups,
//! balances, fs-verity, the label), which the kernel knows nothing of, ask once more whether they may when nothing
//! can come between that and their change: so each is in the last commit or hears EROFS. What is left to
//! happen by itself (inodes without a name that are given back late, repairs of bad copies)
//! waits until the volume is writable again, or is the next mount's; a balance that is at work
//! pauses, and goes on then; a scrub that may write is cancelled; a resize or trim ends with an error. So once `still`
//! returned, nothing is written: the volume can be read by others.

use crate::engine::Engine;
use vfs::Result;

/// The first commit takes what is there; what was just being erased the second.
const COMMITS: usize = 2;

/// Commits, and writes nothing from then on.
pub(crate) fn still(engine: &Engine) -> Result<()> {
    if engine.core.health.is_read_only() || engine.core.health.is_still() {
        return Ok(());
    }
    engine.committer.commit()?;
    engine.end_changes();
    // What goes on by itself looks whether it may, at each of its steps.
    engine.balancer.rest_while_still();
    engine.scrubber.rest_while_still();
    engine.cleaner.wait_for_step();
    engine.orphans.erasures.wait_for_step();
    engine.core.volume.hold_repairs(true);
    let settled = (0..COMMITS).try_for_each(|_| engine.committer.commit());
    engine.core.health.set_still(settled.is_ok());
    // Who waits to commit looks at that once it is its turn.
    engine.committer.wait_for_running();
    settled.inspect_err(|_| writable_again(engine))
}

pub(crate) fn writable_again(engine: &Engine) {
    engine.core.health.set_still(false);
    engine.core.volume.hold_repairs(false);
    if engine.core.health.refuse_changes(false) {
        engine.orphans.retry(true);
        // And those who went to sleep over it.
        engine.cleaner.wake_again();
        if engine.reservations.limits.rescans() {
            engine.core.requests.wake_for_chunks();
        }
    }
}
