//! Durability on request. For now an fsync is a commit, shared by all who wait; the tree
//! log will take its place here.

use crate::engine::Engine;
use vfs::{Ino, Result};

pub fn fsync(engine: &Engine, _ino: Ino, _datasync: bool) -> Result<()> {
    engine.stats.fsyncs.add(1);
    engine.commit()
}

pub fn sync(engine: &Engine) -> Result<()> {
    engine.commit()
}
