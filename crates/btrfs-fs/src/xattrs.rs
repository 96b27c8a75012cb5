//! XATTR_ITEMs: like directory entries, several names share an item where hashes meet.

use crate::error::IntoFs;
use crate::ino::InodeId;
use btrfs_disk::Key;
use btrfs_disk::checksum::name_hash;
use btrfs_disk::items::{DirItem, dir_type};
use btrfs_disk::key::kind;
use btrfs_txn::{Op, View};
use vfs::{Errno, Result};

fn key_of(id: InodeId, name: &[u8]) -> Key {
    Key::new(id.objectid, kind::XATTR_ITEM, name_hash(name))
}

pub(crate) fn get(view: &View<'_>, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(bytes) = view.get(id.tree, &key_of(id, name)).fs()? else { return Ok(None) };
    for entry in DirItem::iter(&bytes) {
        let entry = entry.fs()?;
        if entry.name == name {
            return Ok(Some(entry.value.to_vec()));
        }
    }
    Ok(None)
}

pub(crate) fn list(view: &View<'_>, id: InodeId) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let first = Key::new(id.objectid, kind::XATTR_ITEM, 0);
    let end = Key::new(id.objectid, kind::XATTR_ITEM + 1, 0);
    let mut scan = view.scan_below(id.tree, first, end);
    while let Some((_, bytes)) = scan.next().fs()? {
        for entry in DirItem::iter(&bytes) {
            names.push(entry.fs()?.name.to_vec());
        }
    }
    Ok(names)
}

/// The item without `name`.
fn without(op: &Op<'_>, id: InodeId, name: &[u8]) -> Result<(bool, Vec<u8>)> {
    let old = op.view.get(id.tree, &key_of(id, name)).fs()?;
    let mut rest = Vec::new();
    if let Some(old) = &old {
        for entry in DirItem::iter(old) {
            let entry = entry.fs()?;
            if entry.name != name {
                entry.append_to(&mut rest);
            }
        }
    }
    Ok((old.is_some(), rest))
}

/// Sets or replaces. ENOSPC if the item would not fit a leaf.
pub(crate) fn put(op: &Op<'_>, id: InodeId, name: &[u8], value: &[u8]) -> Result<()> {
    let (existed, mut bytes) = without(op, id, name)?;
    let transid = op.generation().0;
    let location = Key::new(0, 0, 0);
    DirItem { location, transid, kind: dir_type::XATTR, name, value }.append_to(&mut bytes);
    if bytes.len() > op.core.geometry.max_item_size() {
        return Err(Errno::ENOSPC.into());
    }
    let hash = name_hash(name);
    if existed {
        op.put(id, kind::XATTR_ITEM, hash, bytes.into());
    } else {
        op.put_new(id, kind::XATTR_ITEM, hash, bytes.into());
    }
    Ok(())
}

pub(crate) fn remove(op: &Op<'_>, id: InodeId, name: &[u8]) -> Result<()> {
    let (_, rest) = without(op, id, name)?;
    let hash = name_hash(name);
    if rest.is_empty() {
        op.delete(id, kind::XATTR_ITEM, hash);
    } else {
        op.put(id, kind::XATTR_ITEM, hash, rest.into());
    }
    Ok(())
}
