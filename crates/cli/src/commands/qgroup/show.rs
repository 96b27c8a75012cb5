//! `spinney qgroup show`.

use super::table::{self, Columns, Row};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::filesystem::units::{Units, long_units};
use crate::commands::quota::on;
use crate::commands::subvolume::place::{Open, VolumePath};
use crate::commands::subvolume::words;
use crate::error::{Error, Exit, Result, say_error};
use crate::output::{Json, Object, Out};
use spinney::QgroupId;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

pub const COMMAND: Command = Command {
    name: "qgroup show",
    summary: "list quota groups, what they hold and may hold",
    usage: "[-pcre] [-F | -f] [--sync] [UNITS] [--sort=KEY,...] [--json] PATH",
    help: concat!(
        "\
Lists the quota groups of the volume that PATH is in, an image or a mount: what they
reference, what they have for themselves, as of the last commit, and the subvolume, or which
groups they are in. In a mount, root and who mounted it may ask.

Options
    -p                also the groups that each is in
    -c                also the groups that are in each
    -r                also how much it may reference
    -e                also how much it may have for itself
    -F                only the group of the subvolume around PATH, and those that it is in
    -f                only the group of the subvolume around PATH
    --sync            commit first, so that nothing is missing
    --sort KEY,...    sort by qgroupid, rfer, excl, max_rfer, max_excl, path; several with
                      commas, from the highest down with `-` in front
    --json            as a JSON object, in bytes: `__header`, and the groups in `qgroup-show`
        --raw              bytes
",
        long_units!(),
        "
Examples
    spinney qgroup show -pcre /mnt
    spinney qgroup show --raw disk.img
"
    ),
    run,
};

struct Wanted {
    columns: Columns,
    units: Units,
    sort: Vec<Sort>,
    /// Of the subvolume around the path alone; with those above.
    around: Option<bool>,
    sync: bool,
    json: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let mut operands = Vec::new();
    let columns = Columns::default();
    let (around, sort) = (None, Vec::new());
    let mut wanted =
        Wanted { columns, units: Units::HUMAN, sort, around, sync: false, json: false };
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('p') => wanted.columns.parents = true,
            Arg::Short('c') => wanted.columns.children = true,
            Arg::Short('r') => wanted.columns.max_referenced = true,
            Arg::Short('e') => wanted.columns.max_exclusive = true,
            Arg::Short('F') => wanted.around = Some(true),
            Arg::Short('f') => wanted.around = Some(false),
            Arg::Long("sync") => wanted.sync = true,
            Arg::Long("json") => wanted.json = true,
            Arg::Long("sort") => wanted.sort = sorts(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other if wanted.units.take_long(&other) => {}
            other => return Err(args::unexpected(other)),
        }
    }
    let place = VolumePath::parse(&args::one(operands, "an image or a path of a mount")?);
    on(&place, false, |open| show(open, &place, &wanted))
}

fn show(open: &Open<'_>, place: &VolumePath, wanted: &Wanted) -> Result<()> {
    if wanted.sync {
        open.sync(place)?;
    }
    let mut rows = rows(open, place)?;
    if let Some(above) = wanted.around {
        let own = QgroupId(open.around(place)?.0.id.0);
        let shown = if above { with_ancestors(&rows, own) } else { BTreeSet::from([own]) };
        rows.retain(|row| shown.contains(&row.group.id));
    }
    rows.sort_by(|a, b| {
        let all = wanted.sort.iter().map(|sort| sort.compare(a, b));
        all.fold(Ordering::Equal, Ordering::then)
    });
    let status = open.quota_status(place)?;
    if status.is_some_and(|status| status.simple) {
        rows.iter_mut().for_each(|row| row.holder = row.group.referenced != 0);
    }
    match status {
        Some(status) if status.rescan.is_some() => {
            say_error("spinney: a rescan is under way, what is shown may be too little");
        }
        Some(status) if status.inconsistent => {
            say_error("spinney: the numbers cannot be trusted before a rescan");
        }
        _ => {}
    }
    let mut out = Out::new();
    if wanted.json {
        out.line(as_json(&rows))?;
        return out.finish();
    }
    for line in table::lines(&rows, wanted.columns, wanted.units) {
        out.line(line)?;
    }
    out.finish()
}

fn rows(open: &Open<'_>, place: &VolumePath) -> Result<Vec<Row>> {
    let groups = open.qgroups(place)?;
    let mut children = BTreeMap::<QgroupId, Vec<QgroupId>>::new();
    for group in &groups {
        for parent in &group.parents {
            children.entry(*parent).or_default().push(group.id);
        }
    }
    let all = open.all(place)?;
    let mut paths: BTreeMap<u64, Vec<u8>> = all
        .iter()
        .filter(|info| !info.deleted)
        .map(|info| (info.id.0, words::path(info).to_vec()))
        .collect();
    let row = |group: spinney::Qgroup| Row {
        children: children.remove(&group.id).unwrap_or_default(),
        path: paths.remove(&group.id.0),
        holder: false,
        group,
    };
    Ok(groups.into_iter().map(row).collect())
}

fn with_ancestors(rows: &[Row], own: QgroupId) -> BTreeSet<QgroupId> {
    let mut all = BTreeSet::from([own]);
    // By level, so parents come behind.
    for row in rows {
        if all.contains(&row.group.id) {
            all.extend(&row.group.parents);
        }
    }
    all
}

#[derive(Clone, Copy)]
enum Key {
    Id,
    Referenced,
    Exclusive,
    MaxReferenced,
    MaxExclusive,
    Path,
}

#[derive(Clone, Copy)]
struct Sort {
    key: Key,
    down: bool,
}

impl Sort {
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let number = |of: fn(&Row) -> u64| of(a).cmp(&of(b));
        let order = match self.key {
            Key::Id => a.group.id.cmp(&b.group.id),
            Key::Referenced => number(|row| row.group.referenced),
            Key::Exclusive => number(|row| row.group.exclusive),
            // As in the original, what is not limited comes first.
            Key::MaxReferenced => number(|row| row.group.max_referenced.unwrap_or(0)),
            Key::MaxExclusive => number(|row| row.group.max_exclusive.unwrap_or(0)),
            Key::Path => a.path.cmp(&b.path),
        };
        if self.down { order.reverse() } else { order }
    }
}

fn sorts(text: &str) -> Result<Vec<Sort>> {
    let one = |word: &str| {
        let key = match word.trim_start_matches(['+', '-']) {
            "qgroupid" => Key::Id,
            "rfer" => Key::Referenced,
            "excl" => Key::Exclusive,
            "max_rfer" => Key::MaxReferenced,
            "max_excl" => Key::MaxExclusive,
            "path" => Key::Path,
            _ => return Err(Error::usage(format!("--sort={text}: there is no {word:?}"))),
        };
        Ok(Sort { key, down: word.starts_with('-') })
    };
    text.split(',').map(one).collect()
}

/// As btrfs-progs has it.
fn as_json(rows: &[Row]) -> String {
    Json::as_progs(|o| {
        o.array("qgroup-show", |all| {
            for row in rows {
                all.object(|o| object(o, row));
            }
        });
    })
}

fn object(o: &mut Object<'_>, row: &Row) {
    let group = &row.group;
    o.text("qgroupid", &group.id.to_string());
    for (key, value, max_key, most) in [
        ("referenced", group.referenced, "max_referenced", group.max_referenced),
        ("exclusive", group.exclusive, "max_exclusive", group.max_exclusive),
    ] {
        o.number(key, value);
        match most {
            Some(most) => o.number(max_key, most),
            None => o.text(max_key, "none"),
        };
    }
    o.bytes("path", row.path.as_deref().unwrap_or_default());
    for (key, ids) in [("parents", &group.parents), ("children", &row.children)] {
        o.array(key, |a| {
            ids.iter().for_each(|id| {
                a.text(&id.to_string());
            })
        });
    }
}
