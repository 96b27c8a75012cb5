//! Telling the device what is free: all of it, once, on request.
//!
//! Invariants: while the device is told of a piece, nobody can allocate it. What is free
//! here is in use by no commit that a crash could fall back to, and by no log. Promises are
//! kept: a piece that they need is left out, and pieces are small beside what is left.
//!
//! What it does not know: whether the device does anything with it.

use super::Space;
use super::group::Group;
use crate::Extent;
use btrfs_disk::{Logical, Physical, Result};
use std::ops::Range;
use std::sync::Arc;

/// The device is told of so much at once.
const PIECE: u64 = 16 << 20;
/// Pieces are multiples of this, and no smaller but at the end of a range.
const GRAIN: u64 = 64 << 10;

impl Space {
    /// Discards what is free in the logical `range` and in no chunk, in ranges of `least`
    /// bytes and more; answers how many bytes of the device that were.
    pub fn trim(&self, range: Range<u64>, least: u64) -> Result<u64> {
        let groups: Vec<Arc<Group>> = self.groups.read().values().cloned().collect();
        let mut bytes = 0;
        for group in groups {
            if group.start < range.end && range.start < group.end() {
                self.prove(&group)?;
                bytes += self.trim_group(&group, &range, least)?;
            }
        }
        Ok(bytes + self.trim_unallocated(least)?)
    }

    fn trim_group(&self, group: &Group, range: &Range<u64>, least: u64) -> Result<u64> {
        let copies = group.class.copies();
        let mut bytes = 0;
        for (start, len) in group.free_ranges() {
            let (mut at, end) = (start.max(range.start), (start + len).min(range.end));
            if end.saturating_sub(at) < least.max(1) {
                continue;
            }
            while at < end {
                let left = group.class.available().max(0) as u64 / 8;
                let len = (left / GRAIN * GRAIN).clamp(GRAIN, PIECE).min(end - at);
                let piece = Extent { logical: Logical(at), len };
                at += len;
                if group.hold(&piece) {
                    let told = self.volume.discard(piece.logical, len);
                    group.release(&piece, false)?;
                    told?;
                    bytes += len * copies;
                }
            }
        }
        Ok(bytes)
    }

    /// No chunk is made while a piece is with the device.
    fn trim_unallocated(&self, least: u64) -> Result<u64> {
        let holes: Vec<(u64, u64)> = self.device.lock().holes.iter().collect();
        let mut bytes = 0;
        for (start, len) in holes.into_iter().filter(|(_, len)| *len >= least.max(1)) {
            for at in (start..start + len).step_by(PIECE as usize) {
                let end = (at + PIECE).min(start + len);
                let device = self.device.lock();
                let still = device.holes.containing(at).is_some_and(|(s, l)| end <= s + l);
                if still {
                    self.volume.discard_physical(Physical(at), end - at)?;
                    bytes += end - at;
                }
            }
        }
        Ok(bytes)
    }
}
