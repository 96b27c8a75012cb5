//! Telling the device what is free: all of it, once, on request, or what is of given ranges.
//!
//! Invariants: while the device is told of a piece, nobody can allocate it. What is free
//! here is in use by no commit that a crash could fall back to, by no log, by no delta and by no
//! reader: it could be written over at once. Reservations are kept: a piece that they need is left
//! out, and pieces are small beside what is left.
//!
//! What it does not know: whether the device does anything with it.

use super::Space;
use super::group::Group;
use super::prove::Unproven;
use crate::Extent;
use crate::free_space::Ranges;
use btrfs_disk::{Error, Logical, Physical, Result};
use std::ops::Range;
use std::sync::Arc;

/// The device is told of so much at once.
/// Chosen, not measured.
const PIECE: u64 = 16 << 20;
/// Pieces are multiples of this, and no smaller but at the end of a range.
/// Chosen, not measured.
const GRAIN: u64 = 64 << 10;

impl Space {
    /// Discards what is free in the logical `range` and in no chunk, in ranges of `least`
    /// bytes and more; answers how many bytes of the device that were.
    /// Groups of which it cannot be read what is free are left out, and the error says so. Asks
    /// before each piece whether it `may_go_on`.
    pub fn trim(
        &self,
        range: Range<u64>,
        least: u64,
        may_go_on: &dyn Fn() -> Result<()>,
    ) -> Result<u64, Unproven> {
        let groups: Vec<Arc<Group>> = self.groups.read().values().cloned().collect();
        let (mut bytes, mut unread) = (0, None);
        for group in groups {
            if group.start >= range.end || range.start >= group.end() {
                continue;
            }
            match self.prove(&group) {
                Ok(()) => bytes += self.trim_group(&group, &range, least, may_go_on)?,
                Err(why @ Unproven::Unread(_)) => unread = unread.or(Some(why)),
                Err(wrong) => return Err(wrong),
            }
        }
        bytes += self.trim_unallocated(least, may_go_on)?;
        unread.map_or(Ok(bytes), Err)
    }

    fn trim_group(
        &self,
        group: &Group,
        range: &Range<u64>,
        least: u64,
        may_go_on: &dyn Fn() -> Result<()>,
    ) -> Result<u64> {
        let mut bytes = 0;
        for (start, end) in group.free_within(range) {
            if end - start < least.max(1) {
                continue;
            }
            let mut at = start;
            while at < end {
                may_go_on()?;
                let piece = piece(group, at, end);
                at += piece.len;
                bytes += self.tell(group, &piece)?.unwrap_or(0);
            }
        }
        Ok(bytes)
    }

    /// Discards what is free of `ranges`; answers what was left out and may still be free. A
    /// device that cannot discard is no error.
    pub fn discard_free(&self, ranges: &Ranges) -> Result<Vec<Extent>> {
        let groups: Vec<Arc<Group>> = self.groups.read().values().cloned().collect();
        let mut left_out = Vec::new();
        for group in groups {
            let (mut at, mut free) = (group.start, Vec::new());
            while let Some((start, len)) = ranges.from(at).filter(|(s, _)| *s < group.end()) {
                free.extend(group.free_within(&(start..start + len)));
                at = start + len;
            }
            if !free.is_empty() {
                match self.prove(&group) {
                    Ok(()) => self.discard_of_group(&group, &free, &mut left_out)?,
                    // It may be in use.
                    Err(Unproven::Unread(_)) => {}
                    Err(wrong) => return Err(wrong.into()),
                }
            }
        }
        Ok(left_out)
    }

    fn discard_of_group(
        &self,
        group: &Group,
        free: &[(u64, u64)],
        left_out: &mut Vec<Extent>,
    ) -> Result<()> {
        for &(mut at, end) in free {
            while at < end {
                let piece = piece(group, at, end);
                at += piece.len;
                match self.tell(group, &piece) {
                    Ok(Some(_)) | Err(Error::Io { .. }) => {}
                    Ok(None) => left_out.push(piece),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// How many bytes the device was told of. `None`: it is in use again, or a reservation needs it.
    fn tell(&self, group: &Group, piece: &Extent) -> Result<Option<u64>> {
        if !group.hold(piece) {
            return Ok(None);
        }
        let told = self.volume.discard(piece.logical, piece.len);
        group.release(piece, false)?;
        told.map(Some)
    }

    /// No chunk is made while a piece is with the device.
    fn trim_unallocated(&self, least: u64, may_go_on: &dyn Fn() -> Result<()>) -> Result<u64> {
        let holes: Vec<(u64, u64)> = self.device.lock().holes.iter().collect();
        let mut bytes = 0;
        for (start, len) in holes.into_iter().filter(|(_, len)| *len >= least.max(1)) {
            for at in (start..start + len).step_by(PIECE as usize) {
                may_go_on()?;
                let end = (at + PIECE).min(start + len);
                let device = self.device.lock();
                let still = device.holes.containing(at).is_some_and(|(s, l)| end <= s + l);
                if still {
                    bytes += self.volume.discard_physical(Physical(at), end - at)?;
                }
            }
        }
        Ok(bytes)
    }
}

/// What the device is told of first, of what is free from `at` to `end`.
fn piece(group: &Group, at: u64, end: u64) -> Extent {
    let left = group.class.available().max(0) as u64 / 8;
    let len = (left / GRAIN * GRAIN).clamp(GRAIN, PIECE).min(end - at);
    Extent { logical: Logical(at), len }
}
