//! Content of compressed extents.
//!
//! Invariants: no byte of an extent is decompressed whose checksum was not verified, unless the file
//! has none (see [`Trust`]); whatever an extent says of itself, a reader takes no more memory than the longest
//! one that the format allows. Damage says where it is.

use super::sums;
use super::trust::Trust;
use crate::error::IntoFs;
use btrfs_disk::items::{Compression, FileExtentFields};
use btrfs_disk::{Corrupt, DamageKind, compress};
use btrfs_txn::{Core, View};
use vfs::Result;

/// Content of an item, from `within` on.
pub(super) fn read_inline(
    core: &Core,
    compression: Compression,
    stream: &[u8],
    ram_bytes: u64,
    within: u64,
    buf: &mut [u8],
) -> std::result::Result<(), Corrupt> {
    let mut whole = vec![0; compress::bounded(ram_bytes)?];
    compress::decompress(compression, core.geometry.sector_size as usize, stream, &mut whole)?;
    copy_padded(&whole, within as usize, buf);
    Ok(())
}

/// `whole[skip..]` into `buf`, zeros where it ends early.
pub(super) fn copy_padded(whole: &[u8], skip: usize, buf: &mut [u8]) {
    let source = whole.get(skip..).unwrap_or(&[]);
    let take = source.len().min(buf.len());
    buf[..take].copy_from_slice(&source[..take]);
    buf[take..].fill(0);
}

/// An extent that is to be read.
pub(super) struct Compressed<'a> {
    pub(super) core: &'a Core,
    pub(super) view: &'a View<'a>,
    pub(super) trust: Trust,
    pub(super) compression: Compression,
    pub(super) fields: &'a FileExtentFields,
}

impl Compressed<'_> {
    /// Its content from `skip` on.
    pub(super) fn read(&self, skip: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.fields.disk_bytenr;
        let len = self.told(compress::bounded(self.fields.ram_bytes))?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let end = skip.saturating_add(buf.len()).min(len);
        if self.trust != Trust::Sums {
            let whole = self.decompressed(None, end)?;
            copy_padded(&whole, skip, buf);
            return Ok(());
        }
        let sums = self.sums()?;
        let kept = self.core.contents.get(at.0, &sums);
        if let Some(content) = kept.as_ref().filter(|content| content.len() >= end) {
            copy_padded(content, skip, buf);
            return Ok(());
        }
        if skip == 0 && end == len {
            // Nothing of it is left for others.
            self.fill(Some(&sums), &mut buf[..len])?;
            buf[len..].fill(0);
            return Ok(());
        }
        // A look at the beginning is cheap; who wants more of it will want the rest.
        let wanted = if kept.is_none() && end <= len / 2 { end } else { len };
        let content = self.decompressed(Some(&sums), wanted)?;
        copy_padded(&content, skip, buf);
        self.core.contents.keep(at.0, sums.into(), content.into());
        Ok(())
    }

    fn told<T>(&self, result: std::result::Result<T, Corrupt>) -> Result<T> {
        result.map_err(|c| c.kind(DamageKind::Content).at(self.fields.disk_bytenr)).fs()
    }

    fn sums(&self) -> Result<Vec<u8>> {
        let at = self.fields.disk_bytenr;
        let sectors =
            self.told(compress::bounded(self.fields.disk_num_bytes))? as u64 / self.core.sector();
        sums::lookup(self.core, self.view, at, at, sectors as usize)
    }

    /// The first `len` bytes.
    fn decompressed(&self, sums: Option<&[u8]>, len: usize) -> Result<Vec<u8>> {
        let mut content = vec![0; len];
        self.fill(sums, &mut content)?;
        Ok(content)
    }

    /// As much of the content as `out` takes.
    fn fill(&self, sums: Option<&[u8]>, out: &mut [u8]) -> Result<()> {
        let at = self.fields.disk_bytenr;
        let mut stored = vec![0; self.told(compress::bounded(self.fields.disk_num_bytes))?];
        match self.trust {
            Trust::Blind => self.core.volume.read_blindly(at, &mut stored).fs()?,
            Trust::Sums | Trust::Place => {
                self.core.volume.read_data(at, &mut stored, sums).fs()?;
            }
        }
        let sector = self.core.geometry.sector_size as usize;
        self.told(compress::decompress(self.compression, sector, &stored, out))
    }
}
