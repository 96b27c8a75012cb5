//! Every node below one, each before its entries.

use super::node::Node;
use super::path::join;
use super::volumes::At;
use crate::error::{Error, Result};
use crate::image::Volume;

struct Frame<'f> {
    node: Node<'f>,
    path: Vec<u8>,
    /// In reverse order.
    left: Vec<Vec<u8>>,
}

/// Node, path, and how deep it is below the top; false: do not go into it.
pub type Visit<'v, 'f> = &'v mut dyn FnMut(&Node<'f>, &[u8], usize) -> Result<bool>;

/// Calls `visit` with `top` and what is below it, and how deep that is; a directory that it
/// says no to is not gone into. What cannot be read is told to `failed`, and left out.
pub fn until<'f>(
    volume: &Volume,
    top: Node<'f>,
    path: Vec<u8>,
    failed: &mut dyn FnMut(Error),
    visit: Visit<'_, 'f>,
) -> Result<()> {
    let mut stack: Vec<Frame<'f>> = Vec::new();
    let mut next = Some((top, path));
    loop {
        if let Some((node, path)) = next.take() {
            let wanted = visit(&node, &path, stack.len())?;
            if wanted && node.is_dir() {
                match frame(volume, node, path) {
                    Ok(frame) => stack.push(frame),
                    Err(error) => failed(error),
                }
            }
        }
        let Some(frame) = stack.last_mut() else { return Ok(()) };
        let Some(name) = frame.left.pop() else {
            stack.pop();
            continue;
        };
        let path = join(&frame.path, &name);
        match frame.node.child(&name).at(volume, &path) {
            Ok(node) => next = Some((node, path)),
            Err(error) => failed(error),
        }
    }
}

/// Calls `visit` with `top` and everything below it; symbolic links are not followed.
pub fn every<'f>(
    volume: &Volume,
    top: Node<'f>,
    path: Vec<u8>,
    visit: &mut dyn FnMut(&Node<'f>, &[u8]) -> Result<()>,
) -> Result<()> {
    visit(&top, &path)?;
    let mut stack = Vec::new();
    if top.is_dir() {
        stack.push(frame(volume, top, path)?);
    }
    while let Some(frame_now) = stack.last_mut() {
        let Some(name) = frame_now.left.pop() else {
            stack.pop();
            continue;
        };
        let path = join(&frame_now.path, &name);
        let node = frame_now.node.child(&name).at(volume, &path)?;
        visit(&node, &path)?;
        if node.is_dir() {
            stack.push(frame(volume, node, path)?);
        }
    }
    Ok(())
}

fn frame<'f>(volume: &Volume, node: Node<'f>, path: Vec<u8>) -> Result<Frame<'f>> {
    let mut left = node.names().at(volume, &path)?;
    left.reverse();
    Ok(Frame { node, path, left })
}
