//! FITRIM: the device is told of all free space.

use crate::engine::Engine;
use crate::error::IntoFs;
use btrfs_disk::Error;
use btrfs_space::Unproven;
use vfs::{Errno, Result};

/// Free ranges of `least` bytes and more; `start` and `len` are logical addresses, as in the
/// kernel's btrfs, and space in no chunk always counts. Commits first: what was deleted
/// before the call is free then, unless somebody still reads it.
pub(crate) fn trim(engine: &Engine, start: u64, len: u64, least: u64) -> Result<u64> {
    // To the end of all addresses is no overflow, wherever it begins.
    let overflows = len != u64::MAX && start.checked_add(len).is_none();
    if len < engine.core.sector() || start == u64::MAX || overflows {
        return Err(Errno::EINVAL.into());
    }
    // Who makes the mount still, or closes it, says so first and waits then.
    let _under_way = engine.balancer.trims.read();
    let health = &engine.core.health;
    health.may_go_on().fs()?;
    engine.committer.commit()?;
    let range = start..start.saturating_add(len);
    let result = engine.core.space.trim(range, least, &|| health.may_go_on());
    if let Err(Unproven::Wrong(what)) = &result {
        health.poison(&format!("{}: {what}", engine.core.volume.device().name()));
    }
    result.map_err(Error::from).fs()
}
