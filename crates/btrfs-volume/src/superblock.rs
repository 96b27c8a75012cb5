//! The superblock copies of a device: finding them, choosing one, writing them all.
//!
//! The newest valid copy wins; a copy behind the end of the volume that it describes is no copy. Where the first one
//! is valid, which is the only one that the kernel reads, its rivals are copies of the same volume (same fsid) within
//! the size that it says, and newer by no more than what a failed flush explains. So leftovers never win, neither of
//! an earlier, larger volume nor of the same one from before an older state of it was put back (a sparse backup).
//! Whether such a rival leads to what is there still is another's to say (`rival`).
//!
//! Choosing writes nothing. Copies that say something else than the chosen one are told
//! (`Stale`); when they may be rewritten is the volume's business.

use blockdev::BlockDevice;
use btrfs_disk::superblock::{COPIES, MAGIC, SUPER_SIZE};
use btrfs_disk::{Error, Result, Superblock};
use tracing::warn;

/// Bytes from each copy's start on that the allocators of the format keep clear.
pub const SUPER_EXCLUDED: u64 = btrfs_disk::ids::STRIPE_LEN;

/// Commits that another copy can be in front of a first one that is valid. Spare copies follow the first, so one: who
/// mended the spare ones by a newer first one, which a cache alone had, was cut before he wrote that as well.
/// And one more, which is chosen, not known.
const AHEAD: u64 = 2;

/// Where the one is that the kernel reads.
pub(crate) const FIRST: u64 = COPIES[0];

/// Offsets of the copies that a volume of `total_bytes` has.
pub fn super_copies(total_bytes: u64) -> impl Iterator<Item = u64> {
    COPIES.into_iter().filter(move |at| at + SUPER_SIZE as u64 <= total_bytes)
}

/// The copy that a device is opened by.
pub(crate) struct Chosen {
    pub superblock: Superblock,
    /// The first copy does not even carry the magic: wiped or overwritten on purpose.
    pub first_is_wiped: bool,
    /// Where the volume has copies that do not say the same.
    pub differing: Vec<u64>,
}

/// What a crash or a bad sector left: copies of `opened` that are older, damaged, missing
/// or lead to another log.
pub(crate) struct Stale {
    pub opened: Superblock,
    pub copies: Vec<u64>,
}

/// What there is to know of the copies between two that are written.
#[derive(Default)]
pub(crate) struct Copies {
    /// To be mended before the next one.
    pub stale: Option<Stale>,
    /// Not the first one: places that the device refused last. What they say, if anything, is older.
    pub refused: Vec<u64>,
}

/// What is bad may be refused as well, and the device is to tell that at once.
pub(crate) fn may_be_refused(refused: &mut Vec<u64>, bad: &[u64]) {
    refused.extend(bad.iter().filter(|at| **at != FIRST));
    refused.sort_unstable();
    refused.dedup();
}

enum Found {
    Valid(Box<Superblock>),
    Damaged(Error),
    NoMagic,
}

/// Whether a newer copy, the first of the two, counts beside a valid first one.
pub(crate) type Counts<'a> = &'a dyn Fn(&Superblock, &Superblock) -> bool;

pub(crate) fn choose(dev: &dyn BlockDevice, counts: Counts<'_>) -> Result<Chosen> {
    if !dev.read_only() {
        // One that could not be written may be cached still, and all there is on the medium is another.
        super_copies(dev.len()).for_each(|at| dev.uncache(at, SUPER_SIZE as u64));
    }
    let found: Vec<(u64, Found)> =
        super_copies(dev.len()).map(|at| Ok((at, read_copy(dev, at)?))).collect::<Result<_>>()?;
    let first_is_wiped = matches!(found.first(), None | Some((_, Found::NoMagic)));
    let first = match found.first() {
        Some((FIRST, Found::Valid(first))) => Some(&**first),
        _ => None,
    };
    let mut best: Option<Superblock> = None;
    for (at, copy) in &found {
        match copy {
            Found::Valid(superblock) if outranks(superblock, *at, best.as_ref()) => {
                if first.is_none_or(|first| {
                    is_rival(dev, superblock, *at, first) && counts(superblock, first)
                }) {
                    best = Some(Superblock::clone(superblock));
                }
            }
            Found::Valid(_) | Found::NoMagic => {}
            Found::Damaged(error) => {
                warn!(device = %dev.name(), offset = *at, %error, "bad superblock copy");
            }
        }
    }
    if let Some(superblock) = best {
        let differing = differing(&found, &superblock);
        return Ok(Chosen { superblock, first_is_wiped, differing });
    }
    // The first copy's reason tells most.
    let reason = found.into_iter().find_map(|(_, copy)| match copy {
        Found::Damaged(error) => Some(error),
        Found::Valid(_) | Found::NoMagic => None,
    });
    Err(reason.unwrap_or_else(|| no_volume(dev.len())))
}

/// The one copy with this number.
pub(crate) fn copy(dev: &dyn BlockDevice, number: usize) -> Result<Chosen> {
    let offset = COPIES.get(number).copied();
    let at = offset.ok_or_else(|| Error::corrupt("a superblock has three copies: 0, 1 and 2"))?;
    if at + SUPER_SIZE as u64 > dev.len() {
        let what = format!("superblock copy {number} lies at {at}; it has {} bytes", dev.len());
        return Err(Error::NotBtrfs(what));
    }
    match read_copy(dev, at)? {
        Found::Valid(superblock) => {
            Ok(Chosen { superblock: *superblock, first_is_wiped: false, differing: Vec::new() })
        }
        Found::Damaged(error) => Err(error),
        Found::NoMagic => Err(Error::NotBtrfs(format!("there is no superblock at {at}"))),
    }
}

fn no_volume(len: u64) -> Error {
    Error::NotBtrfs(match super_copies(len).next() {
        None => format!("it has {len} bytes"),
        Some(_) => "it has no superblock".into(),
    })
}

/// The copies of the volume that do not say what `chosen` does.
fn differing(found: &[(u64, Found)], chosen: &Superblock) -> Vec<u64> {
    let agrees = |at: u64| {
        let copy = found.iter().find(|(place, _)| *place == at);
        matches!(copy, Some((_, Found::Valid(copy))) if same(copy, chosen))
    };
    super_copies(chosen.fields.dev_item.total_bytes).filter(|at| !agrees(*at)).collect()
}

/// Equal but for what each copy says of itself.
pub(crate) fn same(a: &Superblock, b: &Superblock) -> bool {
    let mut a = a.clone();
    (a.fields.csum, a.fields.bytenr) = (b.fields.csum, b.fields.bytenr);
    a == *b
}

/// True if a valid copy found at `at` takes the place of the best one so far.
fn outranks(new: &Superblock, at: u64, best: Option<&Superblock>) -> bool {
    // The first copy is where a volume begins, whatever size it says.
    let within = at == COPIES[0] || at + SUPER_SIZE as u64 <= new.fields.total_bytes;
    within
        && match best {
            None => true,
            Some(best) => {
                new.fields.fsid == best.fields.fsid && new.generation() > best.generation()
            }
        }
}

/// Whether a newer copy at `at` can be of the volume that a valid first copy describes.
fn is_rival(dev: &dyn BlockDevice, new: &Superblock, at: u64, first: &Superblock) -> bool {
    let inside = at == FIRST || at + SUPER_SIZE as u64 <= first.fields.dev_item.total_bytes;
    let is_rival = inside && new.generation().0 <= first.generation().0.saturating_add(AHEAD);
    if !is_rival {
        left_over(dev, new, at);
    }
    is_rival
}

fn left_over(dev: &dyn BlockDevice, copy: &Superblock, at: u64) {
    warn!(
        device = %dev.name(), offset = at, generation = copy.generation().0,
        "a superblock copy of this volume that the first one does not know is passed over: an older state of the \
         volume may have been put back"
    );
}

/// Whether the copy at `at` is one of `current`, of the same commit.
pub(crate) fn is_valid(dev: &dyn BlockDevice, at: u64, current: &Superblock) -> bool {
    is_of(read_copy(dev, at), current)
}

/// The same of what the medium has.
pub(crate) fn is_on_medium(dev: &dyn BlockDevice, at: u64, current: &Superblock) -> bool {
    let mut bytes = [0; SUPER_SIZE];
    let read = dev.read_medium(at, &mut bytes);
    is_of(judged(dev, at, read.map(|()| &bytes)), current)
}

fn is_of(found: Result<Found>, current: &Superblock) -> bool {
    match found {
        Ok(Found::Valid(copy)) => {
            copy.fields.fsid == current.fields.fsid && copy.generation() == current.generation()
        }
        _ => false,
    }
}

fn read_copy(dev: &dyn BlockDevice, at: u64) -> Result<Found> {
    let mut bytes = [0; SUPER_SIZE];
    let read = dev.read_at(at, &mut bytes);
    judged(dev, at, read.map(|()| &bytes))
}

fn judged(
    dev: &dyn BlockDevice,
    at: u64,
    read: std::io::Result<&[u8; SUPER_SIZE]>,
) -> Result<Found> {
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(source) => {
            let context = format!("{}: superblock copy at {at}", dev.name());
            return Ok(Found::Damaged(Error::io(context, source)));
        }
    };
    if bytes[64..72] != MAGIC.to_le_bytes() {
        return Ok(Found::NoMagic);
    }
    Ok(match Superblock::parse(bytes, at) {
        Ok(superblock) => Found::Valid(Box::new(superblock)),
        Err(error) => Found::Damaged(error),
    })
}
