//! Every node below one, each before its entries.
//!
//! Invariant: no directory is gone into twice. In a damaged volume one may have two names, and the
//! second may lie below the first.

use super::node::{Listed, Node};
use super::path::join;
use crate::error::{Error, Result};
use crate::volume::{At, Volume};
use std::collections::HashSet;
use vfs::{Damage, FsError, Ino};

/// A node and its path.
type Found = (Node, Vec<u8>);

struct Frame {
    node: Node,
    path: Vec<u8>,
    /// In reverse order.
    left: Vec<Listed>,
}

/// Something that a walk came by.
#[derive(Clone, Copy, Debug)]
pub struct Visited<'w> {
    /// What it is.
    pub node: &'w Node,
    /// Where it is.
    pub path: &'w [u8],
    /// How far below the top; that itself is 0.
    pub depth: usize,
}

/// The nodes below one, step by step; symbolic links are not followed.
pub struct Walk {
    volume: Volume,
    stack: Vec<Frame>,
    /// What comes next, if it is known.
    next: Option<Found>,
    /// What came last, to be gone into.
    here: Option<Found>,
    /// Directories that were gone into.
    entered: HashSet<Ino>,
}

/// Of a directory that was come by under another name.
pub fn two_names() -> FsError {
    Damage::new("the directory has another name as well, or was moved meanwhile").into()
}

impl Walk {
    /// Begins with `top`, whose path is `path`.
    pub fn new(volume: &Volume, top: Node, path: Vec<u8>) -> Walk {
        let (stack, next, entered) = (Vec::new(), Some((top, path)), HashSet::new());
        Walk { volume: volume.clone(), stack, next, here: None, entered }
    }

    /// The next node. What cannot be read is told once, and left out.
    pub fn step(&mut self) -> Option<Result<Visited<'_>>> {
        if let Some((node, path)) = self.here.take()
            && node.is_dir()
            && let Err(error) = self.enter(node, path)
        {
            return Some(Err(error));
        }
        let (node, path) = match self.next.take() {
            Some(top) => top,
            None => match self.advance()? {
                Ok(found) => found,
                Err(error) => return Some(Err(error)),
            },
        };
        let depth = self.stack.len();
        let (node, path) = self.here.insert((node, path));
        Some(Ok(Visited { node, path, depth }))
    }

    /// Does not go into what came last.
    pub fn skip(&mut self) {
        self.here = None;
    }

    fn enter(&mut self, node: Node, path: Vec<u8>) -> Result<()> {
        if !self.entered.insert(node.ino()) {
            return Err(self.volume.error(&path, two_names()));
        }
        let (mut left, missing) = node.listing();
        left.reverse();
        let whole = missing.map_or(Ok(()), |why| Err(self.volume.error(&path, why)));
        self.stack.push(Frame { node, path, left });
        whole
    }

    /// The next name of the innermost directory that has one left.
    fn advance(&mut self) -> Option<Result<Found>> {
        loop {
            let frame = self.stack.last_mut()?;
            let Some(listed) = frame.left.pop() else {
                self.stack.pop();
                continue;
            };
            let path = join(&frame.path, &listed.name);
            let node = frame.node.listed(&listed).at(&self.volume, &path);
            return Some(node.map(|node| (node, path)));
        }
    }
}

/// What [`until`] calls: with node, path, and how deep it is below the top; false: do not go
/// into it.
pub type Visit<'v, E> = &'v mut dyn FnMut(&Node, &[u8], usize) -> std::result::Result<bool, E>;

/// Calls `visit` with `top` and what is below it, and how deep that is; a directory that it
/// says no to is not gone into. What cannot be read is told to `failed`, and left out.
pub fn until<E>(
    volume: &Volume,
    top: Node,
    path: Vec<u8>,
    failed: &mut dyn FnMut(Error),
    visit: Visit<'_, E>,
) -> std::result::Result<(), E> {
    let mut walk = Walk::new(volume, top, path);
    while let Some(step) = walk.step() {
        let wanted = match step {
            Ok(seen) => visit(seen.node, seen.path, seen.depth)?,
            Err(error) => {
                failed(error);
                continue;
            }
        };
        if !wanted {
            walk.skip();
        }
    }
    Ok(())
}

/// What [`every`] calls: with node and path.
pub type VisitAll<'v, E> = &'v mut dyn FnMut(&Node, &[u8]) -> std::result::Result<(), E>;

/// Calls `visit` with `top` and everything below it; the first error ends it.
pub fn every<E: From<Error>>(
    volume: &Volume,
    top: Node,
    path: Vec<u8>,
    visit: VisitAll<'_, E>,
) -> std::result::Result<(), E> {
    let mut walk = Walk::new(volume, top, path);
    while let Some(step) = walk.step() {
        let seen = step?;
        visit(seen.node, seen.path)?;
    }
    Ok(())
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").field("depth", &self.stack.len()).finish_non_exhaustive()
    }
}
