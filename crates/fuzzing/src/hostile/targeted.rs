//! Contradictions that an attacker, or a bug of another driver, would write: each item is
//! well formed by itself.

use super::base::{Base, NodeAt};
use super::choices::Choices;
use super::disk::Layered;
use super::leaf::Leaf;
use btrfs_disk::ids::ORPHAN_OBJECTID;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};

type Change = fn(&mut Leaf, usize, &mut Choices<'_>) -> Option<String>;

/// What it is called, the kind of item that it needs, and the change.
const CHANGES: [(&str, u8, Change); 24] = [
    ("name of another inode", kind::DIR_ITEM, retarget),
    ("listed name of another inode", kind::DIR_INDEX, retarget),
    ("name of a subvolume", kind::DIR_ITEM, to_subvolume),
    ("listed name of a subvolume", kind::DIR_INDEX, to_subvolume),
    ("last index of a directory", kind::DIR_INDEX, last_index),
    ("other name", kind::DIR_INDEX, other_name),
    ("other name by hash", kind::DIR_ITEM, other_name),
    ("other back reference", kind::INODE_REF, other_index),
    ("extent of another length", kind::EXTENT_DATA, other_length),
    ("extent outside of all chunks", kind::EXTENT_DATA, outside),
    ("extent of another file", kind::EXTENT_DATA, somebody_elses),
    ("overlapping extents", kind::EXTENT_DATA, overlap),
    ("absurd compression", kind::EXTENT_DATA, compressed),
    ("odd inline extent", kind::EXTENT_DATA, inline),
    ("orphan", kind::INODE_ITEM, orphan),
    ("link count", kind::INODE_ITEM, links),
    ("size", kind::INODE_ITEM, sizes),
    ("inode type", kind::INODE_ITEM, mode),
    ("inode with a huge number", kind::INODE_ITEM, huge_number),
    ("references", kind::EXTENT_ITEM, references),
    ("references of a node", kind::METADATA_ITEM, references),
    ("free space", kind::FREE_SPACE_EXTENT, free_space),
    ("used bytes", kind::BLOCK_GROUP_ITEM, used),
    ("root", kind::ROOT_ITEM, root),
];

pub fn mutate(base: &Base, device: &Layered, choices: &mut Choices<'_>) -> String {
    let which = choices.index(CHANGES.len());
    let start = choices.index(base.nodes.len());
    apply(base, device, choices, which, start)
}

/// How many contradictions there are.
pub fn count() -> usize {
    CHANGES.len()
}

pub fn name(which: usize) -> &'static str {
    CHANGES[which].0
}

/// Makes contradiction `which` in the first fitting node from the `start`th on.
pub fn apply(
    base: &Base,
    device: &Layered,
    choices: &mut Choices<'_>,
    which: usize,
    start: usize,
) -> String {
    let (name, wanted, change) = CHANGES[which];
    let count = base.nodes.len();
    let order = (0..count).map(|i| base.nodes[(start + i) % count]);
    for at in order.filter(|node| node.level == 0) {
        if let Some(told) = try_leaf(base, device, choices, at, wanted, change) {
            return format!("{name}, tree {} at {}: {told}", at.tree, at.logical);
        }
    }
    format!("{name}: no place")
}

fn try_leaf(
    base: &Base,
    device: &Layered,
    choices: &mut Choices<'_>,
    at: NodeAt,
    wanted: u8,
    change: Change,
) -> Option<String> {
    let bytes = base.node_bytes(device, at.logical);
    if !super::leaf::is_leaf(&bytes) || !super::leaf::is_whole(&bytes) {
        return None;
    }
    let mut leaf = Leaf::of(&bytes);
    let fits: Vec<usize> =
        (0..leaf.items.len()).filter(|slot| leaf.items[*slot].0.kind == wanted).collect();
    if fits.is_empty() {
        return None;
    }
    let slot = fits[choices.index(fits.len())];
    let told = change(&mut leaf, slot, choices)?;
    base.put_node(device, at.logical, leaf.bytes());
    Some(told)
}

fn word(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().expect("8"))
}

fn set(data: &mut [u8], at: usize, value: u64) {
    data[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn retarget(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let target = match choices.below(6) {
        0 => key.objectid,
        1 => 256,
        2 => 257 + choices.below(200),
        3 => 5_000_000,
        4 => word(data, 0).wrapping_add(1),
        _ => choices.odd_number(word(data, 0)),
    };
    set(data, 0, target);
    if choices.chance(30) {
        data[29] = 1 + choices.below(8) as u8;
    }
    Some(format!("{key} -> {target}"))
}

fn to_subvolume(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let target = [5, 256, 257, 999, 1, 2, 7, u64::MAX - 255][choices.index(8)];
    set(data, 0, target);
    data[8] = kind::ROOT_ITEM;
    set(data, 9, u64::MAX);
    data[29] = 2;
    Some(format!("{key} -> subvolume {target}"))
}

fn last_index(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let dir = leaf.items[slot].0.objectid;
    let of_dir = |key: &Key| key.objectid == dir && key.kind == kind::DIR_INDEX;
    let last = leaf.items.iter().rposition(|(key, _)| of_dir(key))?;
    let offset = [u64::MAX, u64::MAX - 1, i64::MAX as u64, 1 << 32, 0, 1][choices.index(6)];
    leaf.items[last].0.offset = offset;
    leaf.sort();
    Some(format!("directory {dir}: {offset:#x}"))
}

fn other_name(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let at = 30 + choices.index(data.len().saturating_sub(30));
    *data.get_mut(at)? = [b'/', 0, b'x', b'.'][choices.index(4)];
    Some(format!("{key}, byte {at}"))
}

fn other_index(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let index = choices.odd_number(word(data, 0));
    set(data, 0, index);
    Some(format!("{key}: {index:#x}"))
}

fn is_extent(data: &[u8]) -> bool {
    data.len() == 53 && data[20] != 0
}

fn other_length(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    is_extent(data).then_some(())?;
    let len = word(data, 29);
    let new = match choices.below(3) {
        0 => len.wrapping_add(4096 * (1 + choices.below(300))),
        1 => len.saturating_sub(4096).max(4096),
        _ => choices.odd_number(len) & !4095,
    };
    set(data, 29, new);
    set(data, 8, new);
    if choices.chance(50) {
        set(data, 37, 0);
        set(data, 45, new);
    }
    Some(format!("{key}: {len} -> {new}"))
}

fn outside(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    is_extent(data).then_some(())?;
    let at = [1 << 50, 4096, 1 << 20, u64::MAX - 4095, 1 << 63, 13 << 20][choices.index(6)];
    set(data, 21, at);
    Some(format!("{key}: {at:#x}"))
}

fn somebody_elses(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let others: Vec<usize> = (0..leaf.items.len())
        .filter(|i| leaf.items[*i].0.kind == kind::EXTENT_DATA && is_extent(&leaf.items[*i].1))
        .collect();
    is_extent(&leaf.items[slot].1).then_some(())?;
    let other = others[choices.index(others.len())];
    let place = leaf.items[other].1[21..29].to_vec();
    leaf.items[slot].1[21..29].copy_from_slice(&place);
    if choices.chance(50) {
        let rest = leaf.items[other].1.clone();
        leaf.items[slot].1 = rest;
    }
    Some(format!("{} as {}", leaf.items[slot].0, leaf.items[other].0))
}

fn overlap(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    is_extent(data).then_some(())?;
    let old = *key;
    if choices.chance(50) {
        let more = 4096 * (1 + choices.below(40));
        for at in [8, 29, 45] {
            let value = word(data, at);
            set(data, at, value.wrapping_add(more));
        }
        return Some(format!("{old} longer by {more}"));
    }
    let by = 4096 * (1 + choices.below(8));
    key.offset =
        if choices.chance(50) { key.offset.checked_sub(by)? } else { key.offset.wrapping_add(by) };
    leaf.sort();
    Some(format!("{old} moved by {by}"))
}

fn compressed(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    data[16] = 1 + choices.below(3) as u8;
    let ram = [0, 1, 4096, 128 << 10, (128 << 10) + 4096, 1 << 40, u64::MAX, u64::MAX - 4095]
        [choices.index(8)];
    set(data, 8, ram);
    if is_extent(data) && choices.chance(50) {
        set(data, 45, ram & !4095);
        set(data, 37, 0);
    }
    Some(format!("{key}: type {} of {ram} bytes", data[16]))
}

fn inline(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    match choices.below(3) {
        0 if is_extent(data) => {
            data[20] = 0;
            let len = data.len() as u64 - 21;
            set(data, 8, len);
        }
        1 => data.truncate(21 + choices.index(data.len() - 20)),
        _ => {
            let ram = choices.odd_number(word(data, 8));
            set(data, 8, ram);
        }
    }
    Some(format!("{key}: {} bytes", data.len()))
}

fn orphan(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let own = leaf.items[slot].0.objectid;
    let known = leaf.items.iter().any(|(key, _)| key.objectid >= 1 << 63);
    let target = [own, 256, 777_777, u64::MAX, 1 << 45, 0][choices.index(6)];
    leaf.items.push((Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, target), Vec::new()));
    if choices.chance(50) {
        leaf.items[slot].1[40..44].fill(0);
    }
    leaf.sort();
    Some(format!("{target}, {known}"))
}

fn links(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let count: u32 = [0, 1, 2, 65535, u32::MAX - 1, u32::MAX][choices.index(6)];
    data[40..44].copy_from_slice(&count.to_le_bytes());
    Some(format!("{key}: {count}"))
}

fn sizes(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let at = [16, 24][choices.index(2)];
    let value = choices.odd_number(word(data, at));
    set(data, at, value);
    Some(format!("{key}: byte {at} = {value:#x}"))
}

fn mode(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let kinds: [u32; 9] = [0o010, 0o020, 0o040, 0o060, 0o100, 0o120, 0o140, 0, 0o170];
    let mode = kinds[choices.index(9)] << 9 | 0o644;
    data[52..56].copy_from_slice(&mode.to_le_bytes());
    Some(format!("{key}: {mode:o}"))
}

fn huge_number(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let data = leaf.items[slot].1.clone();
    let number =
        [1 << 40, (1 << 40) - 1, u64::MAX - 256, u64::MAX - 255, i64::MAX as u64, u64::MAX]
            [choices.index(6)];
    leaf.items.push((Key::new(number, kind::INODE_ITEM, 0), data));
    leaf.sort();
    Some(format!("{number:#x}"))
}

fn references(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let value = choices.odd_number(word(data, 0));
    match choices.below(4) {
        0 => set(data, 0, value),
        1 if data.len() >= 53 => {
            let (count, refs) = (value as u32 >> 1, value >> 1 & 0x7FFF_FFFF);
            data[49..53].copy_from_slice(&count.to_le_bytes());
            set(data, 0, refs);
        }
        2 if data.len() >= 53 => {
            let at = [25, 33, 41][choices.index(3)];
            set(data, at, value);
        }
        _ => key.offset = choices.odd_number(key.offset),
    }
    let told = format!("{key}: {value:#x}");
    leaf.sort();
    Some(told)
}

/// Used space is called free and as much free space used.
fn free_space(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let key = &mut leaf.items[slot].0;
    let old = *key;
    let by = 4096 * (1 + choices.below(32));
    match choices.below(4) {
        0 => key.objectid = key.objectid.checked_sub(by)?,
        1 => key.objectid = key.objectid.wrapping_add(by),
        2 => key.offset = choices.odd_number(key.offset),
        _ => {
            // Half of it is free where it was, half elsewhere.
            key.offset = (key.offset / 2) & !4095;
            let rest = Key { objectid: key.objectid.checked_sub(old.offset)?, ..*key };
            leaf.items.push((rest, Vec::new()));
        }
    }
    leaf.sort();
    Some(format!("{old} by {by}"))
}

fn used(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let (key, data) = &mut leaf.items[slot];
    let value = choices.odd_number(word(data, 0));
    set(data, 0, value);
    Some(format!("{key}: {value:#x}"))
}

fn root(leaf: &mut Leaf, slot: usize, choices: &mut Choices<'_>) -> Option<String> {
    let others: Vec<usize> =
        (0..leaf.items.len()).filter(|i| leaf.items[*i].0.kind == kind::ROOT_ITEM).collect();
    let other = leaf.items[others[choices.index(others.len())]].1.clone();
    let key = leaf.items[slot].0;
    let told = match choices.below(5) {
        0 => {
            let value = choices.odd_number(word(&leaf.items[slot].1, 176));
            set(&mut leaf.items[slot].1, 176, value);
            format!("at {value:#x}")
        }
        1 => {
            leaf.items[slot].1 = other;
            "the content of another".to_owned()
        }
        2 => {
            leaf.items.push((Key::new(300, kind::ROOT_ITEM, 0), other));
            leaf.sort();
            "one more".to_owned()
        }
        3 => {
            let value = choices.odd_number(word(&leaf.items[slot].1, 160));
            set(&mut leaf.items[slot].1, 160, value);
            set(&mut leaf.items[slot].1, 239, value);
            format!("generation {value:#x}")
        }
        _ => {
            leaf.items[slot].1[238] = choices.below(9) as u8;
            "level".to_owned()
        }
    };
    let fs = if key.objectid == TreeId::FS.0 { " (top level)" } else { "" };
    Some(format!("{key}{fs}: {told}"))
}
