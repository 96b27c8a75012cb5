//! `spinney inspect-internal tree-stats`.

use crate::args::{Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::filesystem::units::{Units, long_units};
use crate::commands::offline::{parse_tree, tree_name};
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::Trees;
use crate::error::{Exit, Result};
use crate::output::{Json, Out};
use btrfs_disk::items::FileExtent;
use btrfs_disk::key::kind;
use btrfs_disk::{Error, Node, TreeId};
use btrfs_tree::{NodePosition, Step, TreeRoot, Visitor, walk};
use std::sync::Arc;

pub const COMMAND: Command = Command {
    name: "inspect-internal tree-stats",
    summary: "tell how many nodes trees have, how full and scattered",
    usage: "[--json] [UNITS] [-t TREE] VOLUME",
    help: concat!(
        "\
Counts nodes by level, items, content that stands among the structures, how full leaves
are, and how often the next node of a tree in key order does not lie behind the one before.
Without -t: the root, extent, checksum and top-level trees. VOLUME is an image or a path of
a mount.

Options
    -t TREE                one tree, by number (a subvolume's id) or name as in `dump-tree`
        --json             as a JSON object, sizes in bytes
    -b, --raw              sizes in bytes
",
        long_units!(),
        "
Examples
    spinney inspect-internal tree-stats -t extent disk.img
"
    ),
    run,
};

/// What is counted of a tree.
struct Stats {
    id: TreeId,
    node_size: u64,
    levels: Vec<u64>,
    items: u64,
    inline: u64,
    free: u64,
    forward: u64,
    backward: u64,
    behind: Option<u64>,
    failed: Option<Error>,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json, mut units) = (Vec::new(), false, Units::HUMAN);
    let mut wanted = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('t') => wanted.push(parse_tree(&args.text()?)?),
            Arg::Value(value) => operands.push(value),
            other if units.take_raw_or_long(&other) => {}
            other => return Err(unexpected(other)),
        }
    }
    let trees = Trees::open(&VolumePath::parse(&one(operands, "an image or a path of a mount")?))?;
    if wanted.is_empty() {
        wanted = vec![TreeId::ROOT, TreeId::EXTENT, TreeId::CSUM, TreeId::FS];
    }
    let mut all = Vec::new();
    for id in wanted {
        let root = trees.must(id)?;
        all.push(count(&trees, &root)?);
    }
    let mut out = Out::new();
    match json {
        true => out.line(as_json(&all))?,
        false => all.iter().try_for_each(|stats| as_text(&mut out, stats, units))?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn count(trees: &Trees, root: &TreeRoot) -> Result<Stats> {
    let mut stats = Stats {
        id: root.id,
        node_size: trees.reader().geometry().node_size.into(),
        levels: vec![0; usize::from(root.level) + 1],
        items: 0,
        inline: 0,
        free: 0,
        forward: 0,
        backward: 0,
        behind: None,
        failed: None,
    };
    walk(trees.reader(), root, &mut stats);
    match stats.failed.take() {
        Some(error) => trees.explain(Err(error)),
        None => Ok(stats),
    }
}

impl Visitor for Stats {
    fn node(&mut self, _: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        if let Some(count) = self.levels.get_mut(usize::from(node.level())) {
            *count += 1;
        }
        let at = node.logical().0;
        match self.behind {
            Some(behind) if at > behind => self.forward += 1,
            Some(behind) if at < behind => self.backward += 1,
            _ => {}
        }
        self.behind = Some(at + self.node_size);
        if !node.is_leaf() {
            return Step::Into;
        }
        self.items += node.len() as u64;
        self.free += node.free_space() as u64;
        for (_, data) in node.items().filter(|(key, _)| key.kind == kind::EXTENT_DATA) {
            if let Ok(FileExtent::Inline { content, .. }) = FileExtent::parse(data) {
                self.inline += content.len() as u64;
            }
        }
        Step::Over
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        self.failed = Some(error);
        Step::Stop
    }
}

impl Stats {
    fn nodes(&self) -> u64 {
        self.levels.iter().sum()
    }

    fn full(&self) -> f64 {
        let room = self.levels[0] * self.node_size;
        (room - self.free.min(room)) as f64 * 100.0 / room.max(1) as f64
    }
}

fn as_text(out: &mut Out, stats: &Stats, units: Units) -> Result<()> {
    let size = |bytes: u64| units.show(bytes);
    out.line(format!("{} tree", tree_name(stats.id)))?;
    out.line(format!("    Total size:       {}", size(stats.nodes() * stats.node_size)))?;
    out.line(format!("    Inline data:      {}", size(stats.inline)))?;
    out.line(format!("    Items:            {}", stats.items))?;
    out.line(format!("    Leaves filled:    {:.1} %", stats.full()))?;
    out.line(format!("    Total seeks:      {}", stats.forward + stats.backward))?;
    out.line(format!("        Forward:      {}", stats.forward))?;
    out.line(format!("        Backward:     {}", stats.backward))?;
    out.line(format!("    Levels:           {}", stats.levels.len()))?;
    out.line(format!("    Total nodes:      {}", stats.nodes()))?;
    for (level, count) in stats.levels.iter().enumerate() {
        out.line(format!("        On level {level}:   {count}"))?;
    }
    Ok(())
}

fn as_json(all: &[Stats]) -> String {
    Json::object(|o| {
        o.array("trees", |trees| {
            for stats in all {
                trees.object(|o| {
                    o.text("tree", &tree_name(stats.id))
                        .number("size", stats.nodes() * stats.node_size)
                        .number("inline", stats.inline)
                        .number("items", stats.items)
                        .number("free", stats.free)
                        .number("seeks_forward", stats.forward)
                        .number("seeks_backward", stats.backward)
                        .array("nodes_by_level", |levels| {
                            for count in &stats.levels {
                                levels.number(*count);
                            }
                        });
                });
            }
        });
    })
}
