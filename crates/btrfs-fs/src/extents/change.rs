//! Replacing ranges of a file: extent items, references and `nbytes` together.
//!
//! Invariants, for every function here:
//! * the caller holds the inode exclusively and read `mapped` under that lock;
//! * each stored extent item (not a hole) accounts for one reference of
//!   (tree, inode, item offset - offset in the extent), so trimming an item changes no
//!   count, splitting adds one, deleting removes one;
//! * `nbytes` is the sum of the lengths of the items that are not holes.

use super::map::{Mapped, MappedKind};
use crate::error::IntoFs;
use crate::ino::InodeId;
use crate::inode::State;
use btrfs_disk::items::FileExtentFields;
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_disk::{FixedSize, Generation};
use btrfs_txn::Op;
use vfs::Result;

/// Removes [start, end) from the file's items, which are one run of keys: call it within
/// `Op::run` where nothing else is changed in between. `mapped` is everything that overlaps it.
/// An inline item overlapping the range goes wholly: all of its content is dirty by now, or is stored with this, or is
/// behind the end of the file (ops/long_item.rs).
pub(crate) fn drop_range(
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    mapped: &[Mapped],
    start: u64,
    end: u64,
) -> Result<()> {
    for extent in mapped.iter().filter(|m| m.end > start && m.start < end) {
        match &extent.kind {
            MappedKind::Inline { ram_bytes, .. } => {
                op.delete(id, EXTENT_DATA, extent.start);
                if extent.end > op.core.sector() {
                    op.lost_long_item();
                }
                state.item.nbytes = state.item.nbytes.saturating_sub(*ram_bytes);
                state.inline_end = Some(0);
            }
            MappedKind::Extent { fields, .. } => {
                cut(op, &Piece { id, fields }, state, extent, (start, end))?;
            }
        }
    }
    Ok(())
}

struct Piece<'a> {
    id: InodeId,
    fields: &'a FileExtentFields,
}

impl Piece<'_> {
    /// Puts the item for the part [from, to) of an item that began at `start`.
    fn put(&self, op: &Op<'_>, start: u64, from: u64, to: u64) {
        let fields = FileExtentFields {
            offset: if self.fields.disk_bytenr.0 == 0 {
                0
            } else {
                self.fields.offset + (from - start)
            },
            ram_bytes: if self.fields.disk_bytenr.0 == 0 {
                to - from
            } else {
                self.fields.ram_bytes
            },
            num_bytes: to - from,
            ..*self.fields
        };
        op.put(self.id, EXTENT_DATA, from, fields.to_vec().into());
    }

    fn reference(&self, op: &Op<'_>, start: u64, count: i64) -> Result<()> {
        if self.fields.disk_bytenr.0 != 0 {
            let origin = start.wrapping_sub(self.fields.offset);
            op.reference(
                self.fields.disk_bytenr,
                self.fields.disk_num_bytes,
                (self.id.tree, self.id.objectid, origin),
                count,
            )
            .fs()?;
        }
        Ok(())
    }
}

fn cut(
    op: &Op<'_>,
    item: &Piece<'_>,
    state: &mut State,
    extent: &Mapped,
    (start, end): (u64, u64),
) -> Result<()> {
    let keep_head = extent.start < start;
    let keep_tail = extent.end > end;
    match (keep_head, keep_tail) {
        (false, false) => {
            op.delete(item.id, EXTENT_DATA, extent.start);
            item.reference(op, extent.start, -1)?;
        }
        (true, false) => item.put(op, extent.start, extent.start, start),
        (false, true) => {
            op.delete(item.id, EXTENT_DATA, extent.start);
            item.put(op, extent.start, end, extent.end);
        }
        (true, true) => {
            item.put(op, extent.start, extent.start, start);
            item.put(op, extent.start, end, extent.end);
            item.reference(op, extent.start, 1)?;
        }
    }
    if item.fields.disk_bytenr.0 != 0 {
        let gone = extent.end.min(end) - extent.start.max(start);
        state.item.nbytes = state.item.nbytes.saturating_sub(gone);
    }
    Ok(())
}

/// Puts the item `fields` for an extent over a range that `drop_range` emptied, and counts it
/// in `nbytes`. The caller accounts for the reference.
pub(crate) fn put_extent(
    op: &Op<'_>,
    id: InodeId,
    state: &mut State,
    start: u64,
    fields: &FileExtentFields,
) {
    state.item.nbytes = state.item.nbytes.saturating_add(fields.num_bytes);
    op.put(id, EXTENT_DATA, start, fields.to_vec().into());
}

/// Puts an explicit hole, for volumes without NO_HOLES.
pub(crate) fn put_hole(op: &Op<'_>, id: InodeId, start: u64, end: u64) {
    op.put(id, EXTENT_DATA, start, hole_item(op.generation(), start, end));
}

/// The item of an explicit hole.
pub(crate) fn hole_item(generation: Generation, start: u64, end: u64) -> Box<[u8]> {
    FileExtentFields::hole(generation, end - start).to_vec().into()
}
