//! The feature gate: may this volume be opened, and may it be written?
//!
//! A pure judgement over the superblock and the device's length. What is refused is
//! named; what must stay unwritten comes with the reason.

use btrfs_disk::ids::{compat_ro, incompat};
use btrfs_disk::node::MAX_LEVEL;
use btrfs_disk::{Corrupt, Error, Generation, Logical, Result, Superblock};

/// Incompatible features that a volume may have.
pub const INCOMPAT_SUPPORTED: u64 = incompat::MIXED_BACKREF
    | incompat::DEFAULT_SUBVOL
    | incompat::MIXED_GROUPS
    | incompat::COMPRESS_LZO
    | incompat::COMPRESS_ZSTD
    | incompat::BIG_METADATA
    | incompat::EXTENDED_IREF
    | incompat::SKINNY_METADATA
    | incompat::NO_HOLES
    | incompat::METADATA_UUID
    | incompat::SIMPLE_QUOTA;

/// Structures behind these bits are maintained on writes.
pub const COMPAT_RO_SUPPORTED: u64 = compat_ro::FREE_SPACE_TREE
    | compat_ro::FREE_SPACE_TREE_VALID
    | compat_ro::VERITY
    | compat_ro::BLOCK_GROUP_TREE;

const FLAG_ERROR: u64 = 1 << 2;
/// Superblock flags of volumes that are half way between two states, or no volumes.
const FLAG_NAMES: &[(u64, &str)] = &[
    (1 << 35, "unfinished change of the volume's UUID"),
    (1 << 36, "unfinished change of the metadata UUID"),
    (1 << 38, "unfinished conversion to or from a block-group tree"),
    (1 << 39, "unfinished change of the data checksum type"),
    (1 << 40, "unfinished change of the metadata checksum type"),
];
/// Others are made from it (`btrfstune -S 1`), which works as long as it stays as it is.
const FLAG_SEEDING: u64 = 1 << 32;
/// What `btrfs-image` restored: all metadata, and file content that was never copied.
const FLAGS_DUMP: u64 = FLAG_OLD_DUMP | 1 << 34;
/// Restored with -o: one chunk of 2^64-1 bytes stands for all.
const FLAG_OLD_DUMP: u64 = 1 << 33;
/// WRITTEN and RELOC say nothing about a superblock; the others forbid writing.
const FLAGS_READABLE: u64 = 1 | 1 << 1 | FLAG_ERROR | FLAGS_DUMP | FLAG_SEEDING;

/// Judges whether the volume can be opened at all. `mends_sizes`: by who makes its sizes agree.
pub(crate) fn refuse(sb: &Superblock, mends_sizes: bool) -> Result<()> {
    let judged = || {
        incompatible(sb)?;
        flags(sb)?;
        sizes(sb)?;
        goes_on(sb.generation())?;
        one_device(sb, mends_sizes)?;
        identity(sb)
    };
    judged().map_err(|error| several_devices(sb, error))
}

/// What the superblock counts is only a hint, as it is for the kernel: the device items of
/// the chunk tree tell. Where that tree cannot be read, or has stripes on devices that are
/// not here, the count is the likeliest reason.
pub(crate) fn several_devices(sb: &Superblock, error: Error) -> Error {
    let (count, own) = (sb.fields.num_devices, sb.fields.dev_item.devid);
    let which = format!("volume of {count} devices, of which this is number {own}");
    match error {
        error if count < 2 => error,
        // Nothing is wrong with it.
        Error::Unsupported(said) if said == ONE_OF_SEVERAL => Error::Unsupported(format!(
            "{which}; `mount -t btrfs` takes them all together, and with -o ro,degraded those that are left"
        )),
        error => Error::Unsupported(format!("{which}: {error}")),
    }
}

/// The sizes say so: the volume has more than this device.
const ONE_OF_SEVERAL: &str = "one of several devices";

pub(crate) fn is_old_dump(sb: &Superblock) -> bool {
    sb.fields.flags & FLAG_OLD_DUMP != 0
}

/// Why the chunks are not known; `cut`: what is missing at the end of the device, by the superblock.
pub(crate) fn unreadable_chunks(sb: &Superblock, cut: Option<&str>, error: Error) -> Error {
    match cut {
        _ if is_old_dump(sb) => made_up_chunks(error),
        Some(cut) => Error::corrupt(format!("{cut}; {error}")),
        None => several_devices(sb, error),
    }
}

/// Of such a one the chunks are made up: `btrfs` 6.2 and the kernel refuse it as well.
pub(crate) fn made_up_chunks(error: Error) -> Error {
    Error::Unsupported(format!(
        "a metadata dump that `btrfs-image -r -o` restored, which makes its chunks up; restored \
         without -o it can be read ({error})"
    ))
}

fn names(mut bits: u64, table: &[(u64, &str)]) -> String {
    let mut out = Vec::new();
    for (bit, name) in table {
        if bits & bit != 0 {
            out.push((*name).to_owned());
            bits &= !bit;
        }
    }
    out.extend((0..64).filter(|i| bits & 1 << i != 0).map(|i| format!("unknown bit {i}")));
    out.join(", ")
}

fn incompatible(sb: &Superblock) -> Result<()> {
    let unknown = sb.fields.incompat_flags & !INCOMPAT_SUPPORTED;
    if unknown != 0 {
        let names = names(unknown, incompat::NAMES);
        return Err(Error::Unsupported(format!("incompatible feature {names}")));
    }
    if sb.fields.incompat_flags & incompat::MIXED_BACKREF == 0 {
        return Err(Error::Unsupported("volume of the format before mixed_backref".into()));
    }
    match sb.fields.num_devices {
        0 => Err(Error::corrupt("superblock counts no devices")),
        _ => Ok(()),
    }
}

fn flags(sb: &Superblock) -> Result<()> {
    match sb.fields.flags & !FLAGS_READABLE {
        0 => Ok(()),
        odd => Err(Error::Unsupported(format!("superblock flag: {}", names(odd, FLAG_NAMES)))),
    }
}

fn sizes(sb: &Superblock) -> Result<()> {
    let f = &sb.fields;
    if f.sectorsize != 4096 {
        return Err(Error::Unsupported(format!("sector size {} (only 4096)", f.sectorsize)));
    }
    if !f.nodesize.is_power_of_two() || !btrfs_disk::ids::NODE_SIZES.contains(&f.nodesize) {
        return Err(Error::corrupt(format!("node size {}", f.nodesize)));
    }
    if f.root_level >= MAX_LEVEL || f.chunk_root_level >= MAX_LEVEL || f.log_root_level >= MAX_LEVEL
    {
        return Err(Error::corrupt("superblock names a root of an impossible level"));
    }
    for (what, at) in [("root", f.root), ("chunk root", f.chunk_root), ("log root", f.log_root)] {
        if at.0 % u64::from(f.sectorsize) != 0 {
            return Err(misaligned(what, at));
        }
    }
    Ok(())
}

/// What comes behind a commit, and its log, is one generation younger. Behind the last one no commit can have come; the
/// kernel refuses its root as well.
pub(crate) fn goes_on(generation: Generation) -> Result<()> {
    match generation.0 {
        u64::MAX => Err(Error::corrupt("generation 2^64-1, which nothing can come behind")),
        _ => Ok(()),
    }
}

/// No mount makes as many commits as there are from here on.
const GENERATIONS_END: u64 = u64::MAX - (1 << 48);

fn misaligned(what: &str, at: Logical) -> Error {
    Corrupt::new(format!("superblock's {what} is not aligned")).at(at).into()
}

/// No address is larger, logical or on a device: files of all hosts end there as well. So what lies in a chunk can be
/// added up, and rounded, without a look at each sum.
pub const ADDRESSES_END: u64 = i64::MAX as u64;

fn one_device(sb: &Superblock, mends_sizes: bool) -> Result<()> {
    let total = sb.fields.dev_item.total_bytes;
    if total > ADDRESSES_END {
        return Err(Error::corrupt(format!("device of {total} bytes")));
    }
    // Nothing but the device's own size could put the other right.
    let remedy = match total {
        0 => "",
        _ if mends_sizes || sizes_agree(sb) => return Ok(()),
        _ if sb.fields.num_devices > 1 => return Err(Error::Unsupported(ONE_OF_SEVERAL.into())),
        _ => " (`btrfs rescue fix-device-size` mends that)",
    };
    let volume = sb.fields.total_bytes;
    Err(Error::corrupt(format!("volume of {volume} bytes on its only device of {total}{remedy}")))
}

/// Whether the sizes of the volume and of its only device are such as can be opened: old programs
/// rounded one of the two down to whole sectors.
pub fn sizes_agree(sb: &Superblock) -> bool {
    sb.fields.dev_item.total_bytes.abs_diff(sb.fields.total_bytes) < 4096
}

/// A device that is shorter than its volume is a truncated image. What is there can be read.
pub(crate) fn truncated(sb: &Superblock, device_len: u64) -> Option<String> {
    let total = sb.fields.dev_item.total_bytes;
    (total > device_len)
        .then(|| format!("truncated: the volume has {total} bytes, the device {device_len}"))
}

/// Whether the superblock says that the free-space tree can be relied on.
pub(crate) fn has_free_space_tree(sb: &Superblock) -> bool {
    let both = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
    sb.fields.compat_ro_flags & both == both
}

fn identity(sb: &Superblock) -> Result<()> {
    if sb.fields.dev_item.fsid != sb.header_uuid() {
        return Err(Error::corrupt("superblock's device belongs to another volume"));
    }
    Ok(())
}

/// Why the volume must not be written, if so. `replays_log`: the caller will replay
/// (or, reading only, has chosen to ignore) a pending log tree.
pub(crate) fn read_only_reason(sb: &Superblock, replays_log: bool) -> Option<String> {
    let f = &sb.fields;
    let unknown = f.compat_ro_flags & !COMPAT_RO_SUPPORTED;
    if unknown != 0 {
        let names = names(unknown, compat_ro::NAMES);
        return Some(format!("feature that writing would damage: {names}"));
    }
    if f.generation.0 > GENERATIONS_END {
        return Some(format!("generation {}, which few commits can come behind", f.generation));
    }
    if f.flags & FLAG_ERROR != 0 {
        return Some("the volume is marked as damaged".into());
    }
    if f.flags & FLAGS_DUMP != 0 {
        return Some("a metadata dump by btrfs-image: file content is not in it".into());
    }
    if f.flags & FLAG_SEEDING != 0 {
        return Some("a seed, which stays as it is (`btrfstune -S 0` makes it writable)".into());
    }
    if f.log_root.0 != 0 && !replays_log {
        return Some("pending log tree".into());
    }
    None
}
