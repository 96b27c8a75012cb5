//! One step of emptying a block group: what comes next in it, and the commit that moves it.
//!
//! Invariants: a step is bounded, by nodes, bytes and references; what it may need is reserved before.
//!
//! What it does not know: what becomes of the group.

use super::{Balancer, content};
use crate::error::IntoFs;
use crate::reserve::cost;
use crate::reserve::{Cost, Reservation};
use btrfs_disk::items::{ExtentItemFields, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, Logical, TreeId};
use btrfs_space::backrefs::TreeState;
use btrfs_space::{Extent, GroupInfo, Items, MoveNodes, MovedNodes, Priority, TreeItems};
use btrfs_txn::delta::{ActionCost, Move, TreeAction};
use std::ops::Range;
use vfs::Result;

/// Nodes that one step moves at most, more as long as they are small; what lies above them comes on top. Each step
/// walks all interior nodes.
/// Chosen, not measured.
const STEP_NODES: usize = 1024;
/// With 1,024 nodes of 4 KiB the walks of two steps were part of a sixth of a balance's processor time.
const STEP_NODE_BYTES: usize = 8 << 20;
/// Extents of content, and their bytes, as long as that is more than one.
/// Chosen, not measured.
const STEP_EXTENTS: usize = 1024;
/// Chosen, not measured.
const STEP_BYTES: u64 = 32 << 20;
/// References to content, which the commit of a step gives to the copies while others wait, as long as that is more
/// than one extent's.
/// Chosen, not measured.
const STEP_REFERENCES: u64 = 64 << 10;
/// Copies that a step may come to need more than were counted, while operations go on, and an eighth of those.
/// Chosen, not measured.
const SLACK: u64 = 64;
/// So references: a leaf that others come to share meanwhile has a shared one for each of its pointers, up to 200.
const SLACK_OF_REFERENCES: u64 = 8 * SLACK;

/// What comes next in a group.
pub(super) enum Batch {
    Nodes(Range<u64>),
    Content(Vec<Extent>),
}

/// Content that is to move in one step.
#[derive(Default)]
struct Gathered {
    extents: Vec<Extent>,
    bytes: u64,
    references: u64,
}

impl Gathered {
    fn add(&mut self, (extent, references): (Extent, u64)) {
        self.bytes += extent.len;
        self.references = self.references.saturating_add(references);
        self.extents.push(extent);
    }

    fn has_room(&self) -> bool {
        let Gathered { extents, bytes, references } = self;
        extents.len() < STEP_EXTENTS && *bytes < STEP_BYTES && *references < STEP_REFERENCES
    }

    /// One with many references comes alone, or last: what is in front of it is no reason to wait longer for it.
    fn takes(&self, references: u64) -> bool {
        self.extents.is_empty() || self.references.saturating_add(references) <= STEP_REFERENCES
    }
}

impl Balancer {
    /// What lies in the group and comes next, as of the last commit.
    pub(super) fn next(&self, group: &GroupInfo) -> Result<Option<Batch>> {
        let roots = self.core.roots();
        let Some(extents) = roots.get(TreeId::EXTENT) else { return Ok(None) };
        let end = group.logical.0 + group.len;
        let (mut nodes, mut content) = (Vec::new(), Gathered::default());
        let mut items = TreeItems::new(&self.core.store, &extents.root);
        let mut from = Key::new(group.logical.0, 0, 0);
        let most = STEP_NODES.max(STEP_NODE_BYTES / self.core.geometry.node_size as usize);
        while nodes.len() < most && content.has_room() {
            let found = items.at_or_after(&from).fs()?;
            let Some((key, data)) = found.filter(|(key, _)| key.objectid < end) else { break };
            match extent(&key, &data) {
                Some(found) if nodes.is_empty() && content.takes(found.1) => content.add(found),
                Some(_) => break,
                None if is_node(&key) && content.extents.is_empty() => nodes.push(key.objectid),
                None if is_node(&key) => break,
                None => {}
            }
            from = Key::new(key.objectid + 1, 0, 0);
        }
        if !content.extents.is_empty() {
            return Ok(Some(Batch::Content(content.extents)));
        }
        let ends = nodes.first().zip(nodes.last());
        Ok(ends.map(|(first, last)| Batch::Nodes(*first..*last + 1)))
    }

    pub(super) fn step(&self, batch: Batch) -> Result<MovedNodes> {
        match batch {
            Batch::Nodes(range) => self.move_nodes(range),
            Batch::Content(extents) => self.move_content(extents),
        }
    }

    /// Moves nodes, in a commit.
    fn move_nodes(&self, range: Range<u64>) -> Result<MovedNodes> {
        let mut what = MoveNodes { range, ..MoveNodes::default() };
        let (room, cost) = self.reserve_move(&mut what, 0)?;
        let wanted = Move::new(what, Vec::new());
        self.core.begin().act(TreeAction::Move(wanted.clone()), cost);
        drop(room);
        let committed = self.committer.commit_written_back();
        let moved = wanted.end();
        committed?;
        Ok(moved.unwrap_or_default())
    }

    /// Copies content, and makes the copies what files have, in a commit.
    fn move_content(&self, extents: Vec<Extent>) -> Result<MovedNodes> {
        // What the delta has of them is in the trees then, and the commit that moves has little to do.
        self.committer.commit_written_back()?;
        let bytes = extents.iter().map(|extent| extent.len).sum();
        let mut copies = content::Copies::new(&self.core, self.reserver.reserve_data(bytes)?);
        copies.make(&extents)?;
        let mut what = MoveNodes { content: copies.moves(), ..MoveNodes::default() };
        let (room, cost) = self.reserve_move(&mut what, bytes)?;
        let mut wanted = None;
        let committed = self.committer.commit_still(|| {
            copies.refresh()?;
            what.content = copies.moves();
            let order = Move::new(what, copies.sums());
            self.core.begin().act(TreeAction::Move(order.clone()), cost);
            wanted = Some(order.clone());
            drop(room);
            Ok(order)
        });
        let moved = wanted.and_then(|wanted| wanted.end()).unwrap_or_default();
        copies.end(&moved.content);
        committed?;
        let count = moved.content.len() as u64;
        Ok(MovedNodes { moved: moved.moved + count, ..moved })
    }

    /// Room for a move of `bytes` of content, whose limit it sets.
    fn reserve_move(
        &self,
        what: &mut MoveNodes,
        bytes: u64,
    ) -> Result<(Reservation<'_>, ActionCost)> {
        let roots = self.core.roots();
        let trees = roots.trees.iter();
        let trees = trees.map(|(id, root)| (id, TreeState::of(root.root, &root.item))).collect();
        let counted = btrfs_space::count_moves(&self.core.store, &trees, what);
        let btrfs_space::CountedMoves { copies, references, leaves } = counted.fs()?;
        what.leaves = leaves;
        let limit = copies + copies / 8 + SLACK;
        (what.limit, what.references) = (limit as usize, room_for(references));
        let nodes = cost::move_nodes(&self.core.geometry, limit, roots.trees.sum().trees);
        drop(roots);
        let sums = bytes / self.core.sector() * self.core.geometry.csum.size() as u64;
        let content = cost::move_content(what.content.len() as u64, what.references, sums);
        let cost = if what.content.is_empty() { nodes } else { nodes.and(content) };
        let whole = cost::with(Cost::default(), cost);
        let room = match self.reservations.hold(whole, Priority::Delete) {
            Ok(room) => room,
            Err(_) => self.reserver.reserve_removal(whole)?,
        };
        Ok((room, cost))
    }
}

/// References to content that may be there when it moves, where so many were counted before.
fn room_for(references: u64) -> u64 {
    references + references / 8 + SLACK_OF_REFERENCES
}

fn is_node(key: &Key) -> bool {
    matches!(key.kind, kind::METADATA_ITEM | kind::EXTENT_ITEM)
}

/// The extent of content that an item is of, and how many references it has.
fn extent(key: &Key, data: &[u8]) -> Option<(Extent, u64)> {
    let fields = ExtentItemFields::read(data.get(..ExtentItemFields::SIZE)?).ok()?;
    let content = key.kind == kind::EXTENT_ITEM && fields.flags & extent_flags::DATA != 0;
    let extent = Extent { logical: Logical(key.objectid), len: key.offset };
    content.then_some((extent, fields.refs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many extents of so many references each one step takes.
    fn taken(references: u64) -> usize {
        let mut gathered = Gathered::default();
        while gathered.has_room() && gathered.takes(references) {
            let logical = Logical(gathered.extents.len() as u64 * 4096);
            gathered.add((Extent { logical, len: 4096 }, references));
        }
        gathered.extents.len()
    }

    #[test]
    fn a_step_is_bounded_by_references() {
        assert_eq!(taken(1), STEP_EXTENTS);
        assert_eq!(taken(1 << 10), 64);
        assert_eq!(taken(40 << 10), 1);
        assert_eq!(taken(u64::MAX), 1, "at least one moves");
    }
}
