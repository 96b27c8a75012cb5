//! What the commands tell of a volume: gathered from an image or from a mount, and reckoned as
//! btrfs-progs does it.

use crate::commands::subvolume::place::VolumePath;
use crate::door::Door;
use crate::error::Result;
use crate::image::{self, ImageFile};
use crate::mounts;
use btrfs_disk::TreeId;
use btrfs_disk::ids::block_group::{self, DATA, METADATA, PROFILE_MASK, SYSTEM, TYPE_MASK};
use btrfs_fs::Subvol;
use spinney::{DeviceUsage, GroupUsage, Usage};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub struct Numbers {
    pub usage: Usage,
    /// Where the one device is that can be looked at.
    pub device: PathBuf,
    /// It is a mount's.
    pub mounted: bool,
    /// Bytes of the device behind those that the volume has of it; 0 where nobody may look.
    pub slack: u64,
}

/// Of the last commit of an image, whoever has it in use; of a mount as its server knows them.
pub fn of(place: &VolumePath) -> Result<Numbers> {
    match place {
        VolumePath::Image(inside) => {
            let volume = image::look(&inside.image, &Subvol::Id(TreeId::FS))?;
            let (usage, device) = (volume.usage()?, ImageFile::of(&inside.image).real());
            let device = device.unwrap_or_else(|_| inside.image.clone());
            Ok(Numbers::new(usage, device, false))
        }
        VolumePath::Mount(path) => {
            let usage = Door::open(path)?.usage()?;
            Ok(Numbers::new(usage, mounts::device_below(path), true))
        }
    }
}

/// Of a device, an image or a part of one.
fn length_of(device: &Path) -> Option<u64> {
    let place = ImageFile::of(device);
    match place.span(false).ok()? {
        Some(part) => Some(part.len),
        None => File::open(place.file).and_then(|mut file| file.seek(SeekFrom::End(0))).ok(),
    }
}

impl Numbers {
    fn new(usage: Usage, device: PathBuf, mounted: bool) -> Numbers {
        let mut numbers = Numbers { usage, device, mounted, slack: 0 };
        let len = length_of(&numbers.device).unwrap_or(0);
        numbers.slack = len.saturating_sub(numbers.size());
        numbers
    }

    /// Bytes of the devices that chunks occupy.
    pub fn allocated(&self) -> u64 {
        self.usage.devices.iter().map(|device| device.used).sum()
    }

    pub fn size(&self) -> u64 {
        self.usage.devices.iter().map(|device| device.total).sum()
    }

    pub fn unallocated(&self) -> u64 {
        self.size().saturating_sub(self.allocated())
    }

    /// What files and trees use, each byte once.
    pub fn used(&self) -> u64 {
        self.usage.groups.iter().map(|group| group.used).sum()
    }

    /// What they use on the devices.
    pub fn used_on_devices(&self) -> u64 {
        self.usage.groups.iter().map(|group| group.used * copies(group.flags)).sum()
    }

    pub fn is_mixed(&self) -> bool {
        self.usage.groups.iter().any(|group| group.flags & (DATA | METADATA) == DATA | METADATA)
    }

    fn on_devices(&self, kind: u64) -> u64 {
        let of_kind = self.usage.groups.iter().filter(|group| group.flags & kind != 0);
        of_kind.map(|group| group.total * copies(group.flags)).sum()
    }

    fn total(&self, kind: u64) -> u64 {
        let of_kind = self.usage.groups.iter().filter(|group| group.flags & kind != 0);
        of_kind.map(|group| group.total).sum()
    }

    /// Bytes of the devices for a byte of that kind.
    pub fn ratio(&self, kind: u64) -> f64 {
        match self.total(kind) {
            0 => 1.0,
            total => self.on_devices(kind) as f64 / total as f64,
        }
    }

    /// What data can still have, about, and at least if all that comes is stored as often as
    /// what is stored most often.
    pub fn free(&self) -> (u64, u64) {
        /// No chunk is made of less.
        const LEAST: u64 = 16 << 20;
        let groups = &self.usage.groups;
        let data = groups.iter().filter(|group| group.flags & DATA != 0);
        let used: u64 = data.map(|group| group.used * copies(group.flags)).sum();
        let ratio = self.ratio(DATA);
        let mut free = (self.on_devices(DATA).saturating_sub(used) as f64 / ratio) as u64;
        if self.is_mixed() {
            free = free.saturating_sub(self.usage.global_reserve);
        }
        let to_come = if self.unallocated() >= LEAST { self.unallocated() } else { 0 } as f64;
        let most = groups.iter().map(|group| copies(group.flags)).max().unwrap_or(1) as f64;
        (free + (to_come / ratio) as u64, free + (to_come / most) as u64)
    }

    /// The kinds that more than one profile is in use for.
    pub fn several_profiles(&self) -> Vec<&'static str> {
        let kinds = [(DATA | METADATA, "data+metadata"), (DATA, "data"), (METADATA, "metadata")];
        let kinds = kinds.into_iter().chain([(SYSTEM, "system")]);
        let count = |kind: u64| {
            self.usage.groups.iter().filter(|group| group.flags & TYPE_MASK == kind).count()
        };
        kinds.filter(|(kind, _)| count(*kind) > 1).map(|(_, name)| name).collect()
    }

    /// Data, metadata, system, as tables have them.
    pub fn by_weight(&self) -> Vec<&GroupUsage> {
        let weight = |group: &&GroupUsage| match group.flags & TYPE_MASK {
            SYSTEM => 2,
            METADATA => 1,
            _ => 0,
        };
        let mut groups: Vec<&GroupUsage> = self.usage.groups.iter().collect();
        groups.sort_by_key(weight);
        groups
    }

    /// The same kinds, and what each has of the device.
    pub fn on_device(
        &self,
        device: &DeviceUsage,
    ) -> impl Iterator<Item = (&GroupUsage, Option<u64>)> {
        let id = device.id;
        self.by_weight().into_iter().map(move |group| {
            let here = group.on_devices.iter().find(|(on, _)| *on == id);
            (group, here.map(|(_, bytes)| *bytes))
        })
    }
}

/// Bytes of a device that no chunk has.
pub fn left_of(device: &DeviceUsage) -> u64 {
    device.total.saturating_sub(device.used)
}

/// How often a byte is stored in block groups of that profile.
fn copies(flags: u64) -> u64 {
    match flags & PROFILE_MASK {
        block_group::DUP | block_group::RAID1 | block_group::RAID10 => 2,
        block_group::RAID1C3 => 3,
        block_group::RAID1C4 => 4,
        _ => 1,
    }
}

/// `Data`, `Metadata`, `System`, `Data+Metadata`, as btrfs-progs calls them.
pub fn kind_name(flags: u64) -> &'static str {
    match flags & TYPE_MASK {
        DATA => "Data",
        SYSTEM => "System",
        METADATA => "Metadata",
        mixed if mixed == DATA | METADATA => "Data+Metadata",
        _ => "unknown",
    }
}

/// `single`, `DUP`, `RAID1`.
pub fn profile_name(flags: u64) -> String {
    match super::super::offline::chunk_profile(flags) {
        single if single == "single" => single,
        // RAID1C3 is written in capitals by all.
        other => other.to_uppercase(),
    }
}
