//! `spinney dump-tree`: every node and item of a volume's trees, in words.

mod items;

use super::Command;
use super::offline::{Offline, parse_tree, tree_name};
use crate::args::{Arg, Args, one, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::Access;
use crate::output::{Json, Out, hex};
use btrfs_disk::key::{Key, kind_name};
use btrfs_disk::node::{FLAG_RELOC, FLAG_WRITTEN};
use btrfs_disk::{Expect, Logical, Node, TreeId};
use btrfs_tree::TreeRoot;
use std::ffi::OsString;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "dump-tree",
    summary: "print the trees of a volume",
    usage: "[-t TREE]... [-b LOGICAL] [--headers] [--json] IMAGE",
    help: "\
Prints the nodes of the volume's trees in key order, with every item in words. Without -t,
prints the root tree, the chunk tree, all trees that the root tree names, and the log that
a crash left: the tree of log roots, and the log of each subvolume. A part of a tree that
cannot be read is told on standard error, and the rest is printed. Works on volumes in use,
as of their last commit.

Options
    -t, --tree TREE      one tree, by number (a subvolume's id) or by name: root, extent,
                         chunk, dev, fs, csum, quota, uuid, free-space, block-group,
                         data-reloc, reloc, log; may be repeated
    -b, --block LOGICAL  the node at this logical address alone
        --headers        the headers of nodes only
        --json           one JSON object a line: nodes, or items with their bytes in hex

Examples
    spinney dump-tree -t root disk.img
    spinney dump-tree -t 257 disk.img | less
    spinney dump-tree -b 30408704 disk.img
    spinney dump-tree -t fs --json disk.img | jq 'select(.type == \"INODE_ITEM\")'

Exit codes
    0  done
    1  something could not be read, or there is no such tree
    2  the command line is wrong
",
    run,
};

#[derive(Default)]
struct Wanted {
    image: OsString,
    trees: Vec<TreeId>,
    block: Option<u64>,
    headers: bool,
    json: bool,
}

fn parse(mut args: Args) -> Result<Wanted> {
    let mut wanted = Wanted::default();
    let mut operands = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('t') | Arg::Long("tree") => wanted.trees.push(parse_tree(&args.text()?)?),
            Arg::Short('b') | Arg::Long("block") => {
                let text = args.text()?;
                let number = text.parse();
                wanted.block = Some(
                    number.map_err(|_| Error::usage(format!("{text:?} is no logical address")))?,
                );
            }
            Arg::Long("headers") => wanted.headers = true,
            Arg::Long("json") => wanted.json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    wanted.image = one(operands, "an image")?;
    Ok(wanted)
}

fn run(args: Args) -> Result<Exit> {
    let wanted = parse(args)?;
    let offline = Offline::open(Path::new(&wanted.image), Access::Peek)?;
    let mut dump = Dump { offline: &offline, wanted: &wanted, out: Out::new(), failed: false };
    if let Some(block) = wanted.block {
        dump.block(block)?;
    } else {
        for root in chosen(&offline, &wanted)? {
            dump.tree(&root, &tree_name(root.id))?;
            if root.id == TreeId::LOG {
                for (log, subvolume) in offline.logs()? {
                    dump.tree(&log, &format!("log of {}", tree_name(subvolume)))?;
                }
            }
        }
    }
    dump.out.finish()?;
    Ok(Exit::failed_if(dump.failed))
}

fn chosen(offline: &Offline, wanted: &Wanted) -> Result<Vec<TreeRoot>> {
    let mut trees = wanted.trees.clone();
    if trees.is_empty() {
        trees = vec![TreeId::ROOT, TreeId::CHUNK];
    }
    let mut roots = Vec::new();
    for tree in trees {
        let image = wanted.image.to_string_lossy();
        let missing = || {
            Error::about(&image, format!("there is no tree {}", tree_name(tree)))
                .remedy(format!("`spinney dump-tree -t root {image}` shows all that there are"))
        };
        roots.push(offline.root(tree)?.ok_or_else(missing)?);
    }
    if wanted.trees.is_empty() {
        roots.extend(offline.roots()?);
        roots.extend(offline.root(TreeId::LOG)?);
    }
    Ok(roots)
}

struct Dump<'d> {
    offline: &'d Offline,
    wanted: &'d Wanted,
    out: Out,
    failed: bool,
}

impl Dump<'_> {
    fn tree(&mut self, root: &TreeRoot, name: &str) -> Result<()> {
        if !self.wanted.json {
            self.out.line(format!("tree {name} at {} level {}", root.logical, root.level))?;
        }
        self.walk(&root.expect(), root.id)
    }

    /// One node, believed as far as its own header goes.
    fn block(&mut self, logical: u64) -> Result<()> {
        let offline = &self.offline;
        let (_, expect) = offline.explain(offline.by_its_header(Logical(logical)))?;
        let node = offline.explain(offline.volume.read_node(&expect))?;
        self.node(&node, node.owner())
    }

    fn walk(&mut self, expect: &Expect, tree: TreeId) -> Result<()> {
        if self.out.closed() {
            return Ok(());
        }
        let node = match self.offline.volume.read_node(expect) {
            Ok(node) => node,
            Err(error) => {
                self.out.finish()?;
                self.offline.error(&error).print();
                self.failed = true;
                return Ok(());
            }
        };
        self.node(&node, tree)?;
        if node.is_leaf() {
            return Ok(());
        }
        for child in node.children() {
            self.walk(&Expect::of_child(&child, node.level() - 1, tree), tree)?;
        }
        Ok(())
    }

    fn node(&mut self, node: &Node, tree: TreeId) -> Result<()> {
        if self.wanted.json && (self.wanted.headers || !node.is_leaf()) {
            return self.out.line(node_json(node, tree));
        }
        if !self.wanted.json {
            self.out.line(headline(node))?;
        }
        if self.wanted.headers {
            return Ok(());
        }
        if !node.is_leaf() {
            for child in node.children() {
                let (key, at, generation) = (child.key, child.logical, child.generation);
                self.out.line(format!("  key {key} block {at} generation {generation}"))?;
            }
            return Ok(());
        }
        for (slot, (key, data)) in node.items().enumerate() {
            let words = items::describe(&self.offline.volume, key, data);
            if self.wanted.json {
                self.out.line(item_json(node, tree, slot, key, data, &words))?;
                continue;
            }
            self.out.line(format!("  item {slot} key {key} size {}", data.len()))?;
            for line in words {
                self.out.line(format!("    {line}"))?;
            }
        }
        Ok(())
    }
}

fn flags(node: &Node) -> String {
    let flags = node.header().flags;
    let names = [(FLAG_WRITTEN, "written"), (FLAG_RELOC, "reloc")];
    let set = names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join("|")
}

fn headline(node: &Node) -> String {
    let what = if node.is_leaf() { "leaf" } else { "node" };
    let room = if node.is_leaf() { format!(" free {}", node.free_space()) } else { String::new() };
    format!(
        "{what} {} level {} items {}{room} generation {} owner {} flags {}",
        node.logical(),
        node.level(),
        node.len(),
        node.generation(),
        tree_name(node.owner()),
        flags(node)
    )
}

fn node_json(node: &Node, tree: TreeId) -> String {
    Json::object(|o| {
        o.number("tree", tree.0 as i64).number("node", node.logical().0);
        o.number("level", node.level()).number("items", node.len() as u64);
        o.number("generation", node.generation().0).number("owner", node.owner().0 as i64);
        o.text("flags", &flags(node));
        if !node.is_leaf() {
            o.array("children", |a| {
                for child in node.children() {
                    a.number(child.logical.0);
                }
            });
        }
    })
}

fn item_json(
    node: &Node,
    tree: TreeId,
    slot: usize,
    key: Key,
    data: &[u8],
    words: &[String],
) -> String {
    Json::object(|o| {
        o.number("tree", tree.0 as i64).number("node", node.logical().0);
        o.number("slot", slot as u64).number("objectid", key.objectid);
        match kind_name(key.kind) {
            Some(name) => o.text("type", name),
            None => o.text("type", &key.kind.to_string()),
        };
        o.number("offset", key.offset).number("size", data.len() as u64);
        o.array("text", |a| {
            for line in words {
                a.text(line);
            }
        });
        o.text("data", &hex(data));
    })
}
