//! Reading around what cannot be read: everything else of a file comes out.
//!
//! Invariant: each byte of the range is handed over once, as good or as lost, in order. What is
//! lost is told in runs of whole sectors, with the reason of the first; what nothing vouches for when all is
//! handed over.

use vfs::{Damage, DamageKind, FileSystem, FsError, Ino};

/// The grain of checksums.
const SECTOR: u64 = btrfs_disk::ids::SECTOR_SIZE as u64;

/// What `read_around` hands over.
// Exhaustive: who copies must write, report or refuse each; one passed over is content lost in
// silence.
pub enum Piece<'a> {
    /// Content that could be read.
    Good(&'a [u8]),
    /// So many bytes could not be read.
    Lost(u64, FsError),
    /// So many bytes of what was handed over as good are not what their checksum says: who opened
    /// the volume has asked for them all the same.
    Unverified(u64),
}

/// Reads `start..end` of a file through `buffer`; ends early where the file does.
pub fn read_around<E>(
    fs: &dyn FileSystem,
    ino: Ino,
    (start, end): (u64, u64),
    buffer: &mut [u8],
    take: &mut dyn FnMut(u64, Piece<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut lost: Option<(u64, FsError)> = None;
    let (mut at, mut small_until) = (start, start);
    while at < end {
        let sector_end = (at / SECTOR + 1) * SECTOR;
        let stop = if at < small_until { sector_end } else { at + buffer.len() as u64 }.min(end);
        let want = (stop - at) as usize;
        match fs.read(ino, at, &mut buffer[..want]) {
            Ok(0) => break,
            Ok(got) => {
                tell(&mut lost, at, take)?;
                take(at, Piece::Good(&buffer[..got]))?;
                at += got as u64;
            }
            // Which sector it is shows when they are read one by one.
            Err(_) if at >= small_until && stop > sector_end => small_until = stop,
            Err(error) => {
                lost.get_or_insert((at, error));
                at = stop;
            }
        }
    }
    tell(&mut lost, at, take)?;
    fs.take_unverified(ino).into_iter().try_for_each(|(at, len)| take(at, Piece::Unverified(len)))
}

/// Why nothing vouches for content that was handed over.
pub fn unverified() -> FsError {
    let mut damage = Damage::new("the content is not what its checksum says, or has none");
    damage.kind = DamageKind::Content;
    damage.into()
}

fn tell<E>(
    lost: &mut Option<(u64, FsError)>,
    end: u64,
    take: &mut dyn FnMut(u64, Piece<'_>) -> Result<(), E>,
) -> Result<(), E> {
    match lost.take() {
        Some((from, why)) => take(from, Piece::Lost(end - from, why)),
        None => Ok(()),
    }
}
