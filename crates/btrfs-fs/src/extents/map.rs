//! Reading a file's extent items through a view.
//!
//! Knows nothing of content, checksums or dirty data.

use crate::ino::InodeId;
use crate::view::View;
use btrfs_disk::items::{Compression, FileExtent, FileExtentFields, FileExtentKind};
use btrfs_disk::key::kind::EXTENT_DATA;
use btrfs_disk::{Corrupt, Key, Result};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MappedKind {
    Inline { ram_bytes: u64, compression: Compression, content: Box<[u8]> },
    Extent { kind: FileExtentKind, compression: Compression, fields: FileExtentFields },
}

/// One extent item of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// File offset where it begins.
    pub start: u64,
    /// File offset where it ends; an inline extent ends with its sector.
    pub end: u64,
    pub kind: MappedKind,
}

impl Mapped {
    pub fn parse(key: &Key, data: &[u8], sector: u64) -> Result<Mapped> {
        let extent = FileExtent::parse(data).map_err(|c| c.key(*key))?;
        let start = key.offset;
        Ok(match extent {
            FileExtent::Inline { ram_bytes, compression, content, .. } => Mapped {
                start,
                end: start
                    .saturating_add(ram_bytes.checked_next_multiple_of(sector).unwrap_or(u64::MAX)),
                kind: MappedKind::Inline { ram_bytes, compression, content: content.into() },
            },
            FileExtent::Extent { kind, compression, fields } => Mapped {
                start,
                end: start.saturating_add(fields.num_bytes),
                kind: MappedKind::Extent { kind, compression, fields },
            },
        })
    }

    pub fn is_inline(&self) -> bool {
        matches!(self.kind, MappedKind::Inline { .. })
    }

    /// True for an explicit hole.
    pub fn is_hole(&self) -> bool {
        matches!(&self.kind, MappedKind::Extent { fields, .. } if fields.disk_bytenr.0 == 0)
    }

    pub fn is_prealloc(&self) -> bool {
        matches!(&self.kind, MappedKind::Extent { kind: FileExtentKind::Prealloc, .. })
    }

    /// True if reading it gives stored content.
    pub fn has_data(&self) -> bool {
        !self.is_hole() && !self.is_prealloc()
    }
}

/// All extent items that overlap [start, end), in order.
pub fn map_range(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    start: u64,
    end: u64,
) -> Result<Vec<Mapped>> {
    map_some(view, id, sector, start, end, usize::MAX)
}

fn map_some(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    start: u64,
    end: u64,
    limit: usize,
) -> Result<Vec<Mapped>> {
    let mut found = Vec::new();
    let mut from = Key::new(id.objectid, EXTENT_DATA, start);
    let mut covered = 0;
    if let Some((key, data)) = view.previous(id.tree, &from)?
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
    let mut scan = view.scan(id.tree, from);
    while found.len() < limit {
        match scan.next()? {
            Some((key, data)) if key.kind == EXTENT_DATA && key.offset < end => {
                let mapped = Mapped::parse(&key, &data, sector)?;
                check_order(&key, covered)?;
                covered = mapped.end;
                if mapped.end > start {
                    found.push(mapped);
                }
            }
            _ => break,
        }
    }
    Ok(found)
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
pub fn next_extent(
    view: &View<'_>,
    id: InodeId,
    sector: u64,
    start: u64,
) -> Result<Option<Mapped>> {
    Ok(map_some(view, id, sector, start, u64::MAX, 1)?.pop())
}
