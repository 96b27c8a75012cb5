//! INODE_ITEM and what else hangs on an inode number: names, orphans, verity.

use super::ensure;
use super::item::{Item, Rules, Verdict, name, sized};
use crate::checksum::extref_hash;
use crate::ids::{FIRST_FREE_OBJECTID, FREE_INO_OBJECTID, LAST_FREE_OBJECTID, ORPHAN_OBJECTID};
use crate::items::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::items::{InodeExtRef, InodeItem, InodeRef, inode_flags};
use crate::key::kind;
use crate::le::FixedSize;
use crate::{Key, TreeId};

/// Numbers that an inode can have.
pub(super) fn number(objectid: u64) -> Verdict {
    let ordinary = (FIRST_FREE_OBJECTID..=LAST_FREE_OBJECTID).contains(&objectid);
    ensure!(
        ordinary || objectid == TreeId::ROOT_DIR.0 || objectid == FREE_INO_OBJECTID,
        "inode number {objectid}"
    );
    Ok(())
}

/// A key that names an inode: its own item's or a directory entry's location.
pub(super) fn key(key: &Key) -> Verdict {
    number(key.objectid)?;
    ensure!(key.offset == 0, "inode key with offset {}", key.offset);
    Ok(())
}

pub(super) fn inode(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    key(&item.key)?;
    sized(item, InodeItem::SIZE)?;
    let inode = InodeItem::read(item.data)?;
    rules.not_younger("inode of generation", inode.generation)?;
    rules.not_younger("inode changed in generation", inode.transid)?;
    mode(&inode)?;
    flags(rules, inode.flags)
}

/// Directory sizes and all `nbytes` are left alone: old kernels got them wrong.
fn mode(inode: &InodeItem) -> Verdict {
    let mode = inode.mode;
    ensure!(mode & !(S_IFMT | 0o7777) == 0, "mode {mode:#o} with unknown bits");
    let format = mode & S_IFMT;
    ensure!(
        matches!(format >> 12, 0o1 | 0o2 | 0o4 | 0o6 | 0o10 | 0o12 | 0o14),
        "mode {mode:#o} without a file type"
    );
    ensure!(format != S_IFDIR || inode.nlink <= 1, "directory with {} hard links", inode.nlink);
    let sized = format == S_IFREG || format == S_IFLNK;
    ensure!(!sized || inode.size <= i64::MAX.cast_unsigned(), "file of {} bytes", inode.size);
    Ok(())
}

fn flags(rules: &Rules<'_>, flags: u64) -> Verdict {
    let low = flags & 0xffff_ffff & !inode_flags::KNOWN;
    ensure!(low == 0, "unknown inode flags {low:#x}");
    let high = flags >> 32 << 32 & !inode_flags::RO_KNOWN;
    ensure!(high == 0 || rules.limits.read_only, "unknown inode flags {high:#x}");
    Ok(())
}

pub(super) fn inode_ref(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    rules.follows_its_inode(item)?;
    ensure!(!item.data.is_empty(), "inode ref without a name");
    for entry in InodeRef::iter(item.data) {
        name(entry?.name)?;
    }
    Ok(())
}

/// The names of one item share a hash, which is the key's offset.
pub(super) fn extref(item: &Item<'_>) -> Verdict {
    ensure!(!item.data.is_empty(), "inode extref without a name");
    for entry in InodeExtRef::iter(item.data) {
        let entry = entry?;
        name(entry.name)?;
        ensure!(
            extref_hash(entry.parent, entry.name) == item.key.offset,
            "inode extref whose name has another hash"
        );
    }
    Ok(())
}

pub(super) fn orphan(item: &Item<'_>) -> Verdict {
    ensure!(item.key.objectid == ORPHAN_OBJECTID, "orphan of owner {}", item.key.objectid);
    sized(item, 0)
}

/// The first descriptor item says how long the others are together: size (8), reserved
/// (16), encryption (1). The others and the Merkle tree are plain bytes.
pub(super) fn verity(item: &Item<'_>) -> Verdict {
    if item.key.kind == kind::VERITY_DESC_ITEM && item.key.offset == 0 {
        return sized(item, 25);
    }
    ensure!(!item.data.is_empty(), "verity item without bytes");
    Ok(())
}
