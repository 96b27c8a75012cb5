//! Owner, mode, attributes, flags and times of an inode.

use crate::changes::Both;
use crate::error::Result;
use crate::namespace::is_nocow;
use crate::out::{Options, Out};
use crate::tree::{is_dir, is_file, xattrs_of};
use btrfs_disk::items::{InodeItem, Timespec, inode_flags, mode};
use btrfs_send::{Command, Protocol, Time};

/// Who runs it is somebody else then.
const SET_ID: u32 = 0o6000;

/// True: the owner was set. `written`: content or size changed before.
pub(crate) fn owner_and_mode(
    path: &[u8],
    (old, new): (Option<&InodeItem>, &InodeItem),
    written: bool,
    out: &mut Out<'_>,
) -> Result<bool> {
    let owner = |item: &InodeItem| (item.uid, item.gid);
    let bits = |item: &InodeItem| item.mode & 0o7777;
    let chown = old.is_none_or(|old| owner(old) != owner(new));
    if chown {
        out.put(&Command::Chown { path, uid: new.uid.into(), gid: new.gid.into() })?;
    }
    // A change of the owner takes bits of the mode away, and so does one of the content by who is no administrator.
    let taken = chown || written && bits(new) & SET_ID != 0;
    if (taken || old.is_none_or(|old| bits(old) != bits(new))) && !is_symlink(new) {
        out.put(&Command::Chmod { path, mode: bits(new).into() })?;
    }
    Ok(chown)
}

fn is_symlink(item: &InodeItem) -> bool {
    item.mode & mode::S_IFMT == mode::S_IFLNK
}

/// True: some are to be set later.
pub(crate) fn changed_xattrs(
    path: &[u8],
    changed: &[Both],
    is_late: impl Fn(&[u8]) -> bool,
    out: &mut Out<'_>,
) -> Result<bool> {
    let mut some_late = false;
    for both in changed {
        let all = |data: &Option<Vec<u8>>| match data {
            Some(data) => xattrs_of(both.key, data),
            None => Ok(Vec::new()),
        };
        let (old, new) = (all(&both.left)?, all(&both.right)?);
        for (name, _) in &old {
            if !new.iter().any(|(other, _)| other == name) {
                out.put(&Command::RemoveXattr { path, name })?;
            }
        }
        for (name, value) in new.iter().filter(|new| !old.contains(new)) {
            match is_late(name) {
                true => some_late = true,
                false => out.put(&Command::SetXattr { path, name, value })?,
            }
        }
    }
    Ok(some_late)
}

/// With these nothing can be written any more.
const LOCKS: u64 = inode_flags::IMMUTABLE | inode_flags::APPEND | inode_flags::READONLY;

/// What somebody set; others say how the inode is stored.
const TOLD: u64 = LOCKS
    | inode_flags::NODATASUM
    | inode_flags::NODATACOW
    | inode_flags::NOCOMPRESS
    | inode_flags::SYNC
    | inode_flags::NODUMP
    | inode_flags::NOATIME
    | inode_flags::DIRSYNC
    | inode_flags::COMPRESS;

fn has_flags(item: &InodeItem, options: Options) -> bool {
    options.protocol >= Protocol::V2 && (is_dir(item) || is_file(item))
}

/// Those that keep nothing else from being set.
fn early(new: &InodeItem) -> u64 {
    new.flags & TOLD & !LOCKS
}

/// Of a new file: some can only be set as long as it is empty.
pub(crate) fn first_flags(
    path: &[u8],
    new: &InodeItem,
    options: Options,
    out: &mut Out<'_>,
) -> Result<()> {
    let flags = early(new);
    if flags != 0 && has_flags(new, options) {
        out.put(&Command::FileAttr { path, flags })?;
    }
    Ok(())
}

/// Of a directory, before what says how content is compressed: receivers refuse that beside the flag.
pub(crate) fn no_longer_nocow(
    path: &[u8],
    old: Option<&InodeItem>,
    new: &InodeItem,
    options: Options,
    out: &mut Out<'_>,
) -> Result<()> {
    if old.is_some_and(is_nocow) && !is_nocow(new) && has_flags(new, options) {
        out.put(&Command::FileAttr { path, flags: early(new) })?;
    }
    Ok(())
}

pub(crate) fn last_flags(
    path: &[u8],
    old: Option<&InodeItem>,
    new: &InodeItem,
    options: Options,
    out: &mut Out<'_>,
) -> Result<()> {
    let before = match old {
        Some(old) => old.flags & TOLD,
        None if is_file(new) => early(new),
        None => 0,
    };
    let flags = new.flags & TOLD;
    if flags != before && has_flags(new, options) {
        out.put(&Command::FileAttr { path, flags })?;
    }
    Ok(())
}

pub(crate) fn times(
    path: &[u8],
    item: &InodeItem,
    options: Options,
    out: &mut Out<'_>,
) -> Result<()> {
    let time = |t: Timespec| -> Time { (t.sec, t.nanos()) };
    let otime = (options.protocol >= Protocol::V2).then(|| time(item.otime));
    let [atime, mtime, ctime] = [item.atime, item.mtime, item.ctime].map(time);
    out.put(&Command::Utimes { path, atime, mtime, ctime, otime })
}
