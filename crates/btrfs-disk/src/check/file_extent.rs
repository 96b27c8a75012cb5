//! EXTENT_DATA.

use super::ensure;
use super::item::{Item, Rules, Verdict, end_of, sized};
use crate::items::{Compression, FileExtent, FileExtentFields, FileExtentKind};
use crate::key::{Key, kind};
use crate::le::FixedSize;
use crate::le::wide;

/// Writers compress at most 128 KiB into one extent. The bound is generous, it is there
/// so that nobody takes memory for what a damaged item claims.
pub(super) const MAX_COMPRESSED: u64 = 1 << 20;

pub(super) fn file_extent(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    rules.aligned("file extent at", item.key.offset)?;
    rules.follows_its_inode(item)?;
    match FileExtent::parse(item.data)? {
        FileExtent::Inline { ram_bytes, compression, content, .. } => {
            inline(&item.key, ram_bytes, compression, content)
        }
        FileExtent::Extent { kind, compression, fields } => {
            sized(item, FileExtentFields::SIZE)?;
            extent(rules, &item.key, kind, compression, &fields)?;
            apart_from_previous(rules, item)
        }
    }
}

fn inline(key: &Key, ram_bytes: u64, compression: Compression, content: &[u8]) -> Verdict {
    ensure!(key.offset == 0, "inline extent at {}", key.offset);
    if compression == Compression::None {
        ensure!(
            ram_bytes == wide(content.len()),
            "inline extent of {} bytes says {ram_bytes}",
            content.len()
        );
        return Ok(());
    }
    ensure!(ram_bytes <= MAX_COMPRESSED, "compressed inline extent of {ram_bytes} bytes");
    ensure!(!content.is_empty(), "compressed inline extent without content");
    Ok(())
}

fn extent(
    rules: &Rules<'_>,
    key: &Key,
    kind: FileExtentKind,
    compression: Compression,
    fields: &FileExtentFields,
) -> Verdict {
    rules.aligned("ram_bytes", fields.ram_bytes)?;
    rules.aligned("extent address", fields.disk_bytenr.0)?;
    rules.aligned("extent size", fields.disk_num_bytes)?;
    rules.aligned("offset in extent", fields.offset)?;
    rules.aligned("range of", fields.num_bytes)?;
    ensure!(fields.num_bytes > 0, "empty range");
    end_of("file range", key.offset, fields.num_bytes)?;
    ensure!(
        kind == FileExtentKind::Regular || compression == Compression::None,
        "compressed preallocation"
    );
    if fields.disk_bytenr.0 == 0 {
        return Ok(()); // A hole: the other members carry leftovers.
    }
    end_of("extent", fields.disk_bytenr.0, fields.disk_num_bytes)?;
    inside(compression, fields)
}

/// The range lies inside its extent. `ram_bytes` of an uncompressed extent is unreliable
/// (kernels wrote wrong ones) and unused.
fn inside(compression: Compression, fields: &FileExtentFields) -> Verdict {
    let end = end_of("range in extent", fields.offset, fields.num_bytes)?;
    if compression == Compression::None {
        ensure!(
            end <= fields.disk_num_bytes,
            "range ends at {end} of an extent of {}",
            fields.disk_num_bytes
        );
        return Ok(());
    }
    ensure!(fields.disk_num_bytes > 0, "compressed extent without bytes");
    ensure!(
        fields.ram_bytes <= MAX_COMPRESSED && fields.disk_num_bytes <= MAX_COMPRESSED,
        "compressed extent of {} bytes out of {}",
        fields.ram_bytes,
        fields.disk_num_bytes
    );
    ensure!(end <= fields.ram_bytes, "range ends at {end} of an extent of {}", fields.ram_bytes);
    Ok(())
}

fn apart_from_previous(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    let Some((key, data)) = item.previous_of(&[kind::EXTENT_DATA]) else { return Ok(()) };
    if key.objectid != item.key.objectid {
        return Ok(());
    }
    let end = FileExtent::parse(data)?.file_end(key.offset, rules.sector());
    ensure!(end <= item.key.offset, "the extent in front ends at {end}");
    Ok(())
}
