//! EXTENT_CSUM: one digest a sector, from the key's offset on.

use super::ensure;
use super::item::{Item, Rules, Verdict, end_of};
use crate::error::Corrupt;
use crate::ids::EXTENT_CSUM_OBJECTID;
use crate::key::kind;
use crate::le::wide;

pub(super) fn csum(rules: &Rules<'_>, item: &Item<'_>) -> Verdict {
    let size = rules.geometry.csum.size();
    ensure!(item.key.objectid == EXTENT_CSUM_OBJECTID, "checksums of owner {}", item.key.objectid);
    rules.aligned("checksums at", item.key.offset)?;
    ensure!(
        !item.data.is_empty() && item.data.len().is_multiple_of(size),
        "{} bytes of checksums of {size}",
        item.data.len()
    );
    covered(rules, item.key.offset, item.data)?;
    if let Some((key, data)) = item.previous_of(&[kind::EXTENT_CSUM]) {
        let end = covered(rules, key.offset, data)?;
        ensure!(end <= item.key.offset, "the checksums in front end at {end}");
    }
    Ok(())
}

/// Where the range ends that an item speaks of.
fn covered(rules: &Rules<'_>, start: u64, data: &[u8]) -> Result<u64, Corrupt> {
    let sectors = wide(data.len() / rules.geometry.csum.size());
    end_of("checksums", start, sectors.saturating_mul(rules.sector()))
}
