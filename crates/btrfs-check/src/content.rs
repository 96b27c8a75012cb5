//! Content of a file as its extents say it, from one copy. Nothing here asks for checksums: who reads
//! so has something else to hold it against.
//!
//! Invariant: memory is bounded by the longest compressed extent that the format allows.

use crate::items::items;
use crate::refs::TreeStart;
use crate::source::Context;
use btrfs_disk::items::{Compression, FileExtent, FileExtentFields, FileExtentKind};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_disk::{Key, Logical, compress};

/// Of a byte that cannot be read; whatever matches it by chance was no hole at least.
const LOST: u8 = 0xdb;

/// Fills `buf` with content of inode `ino` from `at` on, which begins a sector; answers the most copies
/// that one of its extents has.
pub(crate) fn read(
    cx: &mut Context<'_>,
    start: &TreeStart,
    ino: u64,
    (at, copy): (u64, usize),
    buf: &mut [u8],
) -> usize {
    buf.fill(0);
    let end = at.saturating_add(buf.len() as u64);
    let range = (Key::new(ino, EXTENT_DATA, at), Key::new(ino, EXTENT_DATA, end - 1));
    let mut copies = 1;
    let complete = items(cx, start, range, &mut |cx, key, data| {
        if key.objectid != ino || key.kind != EXTENT_DATA {
            return;
        }
        let from = key.offset.max(at);
        let room = buf.get_mut((from - at) as usize..).filter(|room| !room.is_empty());
        let (Some(room), Ok(extent)) = (room, FileExtent::parse(data)) else { return };
        copies = copies.max(put(cx, &extent, from - key.offset, copy, room));
    });
    if !complete {
        buf.fill(LOST);
    }
    copies
}

/// What of an extent lies from `skip` on; answers how many copies there are.
fn put(
    cx: &Context<'_>,
    extent: &FileExtent<'_>,
    skip: u64,
    copy: usize,
    room: &mut [u8],
) -> usize {
    let (kind, compression, fields) = match extent {
        FileExtent::Inline { compression, ram_bytes, content, .. } => {
            match inline(cx, *compression, *ram_bytes, content) {
                Some(whole) => copy_from(&whole, skip, room),
                None => room.fill(LOST),
            }
            return 1;
        }
        FileExtent::Extent { kind, compression, fields } => (*kind, *compression, fields),
    };
    let len = fields.num_bytes.saturating_sub(skip).min(room.len() as u64) as usize;
    let room = &mut room[..len];
    if len == 0 || kind == FileExtentKind::Prealloc || fields.disk_bytenr.0 == 0 {
        return 1;
    }
    let copies = cx.volume.mirrors(fields.disk_bytenr).unwrap_or(1);
    let copy = copy.min(copies.saturating_sub(1));
    if stored(cx, compression, fields, (skip, copy), room).is_none() {
        room.fill(LOST);
    }
    copies
}

fn inline(cx: &Context<'_>, how: Compression, len: u64, stream: &[u8]) -> Option<Vec<u8>> {
    if how == Compression::None {
        return Some(stream.to_vec());
    }
    let mut whole = vec![0; compress::bounded(len).ok()?];
    compress::decompress(how, cx.geometry.sector_size as usize, stream, &mut whole).ok()?;
    Some(whole)
}

fn stored(
    cx: &Context<'_>,
    compression: Compression,
    fields: &FileExtentFields,
    (skip, copy): (u64, usize),
    room: &mut [u8],
) -> Option<()> {
    let skip = fields.offset.checked_add(skip)?;
    if compression != Compression::None {
        copy_from(&decompressed(cx, compression, fields, copy)?, skip, room);
        return Some(());
    }
    let mut whole = vec![0; room.len().next_multiple_of(cx.geometry.sector_size as usize)];
    let at = Logical(fields.disk_bytenr.0.checked_add(skip)?);
    cx.volume.read_mirror(at, copy, &mut whole).ok()?;
    room.copy_from_slice(&whole[..room.len()]);
    Some(())
}

fn decompressed(
    cx: &Context<'_>,
    compression: Compression,
    fields: &FileExtentFields,
    copy: usize,
) -> Option<Vec<u8>> {
    let mut stored = vec![0; compress::bounded(fields.disk_num_bytes).ok()?];
    cx.volume.read_mirror(fields.disk_bytenr, copy, &mut stored).ok()?;
    let mut whole = vec![0; compress::bounded(fields.ram_bytes).ok()?];
    let sector = cx.geometry.sector_size as usize;
    compress::decompress(compression, sector, &stored, &mut whole).ok()?;
    Some(whole)
}

fn copy_from(whole: &[u8], skip: u64, room: &mut [u8]) {
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let source = whole.get(skip..).unwrap_or(&[]);
    let len = source.len().min(room.len());
    room[..len].copy_from_slice(&source[..len]);
}
