//! Who may: the kernel's rules, since nobody in front of these calls asks for them.

use crate::acl::{self, Acl};
use crate::engine::Engine;
use crate::ino::InodeId;
use crate::inode::{Inode, State};
use crate::subvol::Caller;
use crate::xattrs;
use btrfs_disk::TreeId;
use inode_index::Ref;
use vfs::{Errno, Result};

/// EACCES unless the caller may make and remove names in the directory.
pub(crate) fn may_change_names(
    engine: &Engine,
    caller: &Caller,
    id: InodeId,
    dir: &State,
) -> Result<()> {
    const WRITE_AND_SEARCH: u16 = 0o3;
    granted(engine, caller, id, dir, WRITE_AND_SEARCH)
}

/// EACCES unless the caller may write the file.
pub(crate) fn may_write(engine: &Engine, caller: &Caller, id: InodeId, file: &State) -> Result<()> {
    granted(engine, caller, id, file, 0o2)
}

/// EACCES unless the caller may list the directory and pass through it.
pub(crate) fn may_list(engine: &Engine, caller: &Caller, id: InodeId, dir: &State) -> Result<()> {
    granted(engine, caller, id, dir, 0o5)
}

fn granted(
    engine: &Engine,
    caller: &Caller,
    id: InodeId,
    inode: &State,
    wanted: u16,
) -> Result<()> {
    const WRITE: u16 = 0o2;
    if caller.exempt.bits || caller.exempt.reading && wanted & WRITE == 0 {
        return Ok(());
    }
    let access = xattrs::get(&engine.core.view(), id, acl::ACCESS)?;
    let access = access.map(|bytes| Acl::parse(&bytes)).transpose()?;
    if by_bits(caller, inode, access, wanted) { Ok(()) } else { Err(Errno::EACCES.into()) }
}

/// In the kernel's order. It asks an ACL only where the group's bits, which are its mask, leave something.
fn by_bits(caller: &Caller, inode: &State, access: Option<Acl>, wanted: u16) -> bool {
    let owner = (inode.item.uid, inode.item.gid);
    let bits = |class: u32| (inode.item.mode >> class & 0o7) as u16;
    let [own, group, others] = [6, 3, 0].map(|class| bits(class) & wanted == wanted);
    match access {
        // He may be the one whom they keep out.
        _ if caller.unknown => own && group && others && access.is_none(),
        _ if caller.is(owner.0) => own,
        Some(acl) if bits(3) != 0 => {
            acl.granted(owner, |uid| caller.is(uid), |gid| caller.is_in(gid), wanted)
        }
        _ if caller.is_in(owner.1) => group,
        _ => others,
    }
}

/// EPERM unless the caller owns the inode.
pub(crate) fn must_own(caller: &Caller, state: &State) -> Result<()> {
    if caller.exempt.owners || caller.is(state.item.uid) {
        return Ok(());
    }
    Err(Errno::EPERM.into())
}

/// In a directory with the sticky bit names are for their owners, and for its.
pub(crate) fn must_own_one(caller: &Caller, dir: &State, child: &State) -> Result<()> {
    const STICKY: u32 = 0o1000;
    if dir.item.mode & STICKY == 0 || caller.is(dir.item.uid) {
        return Ok(());
    }
    must_own(caller, child)
}

/// Whether a subvolume's name may go from `dir`: what is immutable or append-only keeps its names, as files do. One whose
/// root directory cannot be read may be moved out of the way.
pub(super) fn may_lose_name(engine: &Engine, dir: &Ref<Inode>, tree: TreeId) -> Result<()> {
    let Some(subvolume) = engine.subvols.get(tree) else { return Ok(()) };
    // One behind the other: a directory may be of a younger subvolume than what lies in it.
    if dir.read()?.keeps_names() {
        return Err(Errno::EPERM.into());
    }
    match engine.inodes.by_id(InodeId::new(tree, subvolume.root_dir), 0) {
        Ok(root) if root.read().is_ok_and(|root| root.keeps_names()) => Err(Errno::EPERM.into()),
        _ => Ok(()),
    }
}
