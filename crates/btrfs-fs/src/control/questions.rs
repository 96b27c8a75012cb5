//! Questions about the volume that change nothing of it.
//!
//! Decodes, calls, encodes. Who may ask is what the kernel has for the same question. Records
//! that the kernel finds by pointers of the caller do not reach a server: docs/SEMANTICS.md
//! lists those questions.

use super::wire::{self, Record, kernels, len64, number, put};
use super::{administrator, rooted, some};
use super::{lookup, search};
use crate::error::IntoFs;
use crate::fs::BtrfsFs;
use crate::ino::id_of;
use crate::subvol::{SubvolId, SubvolumeInfo};
use vfs::{Asker, Controlled, Errno, FileSystem, Ino, Result};

/// ENOTTY: it is none of them.
pub(super) fn answer(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    ino: Ino,
    command: u32,
    input: &[u8],
) -> Result<Controlled> {
    let answer = match command {
        wire::USAGE => usage(fs)?,
        wire::FS_INFO => fs_info(fs)?,
        wire::DEV_INFO => dev_info(fs, input)?,
        wire::GET_DEV_STATS => dev_stats(fs, asker, input)?,
        wire::GET_FEATURES => features(fs)?,
        wire::GET_SUPPORTED_FEATURES => supported_features(),
        wire::TREE_SEARCH => {
            administrator(asker)?;
            // What was done before the search is found.
            fs.sync()?;
            search::search(fs.open()?, id_of(ino).tree, input)?
        }
        wire::INO_LOOKUP => lookup::lookup(fs, asker, ino, input)?,
        kernels::INO_LOOKUP_USER => lookup::lookup_user(fs, asker, ino, input)?,
        wire::paths::PATH => path(fs, asker, input)?,
        wire::GET_SUBVOL_INFO => subvolume(&fs.subvolume_info(fs.subvolume_of(ino)?.0)?),
        wire::GET_SUBVOL_ROOTREF => inside(fs, ino, some(number(input, 0))?)?,
        wire::START_SYNC => {
            fs.sync()?;
            fs.open()?.core.roots().generation.0.to_le_bytes().to_vec()
        }
        wire::SEND => send(fs, asker, ino)?,
        wire::WAIT_SYNC => {
            wait_sync(fs, number(input, 0).unwrap_or(0))?;
            Vec::new()
        }
        _ => return Err(Errno::ENOTTY.into()),
    };
    Ok(Controlled::answer(answer))
}

/// EINVAL: that commit is none that is under way.
fn wait_sync(fs: &BtrfsFs, generation: u64) -> Result<()> {
    let running = fs.open()?.core.roots().generation.0.saturating_add(1);
    if generation > running {
        return Err(Errno::EINVAL.into());
    }
    fs.sync()
}

/// As much of it as there is room for.
fn path(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Vec<u8>> {
    administrator(asker)?;
    let (id, from) = (some(number(input, 0))?, some(number(input, 8))?);
    let path = fs.subvolume_info(SubvolId(id))?.path.ok_or(Errno::ENOENT)?;
    let rest = path.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
    let room = wire::len(wire::paths::PATH) - 8;
    Ok([&len64(&path).to_le_bytes(), &rest[..rest.len().min(room)]].concat())
}

fn usage(fs: &BtrfsFs) -> Result<Vec<u8>> {
    let mut answer = Vec::new();
    fs.usage()?.write(&mut answer);
    match answer.len() <= wire::len(wire::USAGE) {
        true => Ok(answer),
        false => Err(Errno::EOVERFLOW.into()),
    }
}

/// A record with bytes at some places, and zeros between.
fn record(command: u32, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut record = vec![0; wire::len(command)];
    wire::fill(&mut record, parts);
    record
}

fn numbers(all: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, all);
    bytes
}

fn fs_info(fs: &BtrfsFs) -> Result<Vec<u8>> {
    /// The checksums' kind and size, the generation and the UUID of the metadata are told, too.
    const TOLD: u64 = 7;
    let sb = fs.open()?.core.volume.superblock();
    let (f, geometry) = (&sb.fields, sb.geometry().fs()?);
    let sizes = [f.nodesize, f.sectorsize, f.sectorsize].map(u32::to_le_bytes).concat();
    let csum_size = u16::try_from(geometry.csum.size()).expect("32 bytes at most");
    let sums = [f.csum_type, csum_size].map(u16::to_le_bytes).concat();
    let parts: [(usize, &[u8]); 6] = [
        (0, &numbers(&[f.dev_item.devid, f.num_devices])),
        (16, &f.fsid),
        (32, &sizes),
        (44, &sums),
        (48, &numbers(&[TOLD, f.generation.0])),
        (64, &geometry.metadata_uuid),
    ];
    Ok(record(wire::FS_INFO, &parts))
}

/// Where the device is the server does not know: it was given it open.
fn dev_info(fs: &BtrfsFs, input: &[u8]) -> Result<Vec<u8>> {
    let (id, uuid) = (some(number(input, 0))?, some(input.get(8..24))?);
    let usage = fs.usage()?;
    let named = |uuid: &[u8], own: &[u8; 16]| uuid == [0; 16] || uuid == own;
    let device = usage.devices.iter().find(|d| d.id == id && named(uuid, &d.uuid));
    let device = device.ok_or(Errno::ENODEV)?;
    let parts: [(usize, &[u8]); 4] = [
        (0, &numbers(&[device.id])),
        (8, &device.uuid),
        (24, &numbers(&[device.used, device.total])),
        (40, &usage.fsid),
    ];
    Ok(record(wire::DEV_INFO, &parts))
}

/// As of now. The one flag that there is: they begin at zero again.
fn dev_stats(fs: &BtrfsFs, asker: &dyn Asker, input: &[u8]) -> Result<Vec<u8>> {
    const RESET: u64 = 1;
    let (id, most, flags) =
        (some(number(input, 0))?, some(number(input, 8))?, some(number(input, 16))?);
    let engine = fs.open()?;
    if id != engine.core.volume.superblock().fields.dev_item.devid {
        return Err(Errno::ENODEV.into());
    }
    let errors = match flags {
        0 => engine.device_stats.errors(),
        RESET => {
            administrator(asker)?;
            engine.device_stats.reset()?
        }
        _ => return Err(Errno::EOPNOTSUPP.into()),
    };
    let told = &errors[..errors.len().min(usize::try_from(most).unwrap_or(usize::MAX))];
    let head = numbers(&[id, len64(told), flags]);
    Ok(record(wire::GET_DEV_STATS, &[(0, &head), (24, &numbers(told))]))
}

/// Whoever may send may read anything: administrators.
fn send(fs: &BtrfsFs, asker: &dyn Asker, root: Ino) -> Result<Vec<u8>> {
    administrator(asker)?;
    rooted(fs, root)?;
    Ok(fs.engine.tickets.give(root, asker.who()?.uid).to_vec())
}

fn features(fs: &BtrfsFs) -> Result<Vec<u8>> {
    let f = fs.open()?.core.volume.superblock().fields;
    Ok(numbers(&[f.compat_flags, f.compat_ro_flags, f.incompat_flags]))
}

/// What a volume may have to be written here; nothing of it is switched on or off in a mount.
fn supported_features() -> Vec<u8> {
    let supported = [0, btrfs_volume::COMPAT_RO_SUPPORTED, btrfs_volume::INCOMPAT_SUPPORTED];
    numbers(&[&supported[..], &[0; 6]].concat())
}

fn subvolume(info: &SubvolumeInfo) -> Vec<u8> {
    let times = [info.ctime, info.otime, info.stime, info.rtime];
    let times = times.map(|(secs, nanos)| [secs.cast_unsigned(), nanos.into()]);
    let parent = info.parent.map_or(0, |parent| parent.0);
    let uuids = [info.uuid, info.parent_uuid, info.received_uuid].concat();
    let commits = [info.ctransid, info.otransid, info.stransid, info.rtransid];
    let name = &info.name[..info.name.len().min(255)];
    let parts: [(usize, &[u8]); 6] = [
        (0, &numbers(&[info.id.0])),
        (8, name),
        (264, &numbers(&[parent, info.directory, info.generation, info.flags])),
        (296, &uuids),
        (344, &numbers(&commits)),
        (376, &numbers(times.as_flattened())),
    ];
    record(wire::GET_SUBVOL_INFO, &parts)
}

/// The subvolumes right below the one around `ino`, by number.
fn inside(fs: &BtrfsFs, ino: Ino, least: u64) -> Result<Vec<u8>> {
    /// What a byte can count.
    const MOST: usize = 255;
    let above = fs.subvolume_of(ino)?.0;
    let below = |info: &SubvolumeInfo| info.parent == Some(above) && info.id >= SubvolId(least);
    let all: Vec<_> = fs.subvolumes()?.into_iter().filter(below).collect();
    let count = u8::try_from(all.len()).map_err(|_| Errno::EOVERFLOW)?;
    let refs: Vec<u64> = all.iter().flat_map(|info| [info.id.0, info.directory]).collect();
    let next = all.last().map_or(least, |last| last.id.0 + 1);
    let parts: [(usize, &[u8]); 3] =
        [(0, &numbers(&[next])), (8, &numbers(&refs)), (8 + MOST * 16, &[count])];
    Ok(record(wire::GET_SUBVOL_ROOTREF, &parts))
}
