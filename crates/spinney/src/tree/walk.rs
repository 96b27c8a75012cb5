//! Every node below one, each before its entries.
//!
//! Invariant: no directory is gone into twice. In a damaged volume one may have two names, and the
//! second may lie below the first.

use super::node::{Listed, Node};
use super::path::push;
use crate::error::{Error, Result};
use crate::volume::{At, Volume};
use std::collections::HashSet;
use vfs::{Damage, FsError, Ino};

struct Frame {
    node: Node,
    /// So much of `Walk::path` is its own: each keeping a path would be the square of the depth.
    len: usize,
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
    next: Option<Node>,
    /// What came last, to be gone into.
    here: Option<Node>,
    /// Of what came last; those above it are in it.
    path: Vec<u8>,
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
        let (stack, next, entered) = (Vec::new(), Some(top), HashSet::new());
        Walk { volume: volume.clone(), stack, next, here: None, path, entered }
    }

    /// The next node. What cannot be read is told once, and left out.
    pub fn step(&mut self) -> Option<Result<Visited<'_>>> {
        if let Some(node) = self.here.take()
            && node.is_dir()
            && let Err(error) = self.enter(node)
        {
            return Some(Err(error));
        }
        let node = match self.next.take() {
            Some(top) => top,
            None => match self.advance()? {
                Ok(found) => found,
                Err(error) => return Some(Err(error)),
            },
        };
        let depth = self.stack.len();
        Some(Ok(Visited { node: self.here.insert(node), path: &self.path, depth }))
    }

    /// Does not go into what came last.
    pub fn skip(&mut self) {
        self.here = None;
    }

    fn enter(&mut self, node: Node) -> Result<()> {
        if !self.entered.insert(node.ino()) {
            return Err(self.volume.error(&self.path, two_names()));
        }
        let (mut left, missing) = node.listing();
        left.reverse();
        let whole = missing.map_or(Ok(()), |why| Err(self.volume.error(&self.path, why)));
        self.stack.push(Frame { node, len: self.path.len(), left });
        whole
    }

    /// The next name of the innermost directory that has one left.
    fn advance(&mut self) -> Option<Result<Node>> {
        loop {
            let frame = self.stack.last_mut()?;
            let Some(listed) = frame.left.pop() else {
                self.stack.pop();
                continue;
            };
            self.path.truncate(frame.len);
            push(&mut self.path, &listed.name);
            return Some(frame.node.listed(&listed).at(&self.volume, &self.path));
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
