//! `spinney filesystem du`.

use super::units::Units;
use crate::args::{self, Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::{Child, TreeInode, Trees};
use crate::error::{Exit, Result};
use crate::inside::path::push;
use crate::output::{Json, JsonRows, Out};
use crate::show::printable;
use btrfs_disk::Key;
use btrfs_disk::items::{Compression, FileExtent, FileExtentFields, dir_type};
use btrfs_disk::key::kind;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::IsTerminal;

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
        // Items may claim any number of bytes.
        self.total = self.total.saturating_add(more.total);
        self.exclusive = self.exclusive.saturating_add(more.exclusive);
    }
}

struct Row<'r> {
    name: &'r [u8],
    sizes: Sizes,
    shared: Option<u64>,
}

/// Rows as they come: a deep tree has more in its names than memory should hold.
struct Table {
    out: Out,
    units: Units,
    json: bool,
    objects: JsonRows,
    terminal: bool,
}

impl Table {
    fn begin(units: Units, json: bool) -> Result<Table> {
        let mut out = Out::new();
        if !json {
            let names = ["Total", "Exclusive", "Set shared"];
            let [total, exclusive, shared] = names;
            out.line(format!("{total:>10}  {exclusive:>10}  {shared:>10}  Filename"))?;
        }
        let terminal = std::io::stdout().is_terminal();
        Ok(Table { out, units, json, objects: JsonRows::default(), terminal })
    }

    fn row(&mut self, row: &Row<'_>) -> Result<()> {
        if self.json {
            return self.objects.row(&mut self.out, &as_json(row));
        }
        let Row { name, sizes, shared } = row;
        let units = self.units;
        let (total, exclusive) = (units.show(sizes.total), units.show(sizes.exclusive));
        let shared = shared.map_or_else(|| "-".into(), |shared| units.show(shared));
        self.out.bytes(format!("{total:>10}  {exclusive:>10}  {shared:>10}  ").as_bytes())?;
        self.out.line(printable(name, self.terminal))
    }

    fn end(mut self) -> Result<()> {
        if self.json {
            self.objects.end(&mut self.out)?;
        }
        self.out.finish()
    }
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
    let operands = args::some(operands, "PATH")?;
    let mut table = Table::begin(units, json)?;
    let mut exit = Exit::Done;
    for word in operands {
        let place = VolumePath::of_any_file(&word);
        // One that fails does not take the others along; but nobody may hear of them any more.
        if let Err(error) = path(&place, &mut table, !summarize) {
            table.out.finish()?;
            error.print();
            exit = Exit::Failed;
        }
    }
    table.end()?;
    Ok(exit)
}

fn path(place: &VolumePath, table: &mut Table, each: bool) -> Result<()> {
    let trees = Trees::open(place)?;
    let mut walk = Walk::new(&trees, table, each)?;
    let name = place.bytes();
    let sizes = walk.all(trees.spot()?, &name)?;
    let shared = Some(covered(walk.shared));
    table.row(&Row { name: &name, sizes, shared })
}

struct Walk<'t> {
    trees: &'t Trees,
    /// Whether each extent has more than one file.
    owners: HashMap<u64, Owner>,
    seen: HashSet<TreeInode>,
    /// Where extents with other owners lie: from, to.
    shared: Vec<(u64, u64)>,
    /// Rows of what is below the path go here.
    table: &'t mut Table,
    each: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    One(u64, u64),
    Several,
}

/// A directory that is gone through.
struct Level {
    rest: std::vec::IntoIter<Child>,
    sizes: Sizes,
    /// Of its own path.
    name_len: usize,
}

impl<'t> Walk<'t> {
    fn new(trees: &'t Trees, table: &'t mut Table, each: bool) -> Result<Walk<'t>> {
        let (owners, seen, shared) = (owners(trees)?, HashSet::new(), Vec::new());
        Ok(Walk { trees, owners, seen, shared, table, each })
    }

    /// Of a file, or of all below a directory. A file counts once, whatever its names; so does a
    /// directory, which in a damaged volume may be found below itself. The levels are a list, not
    /// calls: nothing bounds how deep directories lie.
    fn all(&mut self, top: TreeInode, name: &[u8]) -> Result<Sizes> {
        if self.trees.mode(top)? & libc::S_IFMT == libc::S_IFREG {
            return self.file(top);
        }
        self.seen.insert(top);
        let mut path = name.to_vec();
        path.truncate(name.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1));
        let mut levels = vec![self.level(top, path.len())?];
        let mut below = Sizes::default();
        while let Some(level) = levels.last_mut() {
            path.truncate(level.name_len);
            let Some(child) = level.rest.next() else {
                below = level.sizes;
                levels.pop();
                if let Some(parent) = levels.last_mut() {
                    parent.sizes.add(below);
                    self.tell(&path, below)?;
                }
                continue;
            };
            if !matches!(child.kind, dir_type::DIR | dir_type::REG_FILE)
                || !self.seen.insert(child.at)
            {
                continue;
            }
            push(&mut path, &child.name);
            if self.trees.mode(child.at)? & libc::S_IFMT == libc::S_IFREG {
                let sizes = self.file(child.at)?;
                level.sizes.add(sizes);
                self.tell(&path, sizes)?;
            } else {
                levels.push(self.level(child.at, path.len())?);
            }
        }
        Ok(below)
    }

    fn level(&self, dir: TreeInode, name_len: usize) -> Result<Level> {
        let rest = self.trees.children(dir)?.into_iter();
        Ok(Level { rest, sizes: Sizes::default(), name_len })
    }

    fn tell(&mut self, name: &[u8], sizes: Sizes) -> Result<()> {
        match self.each {
            true => self.table.row(&Row { name, sizes, shared: None }),
            false => Ok(()),
        }
    }

    fn file(&mut self, at: TreeInode) -> Result<Sizes> {
        let mut sizes = Sizes::default();
        self.trees.each_of(at, kind::EXTENT_DATA, |key, data| {
            let Some((fields, compressed)) = extent(key, data)? else { return Ok(()) };
            let total = fields.num_bytes;
            if self.owners.get(&fields.disk_bytenr.0) != Some(&Owner::Several) {
                sizes.add(Sizes { total, exclusive: total });
                return Ok(());
            }
            sizes.add(Sizes { total, exclusive: 0 });
            let within = if compressed { 0 } else { fields.offset };
            let start = fields.disk_bytenr.0.saturating_add(within);
            self.shared.push((start, start.saturating_add(total)));
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

fn as_json(row: &Row<'_>) -> String {
    Json::object(|o| {
        o.bytes("path", row.name).number("total", row.sizes.total);
        o.number("exclusive", row.sizes.exclusive);
        row.shared.iter().for_each(|shared| _ = o.number("set_shared", *shared));
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_that_cannot_be_add_up_to_the_largest() {
        let half = super::Sizes { total: 1 << 63, exclusive: 1 << 63 };
        let mut all = half;
        all.add(half);
        assert_eq!((all.total, all.exclusive), (u64::MAX, u64::MAX));
    }

    #[test]
    fn ranges_count_once() {
        assert_eq!(super::covered(vec![(10, 20), (15, 30), (40, 50), (41, 42)]), 30);
    }
}
