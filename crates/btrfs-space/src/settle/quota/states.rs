//! Who reached an extent before a commit, and who does after.
//!
//! What it does not know: groups, and what is counted.

use crate::backrefs::{Backrefs, Owners, Reachers};
use crate::items::TreeItems;
use crate::refs::{ExtentDelta, ExtentKind, RefDeltas, RefOwner};
use crate::settle::Settle;
use btrfs_disk::{Generation, Logical, Result};
use btrfs_tree::{NodeReader, Overlay};

pub(super) struct States<'w> {
    before: Backrefs<'w>,
    after: Backrefs<'w>,
    /// Extents are asked for by ascending address: what the walks up read would be in the way.
    sorted: Backrefs<'w>,
    pub deltas: &'w RefDeltas,
    pub node_size: u64,
    generation: Generation,
}

impl<'w> States<'w> {
    pub(super) fn new<R: NodeReader>(
        settle: &'w Settle<'w, R>,
        edited: &'w Overlay<'w, R>,
    ) -> States<'w> {
        let items = || Box::new(TreeItems::new(settle.store, &settle.extent_root));
        let committed = |id| settle.committed_tree(id);
        let current = |id| settle.current_tree(id);
        let deltas = &settle.deltas;
        States {
            before: Backrefs::new(settle.store, items(), None, Box::new(committed)),
            after: Backrefs::new(edited, items(), Some(deltas), Box::new(current)),
            sorted: Backrefs::new(settle.store, items(), None, Box::new(committed)),
            deltas,
            node_size: settle.format.node_size,
            generation: settle.generation,
        }
    }

    /// Before and after; `None`: no subvolume ever has to do with it.
    pub(super) fn reachers(
        &mut self,
        extent: Logical,
        kind: ExtentKind,
    ) -> Result<Option<(Reachers, Reachers)>> {
        let delta = self.deltas.get(extent);
        if delta.and_then(ExtentDelta::elsewhere).is_some() {
            return Ok(None);
        }
        let before = match delta.is_some_and(|delta| delta.born) {
            true => Owners::new(),
            false => self.sorted.owners(extent)?,
        };
        let reached = self.before.reachers(extent, kind, &before)?;
        let after = self.reached_after(extent, kind, before)?;
        Ok(Some((reached, after)))
    }

    /// After the commit, of an extent that `before` held.
    pub(super) fn reached_after(
        &mut self,
        extent: Logical,
        kind: ExtentKind,
        before: Owners,
    ) -> Result<Reachers> {
        if let Some(only) = self.new_in_one(extent)? {
            return Ok(only);
        }
        let owners = self.after.with_pending(before, extent)?;
        self.after.reachers(extent, kind, &owners)
    }

    /// Who holds an extent in the last commit.
    pub(super) fn owners_before(&mut self, extent: Logical) -> Result<Owners> {
        self.sorted.owners(extent)
    }

    /// What is new is in nodes that are new, which only a snapshot in this commit would share.
    fn new_in_one(&mut self, extent: Logical) -> Result<Option<Reachers>> {
        let Some(delta) = self.deltas.get(extent).filter(|delta| delta.born) else {
            return Ok(None);
        };
        let [(RefOwner::Tree { root } | RefOwner::Data { root, .. }, _)] = delta.owners() else {
            return Ok(None);
        };
        let tree = self.after.subvolume(*root)?;
        let own = tree.is_some_and(|tree| tree.last_snapshot < self.generation);
        Ok(own.then(|| self.after.alone(*root)))
    }
}
