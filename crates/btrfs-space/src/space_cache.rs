//! The version 1 space cache: files without names in the root tree, one for a block group, each
//! behind a header item. Nobody keeps it up to date here: it goes when a free-space tree comes, and what
//! somebody else left of it beside one.
//!
//! Facts of the format (btrfs-progs' documentation, and volumes that the kernel made): the header
//! (FREE_SPACE_OBJECTID, 0, start of the group) begins with the key of the cache's inode; content
//! has no checksums; its extents are referred to by the root tree.
//!
//! A cache that is being erased has lost its header, and an ORPHAN_ITEM leads to its inode, which counts no
//! names. Subvolumes' items may have the number of such an inode, an ORPHAN_ITEM of one that is being dropped among them.
//!
//! Invariants: what [`find`] answers has each inode once, whatever headers say, and no item that a subvolume needs.
//!
//! What it does not know: what a cache says.

use crate::Extent;
use crate::items::Items;
use btrfs_disk::ids::{
    FIRST_FREE_OBJECTID, FREE_SPACE_OBJECTID, LAST_FREE_OBJECTID, ORPHAN_OBJECTID,
};
use btrfs_disk::items::{FileExtent, InodeItem, RootItem};
use btrfs_disk::key::{KEY_SIZE, kind};
use btrfs_disk::{FixedSize, Key, Result};
use std::collections::BTreeSet;

/// Kind of the header item.
const HEADER: u8 = 0;

/// One cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheFile {
    /// Its inode's number in the root tree; 0 where the header leads to none.
    pub ino: u64,
    /// Its items in the root tree, the one that leads to it first.
    pub keys: Vec<Key>,
    /// Its content, and the offset by which the extent tree knows each reference.
    pub extents: Vec<(Extent, u64)>,
    /// An item does not say what content it has: there may be more extents.
    pub damaged: bool,
}

/// All caches that the root tree has, those that somebody began to erase as well. Headers that lead nowhere
/// are found without an inode.
pub fn find(root_tree: &mut dyn Items) -> Result<Vec<CacheFile>> {
    let mut headers = Vec::new();
    let (from, to) =
        (Key::new(FREE_SPACE_OBJECTID, HEADER, 0), Key::new(FREE_SPACE_OBJECTID, HEADER, u64::MAX));
    root_tree.scan(from, to, &mut |key, data| {
        headers.push((key, inode_of(data)));
        Ok(())
    })?;
    let mut seen = BTreeSet::new();
    let files = headers.into_iter().map(|(key, ino)| {
        let ino = ino.filter(|ino| seen.insert(*ino));
        cache_file(root_tree, Some(key), ino)
    });
    let mut files = files.collect::<Result<Vec<_>>>()?;
    for ino in orphans(root_tree)? {
        if seen.insert(ino) {
            let orphan = orphan(ino);
            let needed = is_tree_dropped(root_tree, ino)?;
            files.push(cache_file(root_tree, (!needed).then_some(orphan), Some(ino))?);
        }
    }
    Ok(files)
}

fn orphan(ino: u64) -> Key {
    Key::new(ORPHAN_OBJECTID, kind::ORPHAN_ITEM, ino)
}

/// Inodes of the root tree that count no names and that an ORPHAN_ITEM leads to.
fn orphans(root_tree: &mut dyn Items) -> Result<Vec<u64>> {
    let mut named = Vec::new();
    root_tree.scan(orphan(FIRST_FREE_OBJECTID), orphan(LAST_FREE_OBJECTID), &mut |key, _| {
        named.push(key.offset);
        Ok(())
    })?;
    let mut found = Vec::new();
    for ino in named {
        let inode = root_tree.get(&Key::new(ino, kind::INODE_ITEM, 0))?;
        if inode.is_some_and(|item| InodeItem::read(&item).is_ok_and(|inode| inode.nlink == 0)) {
            found.push(ino);
        }
    }
    Ok(found)
}

/// A subvolume of this number is being dropped, or may be: the ORPHAN_ITEM is its own.
fn is_tree_dropped(root_tree: &mut dyn Items, id: u64) -> Result<bool> {
    let item = root_tree.at_or_after(&Key::new(id, kind::ROOT_ITEM, 0))?;
    let item = item.filter(|(key, _)| (key.objectid, key.kind) == (id, kind::ROOT_ITEM));
    Ok(item.is_some_and(|(_, data)| RootItem::parse(&data).is_ok_and(|root| root.is_deleted())))
}

/// Only a plain inode's number will do: other items of the root tree are nobody's cache.
fn inode_of(header: &[u8]) -> Option<u64> {
    let key = Key::read(header.first_chunk::<KEY_SIZE>()?);
    let plain = (FIRST_FREE_OBJECTID..=LAST_FREE_OBJECTID).contains(&key.objectid);
    (plain && key.kind == kind::INODE_ITEM && key.offset == 0).then_some(key.objectid)
}

fn cache_file(
    root_tree: &mut dyn Items,
    leads: Option<Key>,
    ino: Option<u64>,
) -> Result<CacheFile> {
    let keys = leads.into_iter().collect();
    let mut file = CacheFile { ino: ino.unwrap_or(0), keys, extents: Vec::new(), damaged: false };
    let Some(ino) = ino else { return Ok(file) };
    // Subvolumes' items may have the same number.
    let inode = Key::new(ino, kind::INODE_ITEM, 0);
    if root_tree.get(&inode)?.is_some() {
        file.keys.push(inode);
    }
    let content = (Key::new(ino, kind::EXTENT_DATA, 0), Key::new(ino, kind::EXTENT_DATA, u64::MAX));
    root_tree.scan(content.0, content.1, &mut |key, data| {
        file.keys.push(key);
        match FileExtent::parse(data) {
            Ok(FileExtent::Extent { fields, .. }) if fields.disk_bytenr.0 != 0 => {
                let extent = Extent { logical: fields.disk_bytenr, len: fields.disk_num_bytes };
                file.extents.push((extent, key.offset.wrapping_sub(fields.offset)));
            }
            Ok(_) => {}
            Err(_) => file.damaged = true,
        }
        Ok(())
    })?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn header(ino: u64, kind: u8) -> Vec<u8> {
        [&Key::new(ino, kind, 0).to_bytes()[..], &[0; 24]].concat()
    }

    /// Two headers of one inode, one of the root directory, one of a subvolume: nobody else's
    /// items go.
    #[test]
    fn headers_that_lie_take_nothing_along() {
        let at = |offset| Key::new(FREE_SPACE_OBJECTID, HEADER, offset);
        let inode = Key::new(300, kind::INODE_ITEM, 0);
        let others = [
            Key::new(6, kind::INODE_ITEM, 0),
            Key::new(300, kind::ROOT_ITEM, 0),
            Key::new(300, kind::ROOT_BACKREF, 5),
        ];
        let mut items: BTreeMap<Key, Vec<u8>> = BTreeMap::from([
            (at(1), header(300, kind::INODE_ITEM)),
            (at(2), header(300, kind::INODE_ITEM)),
            (at(3), header(6, kind::INODE_ITEM)),
            (at(4), header(300, kind::ROOT_ITEM)),
            (at(5), vec![1; 5]),
            (inode, vec![0; 160]),
        ]);
        items.extend(others.map(|key| (key, vec![0; 10])));
        let found = find(&mut items).unwrap();
        let keys: Vec<Key> = found.into_iter().flat_map(|file| file.keys).collect();
        assert_eq!(keys, [at(1), inode, at(2), at(3), at(4), at(5)]);
    }

    /// Those that a kernel began to erase: with and without a subvolume of the same number, alive and being
    /// dropped. An inode that has a name, and an entry without one, are nobody's.
    #[test]
    fn what_lost_its_header_is_found_by_its_orphan_entry() {
        let inode = |nlink| InodeItem { nlink, ..InodeItem::default() }.to_vec();
        let root = |refs| RootItem { refs, ..RootItem::default() }.to_vec();
        let item = |ino| Key::new(ino, kind::INODE_ITEM, 0);
        let mut items = BTreeMap::new();
        for (ino, nlink) in [(300, 0), (301, 0), (302, 0), (303, 1)] {
            items.insert(item(ino), inode(nlink));
        }
        items.extend((300..305).map(|ino| (orphan(ino), Vec::new())));
        items.insert(Key::new(301, kind::ROOT_ITEM, 0), root(1));
        items.insert(Key::new(302, kind::ROOT_ITEM, 7), root(0));
        items.insert(Key::new(304, kind::ROOT_ITEM, 0), root(0));
        let found = find(&mut items).unwrap();
        let keys: Vec<Key> = found.into_iter().flat_map(|file| file.keys).collect();
        assert_eq!(keys, [orphan(300), item(300), orphan(301), item(301), item(302)]);
    }
}
