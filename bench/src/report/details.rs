//! For a workload that tells more than a rate: one table, with the columns of every side
//! beside each other. Each number is the median of the samples.

use super::SideInfo;
use crate::runner::{Cell, Row};
use crate::stats;
use crate::workload::Detail;
use std::fmt::{Result, Write};

const NAME: usize = 14;
const COLUMN: usize = 12;

/// Writes nothing where no side has details.
pub fn write(out: &mut String, sides: &[SideInfo], row: &Row) -> Result {
    let tables: Vec<Vec<Detail>> = row.cells.iter().map(medians).collect();
    let longest = tables.iter().max_by_key(|table| table.len());
    let Some(longest) = longest.filter(|table| !table.is_empty()) else { return Ok(()) };
    let width = COLUMN * longest[0].values.len();
    write!(out, "\n{:<NAME$}", row.info.name)?;
    for side in sides {
        write!(out, "  {:>width$}", side.label)?;
    }
    write!(out, "\n{:<NAME$}", "")?;
    for _ in sides {
        write!(out, "  ")?;
        for (column, _) in &longest[0].values {
            write!(out, "{column:>COLUMN$}")?;
        }
    }
    writeln!(out)?;
    for line in longest {
        write_line(out, &line.name, &tables, width)?;
    }
    Ok(())
}

fn write_line(out: &mut String, name: &str, tables: &[Vec<Detail>], width: usize) -> Result {
    write!(out, "{name:<NAME$}")?;
    for table in tables {
        let detail = table.iter().find(|detail| detail.name == name);
        let numbers = detail.map_or_else(|| "-".to_string(), |d| numbers(&d.values));
        write!(out, "  {numbers:>width$}")?;
    }
    writeln!(out)
}

/// Counts whole, latencies with three decimals.
fn numbers(values: &[(&'static str, f64)]) -> String {
    let one = |value: f64| match value.fract() == 0.0 {
        true => format!("{value:>COLUMN$.0}"),
        false => format!("{value:>COLUMN$.3}"),
    };
    values.iter().map(|(_, value)| one(*value)).collect()
}

fn medians(cell: &Cell) -> Vec<Detail> {
    let samples: Vec<&Vec<Detail>> = cell.samples.iter().flatten().map(|s| &s.details).collect();
    let Some(first) = samples.first() else { return Vec::new() };
    let middle = |name: &str, at: usize| {
        let rows = samples.iter().filter_map(|rows| rows.iter().find(|row| row.name == name));
        let values: Vec<f64> = rows.filter_map(|row| Some(row.values.get(at)?.1)).collect();
        stats::median(&values).unwrap_or(f64::NAN)
    };
    let mut table = (*first).clone();
    for detail in &mut table {
        for (at, value) in detail.values.iter_mut().enumerate() {
            value.1 = middle(&detail.name, at);
        }
    }
    table
}
