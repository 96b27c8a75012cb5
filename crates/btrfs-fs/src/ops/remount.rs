//! Read-only for a while, and back: for mounts whose kernel side was remounted.
//!
//! Whoever asks must have made sure that nothing changes files any more. What is left to
//! happen by itself (inodes without a name that are given back late, repairs of bad copies)
//! waits until the volume is writable again, or is the next mount's. So once `still` returned,
//! nothing is written: the volume can be read by others.

use crate::engine::Engine;
use crate::orphan;
use std::sync::atomic::Ordering;
use vfs::Result;

/// The first commit takes what is there; what was just being erased the second.
const COMMITS: usize = 2;

/// Commits, and writes nothing from then on.
pub fn still(engine: &Engine) -> Result<()> {
    if engine.read_only.is_some() || engine.is_still() {
        return Ok(());
    }
    engine.commit()?;
    engine.no_changes.store(true, Ordering::SeqCst);
    engine.volume.hold_repairs(true);
    let settled = (0..COMMITS).try_for_each(|_| engine.commit());
    engine.still.store(settled.is_ok(), Ordering::SeqCst);
    settled.inspect_err(|_| writable_again(engine))
}

pub fn writable_again(engine: &Engine) {
    engine.still.store(false, Ordering::SeqCst);
    engine.volume.hold_repairs(false);
    if engine.no_changes.swap(false, Ordering::SeqCst) {
        orphan::retry(engine);
    }
}
