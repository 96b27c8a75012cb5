//! Checksums of data sectors: from the deltas where data has just landed, else from the
//! checksum tree.

use crate::error::IntoFs;
use crate::error::from_corrupt;
use btrfs_disk::ids::EXTENT_CSUM_OBJECTID;
use btrfs_disk::key::kind::EXTENT_CSUM;
use btrfs_disk::{Corrupt, DamageKind, Key, Logical, TreeId};
use btrfs_tree::Cursor;
use btrfs_txn::{Core, Roots, View};
use vfs::Result;

/// Checksums of `count` sectors from `at` on, in the extent that begins at `extent`.
/// A missing one is damage: data that should have a checksum is not handed out without.
pub(crate) fn lookup(
    core: &Core,
    view: &View<'_>,
    extent: Logical,
    at: Logical,
    count: usize,
) -> Result<Vec<u8>> {
    looked_up(core, view, None, (extent, at, count))
}

/// The same of an extent of an earlier commit, whose `roots` somebody holds: it may have moved since, and be known
/// under another address. Who changed it where it is gave it other checksums.
pub(crate) fn lookup_earlier(
    core: &Core,
    roots: &Roots,
    extent: Logical,
    at: Logical,
    count: usize,
) -> Result<Vec<u8>> {
    looked_up(core, &core.view(), Some(roots), (extent, at, count))
}

fn looked_up(
    core: &Core,
    view: &View<'_>,
    earlier: Option<&Roots>,
    (extent, at, count): (Logical, Logical, usize),
) -> Result<Vec<u8>> {
    let size = core.geometry.csum.size();
    let sector = core.sector();
    let mut out = vec![0; count * size];
    let mut known = vec![false; count];
    view.pending_sums(extent, at, sector, size, &mut out, &mut known);
    for roots in [Some(&*view.layers.roots), earlier].into_iter().flatten() {
        if known.iter().any(|k| !k) {
            stored(core, roots, at, &mut out, &mut known)?;
        }
    }
    match known.iter().position(|k| !k) {
        None => Ok(out),
        Some(missing) => {
            let at = at.offset(missing as u64 * sector);
            let corrupt = Corrupt::new("file content without a checksum").at(at);
            Err(from_corrupt(corrupt.kind(DamageKind::Content)))
        }
    }
}

/// What the checksum tree of a commit has of `known.len()` sectors from `at` on, where not known yet.
pub(crate) fn stored(
    core: &Core,
    roots: &Roots,
    at: Logical,
    out: &mut [u8],
    known: &mut [bool],
) -> Result<()> {
    let (size, sector) = (core.geometry.csum.size(), core.sector());
    let end = at.0 + known.len() as u64 * sector;
    let Some(root) = roots.get(TreeId::CSUM) else { return Ok(()) };
    let key = |offset| Key::new(EXTENT_CSUM_OBJECTID, EXTENT_CSUM, offset);
    let mut cursor = Cursor::new(&core.store, &root.root).below(Some(key(end)));
    cursor.seek_back(&key(at.0)).fs()?;
    if cursor.item().is_none() {
        cursor.seek(&key(at.0)).fs()?;
    }
    while let Some((found, sums)) = cursor.item() {
        if found.offset >= end {
            break;
        }
        let item_end = found.offset + (sums.len() / size) as u64 * sector;
        let (from, to) = (found.offset.max(at.0), item_end.min(end));
        let mut address = from;
        while address < to {
            let slot = ((address - at.0) / sector) as usize;
            let source = ((address - found.offset) / sector) as usize * size;
            if !known[slot] {
                out[slot * size..][..size].copy_from_slice(&sums[source..source + size]);
                known[slot] = true;
            }
            address += sector;
        }
        cursor.next().fs()?;
    }
    Ok(())
}

/// Checksums of `slices`, which together are whole sectors.
pub(crate) fn compute(core: &Core, slices: &[&[u8]]) -> Box<[u8]> {
    let sector = core.sector() as usize;
    let csum = core.geometry.csum;
    let total: usize = slices.iter().map(|s| s.len()).sum();
    let mut out = Vec::with_capacity(total / sector * csum.size());
    for slice in slices {
        debug_assert!(slice.len().is_multiple_of(sector), "slices are whole sectors");
        for part in slice.chunks_exact(sector) {
            out.extend_from_slice(&csum.digest(part)[..csum.size()]);
        }
    }
    out.into()
}
