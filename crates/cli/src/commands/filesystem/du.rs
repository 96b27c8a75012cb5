//! `spinney filesystem du`.

use super::units::Units;
use crate::args::{self, Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::Place;
use crate::commands::trees::{Spot, Trees};
use crate::error::{Exit, Result};
use crate::output::{Json, Out};
use btrfs_disk::Key;
use btrfs_disk::items::{Compression, FileExtent, FileExtentFields, dir_type};
use btrfs_disk::key::kind;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "filesystem du",
    summary: "tell how much files take, and how much of it they share",
    usage: "[-s] [--json] [UNITS] PATH...",
    help: "\
Tells of each file and directory below the paths how much content it has in extents, and how
much of that no other file and no snapshot has. For each PATH itself also, how much the
extents take together that somebody else has, too, or several below it. PATH is one of a
mount, or IMAGE:/PATH from the top level on. The output is that of `btrfs filesystem du`.

Options
    -s, --summarize        the paths alone
        --json             as a JSON array, sizes in bytes
        --raw              in bytes
        --human-readable   with the units that fit (the default)
        --iec, --si        by 1024 or by 1000
        --kbytes, --mbytes, --gbytes, --tbytes
                           in these units

Examples
    spinney filesystem du -s /mnt/home
",
    run,
};

#[derive(Clone, Copy, Default)]
struct Sizes {
    total: u64,
    exclusive: u64,
}

impl Sizes {
    fn add(&mut self, more: Sizes) {
        self.total += more.total;
        self.exclusive += more.exclusive;
    }
}

struct Row {
    name: String,
    sizes: Sizes,
    shared: Option<u64>,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut units) = (Vec::<OsString>::new(), Units::HUMAN);
    let (mut summarize, mut json) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('s') | Arg::Long("summarize") => summarize = true,
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other if units.take_long(&other) => {}
            other => return Err(unexpected(other)),
        }
    }
    let mut rows = Vec::new();
    for word in args::some(operands, "PATH")? {
        let place = Place::of_any_file(&word);
        let trees = Trees::open(&place)?;
        let mut walk = Walk::new(&trees, !summarize)?;
        let name = place.show();
        let sizes = walk.down(trees.spot()?, &name)?;
        rows.append(&mut walk.rows);
        rows.push(Row { name, sizes, shared: Some(covered(walk.shared)) });
    }
    let mut out = Out::new();
    match json {
        true => out.line(as_json(&rows))?,
        false => as_text(&mut out, &rows, units)?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

struct Walk<'t> {
    trees: &'t Trees,
    /// Whether each extent has more than one file.
    owners: HashMap<u64, Owner>,
    seen: HashSet<(u64, u64)>,
    /// Where extents with other owners lie: from, to.
    shared: Vec<(u64, u64)>,
    each: bool,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    One(u64, u64),
    Several,
}

impl<'t> Walk<'t> {
    fn new(trees: &'t Trees, each: bool) -> Result<Walk<'t>> {
        let (owners, rows, shared) = (owners(trees)?, Vec::new(), Vec::new());
        Ok(Walk { trees, owners, seen: HashSet::new(), shared, each, rows })
    }

    /// Of a file, or of all below a directory; a file counts once, whatever its names.
    fn down(&mut self, at: Spot, name: &str) -> Result<Sizes> {
        if self.trees.mode(at)? & libc::S_IFMT == libc::S_IFREG {
            return self.file(at);
        }
        let mut all = Sizes::default();
        for child in self.trees.children(at)? {
            if !matches!(child.kind, dir_type::DIR | dir_type::REG_FILE)
                || !self.seen.insert((child.at.tree.0, child.at.ino))
            {
                continue;
            }
            let name =
                format!("{}/{}", name.trim_end_matches('/'), String::from_utf8_lossy(&child.name));
            let sizes = self.down(child.at, &name)?;
            all.add(sizes);
            if self.each {
                self.rows.push(Row { name, sizes, shared: None });
            }
        }
        Ok(all)
    }

    fn file(&mut self, at: Spot) -> Result<Sizes> {
        let mut sizes = Sizes::default();
        self.trees.each_of(at, kind::EXTENT_DATA, |key, data| {
            let Some((fields, compressed)) = extent(key, data)? else { return Ok(()) };
            sizes.total += fields.num_bytes;
            if self.owners.get(&fields.disk_bytenr.0) != Some(&Owner::Several) {
                sizes.exclusive += fields.num_bytes;
                return Ok(());
            }
            let within = if compressed { 0 } else { fields.offset };
            let start = fields.disk_bytenr.0.saturating_add(within);
            self.shared.push((start, start.saturating_add(fields.num_bytes)));
            Ok(())
        })?;
        Ok(sizes)
    }
}

/// An extent with an address, and whether it is compressed.
fn extent(key: Key, data: &[u8]) -> btrfs_disk::Result<Option<(FileExtentFields, bool)>> {
    match FileExtent::parse(data).map_err(|c| c.key(key))? {
        FileExtent::Extent { compression, fields, .. } if fields.disk_bytenr.0 != 0 => {
            Ok(Some((fields, compression != Compression::None)))
        }
        _ => Ok(None),
    }
}

/// Every subvolume is looked at: the extent tree tells who refers to an extent in terms of leaves,
/// which many of them may share.
fn owners(trees: &Trees) -> Result<HashMap<u64, Owner>> {
    let mut owners = HashMap::new();
    for root in trees.subvolumes()? {
        trees.each(root.id, Key::MIN..=Key::MAX, |key, data| {
            if key.kind == kind::EXTENT_DATA
                && let Some((fields, _)) = extent(key, data)?
            {
                let me = Owner::One(root.id.0, key.objectid);
                let owner = owners.entry(fields.disk_bytenr.0).or_insert(me);
                if *owner != me {
                    *owner = Owner::Several;
                }
            }
            Ok(())
        })?;
    }
    Ok(owners)
}

/// Bytes that the ranges cover together.
fn covered(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut bytes, mut end) = (0, 0);
    for (from, to) in ranges {
        bytes += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    bytes
}

fn as_text(out: &mut Out, rows: &[Row], units: Units) -> Result<()> {
    out.line(format!("{:>10}  {:>10}  {:>10}  Filename", "Total", "Exclusive", "Set shared"))?;
    for Row { name, sizes, shared } in rows {
        let (total, exclusive) = (units.show(sizes.total), units.show(sizes.exclusive));
        let shared = shared.map_or_else(|| "-".into(), |shared| units.show(shared));
        out.line(format!("{total:>10}  {exclusive:>10}  {shared:>10}  {name}"))?;
    }
    Ok(())
}

fn as_json(rows: &[Row]) -> String {
    Json::array(|all| {
        for Row { name, sizes, shared } in rows {
            all.object(|o| {
                o.text("path", name).number("total", sizes.total);
                o.number("exclusive", sizes.exclusive);
                shared.iter().for_each(|shared| _ = o.number("set_shared", *shared));
            });
        }
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranges_count_once() {
        assert_eq!(super::covered(vec![(10, 20), (15, 30), (40, 50), (41, 42)]), 30);
    }
}
