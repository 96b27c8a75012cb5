//! Copies of content that is about to move: made before anybody is held up, looked at again while
//! all is still.
//!
//! Invariants: what has checksums is read by them, so a bad copy is mended from a good one, and what
//! has no good one is not moved; the checksums themselves move with it. Content all of which has
//! checksums does not change where it lies (it would have others), so its copy is good as long
//! as they are; other content is copied again when nobody can write. A copy that no commit has is
//! given back.
//!
//! What it does not know: who names the content, and commits.

use crate::error::IntoFs;
use crate::extents::sums;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, Logical, TreeId};
use btrfs_space::{DataReservation, Extent, Items, MoveContent, TreeItems};
use btrfs_txn::Core;
use vfs::Result;

/// Bytes that are read at a time.
/// Chosen, not measured.
const PIECE: u64 = 1 << 20;

type Sums = Vec<(Logical, Box<[u8]>)>;

struct Copied {
    what: MoveContent,
    /// At the old address.
    sums: Sums,
    /// Every sector has one.
    firm: bool,
}

pub(super) struct Copies<'c> {
    core: &'c Core,
    room: DataReservation,
    made: Vec<Copied>,
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        self.end(&[]);
    }
}

impl<'c> Copies<'c> {
    /// None yet; `room` is for all of them.
    pub(super) fn new(core: &'c Core, room: DataReservation) -> Copies<'c> {
        Copies { core, room, made: Vec::new() }
    }

    /// As many as there is room for in one piece each, but one.
    pub(super) fn make(&mut self, extents: &[Extent]) -> Result<()> {
        for extent in extents {
            let to = match self.room.alloc_to_move(&self.core.space, extent.len) {
                Ok(to) => to.logical,
                Err(btrfs_disk::Error::NoSpace) if !self.made.is_empty() => break,
                Err(error) => return Err(error).fs(),
            };
            let what = MoveContent { from: *extent, to };
            self.made.push(Copied { what, sums: Sums::new(), firm: false });
            let (sums, firm) = self.copy(&what)?;
            let copied = self.made.last_mut().expect("just made");
            (copied.sums, copied.firm) = (sums, firm);
        }
        Ok(())
    }

    pub(super) fn moves(&self) -> Vec<MoveContent> {
        self.made.iter().map(|copied| copied.what).collect()
    }

    /// Of all copies, at their addresses.
    pub(super) fn sums(&self) -> Sums {
        let there = |copied: &Copied| {
            let what = copied.what;
            let at = move |at: Logical| what.to.offset(at.0 - what.from.logical.0);
            copied.sums.iter().map(move |(from, sums)| (at(*from), sums.clone())).collect()
        };
        self.made.iter().flat_map(there as fn(&Copied) -> Sums).collect()
    }

    /// Nobody can write: what may have changed since is copied again, and what is gone is forgotten.
    pub(super) fn refresh(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.made.len() {
            let copied = &self.made[at];
            let what = copied.what;
            if !self.is_there(&what.from)? {
                self.core.give_back(extent_at(&what));
                self.made.remove(at);
                continue;
            }
            if !copied.firm || self.sums_of(&what.from)?.0 != copied.sums {
                let (sums, firm) = self.copy(&what)?;
                (self.made[at].sums, self.made[at].firm) = (sums, firm);
            }
            at += 1;
        }
        Ok(())
    }

    /// Those that a commit did not take are given back.
    pub(super) fn end(&mut self, taken: &[MoveContent]) {
        for copied in self.made.drain(..).filter(|copied| !taken.contains(&copied.what)) {
            self.core.give_back(extent_at(&copied.what));
        }
    }

    fn is_there(&self, extent: &Extent) -> Result<bool> {
        let roots = self.core.roots();
        let Some(extents) = roots.get(TreeId::EXTENT) else { return Ok(false) };
        let mut items = TreeItems::new(&self.core.store, &extents.root);
        let key = Key::new(extent.logical.0, kind::EXTENT_ITEM, extent.len);
        Ok(items.get(&key).fs()?.is_some())
    }

    /// Runs of checksums of an extent, and whether every sector has one.
    fn sums_of(&self, extent: &Extent) -> Result<(Sums, bool)> {
        let (mut all, mut firm) = (Sums::new(), true);
        for (at, len) in pieces(extent) {
            let (sums, known) = self.known(at, len)?;
            firm &= known.iter().all(|known| *known);
            all.extend(runs(&known).filter(|run| run.2).map(|run| self.run(at, &sums, run)));
        }
        Ok((all, firm))
    }

    /// Checksums of the sectors of a piece, and which of them there are.
    fn known(&self, at: Logical, len: u64) -> Result<(Vec<u8>, Vec<bool>)> {
        let count = (len / self.core.sector()) as usize;
        let mut sums = vec![0; count * self.core.geometry.csum.size()];
        let mut known = vec![false; count];
        sums::stored(self.core, &self.core.roots(), at, &mut sums, &mut known)?;
        Ok((sums, known))
    }

    fn run(
        &self,
        at: Logical,
        sums: &[u8],
        (from, to, _): (usize, usize, bool),
    ) -> (Logical, Box<[u8]>) {
        let size = self.core.geometry.csum.size();
        (at.offset(from as u64 * self.core.sector()), sums[from * size..to * size].into())
    }

    /// Reads what can be verified so, and writes it to its new place.
    fn copy(&self, what: &MoveContent) -> Result<(Sums, bool)> {
        let (sector, size) = (self.core.sector(), self.core.geometry.csum.size());
        let (mut all, mut firm) = (Sums::new(), true);
        for (at, len) in pieces(&what.from) {
            // What a commit frees meanwhile is neither discarded nor used again before it was read.
            let _roots = self.core.roots();
            let (sums, known) = self.known(at, len)?;
            let mut buf = vec![0; len as usize];
            for run in runs(&known) {
                let (from, to, has) = run;
                let part = &mut buf[from * sector as usize..to * sector as usize];
                let start = at.offset(from as u64 * sector);
                let by = has.then(|| &sums[from * size..to * size]);
                self.core.volume.read_data(start, part, by).fs()?;
                firm &= has;
                if has {
                    all.push(self.run(at, &sums, run));
                }
            }
            let to = what.to.offset(at.0 - what.from.logical.0);
            let through = self.core.volume.tells_late();
            self.core.volume.write_content(to, &[&buf], through).fs()?;
        }
        Ok((all, firm))
    }
}

fn extent_at(what: &MoveContent) -> Extent {
    Extent { logical: what.to, len: what.from.len }
}

fn pieces(extent: &Extent) -> impl Iterator<Item = (Logical, u64)> {
    let (start, end) = (extent.logical.0, extent.end());
    (start..end).step_by(PIECE as usize).map(move |at| (Logical(at), PIECE.min(end - at)))
}

/// Runs of sectors of one kind: from, to, whether they are known.
fn runs(known: &[bool]) -> impl Iterator<Item = (usize, usize, bool)> {
    let mut at = 0;
    known.chunk_by(|a, b| a == b).map(move |run| {
        let from = at;
        at += run.len();
        (from, at, run[0])
    })
}
