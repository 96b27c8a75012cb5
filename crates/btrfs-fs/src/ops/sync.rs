//! Durability on request.
//!
//! An fsync writes back the inode's content, which enters it into the delta, and has the
//! tree log take what changed of it; `sync` commits.

use crate::delta::Level;
use crate::engine::Engine;
use crate::ino::is_stand_in;
use crate::log::Request;
use vfs::{Ino, Result};

/// The inode, its content and its names are durable when this returns; of a directory the
/// entries that it has and has no more. `fdatasync` is the same.
pub fn fsync(engine: &Engine, ino: Ino, _datasync: bool) -> Result<()> {
    engine.stats.fsyncs.add(1);
    if engine.read_only.is_some() {
        return Ok(());
    }
    if is_stand_in(ino) {
        return engine.commit_landed();
    }
    let inode = engine.inode(ino)?;
    engine.flush_inode(&inode)?;
    if !engine.options.tree_log {
        return engine.commit_landed();
    }
    let level = match inode.read() {
        Ok(state) if state.is_dir() => Level::Entries,
        Ok(_) => Level::Inode,
        // Erased meanwhile: there is nothing to keep.
        Err(_) => return Ok(()),
    };
    let generation = engine.layers.load().current.generation;
    engine.log_inode(Request { id: inode.id, level, generation })
}

pub fn sync(engine: &Engine) -> Result<()> {
    engine.commit()
}
