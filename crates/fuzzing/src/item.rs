//! One or two items in a leaf: the tree, then for each its key, a length, its bytes.

use btrfs_disk::build::{LeafItem, NodeIdentity, leaf};
use btrfs_disk::{Generation, Key, Logical, TreeId};

use crate::node::{GEOMETRY, gate, repaired};

fn take<'a>(data: &mut &'a [u8]) -> Option<LeafItem<'a>> {
    let key = Key::read(data.get(..17)?.try_into().ok()?);
    let len = usize::from(*data.get(17)?) * 4 + usize::from(*data.get(18)?) % 4;
    let rest = &data[19..];
    let bytes = &rest[..len.min(rest.len())];
    *data = &rest[bytes.len()..];
    Some(LeafItem { key, data: bytes })
}

pub fn item(data: &[u8]) -> bool {
    let Some((&tree, mut rest)) = data.split_first() else { return false };
    let owner = match tree {
        0..=13 => TreeId(u64::from(tree)),
        14 => TreeId::LOG,
        15 => TreeId::DATA_RELOC,
        _ => TreeId(u64::from(tree) + 250),
    };
    let mut items: Vec<_> = std::iter::from_fn(|| take(&mut rest)).take(2).collect();
    items.sort_by_key(|item| item.key);
    items.dedup_by_key(|item| item.key);
    let id = NodeIdentity { logical: Logical(1 << 20), generation: Generation(9), owner };
    let node = leaf(&GEOMETRY, &id, &items);
    gate(repaired(node.bytes()))
}
