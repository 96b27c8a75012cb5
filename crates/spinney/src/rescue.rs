//! Ways out where opening a volume is not possible, or not enough: what `spinney rescue` and
//! `btrfs rescue` do.
//!
//! Each takes a device that nobody else writes to ([`Medium::device`](crate::Medium::device)).
//! Interrupted anywhere, by a power cut too, it leaves the volume as it was or as it is to be:
//! never two copies of the superblock are in flight, and what is more than a superblock is a
//! commit. Called again, it goes on; when it returns, all copies of the superblock say the same.

use crate::error::{Error, Result};
use blockdev::BlockDevice;
use btrfs_disk::ids::{DEV_ITEMS_OBJECTID, compat_ro};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Logical, Superblock};
use btrfs_fs::{BtrfsFs, Options, to_fs, unfinished_replacement};
use btrfs_volume::{OpenOptions, SuperCopies, Volume, sizes_agree};
use std::path::Path;
use std::sync::Arc;
use vfs::{FileSystem, FsError};

/// Where a log was that a volume forgot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Log {
    /// The logical address of its root; 0: there was none.
    pub root: u64,
    /// The level of its root.
    pub level: u8,
}

/// The volume forgets its log: it is as of its last commit then, and what was synced after that
/// is lost.
pub fn zero_log(device: Arc<dyn BlockDevice>) -> Result<Log> {
    with_superblock(&device, REPLAYS, |_, sb| {
        let (root, level) = (sb.fields.log_root.0, sb.fields.log_root_level);
        (sb.fields.log_root, sb.fields.log_root_level) = (Logical(0), 0);
        Ok((root != 0, Log { root, level }))
    })
}

/// The copies of the superblock of a device.
pub struct Superblocks {
    device: Arc<dyn BlockDevice>,
    copies: SuperCopies,
}

impl Superblocks {
    /// Looks at them; an error if none is valid.
    pub fn survey(device: Arc<dyn BlockDevice>) -> Result<Superblocks> {
        let copies = SuperCopies::survey(&*device).map_err(|e| said(&*device, to_fs(e)))?;
        Ok(Superblocks { device, copies })
    }

    /// The number of the device in its volume.
    pub fn devid(&self) -> u64 {
        self.copies.devid()
    }

    /// Where those are that are valid, and of the newest commit.
    pub fn good(&self) -> &[u64] {
        &self.copies.good
    }

    /// Where the others are: damaged, missing, or of an older commit.
    pub fn bad(&self) -> &[u64] {
        &self.copies.bad
    }

    /// Writes the newest one over those that are bad.
    pub fn recover(&self) -> Result<()> {
        self.copies.recover(&*self.device).map_err(|e| said(&*self.device, to_fs(e)))
    }
}

/// What [`fix_device_size`] found, and made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceSize {
    /// The number of the device.
    pub devid: u64,
    /// Bytes that the device had by its item in the chunk tree, which the kernel goes by.
    pub device: u64,
    /// Bytes that the device had by the copy of that item in the superblock.
    pub superblock: u64,
    /// Bytes that the volume had by its superblock.
    pub total: u64,
    /// Bytes that all of them say now.
    pub whole: u64,
    /// As [`Volume::made_free_space_tree`](crate::Volume::made_free_space_tree).
    pub made_free_space_tree: bool,
}

/// Makes the sizes of the device and of the volume one number of whole sectors: that which the chunk tree has of the
/// device, rounded down. Refused where the device is shorter, or a chunk lies behind that.
pub fn fix_device_size(device: Arc<dyn BlockDevice>) -> Result<DeviceSize> {
    let options = OpenOptions { mends_sizes: true, ..REPLAYS };
    let mut found = with_superblock(&device, options, |volume, sb| {
        let devid = sb.fields.dev_item.devid;
        let key = Key::new(DEV_ITEMS_OBJECTID, kind::DEV_ITEM, devid);
        let lacks_it = || Corrupt::new("the device has no item").key(key).into();
        let item = volume.device_item_bytes().ok_or_else(lacks_it);
        let item = item.map_err(|e| said(&*device, to_fs(e)))?;
        let (own, total) = (sb.fields.dev_item.total_bytes, sb.fields.total_bytes);
        let sector = u64::from(sb.fields.sectorsize);
        let whole = item / sector * sector;
        volume.resize(item).map_err(|e| said(&*device, to_fs(e)))?;
        let found = DeviceSize {
            devid,
            device: item,
            superblock: own,
            total,
            whole,
            made_free_space_tree: false,
        };
        // The item itself is the engine's to write, which opens a volume whose sizes differ by less than a sector.
        let here = match item == whole {
            true => (own, total) != (whole, whole),
            false => !sizes_agree(sb) || own.abs_diff(item) >= sector,
        };
        if here {
            (sb.fields.dev_item.total_bytes, sb.fields.total_bytes) = (item, item);
        }
        Ok((here, found))
    })?;
    if found.device != found.whole {
        let fs = writable(&device, quiet())?;
        found.made_free_space_tree = fs.made_free_space_tree();
        let resized = fs.resize(found.whole).map(drop).and_then(|()| fs.destroy());
        resized.map_err(|e| said(&*device, e))?;
    }
    Ok(found)
}

/// Gives the free-space tree up and makes another from the extents; false: there is none. Nothing of the old
/// one is read, so it may be damaged. A log is replayed in the same commit. Where the extents cannot all be
/// read, or there is no room, the old one stays: it may be good, and then the volume can be written still. So a
/// volume with a block-group tree, which needs one, is never without.
pub fn clear_free_space_tree(device: Arc<dyn BlockDevice>) -> Result<bool> {
    let there = with_superblock(&device, REPLAYS, |_, sb| {
        Ok((false, sb.fields.compat_ro_flags & compat_ro::FREE_SPACE_TREE != 0))
    })?;
    if there {
        let options = Options { renew_free_space: true, ..quiet() };
        writable(&device, options)?.destroy().map_err(|e| said(&*device, e))?;
    }
    Ok(there)
}

/// What was given up, and what that brought along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Cleared {
    /// It was there.
    pub there: bool,
    /// As [`Volume::made_free_space_tree`](crate::Volume::made_free_space_tree): also where nothing else was done.
    pub made_free_space_tree: bool,
}

/// Takes the UUID tree away, which says of UUIDs whose subvolumes they are: the next mount that writes
/// makes another, of what the subvolumes say themselves.
///
/// Nothing of the tree is read, so it may be damaged: what gives its space back is the extent tree, which is
/// looked through for what the UUID tree holds. A log is replayed on the way.
pub fn clear_uuid_tree(device: Arc<dyn BlockDevice>) -> Result<Cleared> {
    let fs = writable(&device, quiet())?;
    let there = fs.clear_uuid_tree().map_err(|e| said(&*device, e))?;
    closed(&device, &fs, there)
}

fn closed(device: &Arc<dyn BlockDevice>, fs: &BtrfsFs, there: bool) -> Result<Cleared> {
    let made_free_space_tree = fs.made_free_space_tree();
    fs.destroy().map_err(|e| said(&**device, e))?;
    Ok(Cleared { there, made_free_space_tree })
}

/// Quotas end: the volume has no groups, numbers and limits any more, and may be told to
/// [begin anew](crate::Volume::enable_quotas).
///
/// Nothing of the quota tree is read, so it may be damaged: what gives its space back is the extent tree, which
/// is looked through for what the quota tree holds. A log is replayed in the same commit.
pub fn clear_quotas(device: Arc<dyn BlockDevice>) -> Result<Cleared> {
    let fs = writable(&device, Options { give_up_quotas: true, ..quiet() })?;
    closed(&device, &fs, fs.gave_up_quotas())
}

/// A log is no reason to leave the superblock alone.
const REPLAYS: OpenOptions = OpenOptions {
    read_only: false,
    ignore_log: false,
    replays_log: true,
    mends_sizes: false,
    renews_free_space: false,
};

/// Changes the superblock of a volume that nobody else has: what `change` makes of it is written,
/// as a commit does it, if that says so. The rest of what it says.
fn with_superblock<T>(
    device: &Arc<dyn BlockDevice>,
    options: OpenOptions,
    change: impl FnOnce(&Volume, &mut Superblock) -> Result<(bool, T)>,
) -> Result<T> {
    let failed = |e| said(&**device, to_fs(e));
    let volume = Volume::open(device.clone(), options).map(Arc::new).map_err(failed)?;
    if let Some(why) = volume.read_only_reason().or_else(|| unfinished_replacement(&volume)) {
        return Err(Error::refused(device.name(), format!("can only be read: {why}")));
    }
    let mut superblock = (*volume.superblock()).clone();
    let (changed, told) = change(&volume, &mut superblock)?;
    let written = match changed {
        true => volume.commit_superblock(superblock).and_then(|()| volume.flush()),
        // An earlier call may have been interrupted behind the first copy.
        false => volume.mend_superblocks(),
    };
    written.map_err(failed)?;
    Ok(told)
}

/// For one change: nothing goes on beside it.
fn quiet() -> Options {
    Options { background: false, ..Options::default() }
}

fn writable(device: &Arc<dyn BlockDevice>, options: Options) -> Result<BtrfsFs> {
    let fs = BtrfsFs::open_device(device.clone(), options).map_err(|e| said(&**device, e))?;
    match fs.read_only_reason() {
        Some(why) => Err(Error::refused(device.name(), format!("can only be read: {why}"))),
        None => Ok(fs),
    }
}

fn said(device: &dyn BlockDevice, error: FsError) -> Error {
    let name = device.name();
    Error::volume_said(&name, Path::new(&name), error)
}
