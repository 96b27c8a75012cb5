//! All changes of an epoch against the extent tree, in one pass by address.
//!
//! What it does not know: who applies the changes it answers with, and to which root.

use super::deltas::{ExtentDelta, RefDeltas};
use super::merge::{Format, Outcome, merge};
use super::owner::ExtentKind;
use crate::Extent;
use crate::items::{Changes, Items};
use btrfs_disk::{Logical, Result, TreeId};

/// What a drain found.
#[derive(Clone, Debug, Default)]
pub struct Drained {
    /// For the extent tree.
    pub changes: Changes,
    /// Extents that the extent tree has from now on, by address.
    pub created: Vec<Extent>,
    /// Extents whose last reference went, by address.
    pub freed: Vec<Extent>,
    /// Those of `freed` that hold data: their checksums go too.
    pub freed_data: Vec<Extent>,
    /// Nodes allocated in this epoch and dropped again: nothing ever read them.
    pub stillborn_nodes: Vec<Extent>,
    /// Data allocated in this epoch and unreferenced again; readers may still be at it.
    pub stillborn_data: Vec<Extent>,
    /// What of `created` and `freed` simple quotas may count; empty where there are none.
    pub owned: Vec<Owned>,
}

/// An extent that comes or goes, as simple quotas see it.
#[derive(Clone, Copy, Debug)]
pub struct Owned {
    /// Where it is.
    pub logical: Logical,
    /// Bytes that it takes.
    pub len: u64,
    /// Content, or a tree block.
    pub kind: ExtentKind,
    /// It is created; else it is freed.
    pub comes: bool,
    /// In which it was allocated.
    pub generation: u64,
    /// Of what is created, of content that says it, and of a tree block that was no subvolume's: nobody has to be
    /// able to read that.
    pub owner: Option<TreeId>,
}

impl Drained {
    /// Whether nothing is to be done: no item changes, and no space comes back.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.stillborn_nodes.is_empty() && self.stillborn_data.is_empty()
    }
}

/// Empties `deltas` into changes of the extent tree that `items` shows.
pub fn drain(deltas: &mut RefDeltas, items: &mut dyn Items, format: &Format) -> Result<Drained> {
    let mut out = Drained::default();
    for (logical, delta) in deltas.take_sorted() {
        one(&mut out, items, format, logical, &delta)?;
    }
    Ok(out)
}

fn one(
    out: &mut Drained,
    items: &mut dyn Items,
    format: &Format,
    logical: Logical,
    delta: &ExtentDelta,
) -> Result<()> {
    let (fate, changes, item) = merge(items, format, logical, delta)?;
    let comes = fate == Outcome::Created;
    if format.owners && (comes || fate == Outcome::Freed) {
        let owner = match comes {
            true => Some(delta.first_owner),
            false => item.first_owner().or_else(|| delta.elsewhere()),
        };
        let (len, kind, generation) = (delta.len, delta.kind, item.fields.generation);
        out.owned.push(Owned { logical, len, kind, comes, generation, owner });
    }
    let extent = Extent { logical, len: delta.len };
    match fate {
        Outcome::Created => out.created.push(extent),
        Outcome::Stillborn if delta.kind == ExtentKind::Data => out.stillborn_data.push(extent),
        Outcome::Stillborn => out.stillborn_nodes.push(extent),
        Outcome::Kept => {}
        Outcome::Freed => {
            out.freed.push(extent);
            if delta.kind == ExtentKind::Data {
                out.freed_data.push(extent);
            }
        }
    }
    debug_assert!(changes.is_sorted_by_key(|(key, _)| *key), "an extent's items ascend");
    out.changes.extend(changes);
    Ok(())
}
