//! Every node below one, each before its entries.

use super::node::Node;
use super::path::join;
use super::volumes::At;
use crate::error::Result;
use crate::image::Volume;

struct Frame<'f> {
    node: Node<'f>,
    path: Vec<u8>,
    /// In reverse order.
    left: Vec<Vec<u8>>,
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
