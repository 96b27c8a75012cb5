//! Items of extents and who refers to them.

use super::keys::{key as key_of, names, tree};
use super::text::{Text, line};
use btrfs_disk::items::{ExtentDataRef, ExtentItem, InlineRef, SharedDataRef, extent_flags};
use btrfs_disk::key::{Key, kind};
use btrfs_disk::{Corrupt, FixedSize};

const FLAGS: &[(u64, &str)] = &[
    (extent_flags::DATA, "DATA"),
    (extent_flags::TREE_BLOCK, "TREE_BLOCK"),
    (extent_flags::FULL_BACKREF, "FULL_BACKREF"),
];

pub fn tell(text: &mut Text, key: Key, data: &[u8]) -> Result<(), Corrupt> {
    match key.kind {
        kind::EXTENT_ITEM | kind::METADATA_ITEM => extent(text, key, data)?,
        kind::TREE_BLOCK_REF => line!(text, "\t\ttree block backref"),
        kind::SHARED_BLOCK_REF => line!(text, "\t\tshared block backref"),
        kind::EXTENT_DATA_REF => by_data(text, &ExtentDataRef::read(data)?),
        kind::SHARED_DATA_REF => {
            line!(text, "\t\tshared data backref count {}", SharedDataRef::read(data)?.count);
        }
        _ => {}
    }
    Ok(())
}

fn extent(text: &mut Text, key: Key, data: &[u8]) -> Result<(), Corrupt> {
    let item = ExtentItem::parse(key.kind, data)?;
    let f = &item.fields;
    line!(text, "\t\trefs {} gen {} flags {}", f.refs, f.generation, names(f.flags, FLAGS));
    if let Some((first, level)) = item.block_info {
        line!(text, "\t\ttree block key {} level {level}", key_of(&first));
    }
    if key.kind == kind::METADATA_ITEM {
        // No level needs more than a byte.
        line!(text, "\t\ttree block skinny level {}", key.offset);
    }
    for reference in &item.inline {
        match reference {
            InlineRef::TreeBlock { root } => {
                line!(text, "\t\ttree block backref root {}", tree(*root));
            }
            InlineRef::SharedBlock { parent } => {
                line!(text, "\t\tshared block backref parent {parent}");
            }
            InlineRef::Data(data) => by_data(text, data),
            InlineRef::SharedData { parent, count } => {
                line!(text, "\t\tshared data backref parent {parent} count {count}");
            }
            // btrfs-progs 6.2 is older than simple quotas.
            InlineRef::Owner { .. } => {}
        }
    }
    Ok(())
}

fn by_data(text: &mut Text, r: &ExtentDataRef) {
    let root = tree(r.root);
    line!(
        text,
        "\t\textent data backref root {root} objectid {} offset {} count {}",
        r.objectid,
        r.offset,
        r.count
    );
}
