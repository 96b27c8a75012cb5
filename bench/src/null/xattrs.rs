//! Extended attributes, refused by the same names as on a btrfs. An ACL may say what a mode says, and changes
//! the mode then.

use super::table::Inode;
use vfs::posix_acl::{ACCESS, DEFAULT, ENTRY, GROUP_OBJ, HEAD, OTHER, USER_OBJ};
use vfs::{Errno, FileKind, Result, Timestamp, XattrMode};

const PREFIXES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];
/// Of a value and its name: what fits into a leaf of 16 KiB beside its head, an item's and its own.
const MOST: usize = (16 << 10) - 101 - 25 - 30;

fn is_acl(name: &[u8]) -> bool {
    matches!(name, ACCESS | DEFAULT)
}

fn check(inode: &Inode, name: &[u8]) -> Result<()> {
    let known = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    match is_acl(name) {
        true if inode.attr.kind == FileKind::Symlink => Err(Errno::EOPNOTSUPP.into()),
        false if PREFIXES.contains(&name) => Err(Errno::EINVAL.into()),
        false if !known => Err(Errno::EOPNOTSUPP.into()),
        _ => Ok(()),
    }
}

pub(super) fn get(inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    check(inode, name)?;
    let value = inode.xattrs.as_ref().and_then(|all| all.get(name));
    value.cloned().ok_or(Errno::ENODATA.into())
}

pub(super) fn set(inode: &mut Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
    check(inode, name)?;
    if is_acl(name) {
        return set_acl(inode, name, value);
    }
    if name.len() + value.len() > MOST {
        return Err(Errno::ENOSPC.into());
    }
    let all = inode.xattrs.get_or_insert_default();
    match (mode, all.contains_key(name)) {
        (XattrMode::Create, true) => return Err(Errno::EEXIST.into()),
        (XattrMode::Replace, false) => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    all.insert(name.to_vec(), value.to_vec());
    inode.attr.ctime = Timestamp::now();
    Ok(())
}

fn set_acl(inode: &mut Inode, name: &[u8], value: &[u8]) -> Result<()> {
    let perm = mode_of(value).filter(|_| name == ACCESS).ok_or(Errno::EOPNOTSUPP)?;
    inode.attr.perm = inode.attr.perm & !0o777 | perm;
    inode.attr.ctime = Timestamp::now();
    Ok(())
}

/// The permissions that an ACL of the three entries of a mode stands for.
fn mode_of(value: &[u8]) -> Option<u16> {
    let entries = value.get(HEAD..)?.chunks_exact(ENTRY);
    if entries.len() != 3 {
        return None;
    }
    entries.into_iter().try_fold(0, |mode, entry| {
        let field = |at| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let shift = match field(0) {
            USER_OBJ => 6,
            GROUP_OBJ => 3,
            OTHER => 0,
            _ => return None,
        };
        Some(mode | (field(2) & 7) << shift)
    })
}

pub(super) fn remove(inode: &mut Inode, name: &[u8]) -> Result<()> {
    check(inode, name)?;
    if is_acl(name) {
        // There never is one.
        return Ok(());
    }
    let gone = inode.xattrs.as_mut().and_then(|all| all.remove(name));
    gone.ok_or(Errno::ENODATA)?;
    inode.attr.ctime = Timestamp::now();
    Ok(())
}
