//! Content that the receiver has already, somewhere else.
//!
//! Who refers to an extent the [`Source`] says, of all subvolumes alike; of those that a subvolume
//! really has, the receiver can take the content instead of getting it. Of the subvolume that is
//! being sent that is true for what was sent before.

use crate::error::Result;
use crate::namespace::{Namespace, join};
use crate::out::{Out, Request};
use crate::source::{ExtentBase, Source};
use crate::tree::{Name, Piece, PieceKind, Tree};
use btrfs_disk::ids::{FIRST_FREE_OBJECTID as ROOT, MAX_PATH_NAMES};
use btrfs_disk::items::{InodeItem, inode_flags};
use btrfs_disk::{Logical, TreeId};
use btrfs_send::{Command, MAX_PATH, Origin};

/// A subvolume that the receiver has.
struct Known<'s> {
    tree: Tree<'s>,
    origin: Origin,
    /// It is the one that is being sent.
    is_sent: bool,
}

pub(crate) struct Clones<'s> {
    source: &'s dyn Source,
    has: Vec<Known<'s>>,
    sent: TreeId,
    /// Of the extent that was asked for last.
    known: (Logical, Vec<ExtentBase>),
}

/// How much was cloned, and where it is worth to try again.
pub(crate) struct Cloned {
    pub(crate) len: u64,
    pub(crate) next: u64,
}

struct Found {
    ino: u64,
    offset: u64,
    len: u64,
    which: usize,
}

impl<'s> Clones<'s> {
    pub(crate) fn new(source: &'s dyn Source, request: &Request<'_>) -> Clones<'s> {
        // A receiver takes what bears the UUID that it is receiving for just that.
        let own = request.subvolume.origin().uuid;
        let others = request.clones.iter().filter(|other| other.origin().uuid != own);
        let others = others.map(|subvolume| (subvolume, false));
        let all = others.chain([(request.subvolume, true)]);
        let has = all.map(|(subvolume, is_sent)| {
            let tree = Tree::new(source, subvolume);
            Known { tree, origin: subvolume.origin(), is_sent }
        });
        let (has, sent) = (has.collect(), request.subvolume.root.id);
        let known = (Logical(0), Vec::new());
        Clones { source, has, sent, known }
    }

    pub(crate) fn sent(&self) -> TreeId {
        self.sent
    }

    /// Says a part of the piece from `at` on as a clone, if that is possible.
    pub(crate) fn send(
        &mut self,
        space: &mut Namespace<'s>,
        (ino, item): (u64, &InodeItem),
        piece: &Piece,
        at: u64,
        end: u64,
        out: &mut Out<'_>,
    ) -> Result<Cloned> {
        let nothing = Cloned { len: 0, next: end };
        let PieceKind::Extent { fields, .. } = &piece.kind else { return Ok(nothing) };
        if !at.is_multiple_of(self.has[0].tree.sector) {
            return Ok(nothing);
        }
        self.look_up(fields.disk_bytenr)?;
        if self.known.1.len() < 2 && self.has.len() < 2 {
            return Ok(nothing);
        }
        let within = fields.offset + (at - piece.start);
        let Some(found) = self.find((ino, item), fields.disk_bytenr, within, (at, end))? else {
            return Ok(nothing);
        };
        let has = &self.has[found.which];
        let Some(from_path) = path_of(space, has, found.ino)? else { return Ok(nothing) };
        let Some(path) = path_here(space, ino)? else { return Ok(nothing) };
        out.put(&Command::Clone {
            path: &path,
            offset: at,
            len: found.len,
            from: has.origin,
            from_path: &from_path,
            from_offset: found.offset,
        })?;
        Ok(Cloned { len: found.len, next: at + found.len })
    }

    fn find(
        &self,
        (ino, item): (u64, &InodeItem),
        extent: Logical,
        within: u64,
        (at, end): (u64, u64),
    ) -> Result<Option<Found>> {
        for place in &self.known.1 {
            for (which, has) in self.has.iter().enumerate() {
                let offset = place.base.wrapping_add(within);
                // In what is being sent only that is there which was sent before.
                let is_there = !has.is_sent
                    || place.ino < ino
                    || (place.ino == ino && offset.checked_add(end - at).is_some_and(|e| e <= at));
                if !is_there {
                    continue;
                }
                let Some(len) = usable(has, place.ino, item, extent, within, offset, (at, end))?
                else {
                    continue;
                };
                return Ok(Some(Found { ino: place.ino, offset, len, which }));
            }
        }
        Ok(None)
    }

    fn look_up(&mut self, extent: Logical) -> Result<()> {
        if self.known.0 != extent {
            self.known = (extent, Vec::new());
            let mut all = self.source.references(extent)?;
            all.sort_unstable();
            all.dedup();
            self.known.1 = all;
        }
        Ok(())
    }
}

/// How much of the range the file `ino` has of the extent, if the receiver can take it.
fn usable(
    has: &Known<'_>,
    ino: u64,
    target: &InodeItem,
    extent: Logical,
    within: u64,
    offset: u64,
    (at, end): (u64, u64),
) -> Result<Option<u64>> {
    let sector = has.tree.sector;
    if !offset.is_multiple_of(sector) {
        return Ok(None);
    }
    let Some(item) = has.tree.inode(ino)? else { return Ok(None) };
    let sums = |item: &InodeItem| item.flags & inode_flags::NODATASUM;
    if offset >= item.size || sums(&item) != sums(target) {
        return Ok(None);
    }
    let Some(piece) = has.tree.pieces(ino, offset, offset + 1, 1)?.pop() else { return Ok(None) };
    let PieceKind::Extent { fields, .. } = &piece.kind else { return Ok(None) };
    let there = fields.offset + (offset - piece.start);
    if fields.disk_bytenr != extent || there != within {
        return Ok(None);
    }
    let len = (piece.end.min(item.size) - offset).min(end - at);
    let is_tail = offset + len == item.size && at + len == target.size;
    let len = if is_tail { len } else { len - len % sector };
    Ok((len > 0).then_some(len))
}

/// Where the receiver has a file of what is being sent.
fn path_here(space: &mut Namespace<'_>, ino: u64) -> Result<Option<Vec<u8>>> {
    let Some(name) = space.right.any_name(ino)? else { return Ok(None) };
    let dir = space.dir(name.dir)?;
    space.path_in(dir, &name.name).map(Some)
}

/// Where the receiver finds the file; `None` also where that is too deep for any.
fn path_of<'s>(space: &mut Namespace<'s>, has: &Known<'s>, ino: u64) -> Result<Option<Vec<u8>>> {
    if has.is_sent {
        return path_here(space, ino);
    }
    let (mut at, mut names) = (ino, Vec::new());
    while at != ROOT {
        let Some(Name { dir, name }) = has.tree.any_name(at)? else { return Ok(None) };
        names.push(name);
        at = dir;
        if names.len() > MAX_PATH_NAMES {
            return Ok(None);
        }
    }
    let path = names.iter().rev().fold(Vec::new(), |path, name| join(&path, name));
    Ok((path.len() < MAX_PATH).then_some(path))
}
