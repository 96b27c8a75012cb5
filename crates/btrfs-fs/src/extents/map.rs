//! Reading a file's extent items through a view.
//!
//! Knows nothing of content, checksums or dirty data.

use crate::ino::InodeId;
use btrfs_disk::items::{Compression, FileExtent, FileExtentFields, FileExtentKind};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_disk::{Corrupt, Key, Result};
use btrfs_txn::View;
use btrfs_txn::view::Bytes;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MappedKind {
    Inline { ram_bytes: u64, compression: Compression, content: Box<[u8]> },
    Extent { kind: FileExtentKind, compression: Compression, fields: FileExtentFields },
}

/// One extent item of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapped {
    /// File offset where it begins.
    pub start: u64,
    /// File offset where it ends; an inline extent ends with its sector.
    pub end: u64,
    pub kind: MappedKind,
}

impl Mapped {
    pub(crate) fn parse(key: &Key, data: &[u8], sector: u64) -> Result<Mapped> {
        let extent = FileExtent::parse(data).map_err(|c| c.key(*key))?;
        let (start, end) = (key.offset, extent.file_end(key.offset, sector));
        let kind = match extent {
            FileExtent::Inline { ram_bytes, compression, content, .. } => {
                MappedKind::Inline { ram_bytes, compression, content: content.into() }
            }
            FileExtent::Extent { kind, compression, fields } => {
                MappedKind::Extent { kind, compression, fields }
            }
        };
        Ok(Mapped { start, end, kind })
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.kind, MappedKind::Inline { .. })
    }

    /// True for an explicit hole.
    pub(crate) fn is_hole(&self) -> bool {
        matches!(&self.kind, MappedKind::Extent { fields, .. } if fields.disk_bytenr.0 == 0)
    }

    pub(crate) fn is_prealloc(&self) -> bool {
        matches!(&self.kind, MappedKind::Extent { kind: FileExtentKind::Prealloc, .. })
    }

    /// True if it is an extent that is stored as it is.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&self.kind, MappedKind::Extent { compression: Compression::None, .. })
    }

    /// True if its content has a place of its own on the device.
    pub(crate) fn is_stored(&self) -> bool {
        self.has_data() && matches!(&self.kind, MappedKind::Extent { .. })
    }

    /// True if reading it gives stored content.
    pub(crate) fn has_data(&self) -> bool {
        !self.is_hole() && !self.is_prealloc()
    }
}

/// So many items of a file are in memory at once where it may have any number.
/// Chosen, not measured.
pub(crate) const AT_A_TIME: usize = 1024;

/// All extent items that overlap [start, end), in order: for ranges that hold few, or where all are needed. The caller
/// holds the inode: where somebody changes the file meanwhile, items of before and after lie over each other, and that
/// is taken for damage.
pub(crate) fn map_range(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    start: u64,
    end: u64,
) -> Result<Vec<Mapped>> {
    map_some(view, id, sector, (start, end), None, usize::MAX)
}

/// The first `limit` of them.
pub(crate) fn map_first(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    range: (u64, u64),
    limit: usize,
) -> Result<Vec<Mapped>> {
    map_some(view, id, sector, range, None, limit)
}

/// The first `limit` of them, and where the next one begins; behind the last one: where the range ends. Who drops
/// them and goes on finds that one at once: from a hole behind them it went back over all that was deleted.
pub(crate) fn map_step(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    range: (u64, u64),
    limit: usize,
) -> Result<(Vec<Mapped>, u64)> {
    let mut mapped = map_first(view, id, sector, range, limit + 1)?;
    let next = if mapped.len() > limit { mapped.pop() } else { None };
    Ok((mapped, next.map_or(range.1, |next| next.start)))
}

/// As [`map_step`], without explicit holes: none, where there is nothing but holes.
pub(crate) fn map_stored(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    (start, end): (u64, u64),
    limit: usize,
) -> Result<(Vec<Mapped>, u64)> {
    let mut at = start;
    while at < end {
        let (mut mapped, next) = map_step(view, id, sector, (at, end), limit)?;
        mapped.retain(|extent| !extent.is_hole());
        if !mapped.is_empty() {
            return Ok((mapped, next));
        }
        at = next;
    }
    Ok((Vec::new(), end))
}

/// As [`map_range`], a few items at a time, of which there may be any number: `each` gets them in order, and answers
/// whether it wants more.
pub(crate) fn map_parts(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    (start, end): (u64, u64),
    mut each: impl FnMut(&[Mapped]) -> bool,
) -> Result<()> {
    let mut at = start;
    while at < end {
        let (mapped, next) = map_step(view, id, sector, (at, end), AT_A_TIME)?;
        if mapped.is_empty() || !each(&mapped) {
            break;
        }
        at = next;
    }
    Ok(())
}

/// As [`map_range`]. `near` may be where an item begins that reaches to `start` or over it: then those
/// that were deleted before `start` are not passed over, of which there can be many.
pub(crate) fn map_near(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    (start, end): (u64, u64),
    near: Option<u64>,
) -> Result<Vec<Mapped>> {
    map_some(view, id, sector, (start, end), near, usize::MAX)
}

fn map_some(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    (start, end): (u64, u64),
    near: Option<u64>,
    limit: usize,
) -> Result<Vec<Mapped>> {
    let mut found = Vec::new();
    let mut from = Key::new(id.objectid, EXTENT_DATA, start);
    let mut covered = 0;
    let before = match near {
        Some(near) => reaching(view, id, sector, start, near)?,
        None => None,
    };
    let before = match before {
        Some(known) => Some(known),
        None => view.previous(id.tree, &from)?,
    };
    if let Some((key, data)) = before
        && key.kind == EXTENT_DATA
    {
        let mapped = Mapped::parse(&key, &data, sector)?;
        covered = mapped.end;
        if key.offset == start {
            from.offset = start.saturating_add(1);
        }
        if mapped.end > start {
            found.push(mapped);
        }
    }
    let mut scan = view.scan_below(id.tree, from, Key { offset: end, ..from });
    while found.len() < limit {
        let Some((key, data)) = scan.next()? else { break };
        let mapped = Mapped::parse(&key, &data, sector)?;
        check_order(&key, covered)?;
        covered = mapped.end;
        if mapped.end > start {
            found.push(mapped);
        }
    }
    #[cfg(feature = "fault-injection")]
    MOST.with(|most| most.set(most.get().max(found.len())));
    Ok(found)
}

#[cfg(feature = "fault-injection")]
thread_local! {
    static MOST: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The most items that this thread has had at once since it asked last.
#[cfg(feature = "fault-injection")]
pub fn most_mapped() -> usize {
    MOST.with(|most| most.replace(0))
}

/// The last item at or before `start`, if one that begins at `near` reaches so far: items do not
/// overlap, so there is no other between.
fn reaching(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    start: u64,
    near: u64,
) -> Result<Option<(Key, Bytes)>> {
    let at = |offset| Key::new(id.objectid, EXTENT_DATA, offset);
    if near > start {
        return Ok(None);
    }
    let Some(data) = view.get(id.tree, &at(near))? else { return Ok(None) };
    let end = Mapped::parse(&at(near), &data, sector)?.end;
    if end < start {
        return Ok(None);
    }
    let here = if end == start { view.get(id.tree, &at(start))? } else { None };
    Ok(Some(here.map_or((at(near), data), |here| (at(start), here))))
}

/// Nobody can say which of two overlapping items holds the content.
fn check_order(key: &Key, covered: u64) -> Result<()> {
    if key.offset >= covered {
        return Ok(());
    }
    Err(Corrupt::new(format!("file extent begins inside one that ends at {covered}"))
        .key(*key)
        .into())
}

/// The first extent item that ends behind `start`.
pub(crate) fn next_extent(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    start: u64,
) -> Result<Option<Mapped>> {
    Ok(map_some(view, id, sector, (start, u64::MAX), None, 1)?.pop())
}
