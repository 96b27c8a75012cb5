//! EXTENT_ITEM and METADATA_ITEM with inline references, and the separate references.

use super::item::{Item, Rules, Verdict, end_of, sized};
use super::{ensure, home};
use crate::TreeId;
use crate::error::Corrupt;
use crate::ids::{FIRST_FREE_OBJECTID, FREE_INO_OBJECTID, LAST_FREE_OBJECTID};
use crate::items::{
    ExtentDataRef, ExtentItem, ExtentItemFields, InlineRef, SharedDataRef, extent_flags,
};
use crate::key::{Key, kind};
use crate::le::FixedSize;
use crate::node::MAX_LEVEL;

pub(super) fn extent(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    rules.aligned("extent at", item.key.objectid)?;
    let (fields, block_info, tail) = ExtentItem::split(item.key.kind, item.data)?;
    rules.not_younger("extent of generation", fields.generation)?;
    let is_data = flags(&fields)?;
    if is_data {
        data_key(rules, &item.key)?;
    } else {
        block_key(rules, &item.key, block_info)?;
    }
    end_of("extent", item.key.objectid, len_of(rules, &item.key))?;
    inline_refs(rules, is_data, fields.refs, tail)?;
    apart_from_previous(rules, item)
}

/// True for data, false for a tree block.
fn flags(fields: &ExtentItemFields) -> Result<bool, Corrupt> {
    let flags = fields.flags;
    let is_data = flags & extent_flags::DATA != 0;
    let is_block = flags & extent_flags::TREE_BLOCK != 0;
    ensure!(is_data != is_block, "extent flags {flags:#x} are neither data nor tree block");
    ensure!(
        !is_data || flags & extent_flags::FULL_BACKREF == 0,
        "data extent with full back references"
    );
    ensure!(fields.refs > 0, "extent without references");
    Ok(is_data)
}

fn data_key(rules: &Rules<'_>, key: &Key) -> Verdict {
    ensure!(key.kind == kind::EXTENT_ITEM, "metadata item for data");
    ensure!(key.offset > 0, "empty extent");
    rules.aligned("extent of", key.offset)
}

fn block_key(rules: &Rules<'_>, key: &Key, info: Option<(Key, u8)>) -> Verdict {
    if key.kind == kind::METADATA_ITEM {
        ensure!(key.offset < u64::from(MAX_LEVEL), "tree block of level {}", key.offset);
        return Ok(());
    }
    ensure!(
        key.offset == u64::from(rules.geometry.node_size),
        "tree block of {} bytes",
        key.offset
    );
    let level = info.map_or(0, |(_, level)| level);
    ensure!(level < MAX_LEVEL, "tree block of level {level}");
    Ok(())
}

fn len_of(rules: &Rules<'_>, key: &Key) -> u64 {
    match key.kind {
        kind::METADATA_ITEM => u64::from(rules.geometry.node_size),
        _ => key.offset,
    }
}

/// Sorted by type, then descending by sequence; not more of them than there are in all.
fn inline_refs(rules: &Rules<'_>, is_data: bool, total: u64, tail: &[u8]) -> Verdict {
    let mut previous: Option<(u8, u64)> = None;
    let mut sum = 0u64;
    for reference in InlineRef::iter(tail) {
        let reference = reference?;
        inline_ref(rules, is_data, &reference)?;
        let here = (reference.kind(), reference.sequence());
        if let Some((kind, sequence)) = previous {
            ensure!(
                kind < here.0 || (kind == here.0 && sequence >= here.1),
                "inline references are out of order"
            );
        }
        previous = Some(here);
        sum = sum.saturating_add(reference.count());
    }
    ensure!(sum <= total, "{sum} inline references of {total} in all");
    Ok(())
}

fn inline_ref(rules: &Rules<'_>, is_data: bool, reference: &InlineRef) -> Verdict {
    let fits = match reference {
        InlineRef::TreeBlock { .. } | InlineRef::SharedBlock { .. } => !is_data,
        InlineRef::Data(_) | InlineRef::SharedData { .. } => is_data,
        InlineRef::Owner { .. } => true,
    };
    ensure!(fits, "inline reference of type {} to the wrong kind of extent", reference.kind());
    match reference {
        InlineRef::TreeBlock { .. } | InlineRef::Owner { .. } => Ok(()),
        InlineRef::SharedBlock { parent } => rules.aligned("parent at", *parent),
        InlineRef::SharedData { parent, count } => {
            ensure!(*count > 0, "reference that counts nothing");
            rules.aligned("parent at", *parent)
        }
        InlineRef::Data(data) => data_ref(rules, data),
    }
}

/// Data belongs to files, to the v1 space cache in the root tree, and in each subvolume to the
/// cache of free inode numbers that kernels before 5.11 kept (`-o inode_cache`).
fn data_ref(rules: &Rules<'_>, data: &ExtentDataRef) -> Verdict {
    let root = data.root;
    ensure!(
        home::is_fs_tree(root) || root == TreeId::DATA_RELOC || root == TreeId::ROOT,
        "data reference from tree {root}"
    );
    let ordinary = (FIRST_FREE_OBJECTID..=LAST_FREE_OBJECTID).contains(&data.objectid);
    ensure!(
        ordinary || data.objectid == FREE_INO_OBJECTID && home::is_fs_tree(root),
        "data reference from inode {}",
        data.objectid
    );
    rules.aligned("data reference at", data.offset)?;
    ensure!(data.count > 0, "reference that counts nothing");
    Ok(())
}

fn apart_from_previous(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    let Some((key, _)) = item.previous_of(&[kind::EXTENT_ITEM, kind::METADATA_ITEM]) else {
        return Ok(());
    };
    let end = end_of("extent", key.objectid, len_of(rules, &key))?;
    ensure!(end <= item.key.objectid, "the extent in front ends at {end}");
    Ok(())
}

/// A reference that did not fit into its extent item.
pub(super) fn separate(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    rules.aligned("extent at", item.key.objectid)?;
    match item.key.kind {
        kind::TREE_BLOCK_REF => sized(item, 0),
        kind::SHARED_BLOCK_REF => {
            sized(item, 0)?;
            rules.aligned("parent at", item.key.offset)
        }
        kind::SHARED_DATA_REF => {
            sized(item, SharedDataRef::SIZE)?;
            ensure!(SharedDataRef::read(item.data)?.count > 0, "reference that counts nothing");
            rules.aligned("parent at", item.key.offset)
        }
        _ => {
            // The key's offset is the hash, or a little more after collisions.
            sized(item, ExtentDataRef::SIZE)?;
            data_ref(rules, &ExtentDataRef::read(item.data)?)
        }
    }
}
