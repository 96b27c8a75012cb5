//! `spinney subvolume list`.

use super::place::{self, VolumePath};
use super::words;
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::error::{Error, Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out};
use btrfs_fs::Subvol;
use spinney::{SubvolId, SubvolumeInfo};
use std::cmp::Ordering;
use std::collections::HashMap;

pub const COMMAND: Command = Command {
    name: "subvolume list",
    summary: "list subvolumes and snapshots",
    usage: "[OPTIONS] VOLUME",
    help: "\
Lists the subvolumes of a volume with their numbers, the commit that changed each last,
the subvolume that it lies in, and its path: from VOLUME on where it lies below, else from
the top of the volume. VOLUME is an image, a path in one, or a directory of a mount; there
only root and who mounted it may ask.

Options
    -o                    only those directly in the subvolume of VOLUME
    -a                    paths from the top of the volume; <FS_TREE>/ stands before those
                          that do not lie directly in the subvolume of VOLUME
    -p                    the subvolume that it lies in, once more
    -c                    the commit that made it
    -g                    the commit that changed it last (always told)
    -u                    its UUID
    -q                    the UUID of what it is a snapshot of
    -R                    the UUID of what it was received as
    -s                    only snapshots, with the time when they were made
    -r                    only read-only ones
    -d                    only those that are deleted and not gone yet
    -t                    as a table
    -G, --gen N           only those last changed by commit N, from +N on, or up to -N
    -C, --ogen N          the same for the commit that made it
    --sort KEY,...        by gen, ogen, rootid or path; with - before it downwards
    --json                as a JSON array with all that is known
    --subvol PATH, --subvolid ID
                          paths in an image start from this subvolume, not the default one

Examples
    spinney subvolume list disk.img
    spinney subvolume list -t --sort=-ogen /mnt
",
    run,
};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Column {
    Id,
    Generation,
    Created,
    Parent,
    TopLevel,
    Time,
    ParentUuid,
    ReceivedUuid,
    Uuid,
    Path,
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Column::Id => "ID",
            Column::Generation => "gen",
            Column::Created => "cgen",
            Column::Parent => "parent",
            Column::TopLevel => "top level",
            Column::Time => "otime",
            Column::ParentUuid => "parent_uuid",
            Column::ReceivedUuid => "received_uuid",
            Column::Uuid => "uuid",
            Column::Path => "path",
        }
    }

    fn of(self, row: &Row) -> Vec<u8> {
        let info = &row.info;
        let text = match self {
            Column::Id => info.id.0.to_string(),
            Column::Generation => info.generation.to_string(),
            Column::Created => info.otransid.to_string(),
            Column::Parent | Column::TopLevel => words::parent(info).to_string(),
            Column::Time => words::time(info.otime),
            Column::ParentUuid => format!("{:<36}", words::uuid(&info.parent_uuid)),
            Column::ReceivedUuid => format!("{:<36}", words::uuid(&info.received_uuid)),
            Column::Uuid => words::uuid(&info.uuid),
            Column::Path => return row.path.clone(),
        };
        text.into_bytes()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SortBy {
    Generation,
    Created,
    Id,
    Path,
}

/// How a number is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted(Ordering, u64);

impl Wanted {
    fn parse(text: &str) -> Result<Wanted> {
        let (how, digits) = match text.split_at_checked(1) {
            Some(("+", digits)) => (Ordering::Greater, digits),
            Some(("-", digits)) => (Ordering::Less, digits),
            _ => (Ordering::Equal, text),
        };
        let wrong = || Error::usage(format!("{text:?} is no commit; write 7, +7 or -7"));
        digits.parse().map(|number| Wanted(how, number)).map_err(|_| wrong())
    }

    fn fits(self, number: u64) -> bool {
        matches!(number.cmp(&self.1), Ordering::Equal) || number.cmp(&self.1) == self.0
    }
}

#[derive(Default)]
struct Options {
    below: bool,
    marked: bool,
    snapshots: bool,
    read_only: bool,
    deleted: bool,
    table: bool,
    json: bool,
    columns: Vec<Column>,
    generation: Option<Wanted>,
    created: Option<Wanted>,
    sort: Vec<(SortBy, bool)>,
}

struct Row {
    info: SubvolumeInfo,
    path: Vec<u8>,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut options, mut operands, mut subvol) = (Options::default(), Vec::new(), Subvol::Default);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('o') => options.below = true,
            Arg::Short('a') => options.marked = true,
            Arg::Short('p') => options.columns.push(Column::Parent),
            Arg::Short('c') => options.columns.push(Column::Created),
            Arg::Short('g') => {}
            Arg::Short('u') => options.columns.push(Column::Uuid),
            Arg::Short('q') => options.columns.push(Column::ParentUuid),
            Arg::Short('R') => options.columns.push(Column::ReceivedUuid),
            Arg::Short('s') => {
                options.snapshots = true;
                options.columns.extend([Column::Created, Column::Time]);
            }
            Arg::Short('r') => options.read_only = true,
            Arg::Short('d') => options.deleted = true,
            Arg::Short('t') => options.table = true,
            Arg::Short('G') | Arg::Long("gen") => {
                options.generation = Some(Wanted::parse(&args.text()?)?);
            }
            Arg::Short('C') | Arg::Long("ogen") => {
                options.created = Some(Wanted::parse(&args.text()?)?);
                options.columns.push(Column::Created);
            }
            Arg::Long("sort") => options.sort = sort(&args.text()?)?,
            Arg::Long("json") => options.json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let place = VolumePath::parse(&args::one(operands, "an image or a directory of a mount")?);
    place::at(std::slice::from_ref(&place), subvol, false, |open, _| {
        let (here, _) = open.around(&place)?;
        print(rows(open.all(&place)?, here.id, &options), &options)
    })
}

fn sort(list: &str) -> Result<Vec<(SortBy, bool)>> {
    list.split(',').map(sort_key).collect()
}

fn sort_key(word: &str) -> Result<(SortBy, bool)> {
    let down = word.starts_with('-');
    let key = match word.trim_start_matches(['+', '-']) {
        "gen" => SortBy::Generation,
        "ogen" => SortBy::Created,
        "rootid" => SortBy::Id,
        "path" => SortBy::Path,
        _ => return Err(Error::usage(format!("--sort: {word}? gen, ogen, rootid or path"))),
    };
    Ok((key, down))
}

fn rows(all: Vec<SubvolumeInfo>, here: SubvolId, options: &Options) -> Vec<Row> {
    // Of two ways to tell a path, that from the subvolume of VOLUME on, if it leads there.
    let from = if options.marked || options.below { SubvolId::TOP_LEVEL } else { here };
    let base = all.iter().find(|info| info.id == from).and_then(|info| info.path.clone());
    let parents: HashMap<u64, u64> =
        all.iter().map(|info| (info.id.0, words::parent(info))).collect();
    let wanted = |info: &SubvolumeInfo| {
        info.id != SubvolId::TOP_LEVEL
            && info.deleted == options.deleted
            && (!options.below || words::parent(info) == here.0)
            && (!options.snapshots || words::is_snapshot(info))
            && (!options.read_only || info.read_only)
            && options.generation.is_none_or(|wanted| wanted.fits(info.generation))
            && options.created.is_none_or(|wanted| wanted.fits(info.otransid))
    };
    let mut rows: Vec<Row> = all
        .into_iter()
        .filter(wanted)
        .map(|info| {
            let mut path = words::path(&info).to_vec();
            if options.marked && words::parent(&info) != here.0 {
                path.splice(..0, *b"<FS_TREE>/");
            } else if lies_below(&parents, info.id, from)
                && let Some(base) = &base
                && let Some(rest) = path.strip_prefix(&base[..])
            {
                path = rest.strip_prefix(b"/").unwrap_or(rest).to_vec();
            }
            Row { info, path }
        })
        .collect();
    rows.sort_by(|a, b| {
        let by = options.sort.iter().map(|key| compare(a, b, *key));
        by.fold(Ordering::Equal, Ordering::then).then(a.info.id.cmp(&b.info.id))
    });
    rows
}

fn compare(a: &Row, b: &Row, (key, down): (SortBy, bool)) -> Ordering {
    let order = match key {
        SortBy::Generation => a.info.generation.cmp(&b.info.generation),
        SortBy::Created => a.info.otransid.cmp(&b.info.otransid),
        SortBy::Id => a.info.id.cmp(&b.info.id),
        SortBy::Path => a.path.cmp(&b.path),
    };
    if down { order.reverse() } else { order }
}

/// A circle of a damaged volume ends after as many steps as there are subvolumes.
fn lies_below(parents: &HashMap<u64, u64>, id: SubvolId, above: SubvolId) -> bool {
    let mut at = id.0;
    for _ in 0..parents.len() {
        match parents.get(&at) {
            Some(parent) if *parent == above.0 => return true,
            Some(parent) => at = *parent,
            None => return false,
        }
    }
    false
}

fn print(rows: Vec<Row>, options: &Options) -> Result<()> {
    let mut out = Out::new();
    let mut columns = options.columns.clone();
    columns.extend([Column::Id, Column::Generation, Column::TopLevel, Column::Path]);
    columns.sort();
    columns.dedup();
    if options.json {
        out.line(Json::array(|all| {
            for row in &rows {
                all.object(|o| words::json(o, &row.info, &row.path));
            }
        }))?;
    } else if options.table {
        table(&mut out, &rows, &columns)?;
    } else {
        for row in &rows {
            let cells = columns
                .iter()
                .map(|column| [column.title().as_bytes(), b" ", &column.of(row)].concat());
            out.line(cells.collect::<Vec<_>>().join(&b' '))?;
        }
    }
    out.finish()
}

/// As `btrfs subvolume list -t` draws it, tabulators and all.
fn table(out: &mut Out, rows: &[Row], columns: &[Column]) -> Result<()> {
    let titles: String = columns.iter().map(|column| format!("{}\t", column.title())).collect();
    out.line(titles)?;
    let lines = columns.iter().map(|column| format!("{}\t", "-".repeat(column.title().len())));
    out.line(lines.collect::<String>())?;
    for row in rows {
        let mut line = Vec::new();
        for column in columns {
            line.extend(column.of(row));
            match column {
                Column::TopLevel => line.extend(b"\t\t"),
                Column::Path => {}
                _ => line.push(b'\t'),
            }
        }
        out.line(line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_options() {
        let wanted = |text| Wanted::parse(text).unwrap();
        assert!(wanted("7").fits(7) && !wanted("7").fits(8));
        assert!(wanted("+7").fits(7) && wanted("+7").fits(8) && !wanted("+7").fits(6));
        assert!(wanted("-7").fits(7) && wanted("-7").fits(6) && !wanted("-7").fits(8));
        assert!(Wanted::parse("x").is_err() && Wanted::parse("").is_err());
        let keys = sort("-gen,path").unwrap();
        assert_eq!(keys, [(SortBy::Generation, true), (SortBy::Path, false)]);
        assert!(sort("size").is_err());
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let parents = HashMap::from([(256, 257), (257, 256), (258, 5)]);
        assert!(!lies_below(&parents, SubvolId(256), SubvolId::TOP_LEVEL));
        assert!(lies_below(&parents, SubvolId(258), SubvolId::TOP_LEVEL));
    }
}
