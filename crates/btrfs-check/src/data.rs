//! Reads every checksummed block of data from every copy and verifies it.

use crate::source::{Context, reason};
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::Logical;
use btrfs_disk::key::kind;

/// Bytes read at a time.
/// Chosen, not measured.
const BATCH: u64 = 1 << 20;

/// What became of one sector.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    /// Bad in this copy (from 1), good in another.
    Spare(usize),
    Lost,
}

/// Verifies what the checksum items of one leaf cover.
pub(crate) fn leaf(cx: &mut Context<'_>, leaf: &Leaf<'_>) {
    let size = cx.geometry.csum.size();
    for (key, sums) in leaf.node.items() {
        if key.kind != kind::EXTENT_CSUM || !sums.len().is_multiple_of(size) {
            continue;
        }
        let sector = u64::from(cx.geometry.sector_size);
        let mut at = key.offset;
        for part in sums.chunks((BATCH / sector) as usize * size) {
            let len = (part.len() / size) as u64 * sector;
            batch(cx, at, len, part);
            let Some(next) = at.checked_add(len) else { break };
            at = next;
        }
    }
}

/// One read from each copy; checksum items may go on across chunks, batches that do are
/// split by the sector.
fn batch(cx: &mut Context<'_>, at: u64, len: u64, sums: &[u8]) {
    let sector = u64::from(cx.geometry.sector_size);
    let copies = match cx.volume.mirrors(Logical(at)) {
        Ok(copies) => copies,
        Err(e) => return lost(cx, at, len, reason(&e)),
    };
    let chunk_end = cx.volume.chunk(Logical(at)).map_or(u64::MAX, |chunk| chunk.end());
    if at < chunk_end && len > chunk_end - at {
        let first = (chunk_end - at) / sector * sector;
        if first > 0 {
            let cut = (first / sector) as usize * cx.geometry.csum.size();
            batch(cx, at, first, &sums[..cut]);
            return batch(cx, at + first, len - first, &sums[cut..]);
        }
    }
    let mut bad: Vec<Vec<bool>> = Vec::new();
    let mut why = String::from("its checksum fails");
    for copy in 0..copies {
        let (verdicts, error) = read_copy(cx, at, len, sums, copy);
        why = error.unwrap_or(why);
        bad.push(verdicts);
        cx.report.totals.verified_bytes += len;
    }
    cx.step(len, 64 << 20);
    report(cx, at, &bad, &why);
}

/// Whether each sector is bad in this copy.
fn read_copy(
    cx: &Context<'_>,
    at: u64,
    len: u64,
    sums: &[u8],
    copy: usize,
) -> (Vec<bool>, Option<String>) {
    let (csum, sector) = (cx.geometry.csum, cx.geometry.sector_size as usize);
    let mut buf = vec![0; len as usize];
    if cx.volume.read_mirror(Logical(at), copy, &mut buf).is_ok() {
        let pairs = buf.chunks(sector).zip(sums.chunks(csum.size()));
        return (pairs.map(|(b, sum)| csum.digest(b)[..csum.size()] != *sum).collect(), None);
    }
    // One bad sector fails the whole read: look at each sector alone.
    let mut error = None;
    let pairs = buf.chunks_mut(sector).zip(sums.chunks(csum.size()));
    let verdicts = pairs.enumerate().map(|(i, (part, sum))| {
        let at = Logical(at + (i * sector) as u64);
        match cx.volume.read_mirror(at, copy, part) {
            Ok(()) => csum.digest(part)[..csum.size()] != *sum,
            Err(e) => {
                error = Some(reason(&e));
                true
            }
        }
    });
    (verdicts.collect(), error)
}

/// One finding for each run of sectors with the same fate.
fn report(cx: &mut Context<'_>, at: u64, bad: &[Vec<bool>], why: &str) {
    let sector = u64::from(cx.geometry.sector_size);
    let count = bad.first().map_or(0, Vec::len);
    let verdict = |i: usize| match bad.iter().position(|copy| copy[i]) {
        None => Verdict::Good,
        Some(_) if bad.iter().all(|copy| copy[i]) => Verdict::Lost,
        Some(copy) => Verdict::Spare(copy + 1),
    };
    let mut first = 0;
    while first < count {
        let fate = verdict(first);
        let len = (first..count).take_while(|i| verdict(*i) == fate).count();
        let (start, bytes) = (at + first as u64 * sector, len as u64 * sector);
        match fate {
            Verdict::Good => {}
            Verdict::Lost => lost(cx, start, bytes, why.into()),
            Verdict::Spare(copy) => {
                cx.add(Finding::new(FindingKind::DataCopyBad { copy, len: bytes }).at(start));
            }
        }
        first += len;
    }
}

fn lost(cx: &mut Context<'_>, at: u64, len: u64, why: String) {
    cx.add(Finding::new(FindingKind::DataUnreadable { len, why }).at(at));
}
