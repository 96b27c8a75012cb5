//! Content of files moves elsewhere: the leaves that name it are among the copies of a move.
//!
//! Invariants: each reference goes over to the copy as it is, holder by holder, so who reaches the
//! old extent reaches the new one; a leaf that changes hands then changes its own (`hand_over` of the
//! move). All leaves that name an extent are found, or nothing moves: their names are counted against
//! the extent's references. Of a snapshot's view nothing changes: a leaf that others may hold becomes
//! FULL_BACKREF, so its content has shared references, which nobody takes for one file's own.
//!
//! What it does not know: bytes, and checksums. Who asks has made the copies.

use crate::Extent;
use crate::backrefs::TreeState;
use crate::items::Items;
use crate::refs::{ExtentKind, ExtentRefs, RefDeltas, RefOwner, current_refs};
use btrfs_disk::items::{FileExtent, FileExtentFields};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, Logical, Node, Result, TreeId, build};
use btrfs_tree::{Cursor, NodeReader};
use std::collections::{BTreeMap, HashMap, HashSet};

/// An extent that shall move, and where its copy lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveContent {
    /// As extent items have it.
    pub from: Extent,
    /// Allocated, of the same length; no tree knows it.
    pub to: Logical,
}

/// What moves, and where its names are.
pub(super) struct Content {
    moves: HashMap<Logical, (MoveContent, ExtentRefs)>,
    pub(super) leaves: HashSet<Logical>,
}

impl Content {
    /// Looks for all that somebody refers to, in the state that the arguments are of.
    pub(super) fn find<R: NodeReader>(
        reader: &R,
        items: &mut dyn Items,
        pending: &[&RefDeltas],
        trees: &BTreeMap<TreeId, TreeState>,
        wanted: &[MoveContent],
    ) -> Result<Content> {
        let (mut moves, mut leaves) = (HashMap::new(), HashSet::new());
        let mut cursors = HashMap::new();
        for what in wanted {
            let found = current_refs(items, pending, what.from.logical)?;
            let Some(refs) = found.filter(|refs| refs.refs > 0) else { continue };
            for (owner, count) in &refs.owners {
                match *owner {
                    RefOwner::SharedData { parent } => {
                        leaves.insert(parent);
                    }
                    RefOwner::Data { root, ino, offset } => {
                        let no_tree = || Corrupt::new(format!("there is no tree {root}"));
                        let tree = trees.get(&root).ok_or_else(no_tree)?;
                        let cursor =
                            cursors.entry(root).or_insert_with(|| Cursor::new(reader, &tree.root));
                        let of = (what.from.logical, tree, ino, offset);
                        find_in_file(cursor, of, (*count, &refs), &mut leaves)?;
                    }
                    _ => {
                        let why = "a tree refers to content as to a node";
                        return Err(Corrupt::new(why).at(what.from.logical).into());
                    }
                }
            }
            moves.insert(what.from.logical, (*what, refs));
        }
        Ok(Content { moves, leaves })
    }

    /// References to all of it.
    pub(super) fn references(&self) -> u64 {
        self.moves.values().map(|(_, refs)| refs.refs).sum()
    }

    pub(super) fn moved(&self) -> Vec<MoveContent> {
        self.moves.values().map(|(what, _)| *what).collect()
    }

    /// Whether these nodes have all names that there are.
    pub(super) fn is_all_in<'n>(&self, nodes: impl Iterator<Item = &'n Node>) -> Result<()> {
        if self.moves.is_empty() {
            return Ok(());
        }
        let mut found: HashMap<Logical, u64> = HashMap::new();
        for node in nodes.filter(|node| node.is_leaf()) {
            for (key, fields) in names(node) {
                let Some((what, _)) = self.moves.get(&fields.disk_bytenr) else { continue };
                if fields.disk_num_bytes != what.from.len {
                    let what = format!("content of {} bytes", what.from.len);
                    return Err(Corrupt::new(what).at(node.logical()).key(key).into());
                }
                *found.entry(fields.disk_bytenr).or_default() += 1;
            }
        }
        for (at, (_, refs)) in &self.moves {
            let names = found.get(at).copied().unwrap_or(0);
            if names != refs.refs {
                let what = format!("content has {} references, and {names} names", refs.refs);
                return Err(Corrupt::new(what).at(*at).into());
            }
        }
        Ok(())
    }

    /// The copies have the references that the old extents had.
    pub(super) fn hand_over(&self, deltas: &mut RefDeltas) {
        for (what, refs) in self.moves.values() {
            let (from, len, data) = (what.from.logical, what.from.len, ExtentKind::Data);
            // What nobody is known to have written the kernel has as its own tree's.
            let owner = refs.first_owner.unwrap_or(TreeId::DATA_RELOC);
            deltas.born(what.to, len, data, owner);
            for (owner, count) in &refs.owners {
                let count = count.cast_signed();
                deltas.add(what.to, len, data, *owner, count);
                deltas.add(from, len, data, *owner, -count);
            }
        }
    }

    /// A leaf's names of what moves are those of the copies.
    pub(super) fn rename(&self, node: Node) -> Node {
        if self.moves.is_empty() || !node.is_leaf() {
            return node;
        }
        build::renamed(node, |at| self.moves.get(&at).map(|(what, _)| what.to))
    }
}

/// The names of content in a leaf.
fn names(node: &Node) -> impl Iterator<Item = (Key, FileExtentFields)> + '_ {
    let extents = node.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA);
    extents.filter_map(|(key, data)| match FileExtent::parse(data) {
        Ok(FileExtent::Extent { fields, .. }) => Some((key, fields)),
        _ => None,
    })
}

/// The leaves of `tree` in which a file has `count` names of an extent. Names in leaves that have it by their own
/// address, or that another tree wrote and shares, are none of these.
fn find_in_file<R: NodeReader>(
    cursor: &mut Cursor<'_, R>,
    (extent, tree, ino, offset): (Logical, &TreeState, u64, u64),
    (count, refs): (u64, &ExtentRefs),
    leaves: &mut HashSet<Logical>,
) -> Result<()> {
    // An item may begin behind the start of its extent: then this is less than nothing.
    let first = if offset.cast_signed() < 0 { 0 } else { offset };
    cursor.seek(&Key::new(ino, kind::EXTENT_DATA, first).max(tree.begins))?;
    let mut left = count;
    while left > 0
        && let Some(item) = cursor.current()
    {
        let key = item.key();
        if key.objectid != ino || key.kind != kind::EXTENT_DATA {
            break;
        }
        let parsed = FileExtent::parse(item.data()).map_err(|c| c.key(key))?;
        let (parent, writer) = (item.node().logical(), item.node().header().owner);
        if let FileExtent::Extent { fields, .. } = parsed
            && fields.disk_bytenr == extent
            && key.offset.wrapping_sub(fields.offset) == offset
            && writer == tree.root.id
            && !refs.owners.contains_key(&RefOwner::SharedData { parent })
        {
            leaves.insert(parent);
            left -= 1;
        }
        cursor.next()?;
    }
    if left > 0 {
        let what = format!("file {ino} lacks {left} references to an extent");
        return Err(Corrupt::new(what).at(extent).into());
    }
    Ok(())
}
