//! CHUNK_ITEM, BLOCK_GROUP_ITEM, DEV_ITEM and DEV_EXTENT.

use super::ensure;
use super::item::{Item, Rules, Verdict, end_of, sized};
use crate::error::Corrupt;
use crate::ids::{DEV_ITEMS_OBJECTID, FIRST_CHUNK_TREE_OBJECTID, STRIPE_LEN, block_group as bg};
use crate::items::{BlockGroupItem, Chunk, ChunkFields, DevExtent, DevItem};
use crate::key::kind;
use crate::le::FixedSize;
use crate::{Geometry, Logical, TreeId};

/// Stripe numbers inside a chunk fit 32 bits.
const MAX_CHUNK: u64 = STRIPE_LEN * 0xffff_ffff;

pub(super) fn chunk_item(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    ensure!(item.key.objectid == FIRST_CHUNK_TREE_OBJECTID, "chunk of owner {}", item.key.objectid);
    let parsed = Chunk::parse(item.data)?;
    sized(item, parsed.size())?;
    chunk(Logical(item.key.offset), &parsed, rules.geometry)
}

/// Judges a chunk by itself; also for the superblock's array, which is no tree.
pub fn chunk(logical: Logical, chunk: &Chunk, geometry: &Geometry) -> Result<(), Corrupt> {
    let fields = &chunk.fields;
    let sector = u64::from(geometry.sector_size);
    ensure!(
        fields.sector_size == geometry.sector_size,
        "chunk with sectors of {}",
        fields.sector_size
    );
    ensure!(logical.0.is_multiple_of(sector), "chunk at {logical} is not sector aligned");
    ensure!(
        fields.length > 0 && fields.length.is_multiple_of(sector) && fields.length < MAX_CHUNK,
        "chunk of {} bytes",
        fields.length
    );
    end_of("chunk", logical.0, fields.length)?;
    ensure!(fields.stripe_len == STRIPE_LEN, "chunk with stripes of {}", fields.stripe_len);
    chunk_type(fields.kind)?;
    stripe_count(fields)?;
    for stripe in &chunk.stripes {
        ensure!(
            stripe.offset.is_multiple_of(sector),
            "chunk on its device at {}, which is not sector aligned",
            stripe.offset
        );
        end_of("stripe", stripe.offset, fields.length)?;
    }
    Ok(())
}

/// One type, or data and metadata mixed; at most one profile; nothing unknown.
pub fn chunk_type(flags: u64) -> Result<(), Corrupt> {
    let unknown = flags & !(bg::TYPE_MASK | bg::PROFILE_MASK);
    ensure!(unknown == 0, "unknown chunk type {unknown:#x}");
    ensure!((flags & bg::PROFILE_MASK).count_ones() <= 1, "two profiles in {flags:#x}");
    ensure!(
        matches!(flags & bg::TYPE_MASK, bg::DATA | bg::SYSTEM | bg::METADATA)
            || flags & bg::TYPE_MASK == bg::DATA | bg::METADATA,
        "chunk type {flags:#x}"
    );
    Ok(())
}

fn stripe_count(fields: &ChunkFields) -> Verdict {
    let count = fields.num_stripes;
    let fits = match fields.kind & bg::PROFILE_MASK {
        0 => count == 1,
        bg::DUP | bg::RAID1 => count == 2,
        bg::RAID1C3 => count == 3,
        bg::RAID1C4 => count == 4,
        bg::RAID10 => fields.sub_stripes == 2 && count >= 2 && count.is_multiple_of(2),
        bg::RAID5 => count >= 2,
        bg::RAID6 => count >= 3,
        _ => count >= 1,
    };
    ensure!(
        fits,
        "{count} stripes by {} do not make a chunk of type {:#x}",
        fields.sub_stripes,
        fields.kind
    );
    Ok(())
}

pub(super) fn block_group(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    sized(item, BlockGroupItem::SIZE)?;
    let group = BlockGroupItem::read(item.data)?;
    rules.aligned("block group at", item.key.objectid)?;
    ensure!(item.key.offset > 0, "empty block group");
    end_of("block group", item.key.objectid, item.key.offset)?;
    ensure!(
        group.chunk_objectid == FIRST_CHUNK_TREE_OBJECTID,
        "block group of chunk owner {}",
        group.chunk_objectid
    );
    ensure!(group.used <= item.key.offset, "{} used of {}", group.used, item.key.offset);
    chunk_type(group.flags)
}

/// Sizes may be zero while a device is being removed.
pub(super) fn device(item: &Item<'_>) -> Verdict {
    ensure!(item.key.objectid == DEV_ITEMS_OBJECTID, "device of owner {}", item.key.objectid);
    sized(item, DevItem::SIZE)?;
    let device = DevItem::read(item.data)?;
    ensure!(device.devid == item.key.offset, "device says that it is {}", device.devid);
    ensure!(
        device.bytes_used <= device.total_bytes,
        "{} used of {}",
        device.bytes_used,
        device.total_bytes
    );
    Ok(())
}

pub(super) fn dev_extent(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    sized(item, DevExtent::SIZE)?;
    let extent = DevExtent::read(item.data)?;
    ensure!(
        extent.chunk_tree == TreeId::CHUNK.0 && extent.chunk_objectid == FIRST_CHUNK_TREE_OBJECTID,
        "device extent of chunk {} in tree {}",
        extent.chunk_objectid,
        extent.chunk_tree
    );
    rules.aligned("device extent at", item.key.offset)?;
    rules.aligned("chunk at", extent.chunk_offset)?;
    rules.aligned("device extent of", extent.length)?;
    ensure!(extent.length > 0, "empty device extent");
    end_of("device extent", item.key.offset, extent.length)?;
    end_of("chunk", extent.chunk_offset, extent.length)?;
    match item.previous_of(&[kind::DEV_EXTENT]) {
        Some((key, data)) if key.objectid == item.key.objectid => {
            let end = end_of("device extent", key.offset, DevExtent::read(data)?.length)?;
            ensure!(end <= item.key.offset, "the device extent in front ends at {end}");
            Ok(())
        }
        _ => Ok(()),
    }
}
