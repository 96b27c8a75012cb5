//! How many requests of FUSE each unit of work cost, by side: what the protocol asks for.
//!
//! Only where a side counts them and the work is counted in units.

use super::{Report, SideInfo, details};
use crate::runner::{Cell, Row};
use crate::stats;
use std::fmt::{Result, Write};

/// How an engine's counters of requests begin.
const REQUESTS: &str = "fuse.requests.";
/// What is asked less often than by one unit in so many goes without saying.
const SELDOM: f64 = 0.05;

/// A line for each row and side that counts, as a list that fits text and Markdown.
pub fn write(out: &mut String, report: &Report, rows: &[&Row]) -> Result {
    let mut lines = Vec::new();
    for row in rows {
        for (side, cell) in report.sides.iter().zip(&row.cells) {
            lines.extend(line(row, side, cell));
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nRequests for each file or directory:\n")?;
    writeln!(out, "| workload | side | all | of these |\n|---|---|---:|---|")?;
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn line(row: &Row, side: &SideInfo, cell: &Cell) -> Option<String> {
    let units: Vec<f64> = cell.samples.iter().flatten().filter_map(|s| s.units).collect();
    let units = stats::median(&units).filter(|units| *units > 0.0)?;
    let mut kinds: Vec<(String, f64)> = details::counters(cell)
        .into_iter()
        .filter_map(|(name, n)| Some((name.strip_prefix(REQUESTS)?.to_string(), n / units)))
        .collect();
    if kinds.is_empty() {
        return None;
    }
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    let all: f64 = kinds.iter().map(|(_, n)| n).sum();
    let often = kinds.iter().filter(|(_, n)| *n >= SELDOM);
    let said: Vec<String> = often.map(|(name, n)| format!("{name} {n:.1}")).collect();
    Some(format!("| {} | {} | {all:.1} | {} |", row.info.name, side.label, said.join(", ")))
}
