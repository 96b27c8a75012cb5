//! Ways through trees by number: for administrators those of anything, for others those that they may walk.

use super::wire::{self, kernels, number};
use super::{administrator, caller, some};
use crate::fs::BtrfsFs;
use crate::ino::{id_of, number as number_of};
use crate::names::parent;
use crate::ops::subvolume::may_list;
use crate::subvol::{Caller, SubvolId};
use btrfs_disk::TreeId;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_txn::ObjectId;
use vfs::{Asker, Errno, Ino, Result};

/// The number of the tree, and the way from its top to a directory, with a slash at its end.
pub(super) fn lookup(fs: &BtrfsFs, asker: &dyn Asker, ino: Ino, input: &[u8]) -> Result<Vec<u8>> {
    const ROOM: usize = 4080;
    let (tree, inode) = (some(number(input, 0))?, some(number(input, 8))?);
    let tree = if tree == 0 { fs.subvolume_of(ino)?.0.0 } else { tree };
    let mut way = Vec::new();
    if inode != FIRST_FREE_OBJECTID {
        administrator(asker)?;
        let core = &fs.open()?.core;
        let mut at = ObjectId::new(TreeId(tree), inode);
        while at.objectid != FIRST_FREE_OBJECTID {
            let (above, name) = parent(core, at)?.ok_or(Errno::ENOENT)?;
            put_in_front(&mut way, &name, ROOM)?;
            at = ObjectId::new(at.tree, above);
        }
    }
    let mut record = vec![0; wire::len(wire::INO_LOOKUP)];
    super::wire::fill(&mut record, &[(0, &numbers(tree, inode)), (16, &way)]);
    Ok(record)
}

/// The name of a subvolume, and the way to its directory from that which is asked. The caller may list all
/// directories whose names are told by that: that which is asked, and those in between. Errors are the kernel's.
pub(super) fn lookup_user(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    ino: Ino,
    input: &[u8],
) -> Result<Vec<u8>> {
    let (dir, id) = (some(number(input, 0))?, some(number(input, 8))?);
    let from = id_of(ino);
    if dir == FIRST_FREE_OBJECTID && from.objectid != FIRST_FREE_OBJECTID {
        return Err(Errno::EACCES.into());
    }
    let way = match dir == from.objectid {
        true => Vec::new(),
        false => walked(fs, &caller(asker)?, from, dir)?,
    };
    let info = fs.subvolume_info(SubvolId(id))?;
    if info.parent != Some(SubvolId(from.tree.0)) {
        return Err(Errno::ENOENT.into());
    }
    if info.directory != dir {
        return Err(Errno::EINVAL.into());
    }
    let name = &info.name[..info.name.len().min(255)];
    let mut record = vec![0; wire::len(kernels::INO_LOOKUP_USER)];
    super::wire::fill(&mut record, &[(0, &numbers(dir, id)), (16, name), (272, &way)]);
    Ok(record)
}

fn walked(fs: &BtrfsFs, caller: &Caller, from: ObjectId, dir: u64) -> Result<Vec<u8>> {
    const ROOM: usize = 4096 - 272;
    let engine = fs.open()?;
    let (mut way, mut at) = (Vec::new(), ObjectId::new(from.tree, dir));
    while at.objectid != FIRST_FREE_OBJECTID {
        let (above, name) = parent(&engine.core, at)?.ok_or(Errno::ENOENT)?;
        put_in_front(&mut way, &name, ROOM)?;
        at = ObjectId::new(at.tree, above);
        let inode = engine.inodes.get(number_of(at)?)?;
        may_list(engine, caller, at, &*inode.read()?)?;
        if at == from {
            return Ok(way);
        }
    }
    Err(Errno::EACCES.into())
}

/// Each step takes room, so the way ends, and one in a circle as well.
fn put_in_front(way: &mut Vec<u8>, name: &[u8], room: usize) -> Result<()> {
    way.splice(0..0, [name, b"/"].concat());
    if way.len() < room { Ok(()) } else { Err(Errno::ENAMETOOLONG.into()) }
}

fn numbers(first: u64, second: u64) -> Vec<u8> {
    [first, second].map(u64::to_le_bytes).concat()
}
