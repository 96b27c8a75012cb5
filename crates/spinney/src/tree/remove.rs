//! Removing a tree, the entries of a directory before the directory. One that is found below itself,
//! which a damaged volume may have, ends it.

use super::node::Node;
use super::path::join;
use super::walk::two_names;
use crate::error::Error;
use crate::volume::{At, Volume};
use std::collections::HashSet;
use vfs::{Context, Ino};

struct Frame {
    node: Node,
    path: Vec<u8>,
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
    let mut stack = Vec::new();
    one(volume, parent, name.to_vec(), path.to_vec(), &mut stack, removed)?;
    let mut within: HashSet<Ino> = stack.iter().map(|frame: &Frame| frame.node.ino()).collect();
    while let Some(frame) = stack.last_mut() {
        if let Some(name) = frame.left.pop() {
            let path = join(&frame.path, &name);
            let mut below = Vec::new();
            one(volume, &frame.node, name, path, &mut below, removed)?;
            if let Some(new) = below.first()
                && !within.insert(new.node.ino())
            {
                return Err(volume.error(&new.path, two_names()).into());
            }
            stack.append(&mut below);
            continue;
        }
        let Some(Frame { path, name, node, .. }) = stack.pop() else { break };
        within.remove(&node.ino());
        drop(node);
        let above = stack.last().map_or(parent, |frame| &frame.node);
        volume.fs().rmdir(&Context::default(), above.ino(), &name).at(volume, &path)?;
        removed(&path)?;
    }
    Ok(())
}

/// Removes anything but a directory; that is pushed to be emptied first.
fn one<E: From<Error>>(
    volume: &Volume,
    parent: &Node,
    name: Vec<u8>,
    path: Vec<u8>,
    stack: &mut Vec<Frame>,
    removed: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let node = parent.child(&name).at(volume, &path)?;
    if node.is_dir() {
        let left = node.names().at(volume, &path)?;
        stack.push(Frame { node, path, name, left });
        return Ok(());
    }
    volume.fs().unlink(&Context::default(), parent.ino(), &name).at(volume, &path)?;
    removed(&path)
}
