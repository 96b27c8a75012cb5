//! Writeback: content between memory and extents.
//!
//! Content lands before the metadata that names it: an extent is written, then its file extent
//! item, checksums and references enter the delta. All of it happens under the inode's own lock.
//!
//! What it does not know: when content is to be written back, and who waits for it.

mod early;
mod encoded;
mod flush;
mod land;
mod pack;
mod packed;
mod place;
mod store;
#[cfg(test)]
mod tests;
mod unstored;

pub(crate) use encoded::{Fit, store_extent, store_item};
pub(crate) use flush::{
    Flushed, dirty_of, fill_sector, flush_to_extents, inline_end, is_inline, load_inline,
    look_inline_end,
};
pub(crate) use land::land_in_front;
pub(crate) use place::Own;
pub(crate) use store::{WriteMode, store, store_in_own};
pub(crate) use unstored::Unstored;

use crate::extents::{Mapped, map_range};
use crate::ino::{self, InodeId};
use crate::inode::{DirtyQueue, Inodes, Pieces, State};
use crate::options::compression::{Compress, Method, Setting, is_never_compressed, may_compress};
use crate::reserve::Reservations;
use crate::stats::Stats;
use crate::subvol::Subvols;
use crate::writeback_errors::WritebackErrors;
use btrfs_txn::Core;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub(crate) struct Writeback {
    core: Arc<Core>,
    reservations: Arc<Reservations>,
    inodes: Arc<Inodes>,
    subvols: Arc<Subvols>,
    stats: Arc<Stats>,
    /// Inodes with unwritten content or times.
    queue: DirtyQueue,
    landing: flush::Landing,
    /// Pieces that unwritten content is in.
    pieces: Arc<Pieces>,
    errors: WritebackErrors,
    /// What the mount compresses.
    compression: Setting,
    helpers: pack::Helpers,
    packing: pack::Room,
    early: early::Early,
    /// Who remembers attributes that we told.
    observer: OnceLock<Arc<dyn vfs::Observer>>,
}

fn compresses(mount: Option<Compress>, state: &State) -> bool {
    let flags = state.item.flags;
    match state.compress_next {
        Some(Method::PLAIN) => false,
        // The flags may have changed since somebody asked for it.
        Some(_) if !is_never_compressed(flags) => true,
        _ => may_compress(mount, flags),
    }
}

impl Writeback {
    pub(crate) fn new(
        core: Arc<Core>,
        reservations: Arc<Reservations>,
        inodes: Arc<Inodes>,
        subvols: Arc<Subvols>,
        pieces: Arc<Pieces>,
        stats: Arc<Stats>,
        compress: Option<Compress>,
    ) -> Writeback {
        let (queue, landing, errors) = Default::default();
        let (helpers, packing, early, observer) = Default::default();
        Writeback {
            core,
            reservations,
            inodes,
            subvols,
            stats,
            queue,
            landing,
            pieces,
            errors,
            compression: Setting::new(compress),
            helpers,
            packing,
            early,
            observer,
        }
    }

    /// Whether content of the file may be compressed, which is done when it is written back.
    pub(crate) fn compresses(&self, state: &State) -> bool {
        compresses(self.compression(), state)
    }

    /// What the mount compresses, as of now.
    pub(crate) fn compression(&self) -> Option<Compress> {
        self.compression.get()
    }

    /// For all content that is written back from here on, also what waits for it.
    pub(crate) fn set_compression(&self, compress: Option<Compress>) {
        self.compression.set(compress);
    }

    /// Whether nobody but this file has the extent, as far as is known without a long look.
    pub(crate) fn is_sole(&self, id: InodeId, extent: &Mapped) -> vfs::Result<bool> {
        place::is_sole(self, id, extent)
    }

    /// What of a range, in whole sectors, content may go into without any space beside. The caller holds the
    /// inode, and addresses still.
    pub(crate) fn own(&self, id: InodeId, state: &State, range: (u64, u64)) -> vfs::Result<Own> {
        place::own(self, id, state, range)
    }

    pub(crate) fn queue(&self) -> &DirtyQueue {
        &self.queue
    }

    pub(crate) fn errors(&self) -> &WritebackErrors {
        &self.errors
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Only the first one is told: it may rely on that.
    pub(crate) fn observe(&self, observer: Arc<dyn vfs::Observer>) {
        let _ = self.observer.set(observer);
    }

    pub(crate) fn observer(&self) -> Option<&dyn vfs::Observer> {
        self.observer.get().map(|observer| &**observer)
    }

    /// Bytes of the content in memory that no extent of the file lies under.
    pub(crate) fn pending(&self, id: InodeId, state: &State) -> u64 {
        let Some(dirty) = &state.dirty else { return 0 };
        if state.item.nbytes == 0 {
            return dirty.bytes();
        }
        let view = self.core.view();
        let extents = |range: Range<u64>| -> Vec<Range<u64>> {
            // What cannot be read is for who reads it.
            let mapped = map_range(&view, id, self.core.sector(), range.start, range.end);
            let held = mapped.unwrap_or_default().into_iter().filter(|m| !m.is_hole());
            held.map(|m| m.start..m.end).collect()
        };
        dirty.bytes() - dirty.covered(extents)
    }

    /// The kernel (say) may remember another block count than the inode has by now.
    pub(crate) fn blocks_settled(&self, id: InodeId, state: &State) {
        let blocks = || state.blocks(self.core.geometry.sector_size, self.pending(id, state));
        if state.reported.is_outdated(blocks)
            && let (Some(observer), Ok(ino)) = (self.observer.get(), ino::number(id))
        {
            observer.attributes_changed(ino);
        }
    }
}
