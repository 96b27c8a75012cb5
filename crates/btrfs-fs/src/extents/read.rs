//! Reading content: extents, holes, inline, compressed, and what is still dirty over it.
//!
//! Invariant: no byte of an extent is returned whose checksum was not verified, unless
//! the file has none (NODATASUM) and it is known where its content lies, or a rescuer has asked for what there is: then what a copy has
//! that the checksum fits is given out, where there is one, and all else is noted. So is, where an earlier commit is shown,
//! what has none.

use super::compressed::{Compressed, copy_padded, read_inline};
use super::sums;
use super::trust::Trust;
use super::{Mapped, MappedKind, map_range};
use crate::error::IntoFs;
use crate::file_path;
use crate::ino::InodeId;
use crate::inode::State;
use btrfs_disk::items::{Compression, FileExtentFields};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_disk::{DamageKind, Key, Logical};
use btrfs_txn::{Core, Roots, View};
use vfs::Result;

/// So many parts beside what is in memory are read one by one.
/// Chosen, not measured.
const PARTS: usize = 16;

/// Fills `buf` from `offset`, up to the end of the file; of what is behind that in the last sector zeros may come.
/// Whether it can be read that lies below what is in memory is all the same. The caller holds the inode.
pub(crate) fn read(
    core: &Core,
    id: InodeId,
    state: &State,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize> {
    let len = state.item.size.saturating_sub(offset).min(buf.len() as u64) as usize;
    if len == 0 {
        return Ok(0);
    }
    let end = offset + len as u64;
    let flags = state.item.flags;
    let Some(dirty) = &state.dirty else {
        return read_within(core, id, flags, offset, (buf, len)).map(|()| len);
    };
    let parts = dirty.gaps(offset, end);
    // More of them take longer than all at once, where that can be read.
    let done = parts.len() > PARTS && read_within(core, id, flags, offset, (buf, len)).is_ok();
    for part in parts.iter().filter(|_| !done) {
        let (from, len) = ((part.start - offset) as usize, (part.end - part.start) as usize);
        read_within(core, id, flags, part.start, (&mut buf[from..], len))?;
    }
    dirty.overlay(offset, &mut buf[..len]);
    Ok(len)
}

/// What the extents say, holes as zeros. `flags` are the inode's.
pub(crate) fn read_extents(
    core: &Core,
    id: InodeId,
    flags: u64,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    let len = buf.len();
    read_within(core, id, flags, offset, (buf, len))
}

/// The same of the first `len` bytes. Where `buf` has room for the last sector as a whole, that is read with those
/// in front of it.
fn read_within(
    core: &Core,
    id: InodeId,
    flags: u64,
    offset: u64,
    (buf, len): (&mut [u8], usize),
) -> Result<()> {
    let view = core.view();
    let end = offset + len as u64;
    let whole = end.next_multiple_of(core.sector()).min(offset + buf.len() as u64);
    let mapped = map_range(&view, id, core.sector(), offset, end).fs()?;
    let mut at = offset;
    for extent in &mapped {
        let (from, to) = (extent.start.max(offset), extent.end.min(end));
        if from > at {
            buf[(at - offset) as usize..(from - offset) as usize].fill(0);
        }
        let stop = if to == end && extent.is_plain() { whole.min(extent.end) } else { to };
        let part = &mut buf[(from - offset) as usize..(stop - offset) as usize];
        let read = read_mapped(core, &view, (id, Trust::of(flags)), extent, from, part);
        let (part, behind) = part.split_at_mut((to - from) as usize);
        behind.fill(0);
        let read = match core.features.unverified {
            true => read.or_else(|_| read_unverified(core, &view, (id, flags), extent, from, part)),
            false => read,
        };
        if let Err(error) = read {
            let path = file_path::path(&view, id);
            tracing::error!("{path}: unreadable in {} bytes from {from} on: {error}", to - from);
            return Err(error);
        }
        if core.features.earlier && Trust::of(flags) == Trust::Place && extent.is_stored() {
            core.unverified.add(id, from, to - from);
        }
        at = to;
    }
    buf[(at - offset) as usize..len].fill(0);
    Ok(())
}

/// What is there, whatever the checksums say; what of it they do not vouch for is noted, by sectors.
fn read_unverified(
    core: &Core,
    view: &View<'_>,
    (id, flags): (InodeId, u64),
    extent: &Mapped,
    from: u64,
    buf: &mut [u8],
) -> Result<()> {
    let compressed =
        !matches!(extent.kind, MappedKind::Extent { compression: Compression::None, .. });
    let (sector, end) = (core.sector(), from + buf.len() as u64);
    let mut at = from;
    while at < end {
        // One sum says nothing of a part of what is compressed.
        let stop = if compressed { end } else { ((at / sector + 1) * sector).min(end) };
        let part = &mut buf[(at - from) as usize..(stop - from) as usize];
        if read_mapped(core, view, (id, Trust::of(flags)), extent, at, part).is_err() {
            read_mapped(core, view, (id, Trust::Blind), extent, at, part)?;
            core.unverified.add(id, at, stop - at);
        }
        at = stop;
    }
    Ok(())
}

fn read_mapped(
    core: &Core,
    view: &View<'_>,
    (id, trust): (InodeId, Trust),
    extent: &Mapped,
    from: u64,
    buf: &mut [u8],
) -> Result<()> {
    if !extent.has_data() {
        buf.fill(0);
        return Ok(());
    }
    let within = from - extent.start;
    match &extent.kind {
        MappedKind::Inline { compression: Compression::None, content, .. } => {
            copy_padded(content, within as usize, buf);
            Ok(())
        }
        MappedKind::Inline { ram_bytes, compression, content } => {
            let key = Key::new(id.objectid, EXTENT_DATA, extent.start);
            read_inline(core, *compression, content, *ram_bytes, within, buf)
                .map_err(|damage| damage.kind(DamageKind::Content).key(key))
                .fs()
        }
        MappedKind::Extent { compression: Compression::None, fields, .. } => {
            let at = fields.disk_bytenr.offset(fields.offset + within);
            read_plain(core, view, trust, fields, at, buf)
        }
        MappedKind::Extent { compression, fields, .. } => {
            let extent = Compressed { core, view, trust, compression: *compression, fields };
            extent.read(fields.offset.saturating_add(within), buf)
        }
    }
}

/// Stored bytes from `at` on, checksums verified. Whole sectors go straight into `buf`.
fn read_plain(
    core: &Core,
    view: &View<'_>,
    trust: Trust,
    fields: &FileExtentFields,
    at: Logical,
    buf: &mut [u8],
) -> Result<()> {
    let sector = core.sector();
    let head = (at.0 % sector) as usize;
    if head != 0 {
        let take = buf.len().min(sector as usize - head);
        let (first, rest) = buf.split_at_mut(take);
        read_part(core, view, trust, fields, Logical(at.0 - head as u64), head, first)?;
        return match rest.is_empty() {
            true => Ok(()),
            false => read_plain(core, view, trust, fields, at.offset(take as u64), rest),
        };
    }
    let whole = buf.len() / sector as usize * sector as usize;
    let (body, tail) = buf.split_at_mut(whole);
    if !body.is_empty() {
        read_sectors(core, view, trust, fields, at, body)?;
    }
    if !tail.is_empty() {
        read_part(core, view, trust, fields, at.offset(whole as u64), 0, tail)?;
    }
    Ok(())
}

/// Part of one sector.
fn read_part(
    core: &Core,
    view: &View<'_>,
    trust: Trust,
    fields: &FileExtentFields,
    sector_at: Logical,
    skip: usize,
    buf: &mut [u8],
) -> Result<()> {
    let mut sector = vec![0; core.sector() as usize];
    read_sectors(core, view, trust, fields, sector_at, &mut sector)?;
    buf.copy_from_slice(&sector[skip..skip + buf.len()]);
    Ok(())
}

/// Stored sectors of an extent from `at` on.
fn read_sectors(
    core: &Core,
    view: &View<'_>,
    trust: Trust,
    fields: &FileExtentFields,
    at: Logical,
    buf: &mut [u8],
) -> Result<()> {
    read_by(core, trust, at, buf, |count| sums::lookup(core, view, fields.disk_bytenr, at, count))
}

/// The same of an extent of an earlier commit, whose `roots` somebody holds.
pub(crate) fn read_earlier(
    core: &Core,
    roots: &Roots,
    trust: Trust,
    fields: &FileExtentFields,
    at: Logical,
    buf: &mut [u8],
) -> Result<()> {
    let extent = fields.disk_bytenr;
    read_by(core, trust, at, buf, |count| sums::lookup_earlier(core, roots, extent, at, count))
}

/// By the checksums of so many sectors that `sums` finds.
fn read_by(
    core: &Core,
    trust: Trust,
    at: Logical,
    buf: &mut [u8],
    sums: impl FnOnce(usize) -> Result<Vec<u8>>,
) -> Result<()> {
    match trust {
        Trust::Sums => {}
        Trust::Place => return core.volume.read_data(at, buf, None).fs(),
        Trust::Blind => return core.volume.read_blindly(at, buf).fs(),
    }
    let sums = sums(buf.len() / core.sector() as usize)?;
    core.volume.read_data(at, buf, Some(&sums)).fs()
}
