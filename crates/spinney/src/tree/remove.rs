//! Removing a tree, the entries of a directory before the directory. One that is found below itself,
//! which a damaged volume may have, ends it.

use super::node::Node;
use super::path::push;
use super::walk::two_names;
use crate::error::Error;
use crate::volume::{At, Volume};
use std::collections::HashSet;
use vfs::{Context, Ino};

struct Frame {
    node: Node,
    /// So much of the path that all share is its own.
    len: usize,
    name: Vec<u8>,
    left: Vec<Vec<u8>>,
}

/// Removes `name` from `parent`, and what is below it; calls `removed` with each path.
pub fn tree<E: From<Error>>(
    volume: &Volume,
    parent: &Node,
    name: &[u8],
    path: &[u8],
    removed: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut path = path.to_vec();
    let mut stack: Vec<Frame> =
        one(volume, parent, name.to_vec(), &path, removed)?.into_iter().collect();
    let mut within: HashSet<Ino> = stack.iter().map(|frame| frame.node.ino()).collect();
    while let Some(frame) = stack.last_mut() {
        path.truncate(frame.len);
        if let Some(name) = frame.left.pop() {
            push(&mut path, &name);
            let below = one(volume, &frame.node, name, &path, removed)?;
            if below.as_ref().is_some_and(|new| !within.insert(new.node.ino())) {
                return Err(volume.error(&path, two_names()).into());
            }
            stack.extend(below);
            continue;
        }
        let Some(Frame { name, node, .. }) = stack.pop() else { break };
        within.remove(&node.ino());
        drop(node);
        let above = stack.last().map_or(parent, |frame| &frame.node);
        volume.fs().rmdir(&Context::default(), above.ino(), &name).at(volume, &path)?;
        removed(&path)?;
    }
    Ok(())
}

/// Removes anything but a directory; that comes back to be emptied first.
fn one<E: From<Error>>(
    volume: &Volume,
    parent: &Node,
    name: Vec<u8>,
    path: &[u8],
    removed: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<Option<Frame>, E> {
    let node = parent.child(&name).at(volume, path)?;
    if node.is_dir() {
        let left = node.names().at(volume, path)?;
        return Ok(Some(Frame { node, len: path.len(), name, left }));
    }
    volume.fs().unlink(&Context::default(), parent.ino(), &name).at(volume, path)?;
    removed(path).map(|()| None)
}
