//! `spinney inspect-internal tree-stats`.

use super::seeks::Seeks;
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
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "inspect-internal tree-stats",
    summary: "tell how many nodes trees have, how full and scattered",
    usage: "[--json] [UNITS] [-t TREE] VOLUME",
    help: concat!(
        "\
Counts nodes by level, items, content that stands among the structures, and how
often a child of a node does not lie behind the one before, nor the first behind the node.
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
    seeks: Seeks,
    time: Duration,
    /// It was asked for by name.
    wanted: bool,
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
    let named = !wanted.is_empty();
    if !named {
        wanted = vec![TreeId::ROOT, TreeId::EXTENT, TreeId::CSUM, TreeId::FS];
    }
    let mut all = Vec::new();
    for id in wanted {
        let root = trees.must(id)?;
        all.push(count(&trees, &root, named)?);
    }
    let mut out = Out::new();
    match json {
        true => out.line(as_json(&all))?,
        false => all.iter().try_for_each(|stats| as_text(&mut out, stats, units))?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn count(trees: &Trees, root: &TreeRoot, wanted: bool) -> Result<Stats> {
    let mut stats = Stats {
        id: root.id,
        node_size: trees.reader().geometry().node_size.into(),
        levels: vec![0; usize::from(root.level) + 1],
        items: 0,
        inline: 0,
        free: 0,
        seeks: Seeks::default(),
        time: Duration::ZERO,
        wanted,
        failed: None,
    };
    let since = Instant::now();
    walk(trees.reader(), root, &mut stats);
    stats.time = since.elapsed();
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
        if !node.is_leaf() {
            let children = node.children().map(|child| child.logical.0);
            self.seeks.node(node.logical().0, self.node_size, children);
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

    /// Content among the structures is what subvolumes have.
    fn inline(&self) -> u64 {
        if self.id.holds_files() { self.inline } else { 0 }
    }
}

fn as_text(out: &mut Out, stats: &Stats, units: Units) -> Result<()> {
    let (size, seeks) = (|bytes: u64| units.show(bytes), &stats.seeks);
    out.line(match stats.wanted {
        true => format!("Calculating size of tree ({})", stats.id.0 as i64),
        false => format!("Calculating size of {} tree", tree_name(stats.id)),
    })?;
    out.line(format!("\tTotal size: {}", size(stats.nodes() * stats.node_size)))?;
    out.line(format!("\t\tInline data: {}", size(stats.inline())))?;
    out.line(format!("\tTotal seeks: {}", seeks.total()))?;
    out.line(format!("\t\tForward seeks: {}", seeks.forward))?;
    out.line(format!("\t\tBackward seeks: {}", seeks.backward))?;
    out.line(format!("\t\tAvg seek len: {}", size(seeks.average())))?;
    histogram(out, seeks)?;
    let (least, most) = seeks.cluster_sizes(stats.node_size);
    out.line(format!("\tTotal clusters: {}", seeks.clusters()))?;
    out.line(format!("\t\tAvg cluster size: {}", size(seeks.average_cluster())))?;
    out.line(format!("\t\tMin cluster size: {}", size(least)))?;
    out.line(format!("\t\tMax cluster size: {}", size(most)))?;
    out.line(format!("\tTotal disk spread: {}", size(seeks.spread())))?;
    let (seconds, micros) = (stats.time.as_secs(), stats.time.subsec_micros());
    out.line(format!("\tTotal read time: {seconds} s {micros} us"))?;
    out.line(format!("\tLevels: {}", stats.levels.len()))?;
    out.line(format!("\tTotal nodes: {}", stats.nodes()))?;
    let mut below = None;
    for (level, count) in stats.levels.iter().enumerate() {
        let fanout = below
            .map_or(String::new(), |nodes| format!("  (avg fanout {})", nodes / (*count).max(1)));
        out.line(format!("\t\tOn level {level}: {count:8}{fanout}"))?;
        below = Some(*count);
    }
    Ok(())
}

fn histogram(out: &mut Out, seeks: &Seeks) -> Result<()> {
    let (bars, width) = (seeks.histogram(), seeks.width());
    if !bars.is_empty() {
        out.line("\tSeek histogram")?;
    }
    for (from, to, count, length) in bars {
        let bar = if length == 0 { "|".into() } else { "#".repeat(length as usize) };
        out.line(format!("\t\t{from:width$} - {to:width$}: {count:width$} {bar}"))?;
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
                        .number("seeks_forward", stats.seeks.forward)
                        .number("seeks_backward", stats.seeks.backward)
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
