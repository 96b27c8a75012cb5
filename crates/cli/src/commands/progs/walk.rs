//! Nodes of trees, in the order in which they are to be printed.
//!
//! Invariant: a node that cannot be read is told once on standard error, and what does not hang
//! below it is printed all the same. Trees are no deeper than eight levels, so that walks recurse.

use super::fields::ItemContext;
use super::items;
use super::keys::{key as key_of, names, tree};
use super::text::{Text, Wishes, line};
use crate::commands::offline::{Offline, uuid};
use crate::error::Result;
use crate::output::{Out, hex};
use btrfs_disk::node::{
    BACKREF_REV_SHIFT, FLAG_RELOC, FLAG_WRITTEN, HEADER_SIZE, ITEM_SIZE, KEY_PTR_SIZE,
};
use btrfs_disk::{Expect, Logical, Node, TreeId};
use btrfs_tree::TreeRoot;
use std::collections::HashSet;

/// Which nodes below a root, and when.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Level by level.
    #[default]
    Breadth,
    /// Each node, then what is below it.
    Depth,
    /// Leaves alone.
    Leaves,
}

pub struct Printer<'o> {
    pub offline: &'o Offline,
    pub out: Out,
    pub failed: bool,
    wishes: Wishes,
    told: HashSet<Logical>,
}

impl<'o> Printer<'o> {
    pub fn new(offline: &'o Offline, wishes: Wishes) -> Printer<'o> {
        Printer { offline, out: Out::new(), failed: false, wishes, told: HashSet::new() }
    }

    /// All of a tree.
    pub fn tree(&mut self, root: &TreeRoot, order: Order) -> Result<()> {
        self.below(&root.expect(), root.id, order)
    }

    /// The node at an address, believed as far as its own header goes; with an order, what is
    /// below it as well.
    pub fn block(&mut self, logical: u64, order: Option<Order>) -> Result<()> {
        let (header, expect) = match self.offline.by_its_header(Logical(logical)) {
            Ok(found) => found,
            Err(error) => return self.complain(Logical(logical), &error),
        };
        match order {
            Some(order) => self.below(&expect, header.owner, order),
            None => match self.read(&expect)? {
                Some(node) => self.print(&node),
                None => Ok(()),
            },
        }
    }

    fn below(&mut self, top: &Expect, tree: TreeId, order: Order) -> Result<()> {
        match order {
            Order::Breadth => {
                for level in (0..=top.level).rev() {
                    self.level(top, tree, level)?;
                }
                Ok(())
            }
            Order::Leaves => self.level(top, tree, 0),
            Order::Depth => self.depth(top, tree),
        }
    }

    /// What is on one level below a node; those between are read again for each level, since
    /// they are few and a level may be long.
    fn level(&mut self, at: &Expect, tree: TreeId, wanted: u8) -> Result<()> {
        if self.out.closed() {
            return Ok(());
        }
        let Some(node) = self.read(at)? else { return Ok(()) };
        if node.level() == wanted {
            return self.print(&node);
        }
        for child in node.children() {
            self.level(&Expect::of_child(&child, node.level() - 1, tree), tree, wanted)?;
        }
        Ok(())
    }

    fn depth(&mut self, at: &Expect, tree: TreeId) -> Result<()> {
        if self.out.closed() {
            return Ok(());
        }
        let Some(node) = self.read(at)? else { return Ok(()) };
        self.print(&node)?;
        if !node.is_leaf() {
            for child in node.children() {
                self.depth(&Expect::of_child(&child, node.level() - 1, tree), tree)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, expect: &Expect) -> Result<Option<Node>> {
        match self.offline.volume.read_node(expect) {
            Ok(node) => Ok(Some(node)),
            Err(error) => self.complain(expect.logical, &error).map(|()| None),
        }
    }

    fn complain(&mut self, at: Logical, error: &btrfs_disk::Error) -> Result<()> {
        self.failed = true;
        if self.told.insert(at) {
            self.out.finish()?;
            self.offline.error(error).print();
        }
        Ok(())
    }

    fn print(&mut self, node: &Node) -> Result<()> {
        let mut text = Text::new(self.wishes);
        head(&mut text, node, self.offline.volume.geometry().csum.size());
        if !node.is_leaf() {
            for child in node.children() {
                let (key, at, generation) = (key_of(&child.key), child.logical, child.generation);
                line!(text, "\tkey {key} block {at} gen {generation}");
            }
            return self.out.bytes(&text.bytes);
        }
        for (slot, (key, data)) in node.items().enumerate() {
            let (offset, size) = (node.data_range(slot).start - HEADER_SIZE, data.len());
            line!(text, "\titem {slot} key {} itemoff {offset} itemsize {size}", key_of(&key));
            let place = ItemContext { geometry: self.offline.volume.geometry(), key };
            items::tell(&mut text, &place, data);
        }
        self.out.bytes(&text.bytes)
    }
}

fn head(text: &mut Text, node: &Node, csum_size: usize) {
    let header = node.header();
    let (logical, generation, owner) = (node.logical(), node.generation(), tree(node.owner()));
    let (items, room) = (node.len(), node.bytes().len() - HEADER_SIZE);
    let what = if node.is_leaf() { "leaf" } else { "node" };
    if node.is_leaf() {
        let used: usize = node.items().map(|(_, data)| data.len() + ITEM_SIZE).sum();
        text.put(format_args!("leaf {logical} items {items} free space {}", room - used));
    } else {
        let (level, free) = (node.level(), room / KEY_PTR_SIZE - items);
        text.put(format_args!("node {logical} level {level} items {items} free space {free}"));
    }
    line!(text, " generation {generation} owner {owner}");
    let revision = header.flags >> BACKREF_REV_SHIFT;
    let flags = header.flags & ((1 << BACKREF_REV_SHIFT) - 1);
    let set = names(flags, &[(FLAG_WRITTEN, "WRITTEN"), (FLAG_RELOC, "RELOC")]);
    text.put(format_args!("{what} {logical} flags 0x{flags:x}({set}) backref revision {revision}"));
    if text.wishes.csum_headers {
        text.put(format_args!(" csum 0x{}", hex(&header.csum[..csum_size])));
    }
    line!(text, "");
    line!(text, "fs uuid {}", uuid(&header.fsid));
    line!(text, "chunk uuid {}", uuid(&header.chunk_tree_uuid));
}
