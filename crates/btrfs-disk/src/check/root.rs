//! ROOT_ITEM, ROOT_REF, ROOT_BACKREF and the UUID tree's items.

use super::item::{Item, Rules, Verdict, name};
use super::{ensure, home};
use crate::TreeId;
use crate::items::{ROOT_SUBVOL_DEAD, ROOT_SUBVOL_RDONLY, RootItem, RootRef};
use crate::le::FixedSize;
use crate::node::MAX_LEVEL;

pub(super) fn root(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    let key = &item.key;
    ensure!(key.objectid != 0, "root item of tree 0");
    ensure!(
        TreeId(key.objectid) != TreeId::RELOC || home::is_fs_tree(TreeId(key.offset)),
        "relocation of the tree {}",
        key.offset
    );
    ensure!(
        item.data.len() == RootItem::SIZE || item.data.len() == RootItem::LEGACY_SIZE,
        "root item of {} bytes",
        item.data.len()
    );
    let root = RootItem::parse(item.data)?;
    rules.not_younger("root of generation", root.generation.0)?;
    rules.not_younger("last snapshot in generation", root.last_snapshot.0)?;
    rules.aligned("root node at", root.bytenr.0)?;
    ensure!(root.level < MAX_LEVEL, "root of level {}", root.level);
    ensure!(root.drop_level < MAX_LEVEL, "root dropped at level {}", root.drop_level);
    let unknown = root.flags & !(ROOT_SUBVOL_RDONLY | ROOT_SUBVOL_DEAD);
    ensure!(unknown == 0, "unknown root flags {unknown:#x}");
    Ok(())
}

pub(super) fn root_ref(item: &Item<'_>) -> Verdict {
    name(RootRef::parse(item.data)?.name)
}

/// An array of subvolume ids.
pub(super) fn uuid(item: &Item<'_>) -> Verdict {
    ensure!(
        !item.data.is_empty() && item.data.len().is_multiple_of(8),
        "{} bytes of subvolume ids",
        item.data.len()
    );
    Ok(())
}
