//! The results as Markdown, ready to be put into a page: for each family of rows a table
//! of rates by number of jobs, one of latencies, one of what was counted; for a workload
//! that tells more, its own table. Each number is the median of the samples.

use super::limits::{Limit, judged};
use super::{Report, details, median_rate, number, requests};
use crate::runner::Row;
use crate::workload::Detail;
use crate::workload::jobs::{self, FSYNC};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Result, Write};

/// Of all that an engine counts, what belongs beside a rate: how its names begin. Times
/// stay in the JSON.
const COUNTED: [&str; 5] = ["fsync.", "log.", "replay.", "commit.count", "commit.items_merged"];

pub fn to_markdown(report: &Report) -> String {
    let mut out = String::new();
    let s = &report.setting;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "## On {}\n\nLinux {}, {} CPUs, medians of {} rounds, scale {}, at most {} s a row where a \
         row goes by time. `spinney-bench {}`",
        s.backing,
        s.kernel,
        s.cpus,
        s.rounds,
        s.scale,
        s.seconds,
        s.arguments.join(" ")
    );
    for group in groups(&report.outcome.rows) {
        let _ = write_group(&mut out, report, &group);
    }
    let _ = write_problems(&mut out, report);
    out
}

/// Rows that make one table, and what it is called.
struct Group<'a> {
    name: &'a str,
    by_jobs: bool,
    rows: Vec<&'a Row>,
}

impl Group<'_> {
    fn head(&self) -> &'static str {
        if self.by_jobs { "jobs" } else { "workload" }
    }

    fn row_name(&self, row: &Row) -> String {
        match jobs::family(row.info.name) {
            Some((_, jobs)) if self.by_jobs => jobs.to_string(),
            _ => row.info.name.to_string(),
        }
    }
}

/// Rows of one family that follow each other; what has no family goes together by unit.
fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        let family = jobs::family(row.info.name).map(|(name, _)| name);
        let name = family.unwrap_or(row.info.unit);
        match groups.last_mut().filter(|g| g.name == name && g.by_jobs == family.is_some()) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { name, by_jobs: family.is_some(), rows: vec![row] }),
        }
    }
    groups
}

fn write_group(out: &mut String, report: &Report, group: &Group<'_>) -> Result {
    let Some(first) = group.rows.first() else { return Ok(()) };
    match (group.by_jobs, group.rows.len()) {
        (true, _) => writeln!(out, "\n### `{}`: {}\n", group.name, first.info.about)?,
        (_, 1) => writeln!(out, "\n### `{}`: {}\n", first.info.name, first.info.about)?,
        _ => writeln!(out, "\n### In {}\n", group.name)?,
    }
    write_rates(out, report, group)?;
    for limit in Limit::ALL {
        write_limit(out, report, group, limit)?;
    }
    write_fsyncs(out, report, group)?;
    requests::write(out, report, &group.rows)?;
    write_counters(out, report, group)?;
    for row in &group.rows {
        write_details(out, report, row)?;
        write_phases(out, report, row)?;
    }
    Ok(())
}

fn heading(out: &mut String, first: &str, columns: &[String]) -> Result {
    writeln!(out, "| {first} | {} |", columns.join(" | "))?;
    writeln!(out, "|---|{}", "---:|".repeat(columns.len()))
}

fn write_rates(out: &mut String, report: &Report, group: &Group<'_>) -> Result {
    let unit = group.rows.first().map_or("", |row| row.info.unit);
    let mut columns = vec![format!("{}, {unit}", report.sides[0].label)];
    for side in &report.sides[1..] {
        columns.extend([side.label.clone(), "ratio (lowest-highest)".into()]);
        if judged(side) {
            columns.push("aim".into());
        }
    }
    heading(out, group.head(), &columns)?;
    for row in &group.rows {
        write!(out, "| {} | {} |", group.row_name(row), rate(row, 0))?;
        for (at, side) in report.sides.iter().enumerate().skip(1) {
            let ratio = report
                .ratio(row, at)
                .map_or_else(dash, |r| format!("{:.2} ({:.2}-{:.2})", r.value, r.low, r.high));
            write!(out, " {} | {ratio} |", rate(row, at))?;
            if judged(side) {
                let verdict = report.verdict(row, at).text();
                let aim = report.aim(row, at);
                let aim = aim.map_or_else(dash, |aim| format!("{aim:.2} {verdict}"));
                write!(out, " {aim} |")?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn rate(row: &Row, side: usize) -> String {
    median_rate(row, side).map_or_else(dash, number)
}

fn dash() -> String {
    "-".to_string()
}

/// Only where there is an aim for it: else the other tables tell.
fn write_limit(out: &mut String, report: &Report, group: &Group<'_>, limit: Limit) -> Result {
    if group.rows.iter().all(|row| limit.of_row(row).is_none()) {
        return Ok(());
    }
    let mut columns = vec![report.sides[0].label.clone()];
    for side in &report.sides[1..] {
        columns.extend([side.label.clone(), "ratio".into()]);
        if judged(side) {
            columns.push("aim".into());
        }
    }
    writeln!(out, "\n{}:\n", limit.title())?;
    heading(out, group.head(), &columns)?;
    for row in &group.rows {
        let latency = |side| report.latency(limit, row, side).map_or_else(dash, number);
        write!(out, "| {} | {} |", group.row_name(row), latency(0))?;
        for (at, side) in report.sides.iter().enumerate().skip(1) {
            let share = report.share(limit, row, at);
            let share = share.map_or_else(dash, |share| format!("{share:.2}"));
            write!(out, " {} | {share} |", latency(at))?;
            if judged(side) {
                let verdict = report.share_verdict(limit, row, at).text();
                let aim = report.share_aim(limit, row, at);
                let aim = aim.map_or_else(dash, |aim| format!("at most {aim:.2} {verdict}"));
                write!(out, " {aim} |")?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_fsyncs(out: &mut String, report: &Report, group: &Group<'_>) -> Result {
    if !group.rows.iter().any(|row| details::has_fsyncs(row)) {
        return Ok(());
    }
    writeln!(out, "\n{}\n", details::FSYNC_TITLE)?;
    let labels: Vec<String> = report.sides.iter().map(|side| side.label.clone()).collect();
    heading(out, group.head(), &labels)?;
    for row in &group.rows {
        write!(out, "| {} |", group.row_name(row))?;
        for cell in &row.cells {
            write!(out, " {} |", details::fsync_percentiles(cell).unwrap_or_else(dash))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_counters(out: &mut String, report: &Report, group: &Group<'_>) -> Result {
    let counted = |row: &Row, side: usize| -> BTreeMap<String, f64> {
        let mut counters = details::counters(&row.cells[side]);
        counters.retain(|name, _| {
            COUNTED.iter().any(|start| name.starts_with(start)) && !name.ends_with("_ns")
        });
        counters
    };
    for (at, side) in report.sides.iter().enumerate() {
        let lines: Vec<_> = group.rows.iter().map(|row| (row, counted(row, at))).collect();
        let names: BTreeSet<&String> = lines.iter().flat_map(|(_, c)| c.keys()).collect();
        if names.is_empty() {
            continue;
        }
        let names: Vec<String> = names.into_iter().cloned().collect();
        writeln!(out, "\nCounted by {}:\n", side.label)?;
        heading(out, group.head(), &names)?;
        for (row, counters) in &lines {
            write!(out, "| {} |", group.row_name(row))?;
            for name in &names {
                write!(out, " {} |", number(counters.get(name).copied().unwrap_or(0.0)))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// What the commits of a row went by, where it is about a commit.
fn write_phases(out: &mut String, report: &Report, row: &Row) -> Result {
    let phase = |name: &str| {
        let name = name.strip_prefix("commit.")?.strip_suffix("_ns")?;
        (name != "total").then(|| name.replace('_', " "))
    };
    if !row.info.name.ends_with("-in-commit") {
        return Ok(());
    }
    for (at, side) in report.sides.iter().enumerate() {
        let counted = details::counters(&row.cells[at]);
        let Some(total) = counted.get("commit.total_ns") else { continue };
        write!(
            out,
            "\nCommits of `{}` by {}: {} ms",
            row.info.name,
            side.label,
            number(total / 1e6)
        )?;
        for (name, ns) in counted.iter().filter_map(|(name, ns)| Some((phase(name)?, ns))) {
            write!(out, ", {name} {}", number(ns / 1e6))?;
        }
        writeln!(out, ".")?;
    }
    Ok(())
}

/// The workload's own table, all sides beside each other.
fn write_details(out: &mut String, report: &Report, row: &Row) -> Result {
    let tables: Vec<Vec<Detail>> = row.cells.iter().map(details::medians).collect();
    let longest = tables.iter().max_by_key(|table| table.len());
    let rows = longest.into_iter().flatten().filter(|detail| detail.name != FSYNC);
    let rows: Vec<&Detail> = rows.collect();
    let Some(first) = rows.first() else { return Ok(()) };
    let mut columns = Vec::new();
    for side in &report.sides {
        columns.extend(first.values.iter().map(|(name, _)| format!("{} {name}", side.label)));
    }
    writeln!(out, "\n`{}` in detail:\n", row.info.name)?;
    heading(out, "", &columns)?;
    for detail in &rows {
        write!(out, "| {} |", detail.name)?;
        for table in &tables {
            let own = table.iter().find(|own| own.name == detail.name);
            for at in 0..first.values.len() {
                let value = own.and_then(|own| own.values.get(at));
                write!(out, " {} |", value.map_or_else(dash, |(_, value)| number(*value)))?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_problems(out: &mut String, report: &Report) -> Result {
    for row in &report.outcome.rows {
        for (side, cell) in report.sides.iter().zip(&row.cells) {
            if let Some(why) = &cell.not_here {
                writeln!(out, "\nNot measured: `{}` on {}: {why}", row.info.name, side.label)?;
            }
            for failure in &cell.failures {
                writeln!(out, "\n**Failed:** `{}` on {}: {failure}", row.info.name, side.label)?;
            }
        }
    }
    for damage in &report.outcome.damage {
        writeln!(out, "\n**Damaged:** {damage}")?;
    }
    if report.sides.len() > 1 {
        let (reached, missed) = report.score();
        writeln!(out, "\nAims: {reached} reached, {missed} missed.")?;
    }
    Ok(())
}
