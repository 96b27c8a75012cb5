//! The UUID tree: subvolumes by their UUIDs. A hint that the kernel rebuilds, so what
//! is wrong with it is a note.

use crate::roots::Roots;
use crate::source::Context;
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use std::collections::HashSet;

#[derive(Default)]
pub(crate) struct Uuids {
    /// (key, subvolume).
    entries: Vec<(Key, u64)>,
}

impl Uuids {
    pub(crate) fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            if matches!(key.kind, kind::INODE_ITEM | kind::INODE_REF) {
                // Left by old versions of mkfs.btrfs, as a directory's; nobody reads them.
                continue;
            }
            let known = [kind::UUID_KEY_SUBVOL, kind::UUID_KEY_RECEIVED_SUBVOL];
            if !known.contains(&key.kind) {
                cx.add(Finding::new(FindingKind::ItemUnknown).tree(leaf.tree).key(key));
                continue;
            }
            let (ids, rest) = data.as_chunks::<8>();
            if !rest.is_empty() {
                let why = format!("{} bytes of subvolume ids", data.len());
                let finding = Finding::new(FindingKind::ItemMalformed { why });
                cx.add(finding.tree(leaf.tree).key(key));
            }
            self.entries.extend(ids.iter().map(|id| (key, u64::from_le_bytes(*id))));
        }
    }

    pub(crate) fn check(self, cx: &mut Context<'_>, roots: &Roots) {
        let sb = cx.volume.superblock();
        if sb.fields.uuid_tree_generation != sb.generation().0 {
            // Somebody who does not maintain the tree wrote last; the kernel rebuilds it.
            return;
        }
        let mut wanted = HashSet::new();
        for (tree, own, received) in roots.uuids() {
            if own != [0; 16] {
                wanted.insert((Key::of_uuid(&own, kind::UUID_KEY_SUBVOL), tree.0));
            }
            if received != [0; 16] {
                wanted.insert((Key::of_uuid(&received, kind::UUID_KEY_RECEIVED_SUBVOL), tree.0));
            }
        }
        for entry in self.entries {
            if !wanted.remove(&entry) {
                let kind = FindingKind::UuidStray { key: entry.0 };
                cx.add(Finding::new(kind).tree(TreeId::UUID));
            }
        }
        for (_, subvolume) in wanted {
            let kind = FindingKind::UuidMissing { subvolume: TreeId(subvolume) };
            cx.add(Finding::new(kind).tree(TreeId::UUID));
        }
    }
}
