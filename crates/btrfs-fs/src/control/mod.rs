//! The control door of a mount: what POSIX cannot say, as control operations on a file of it.
//!
//! Decodes, calls, encodes. Who may do what the calls themselves decide (`subvolumes`), but for
//! what the kernel leaves to administrators alone: that is asked here.

// Where bytes become numbers a cut one is a wrong answer.
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod balance;
mod committed;
mod defragment;
mod kernels;
mod lookup;
mod questions;
mod quotas;
mod scrub;
mod search;
mod snapshots;
pub mod verity;
pub mod volume_wire;
pub mod wire;

use crate::fs::BtrfsFs;
use crate::subvol::{Caller, Delete, SubvolId, SubvolumeInfo};
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use vfs::{Asker, Control, Controlled, Errno, FileSystem, Ino, Result};
use wire::paths::Told;
use wire::{Record, Records, VolArgs, VolArgs2};

impl Control for BtrfsFs {
    fn control(
        &self,
        asker: &dyn Asker,
        ino: Ino,
        command: u32,
        input: &[u8],
    ) -> Result<Controlled> {
        match command {
            wire::SUBVOL_CREATE => create(self, asker, ino, some(VolArgs::name(input))?),
            wire::SUBVOL_CREATE_V2 => match VolArgs2::flags(input) {
                Some(0) => create(self, asker, ino, some(VolArgs2::name(input))?),
                _ => Err(Errno::EOPNOTSUPP.into()),
            },
            wire::SNAPSHOT => snapshots::snapshot(self, asker, ino, input),
            wire::SNAPSHOT_SOURCE => snapshots::leave(self, asker, ino),
            wire::SNAP_DESTROY => delete(self, asker, ino, some(VolArgs::name(input))?),
            wire::SNAP_DESTROY_V2 => match VolArgs2::flags(input) {
                Some(0) => delete(self, asker, ino, some(VolArgs2::name(input))?),
                Some(wire::FLAG_BY_ID) => delete_by_id(self, asker, some(VolArgs2::id(input))?),
                _ => Err(Errno::EOPNOTSUPP.into()),
            },
            wire::SYNC => sync(self),
            wire::DEFAULT_SUBVOL => set_default(self, asker, some(wire::number(input, 0))?),
            wire::GET_DEFAULT => default(self),
            wire::SUBVOL_GETFLAGS => flags(self, ino),
            wire::SUBVOL_SETFLAGS => set_flags(self, asker, ino, some(wire::number(input, 0))?),
            wire::SET_RECEIVED_SUBVOL => set_received(self, asker, ino, input),
            wire::RECEIVE => receive(self, asker, ino),
            wire::LIST => list(self, asker, some(wire::number(input, 0))?),
            wire::INFO => info(self, asker, ino),
            wire::FIND_NEW => find_new(self, asker, ino, input),
            wire::BALANCE_START => balance::start(self, asker, input),
            wire::BALANCE_STATUS => balance::status(self, asker),
            wire::BALANCE_ACT => balance::act(self, asker, some(wire::number(input, 0))?),
            wire::RESIZE => balance::resize(self, asker, input),
            _ => others(self, asker, ino, command, input),
        }
    }
}

fn default(fs: &BtrfsFs) -> Result<Controlled> {
    let id = fs.default_subvolume()?;
    Ok(Controlled::answer(id.0.to_le_bytes().to_vec()))
}

fn others(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    ino: Ino,
    command: u32,
    input: &[u8],
) -> Result<Controlled> {
    committed::control(fs, asker, command, input)
        .or_else(|| scrub::control(fs, asker, command, input))
        .or_else(|| kernels::control(fs, asker, command, input))
        .or_else(|| defragment::control(fs, asker, ino, command, input))
        .or_else(|| verity::control(fs, asker, ino, command, input))
        .or_else(|| quotas::control(fs, asker, ino, command, input))
        .unwrap_or_else(|| questions::answer(fs, asker, ino, command, input))
}

/// EINVAL where a record lacks what it must have.
fn some<T>(part: Option<T>) -> Result<T> {
    part.ok_or(Errno::EINVAL.into())
}

fn caller(asker: &dyn Asker) -> Result<Caller> {
    let who = asker.who()?;
    let vfs::Who { uid, gid, unknown, groups, exempt, umask, admin } = who;
    Ok(Caller { uid, gid, unknown, groups, umask, privileged: admin, exempt })
}

fn administrator(asker: &dyn Asker) -> Result<()> {
    if asker.who()?.admin { Ok(()) } else { Err(Errno::EPERM.into()) }
}

fn sync(fs: &BtrfsFs) -> Result<Controlled> {
    fs.sync()?;
    Ok(Controlled::default())
}

/// The kernel's answers to what is no name.
fn new_name(name: &[u8]) -> Result<()> {
    match name {
        b"." | b".." => Err(Errno::EEXIST.into()),
        b"" => Err(Errno::EACCES.into()),
        _ => Ok(()),
    }
}

fn old_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." => Err(Errno::EACCES.into()),
        b".." => Err(Errno::EINVAL.into()),
        _ if name.contains(&b'/') => Err(Errno::EINVAL.into()),
        _ => Ok(()),
    }
}

fn create(fs: &BtrfsFs, asker: &dyn Asker, dir: Ino, name: &[u8]) -> Result<Controlled> {
    new_name(name)?;
    let (_, entry) = fs.create_subvolume(&caller(asker)?, dir, name)?;
    fs.forget(entry.attr.ino, 1);
    Ok(Controlled::name(dir, name))
}

fn delete(fs: &BtrfsFs, asker: &dyn Asker, dir: Ino, name: &[u8]) -> Result<Controlled> {
    old_name(name)?;
    fs.delete_subvolume(&caller(asker)?, Delete::Name(dir, name))?;
    Ok(Controlled::name(dir, name))
}

fn delete_by_id(fs: &BtrfsFs, asker: &dyn Asker, id: u64) -> Result<Controlled> {
    // Neither the top nor a tree of the volume's own.
    if id < FIRST_FREE_OBJECTID {
        return Err(Errno::EINVAL.into());
    }
    let id = SubvolId(id);
    let caller = caller(asker)?;
    if !caller.privileged {
        return Err(Errno::EPERM.into());
    }
    let gone = fs.take_subvolume(&caller, Delete::Id(id))?;
    Ok(Controlled::name(gone.dir, &gone.name))
}

fn set_default(fs: &BtrfsFs, asker: &dyn Asker, id: u64) -> Result<Controlled> {
    // As the kernel has it: nothing means the top.
    let id = if id == 0 { SubvolId::TOP_LEVEL } else { SubvolId(id) };
    fs.set_default_subvolume(&caller(asker)?, id)?;
    Ok(Controlled::default())
}

/// The subvolume whose root directory is `ino`; EINVAL for all other files.
fn rooted(fs: &BtrfsFs, ino: Ino) -> Result<SubvolId> {
    match fs.subvolume_of(ino)? {
        (id, true) => Ok(id),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn flags(fs: &BtrfsFs, ino: Ino) -> Result<Controlled> {
    let info = fs.subvolume_info(rooted(fs, ino)?)?;
    let flags = if info.read_only { wire::FLAG_READ_ONLY } else { 0 };
    Ok(Controlled::answer(flags.to_le_bytes().to_vec()))
}

fn set_flags(fs: &BtrfsFs, asker: &dyn Asker, ino: Ino, flags: u64) -> Result<Controlled> {
    let id = rooted(fs, ino)?;
    if flags & !wire::FLAG_READ_ONLY != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    fs.set_read_only(&caller(asker)?, id, flags != 0)?;
    Ok(Controlled::default())
}

/// The answer says by which commit and when.
fn set_received(fs: &BtrfsFs, asker: &dyn Asker, ino: Ino, input: &[u8]) -> Result<Controlled> {
    let id = rooted(fs, ino)?;
    let from = some(wire::read_received(input))?;
    fs.set_received(&caller(asker)?, id, &from)?;
    let info = fs.subvolume_info(id)?;
    let mut answer = input.to_vec();
    answer[24..32].copy_from_slice(&info.rtransid.to_le_bytes());
    answer[48..56].copy_from_slice(&info.rtime.0.to_le_bytes());
    answer[56..60].copy_from_slice(&info.rtime.1.to_le_bytes());
    Ok(Controlled::answer(answer))
}

/// Whoever may receive may make anything of anybody's: administrators.
fn receive(fs: &BtrfsFs, asker: &dyn Asker, dir: Ino) -> Result<Controlled> {
    administrator(asker)?;
    match fs.getattr(dir)?.kind {
        vfs::FileKind::Dir => {
            let word = fs.engine.tickets.give(dir, asker.who()?.uid);
            Ok(Controlled::answer(word.to_vec()))
        }
        _ => Err(Errno::ENOTDIR.into()),
    }
}

fn list(fs: &BtrfsFs, asker: &dyn Asker, behind: u64) -> Result<Controlled> {
    administrator(asker)?;
    let room = wire::len(wire::LIST);
    let all = fs.subvolumes_behind(behind, room / wire::SMALLEST_INFO)?.into_iter();
    // No record fills the answer alone, or the list would end before its end.
    let all = all.map(|info| Told::within(info, room / 2));
    Ok(Controlled::answer(Records::write(all, room)))
}

/// Of the way to it others hear only the name.
fn info(fs: &BtrfsFs, asker: &dyn Asker, ino: Ino) -> Result<Controlled> {
    let (id, is_root) = fs.subvolume_of(ino)?;
    let info = fs.subvolume_info(id)?;
    let path = if asker.who()?.admin { info.path } else { None };
    let mut answer = u64::from(is_root).to_le_bytes().to_vec();
    Told::within(SubvolumeInfo { path, ..info }, wire::len(wire::INFO) / 2).write(&mut answer);
    Ok(Controlled::answer(answer))
}

fn find_new(fs: &BtrfsFs, asker: &dyn Asker, ino: Ino, input: &[u8]) -> Result<Controlled> {
    administrator(asker)?;
    let numbers = [0, 8, 16].map(|at| wire::number(input, at));
    let [Some(since), Some(inode), Some(offset)] = numbers else {
        return Err(Errno::EINVAL.into());
    };
    let (id, _) = fs.subvolume_of(ino)?;
    let room = wire::len(wire::FIND_NEW) - 8;
    // The smallest record has eight numbers.
    let behind = (inode >= FIRST_FREE_OBJECTID).then_some((inode, offset));
    let (marker, found) = fs.find_new(id, since, behind, room / 64)?;
    let mut answer = marker.to_le_bytes().to_vec();
    answer.extend(Records::write(found, room));
    Ok(Controlled::answer(answer))
}
