//! Space as `df` tells it.

use crate::engine::Engine;
use vfs::{Result, StatFs};

pub fn statfs(engine: &Engine) -> Result<StatFs> {
    let block = engine.geometry.sector_size;
    let sb = engine.volume.superblock().fields;
    let free = match &engine.read_only {
        Some(_) => sb.total_bytes.saturating_sub(sb.bytes_used),
        None => engine.space.totals().data_available(),
    };
    let total = sb.total_bytes;
    let available = free;
    Ok(StatFs {
        block_size: block,
        blocks: total / u64::from(block),
        blocks_free: free / u64::from(block),
        blocks_available: available / u64::from(block),
        files: 0,
        files_free: 0,
        name_max: vfs::NAME_MAX as u32,
    })
}
