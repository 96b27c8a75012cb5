//! Damage with a right checksum: of headers, entries, members, whole items and pointers.
//!
//! Each function changes one node (or the superblock) of an image and says what it did.

use super::base::{Base, NodeAt};
use super::choices::Choices;
use super::disk::Layered;
use super::leaf::{Leaf, is_leaf, is_whole};
use super::targeted;
use blockdev::BlockDevice;
use btrfs_disk::Key;
use btrfs_disk::key::{kind, kind_name};
use btrfs_disk::node::{HEADER_SIZE, ITEM_SIZE, KEY_PTR_SIZE};
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};

/// One to three changes.
pub fn mutate(base: &Base, device: &Layered, choices: &mut Choices<'_>) -> String {
    let mut told = Vec::new();
    for _ in 0..=choices.below(3) {
        let what = match choices.below(100) {
            0..=3 => superblock(base, device, choices),
            4..=54 => targeted::mutate(base, device, choices),
            _ => node(base, device, choices),
        };
        told.push(what);
        if choices.is_done() {
            break;
        }
    }
    told.join("; ")
}

/// A node of any tree, each tree alike: most nodes belong to one.
pub fn pick(base: &Base, choices: &mut Choices<'_>) -> NodeAt {
    let mut trees: Vec<_> = base.nodes.iter().map(|node| node.tree).collect();
    trees.sort();
    trees.dedup();
    let tree = trees[choices.index(trees.len())];
    let nodes: Vec<_> = base.nodes.iter().filter(|node| node.tree == tree).collect();
    *nodes[choices.index(nodes.len())]
}

fn node(base: &Base, device: &Layered, choices: &mut Choices<'_>) -> String {
    let at = pick(base, choices);
    let mut bytes = base.node_bytes(device, at.logical);
    if !is_usable(&bytes) {
        return "already unusable".into();
    }
    let what = match (is_leaf(&bytes), choices.below(20)) {
        (_, 0..=1) => header(&mut bytes, choices),
        (_, 2..=3) => noise(&mut bytes, choices),
        (true, 4..=5) => item_header(&mut bytes, choices),
        (true, 6..=11) => member(&mut bytes, choices),
        (true, _) => items(&mut bytes, choices),
        (false, _) => pointer(base, at, &mut bytes, choices),
    };
    base.put_node(device, at.logical, bytes);
    format!("tree {} level {} at {}: {what}", at.tree, at.level, at.logical)
}

/// An earlier change may have left little to work with.
fn is_usable(bytes: &[u8]) -> bool {
    if is_leaf(bytes) {
        return is_whole(bytes);
    }
    (1..=(bytes.len() - HEADER_SIZE) / KEY_PTR_SIZE).contains(&item_count(bytes))
}

fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..at + width) {
        place.copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

fn get(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut value = [0; 8];
    if let Some(place) = bytes.get(at..at + width) {
        value[..width].copy_from_slice(place);
    }
    u64::from_le_bytes(value)
}

/// Offset and width of each member behind the UUIDs.
const HEADER: [(usize, usize); 6] = [(48, 8), (56, 8), (80, 8), (88, 8), (96, 4), (100, 1)];

fn header(bytes: &mut [u8], choices: &mut Choices<'_>) -> String {
    let (at, width) = HEADER[choices.index(HEADER.len())];
    let value = choices.odd_number(get(bytes, at, width));
    put(bytes, at, width, value);
    format!("header byte {at} = {value:#x}")
}

fn noise(bytes: &mut [u8], choices: &mut Choices<'_>) -> String {
    let count = 1 + choices.below(4);
    for _ in 0..count {
        let at = 32 + choices.index(bytes.len() - 32);
        bytes[at] = choices.next_u64() as u8;
    }
    format!("{count} random bytes")
}

fn item_count(bytes: &[u8]) -> usize {
    get(bytes, 96, 4) as usize
}

fn item_header(bytes: &mut [u8], choices: &mut Choices<'_>) -> String {
    let slot = choices.index(item_count(bytes).min(100));
    let at = HEADER_SIZE + slot * ITEM_SIZE;
    let (at, width) =
        [(at, 8), (at + 8, 1), (at + 9, 8), (at + 17, 4), (at + 21, 4)][choices.index(5)];
    let value = choices.odd_number(get(bytes, at, width));
    put(bytes, at, width, value);
    format!("entry {slot}, byte {at} = {value:#x}")
}

/// Offset and width of the numbers in an item.
fn members(item: u8) -> &'static [(usize, usize)] {
    match item {
        kind::INODE_ITEM => &[
            (0, 8),
            (8, 8),
            (16, 8),
            (24, 8),
            (40, 4),
            (52, 4),
            (56, 8),
            (64, 8),
            (72, 8),
            (112, 8),
            (120, 4),
        ],
        kind::EXTENT_DATA => {
            &[(0, 8), (8, 8), (16, 1), (20, 1), (21, 8), (29, 8), (37, 8), (45, 8)]
        }
        kind::EXTENT_ITEM | kind::METADATA_ITEM => {
            &[(0, 8), (8, 8), (16, 8), (24, 1), (25, 8), (33, 8), (41, 8), (49, 4), (53, 1)]
        }
        kind::EXTENT_DATA_REF => &[(0, 8), (8, 8), (16, 8), (24, 4)],
        kind::BLOCK_GROUP_ITEM => &[(0, 8), (8, 8), (16, 8)],
        kind::FREE_SPACE_INFO => &[(0, 4), (4, 4)],
        kind::ROOT_ITEM => &[
            (160, 8),
            (168, 8),
            (176, 8),
            (184, 8),
            (192, 8),
            (200, 8),
            (208, 8),
            (216, 4),
            (220, 8),
            (237, 1),
            (238, 1),
            (239, 8),
        ],
        kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => {
            &[(0, 8), (8, 1), (9, 8), (17, 8), (25, 2), (27, 2), (29, 1)]
        }
        kind::INODE_REF => &[(0, 8), (8, 2)],
        kind::ROOT_REF | kind::ROOT_BACKREF => &[(0, 8), (8, 8), (16, 2)],
        kind::CHUNK_ITEM => {
            &[(0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (44, 2), (46, 2), (48, 8), (56, 8)]
        }
        kind::DEV_ITEM => &[(0, 8), (8, 8), (16, 8), (24, 4)],
        kind::DEV_EXTENT => &[(0, 8), (8, 8), (16, 8), (24, 8)],
        _ => &[(0, 8), (8, 8), (16, 8), (0, 1), (0, 4)],
    }
}

/// One number in one item, aligned values as likely as others.
fn member(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) -> String {
    let mut leaf = Leaf::of(bytes);
    if leaf.items.is_empty() {
        return "nothing".into();
    }
    let slot = choices.index(leaf.items.len());
    let (key, data) = &mut leaf.items[slot];
    let members = members(key.kind);
    let (at, width) = members[choices.index(members.len())];
    let value = choices.odd_number(get(data, at, width));
    put(data, at, width, value);
    let told = format!("{key}: byte {at} = {value:#x}");
    *bytes = leaf.bytes();
    told
}

fn odd_key(key: Key, choices: &mut Choices<'_>) -> Key {
    let mut key = key;
    match choices.below(4) {
        0 => key.objectid = choices.odd_number(key.objectid),
        1 => key.kind = [12, 13, 24, 48, 84, 96, 108, 132, 168][choices.index(9)],
        _ => key.offset = choices.odd_number(key.offset),
    }
    key
}

/// Items removed, doubled under another key, moved, exchanged, cut or made longer.
fn items(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) -> String {
    let mut leaf = Leaf::of(bytes);
    if leaf.items.is_empty() {
        return "nothing".into();
    }
    let slot = choices.index(leaf.items.len());
    let key = leaf.items[slot].0;
    let told = match choices.below(7) {
        0 => {
            leaf.items.remove(slot);
            "removed".to_owned()
        }
        1 => {
            let data = leaf.items[slot].1.clone();
            let new = odd_key(key, choices);
            leaf.items.push((new, data));
            leaf.sort();
            format!("again as {new}")
        }
        2 => {
            let new = odd_key(key, choices);
            leaf.items[slot].0 = new;
            leaf.sort();
            format!("moved to {new}")
        }
        3 => {
            let same: Vec<usize> =
                (0..leaf.items.len()).filter(|i| leaf.items[*i].0.kind == key.kind).collect();
            let other = same[choices.index(same.len())];
            let data = leaf.items[other].1.clone();
            leaf.items[slot].1 = data;
            format!("has the content of {}", leaf.items[other].0)
        }
        4 => {
            let other = choices.index(leaf.items.len());
            let (a, b) = (leaf.items[slot].0, leaf.items[other].0);
            leaf.items[slot].0 = b;
            leaf.items[other].0 = a;
            format!("exchanged its key with {b}")
        }
        5 => {
            let len = choices.index(leaf.items[slot].1.len() + 1);
            leaf.items[slot].1.truncate(len);
            format!("cut to {len} bytes")
        }
        _ => {
            let more = 1 + choices.index(64);
            let len = leaf.items[slot].1.len();
            leaf.items[slot].1.resize(len + more, choices.below(3) as u8);
            format!("{more} bytes longer")
        }
    };
    *bytes = leaf.bytes();
    let name = kind_name(key.kind).unwrap_or("?");
    format!("{name} {key} {told}")
}

/// A pointer to itself, to another node, of another generation or key.
fn pointer(base: &Base, at: NodeAt, bytes: &mut [u8], choices: &mut Choices<'_>) -> String {
    let count = item_count(bytes);
    let slot = choices.index(count);
    let entry = |slot: usize| HEADER_SIZE + slot * KEY_PTR_SIZE;
    let place = entry(slot);
    match choices.below(8) {
        0 => {
            put(bytes, place + 17, 8, at.logical.0);
            format!("pointer {slot} to its own node")
        }
        1..=3 => {
            let other = base.nodes[choices.index(base.nodes.len())];
            put(bytes, place + 17, 8, other.logical.0);
            let target = base.node_bytes(&*base.device, other.logical);
            if choices.chance(70) {
                put(bytes, place + 25, 8, get(&target, 80, 8));
            }
            if choices.chance(50) && item_count(&target) > 0 {
                bytes[place..place + 17].copy_from_slice(&target[HEADER_SIZE..HEADER_SIZE + 17]);
            }
            format!("pointer {slot} to {other:?}")
        }
        4 => {
            let value = choices.odd_number(get(bytes, place + 25, 8));
            put(bytes, place + 25, 8, value);
            format!("pointer {slot} of generation {value:#x}")
        }
        5 => {
            let value = choices.odd_number(get(bytes, place + 17, 8));
            put(bytes, place + 17, 8, value);
            format!("pointer {slot} to {value:#x}")
        }
        6 => {
            let other = entry(choices.index(count));
            let (a, b) = (bytes[place..place + 33].to_vec(), bytes[other..other + 33].to_vec());
            bytes[place..place + 33].copy_from_slice(&b);
            bytes[other..other + 33].copy_from_slice(&a);
            format!("pointer {slot} exchanged")
        }
        _ => {
            let (at, width) = [(place, 8), (place + 8, 1), (place + 9, 8)][choices.index(3)];
            let value = choices.odd_number(get(bytes, at, width));
            put(bytes, at, width, value);
            format!("pointer {slot}: key byte {at} = {value:#x}")
        }
    }
}

/// Members of the superblock from the flags to the backups.
const SUPER: [(usize, usize); 30] = [
    (56, 8),
    (72, 8),
    (80, 8),
    (88, 8),
    (96, 8),
    (104, 8),
    (112, 8),
    (120, 8),
    (128, 8),
    (136, 8),
    (144, 4),
    (148, 4),
    (152, 4),
    (156, 4),
    (160, 4),
    (164, 8),
    (172, 8),
    (180, 8),
    (188, 8),
    (196, 2),
    (198, 1),
    (199, 1),
    (200, 1),
    (201, 8),
    (209, 8),
    (217, 8),
    (811, 8),
    (819, 1),
    (828, 8),
    (876, 8),
];

fn superblock(base: &Base, device: &Layered, choices: &mut Choices<'_>) -> String {
    let (at, width) = SUPER[choices.index(SUPER.len())];
    let mut value = 0;
    let pick = choices.next_u64();
    for copy in COPIES.into_iter().filter(|copy| copy + SUPER_SIZE as u64 <= device.len()) {
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(copy, &mut bytes).expect("in range");
        let mut same = Choices::seed(pick);
        value = same.odd_number(get(&bytes, at, width));
        put(&mut bytes, at, width, value);
        base.geometry.csum.seal(&mut bytes);
        device.write_at(copy, &bytes).expect("in range");
    }
    format!("superblock byte {at} = {value:#x}")
}
