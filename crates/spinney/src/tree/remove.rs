//! Removing a tree, the entries of a directory before the directory. What cannot be removed stays, with the directories
//! that it is in; so does one that is found below itself, which a damaged volume may have.

use super::node::Node;
use super::path::push;
use super::refused::Refused;
use super::walk::two_names;
use crate::error::Error;
use crate::volume::Volume;
use std::collections::HashSet;
use vfs::{Context, FsError, Ino};

struct Frame {
    node: Node,
    /// So much of the path that all share is its own.
    len: usize,
    name: Vec<u8>,
    left: Vec<Vec<u8>>,
    /// Something in it could not be removed.
    kept: bool,
}

/// Who is told; an error of theirs ends it.
#[expect(missing_debug_implementations, reason = "functions")]
pub struct Tell<'t, E> {
    /// Of what is gone.
    pub removed: &'t mut dyn FnMut(&[u8]) -> Result<(), E>,
    /// Of what stays. Of a subvolume that takes no changes it is told once.
    pub failed: &'t mut dyn FnMut(Error) -> Result<(), E>,
}

struct Removal<'v, 't, E> {
    volume: &'v Volume,
    tell: Tell<'t, E>,
    refused: Refused<'v>,
    stack: Vec<Frame>,
    /// The directories of `stack`.
    within: HashSet<Ino>,
}

/// Removes `name` from `parent`, and what is below it.
pub fn tree<E>(
    volume: &Volume,
    parent: &Node,
    name: &[u8],
    path: &[u8],
    tell: Tell<'_, E>,
) -> Result<(), E> {
    let (refused, stack, within) = (Refused::new(volume), Vec::new(), HashSet::new());
    let mut removal = Removal { volume, tell, refused, stack, within };
    let mut path = path.to_vec();
    let top = one(volume, parent, name.to_vec(), &path);
    removal.enter(top, parent.ino(), &path)?;
    while let Some(frame) = removal.stack.last_mut() {
        path.truncate(frame.len);
        match frame.left.pop() {
            Some(name) => {
                push(&mut path, &name);
                let below = one(volume, &frame.node, name, &path);
                let dir = frame.node.ino();
                removal.enter(below, dir, &path)?;
            }
            None => removal.leave(parent, &path)?,
        }
    }
    Ok(())
}

impl<E> Removal<'_, '_, E> {
    /// What an entry of `dir` is: gone, or a directory to be emptied first.
    fn enter(&mut self, entry: vfs::Result<Option<Frame>>, dir: Ino, path: &[u8]) -> Result<(), E> {
        match entry {
            Ok(None) => (self.tell.removed)(path),
            Ok(Some(below)) if self.within.insert(below.node.ino()) => {
                self.stack.push(below);
                Ok(())
            }
            Ok(Some(_)) => self.keep(two_names(), dir, path),
            Err(error) => self.keep(error, dir, path),
        }
    }

    /// The innermost directory, which has nothing left that could be removed.
    fn leave(&mut self, top: &Node, path: &[u8]) -> Result<(), E> {
        let Some(Frame { name, node, kept, .. }) = self.stack.pop() else { return Ok(()) };
        self.within.remove(&node.ino());
        drop(node);
        let above = self.stack.last().map_or(top, |frame| &frame.node).ino();
        if kept {
            self.stays();
            return Ok(());
        }
        match self.volume.fs().rmdir(&Context::default(), above, &name) {
            Ok(()) => (self.tell.removed)(path),
            Err(error) => self.keep(error, above, path),
        }
    }

    fn keep(&mut self, error: FsError, dir: Ino, path: &[u8]) -> Result<(), E> {
        self.stays();
        match self.refused.was_told(&error, dir) {
            true => Ok(()),
            false => (self.tell.failed)(self.volume.error(path, error)),
        }
    }

    /// Something in the innermost directory does.
    fn stays(&mut self) {
        if let Some(frame) = self.stack.last_mut() {
            frame.kept = true;
        }
    }
}

/// Removes anything but a directory; that comes back to be emptied first.
fn one(volume: &Volume, parent: &Node, name: Vec<u8>, path: &[u8]) -> vfs::Result<Option<Frame>> {
    let node = parent.child(&name)?;
    if node.is_dir() {
        let left = node.names()?;
        return Ok(Some(Frame { node, len: path.len(), name, left, kept: false }));
    }
    volume.fs().unlink(&Context::default(), parent.ino(), &name)?;
    Ok(None)
}
