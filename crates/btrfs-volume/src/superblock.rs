//! The superblock copies of a device: finding them, choosing one, writing them all.
//!
//! The newest valid copy wins. Where the first copy is valid, only copies of the same
//! volume (same fsid) are its rivals, so that leftovers of an earlier, larger volume
//! never win; a copy behind the end of the volume that it describes is no copy.

use blockdev::BlockDevice;
use btrfs_disk::superblock::{COPIES, MAGIC, SUPER_SIZE};
use btrfs_disk::{Error, Result, Superblock};
use tracing::warn;

/// Bytes from each copy's start on that the allocators of the format keep clear.
pub const SUPER_EXCLUDED: u64 = 64 << 10;

/// Offsets of the copies that a volume of `total_bytes` has.
pub fn super_copies(total_bytes: u64) -> impl Iterator<Item = u64> {
    COPIES.into_iter().filter(move |at| at + SUPER_SIZE as u64 <= total_bytes)
}

/// The copy that a device is opened by.
pub(crate) struct Chosen {
    pub superblock: Superblock,
    /// The first copy does not even carry the magic: wiped or overwritten on purpose.
    pub first_is_wiped: bool,
}

enum Found {
    Valid(Box<Superblock>),
    Damaged(Error),
    NoMagic,
}

pub(crate) fn choose(dev: &dyn BlockDevice) -> Result<Chosen> {
    let found: Vec<(u64, Found)> =
        super_copies(dev.len()).map(|at| Ok((at, read_copy(dev, at)?))).collect::<Result<_>>()?;
    let first_is_wiped = matches!(found.first(), None | Some((_, Found::NoMagic)));
    let mut best: Option<Superblock> = None;
    let mut failure: Option<Error> = None;
    for (at, copy) in found {
        match copy {
            Found::Valid(superblock) if outranks(&superblock, at, best.as_ref()) => {
                best = Some(*superblock);
            }
            Found::Valid(_) | Found::NoMagic => {}
            Found::Damaged(error) => {
                warn!(device = %dev.name(), offset = at, %error, "bad superblock copy");
                failure.get_or_insert(error);
            }
        }
    }
    match (best, failure) {
        (Some(superblock), _) => Ok(Chosen { superblock, first_is_wiped }),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::corrupt(format!("{} is not a btrfs volume", dev.name()))),
    }
}

/// True if a valid copy found at `at` takes the place of the best one so far.
fn outranks(new: &Superblock, at: u64, best: Option<&Superblock>) -> bool {
    let within = at + SUPER_SIZE as u64 <= new.fields.total_bytes;
    within
        && match best {
            None => true,
            Some(best) => {
                new.fields.fsid == best.fields.fsid && new.generation() > best.generation()
            }
        }
}

fn read_copy(dev: &dyn BlockDevice, at: u64) -> Result<Found> {
    let mut bytes = [0; SUPER_SIZE];
    if let Err(source) = dev.read_at(at, &mut bytes) {
        let context = format!("{}: superblock copy at {at}", dev.name());
        return Ok(Found::Damaged(Error::io(context, source)));
    }
    if bytes[64..72] != MAGIC.to_le_bytes() {
        return Ok(Found::NoMagic);
    }
    Ok(match Superblock::parse(&bytes, at) {
        Ok(superblock) => Found::Valid(Box::new(superblock)),
        Err(error) => Found::Damaged(error),
    })
}
