//! Quota groups as a table, laid out as `btrfs qgroup show` of btrfs-progs 6.2 does it: scripts
//! read it by columns.

use crate::commands::filesystem::units::Units;
use spinney::{Qgroup, QgroupId};

/// Columns beside those that are always there.
#[derive(Clone, Copy, Default, Debug)]
pub struct Columns {
    pub parents: bool,
    pub children: bool,
    pub max_referenced: bool,
    pub max_exclusive: bool,
}

/// A group, and what else is shown of it.
pub struct Row {
    pub group: Qgroup,
    pub children: Vec<QgroupId>,
    /// Of its subvolume, from the top of the volume.
    pub path: Option<Vec<u8>>,
    /// Simple quotas: it has charges, whatever became of the subvolume.
    pub holder: bool,
}

struct Column {
    name: &'static str,
    left: bool,
    width: usize,
    cells: Vec<String>,
}

fn ids(ids: &[QgroupId]) -> String {
    match ids {
        [] => "-".into(),
        ids => ids.iter().map(QgroupId::to_string).collect::<Vec<_>>().join(","),
    }
}

fn columns(rows: &[Row], columns: Columns, units: Units) -> Vec<Column> {
    let mut all = Vec::new();
    let mut add = |name, left, width, show: &dyn Fn(&Row) -> String| {
        let cells: Vec<String> = rows.iter().map(show).collect();
        let longest = cells.iter().map(String::len).max().unwrap_or(0);
        all.push(Column { name, left, width: longest.max(width), cells });
    };
    let limit = |most: Option<u64>| most.map_or("none".into(), |most| units.show(most));
    add("Qgroupid", true, 8, &|row| row.group.id.to_string());
    add("Referenced", false, 13, &|row| units.show(row.group.referenced));
    add("Exclusive", false, 12, &|row| units.show(row.group.exclusive));
    if columns.max_referenced {
        add("Max referenced", false, 15, &|row| limit(row.group.max_referenced));
    }
    if columns.max_exclusive {
        add("Max exclusive", false, 14, &|row| limit(row.group.max_exclusive));
    }
    if columns.parents {
        add("Parent", true, 8, &|row| ids(&row.group.parents));
    }
    if columns.children {
        add("Child", true, 5, &|row| ids(&row.children));
    }
    all
}

/// What stands in the last column: the subvolume, or what a higher group is in, and in how many.
fn place(row: &Row) -> Vec<u8> {
    if row.group.id.level() > 0 {
        let parents = &row.group.parents;
        let names = parents.iter().map(QgroupId::to_string).collect::<Vec<_>>().join(" ");
        let many = if parents.len() == 1 { "" } else { "s" };
        return format!("{names}<{} member qgroup{many}>", parents.len()).into_bytes();
    }
    match &row.path {
        Some(path) if path.is_empty() => b"<toplevel>".to_vec(),
        Some(path) => path.clone(),
        None if row.holder => b"<squota space holder>".to_vec(),
        None => b"<stale>".to_vec(),
    }
}

/// The lines of the table.
pub fn lines(rows: &[Row], which: Columns, units: Units) -> Vec<Vec<u8>> {
    let columns = columns(rows, which, units);
    let padded = |column: &Column, text: &str| match column.left {
        true => format!("{text:<width$} ", width = column.width),
        false => format!("{text:>width$} ", width = column.width),
    };
    let dashes = |name: &str| "-".repeat(name.len());
    let head = columns.iter().map(|c| padded(c, c.name)).collect::<String>();
    let rule = columns.iter().map(|c| padded(c, &dashes(c.name))).collect::<String>();
    let mut lines = vec![format!("{head}  Path ").into(), format!("{rule}  ---- ").into()];
    for (at, row) in rows.iter().enumerate() {
        let front = columns.iter().map(|c| padded(c, &c.cells[at])).collect::<String>();
        lines.push([front.as_bytes(), b"  ", &place(row)].concat());
    }
    lines
}
