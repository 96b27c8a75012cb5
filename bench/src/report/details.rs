//! For a workload that tells more than a rate: one table, with the columns of every side
//! beside each other. Each number is the median of the samples.

use super::{SideInfo, number};
use crate::runner::{Cell, Row};
use crate::stats;
use crate::workload::Detail;
use crate::workload::jobs::{COMMIT, FSYNC};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Result, Write};

const NAME: usize = 14;
const COLUMN: usize = 12;

/// Writes nothing where no side has details.
pub fn write(out: &mut String, sides: &[SideInfo], row: &Row) -> Result {
    let mut tables: Vec<Vec<Detail>> = row.cells.iter().map(medians).collect();
    for table in &mut tables {
        table.retain(|detail| detail.name != FSYNC);
    }
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

pub const FSYNC_TITLE: &str = "Latency of fsync, ms: median / 99th / 99.9th percentile / longest";

/// One table for all rows that tell it.
pub fn write_fsyncs(out: &mut String, sides: &[SideInfo], rows: &[Row]) -> Result {
    let rows: Vec<&Row> = rows.iter().filter(|row| has_fsyncs(row)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    write!(out, "\n{FSYNC_TITLE}\n{:<20}", "")?;
    for side in sides {
        write!(out, "  {:>FSYNCS$}", side.label)?;
    }
    writeln!(out)?;
    for row in rows {
        write!(out, "{:<20}", row.info.name)?;
        for cell in &row.cells {
            write!(out, "  {:>FSYNCS$}", fsync_percentiles(cell).unwrap_or_else(|| "-".into()))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

const FSYNCS: usize = 30;

pub fn has_fsyncs(row: &Row) -> bool {
    row.cells.iter().any(|cell| fsync_percentiles(cell).is_some())
}

pub fn fsync_value(cell: &Cell, column: &str) -> Option<f64> {
    let table = medians(cell);
    let detail = table.iter().find(|detail| detail.name == FSYNC)?;
    Some(detail.values.iter().find(|(name, _)| *name == column)?.1)
}

pub fn fsync_percentiles(cell: &Cell) -> Option<String> {
    let table = medians(cell);
    let detail = table.iter().find(|detail| detail.name == FSYNC)?;
    let of = |column: &str| {
        let found = detail.values.iter().find(|(name, _)| *name == column);
        found.map_or_else(|| "-".to_string(), |(_, value)| number(*value))
    };
    let commit = detail.values.iter().find(|(name, _)| *name == COMMIT);
    let commit = commit.map(|(_, ms)| format!(" ({})", number(*ms))).unwrap_or_default();
    Some(["p50", "p99", "p99.9", "Max"].map(of).join(" / ") + &commit)
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

pub fn medians(cell: &Cell) -> Vec<Detail> {
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

/// What the side counted; 0 where a sample lacks a counter that another has.
pub fn counters(cell: &Cell) -> BTreeMap<String, f64> {
    let samples: Vec<_> = cell.samples.iter().flatten().map(|sample| &sample.counters).collect();
    let names: BTreeSet<&String> = samples.iter().flat_map(|counters| counters.keys()).collect();
    let middle = |name: &String| {
        let of = |counters: &&crate::counters::Counters| counters.get(name).copied().unwrap_or(0);
        let values: Vec<f64> = samples.iter().map(|counters| of(counters) as f64).collect();
        stats::median(&values).unwrap_or(0.0)
    };
    names.into_iter().map(|name| (name.clone(), middle(name))).collect()
}
