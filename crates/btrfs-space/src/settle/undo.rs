//! A commit that finds no room for its nodes: the space forgets that there was one.
//!
//! Invariant: the ledger has all that a commit told the space. Told the other way round, what
//! was free or used before is so again, what the commit dropped is used, and what it was to
//! record (extents in flight, chunks that came and went) waits for another commit.
//!
//! What it does not know: what allocated and freed meanwhile, beside the commit; and the trees,
//! of which nothing was written.

use super::Settle;
use crate::Extent;
use crate::space::{GoneChunk, NewChunk};
use btrfs_disk::{Error, Result};
use btrfs_tree::NodeReader;
use std::collections::BTreeMap;

/// What a commit told the space, each in order.
#[derive(Default)]
pub(super) struct Ledger {
    /// Nodes: taken (1), given back (-1).
    nodes: Vec<(Extent, i32)>,
    pub created: Vec<Extent>,
    pub freed: Vec<Extent>,
    /// Kept from being used although no tree knows them.
    pub retired: Vec<Extent>,
    pub chunks: Vec<NewChunk>,
    pub gone: Vec<GoneChunk>,
}

impl Ledger {
    pub(super) fn took(&mut self, node: Extent) {
        self.nodes.push((node, 1));
    }

    pub(super) fn gave_back(&mut self, node: Extent) {
        self.nodes.push((node, -1));
    }

    /// Nodes that the commit has.
    fn held(&self) -> impl Iterator<Item = Extent> {
        let mut held: BTreeMap<Extent, i32> = BTreeMap::new();
        self.nodes.iter().for_each(|(node, count)| *held.entry(*node).or_default() += count);
        held.into_iter().filter(|(_, count)| *count > 0).map(|(node, _)| node)
    }
}

impl<R: NodeReader> Settle<'_, R> {
    /// There is no room for this commit: the space is as it was before, and the answer
    /// `NoSpace`; if it cannot be, what is wrong with it.
    pub fn no_room(self) -> Error {
        self.undo().err().unwrap_or(Error::NoSpace)
    }

    fn undo(self) -> Result<()> {
        let (space, ledger) = (self.space, self.ledger);
        ledger.freed.iter().try_for_each(|extent| space.not_freed(extent))?;
        ledger.created.iter().try_for_each(|extent| space.not_created(extent))?;
        ledger.retired.iter().try_for_each(|extent| space.not_pinned(extent))?;
        space.not_recorded(&ledger.chunks, &ledger.gone);
        ledger.held().try_for_each(|node| space.release(node))
    }
}
