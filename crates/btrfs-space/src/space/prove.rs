//! Whether what the free-space tree calls free really is.
//!
//! At mount the sums of the two agree ([`super::load`]); which bytes are free is believed
//! until somebody asks for some of them. Before the first allocation from a block group that
//! came from the volume, its free ranges are held against the extent tree: once a mount, one
//! scan of the group's part of that tree. A commit would notice a lie as well, but content
//! and logs are written before it.
//!
//! Whoever loaded the space says how ([`Space::prove_with`]): it has the roots of the last
//! commit and keeps what they refer to from being used again meanwhile. So what those roots
//! refer to is not free, whatever was allocated, freed or committed since the mount, and the
//! check can come as late as it likes.
//!
//! Where it cannot be read what the group holds, nothing is allocated there, as long as others have the
//! room; where it is found wrong, whoever asks is told so.
//!
//! What it does not know: whether the extent tree tells the truth, and extents that reach in
//! from another block group with others between.

use super::Space;
use super::group::Group;
use super::load::SpaceRoots;
use crate::free_space::{extent_of, last_before};
use crate::items::{Items, TreeItems};
use btrfs_disk::items::BlockGroupItem;
use btrfs_disk::{Corrupt, Error, FixedSize, Key, Logical};
use btrfs_tree::NodeReader;

/// Calls [`Claim::check`] with the roots of the last commit.
pub type Prover = dyn Fn(&Claim<'_>) -> Result<(), Unproven> + Send + Sync;

/// Why a group's free space cannot be relied on.
#[derive(Debug)]
// Exhaustive: damage and a failing device go different ways.
pub enum Unproven {
    /// It is not what it was said to be.
    Wrong(Corrupt),
    /// What it is to be held against cannot be read.
    Unread(Error),
}

impl From<Error> for Unproven {
    fn from(error: Error) -> Unproven {
        Unproven::Unread(error)
    }
}

impl From<Unproven> for Error {
    fn from(why: Unproven) -> Error {
        match why {
            Unproven::Wrong(wrong) => wrong.into(),
            Unproven::Unread(error) => error,
        }
    }
}

/// What a group's free ranges claim.
pub struct Claim<'a>(&'a Group);

impl Space {
    /// From now on nothing is allocated from a group of the volume before `prover` has
    /// found it right. It is called with the group's turn held, and with the chunk lock by who would give
    /// the group back, as nothing else.
    pub fn prove_with(&self, prover: Box<Prover>) {
        assert!(self.prover.set(prover).is_ok(), "one prover");
    }

    /// Before each allocation; one load once the group is known to be right.
    pub(super) fn prove(&self, group: &Group) -> Result<(), Unproven> {
        match self.prover.get() {
            // Who comes meanwhile waits for the one scan.
            Some(prover) if !group.proof.is_good() => group.proof.once(|| prover(&Claim(group))),
            _ => Ok(()),
        }
    }
}

impl Claim<'_> {
    /// Holds the group against the extent tree of `roots`. The caller has taken the roots
    /// before this, and nothing that they refer to becomes free before it is done.
    pub fn check<R: NodeReader + ?Sized>(
        &self,
        reader: &R,
        roots: &SpaceRoots,
    ) -> Result<(), Unproven> {
        let group = self.0;
        let node_size = u64::from(reader.geometry().node_size);
        let mut items = TreeItems::new(reader, &roots.extent);
        // What is set aside is allocated from later.
        let free = group.claimed_ranges();
        let mut seen = Seen { group, free, next: 0, end: group.start, used: 0 };
        if let Some(extent) = last_before(&mut items, group.start, node_size)? {
            seen.in_front(extent).map_err(Unproven::Wrong)?;
        }
        let (from, to) =
            (Key::new(group.start, 0, 0), Key::new(group.end() - 1, u8::MAX, u64::MAX));
        let mut wrong = None;
        let scanned = items.scan(from, to, &mut |key, _| match extent_of(&key, node_size) {
            Some(extent) => seen.extent(extent).map_err(|found| {
                wrong = Some(found.clone());
                found.into()
            }),
            None => Ok(()),
        });
        if let Some(wrong) = wrong {
            return Err(Unproven::Wrong(wrong));
        }
        scanned?;
        let mut groups = match &roots.block_group {
            Some(root) => TreeItems::new(reader, root),
            None => items,
        };
        let Some(item) = groups.get(&group.item_key())? else {
            // Made since, and not from the volume.
            return Ok(());
        };
        let damaged = |damage: Corrupt| Unproven::Wrong(damage.key(group.item_key()));
        let told = BlockGroupItem::read(&item).map_err(damaged)?.used;
        if told == seen.used { Ok(()) } else { Err(Unproven::Wrong(seen.sums_differ(told))) }
    }
}

/// A scan over the extents of a group and its free ranges side by side.
struct Seen<'a> {
    group: &'a Group,
    free: Vec<(u64, u64)>,
    /// The first free range that may lie behind the next extent's start.
    next: usize,
    /// Where the last extent ends.
    end: u64,
    used: u64,
}

impl Seen<'_> {
    fn in_front(&mut self, (start, len): (u64, u64)) -> Result<(), Corrupt> {
        match start.checked_add(len).filter(|end| *end <= self.group.start) {
            Some(_) => Ok(()),
            None => Err(self.wrong(&format!("extent {start} reaches into it"))),
        }
    }

    fn extent(&mut self, (start, len): (u64, u64)) -> Result<(), Corrupt> {
        let end = start.checked_add(len).filter(|end| *end <= self.group.end());
        let Some(end) = end.filter(|_| start >= self.end) else {
            let what = format!("extent {start} of {len} bytes overlaps another or ends outside");
            return Err(self.wrong(&what));
        };
        while self.free.get(self.next).is_some_and(|(from, len)| from + len <= start) {
            self.next += 1;
        }
        if let Some(&(from, len)) = self.free.get(self.next).filter(|(from, _)| *from < end) {
            let what = format!(
                "bytes {from} to {} are free in the free-space tree, and the extent tree has \
                 {start} to {end} in use",
                from + len
            );
            return Err(self.wrong(&what));
        }
        self.end = end;
        self.used += end - start;
        Ok(())
    }

    fn sums_differ(&self, told: u64) -> Corrupt {
        let used = self.used;
        self.wrong(&format!("{told} bytes are said to be used, and extents have {used}"))
    }

    fn wrong(&self, what: &str) -> Corrupt {
        Corrupt::new(format!(
            "block group of {} bytes: {what}; nothing was written there. See what `btrfs check` \
             finds on the unmounted volume; if it is the free space alone, `spinney \
             rescue clear-space-cache` makes it anew",
            self.group.len
        ))
        .at(Logical(self.group.start))
    }
}
