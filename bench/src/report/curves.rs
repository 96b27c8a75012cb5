//! For workloads that exist once for each number of jobs: curves over the jobs, one per
//! side, of the rate and of the latency. Both axes of a panel are logarithmic, so that
//! equal ratios are equal distances.

use super::drawn::{COLOURS, escape};
use super::limits::Limit;
use super::{Report, details, median_rate, number};
use crate::runner::Row;
use crate::workload::jobs;
use std::fmt::{Result, Write};

pub const PANEL_HEIGHT: f64 = 260.0;
const PANEL_WIDTH: f64 = 440.0;
/// The axes of a panel, inside it.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 425.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 225.0;
const BASELINE: &str = "#555";

/// What one panel shows: for each side, points of jobs and value.
pub struct Panel {
    title: String,
    curves: Vec<Vec<(f64, f64)>>,
}

/// Two for each family with more than one row: the rate, and the latency if it is told.
pub fn panels(report: &Report) -> Vec<[Option<Panel>; 2]> {
    let rows = &report.outcome.rows;
    let mut families: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().filter_map(|row| jobs::family(row.info.name)) {
        if !families.contains(&name) {
            families.push(name);
        }
    }
    let both = |family: &&str| {
        let of = |row: &&Row| jobs::family(row.info.name).is_some_and(|(name, _)| name == *family);
        let rows: Vec<&Row> = rows.iter().filter(of).collect();
        let first = rows.first().filter(|_| rows.len() > 1)?;
        let base = report.sides.first().map_or("", |side| &side.label);
        let rate = format!("{family}, {} by jobs (grey: {base})", first.info.unit);
        let rate = panel(report, &rows, rate, &|row, side| median_rate(row, side));
        let p99 = |row: &Row, side: usize| details::fsync_value(&row.cells[side], "p99");
        let latency = panel(report, &rows, format!("{family}, 99% of fsyncs, ms"), &p99);
        let worst = || {
            let title = format!("{family}, longest latency, ms");
            panel(report, &rows, title, &|row, side| report.latency(Limit::Worst, row, side))
        };
        Some([rate, latency.or_else(worst)])
    };
    families.iter().filter_map(both).collect()
}

/// None where no side has a value.
fn panel(
    report: &Report,
    rows: &[&Row],
    title: String,
    value: &dyn Fn(&Row, usize) -> Option<f64>,
) -> Option<Panel> {
    let point = |row: &Row, side: usize| {
        let (_, jobs) = jobs::family(row.info.name)?;
        Some((jobs as f64, value(row, side).filter(|value| *value > 0.0)?))
    };
    let curve = |side: usize| rows.iter().filter_map(|row| point(row, side)).collect();
    let curves: Vec<Vec<(f64, f64)>> = (0..report.sides.len()).map(curve).collect();
    let empty = curves.iter().all(Vec::is_empty);
    (!empty).then_some(Panel { title, curves })
}

/// Writes it with its upper left corner at `at`.
pub fn write(out: &mut String, panel: &Panel, at: (f64, f64)) -> Result {
    let points = || panel.curves.iter().flatten();
    let span = |of: fn(&(f64, f64)) -> f64| {
        let (low, high) = points()
            .map(of)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        (low, high.max(low * 2.0))
    };
    let (jobs, values) = (span(|point| point.0), span(|point| point.1));
    // Room above and below the curves.
    let values = (values.0 / 1.2, values.1 * 1.2);
    let x = |jobs_now: f64| at.0 + LEFT + (RIGHT - LEFT) * share(jobs_now, jobs);
    let y = |value: f64| at.1 + BOTTOM - (BOTTOM - TOP) * share(value, values);
    let (title_x, title_y) = (at.0 + LEFT, at.1 + 20.0);
    writeln!(out, "<text x=\"{title_x}\" y=\"{title_y}\">{}</text>", escape(&panel.title))?;
    write_axes(out, at, (&x, jobs), (&y, values))?;
    for (side, curve) in panel.curves.iter().enumerate() {
        let colour = side.checked_sub(1).map_or(BASELINE, |at| COLOURS[at % COLOURS.len()]);
        let d: Vec<String> =
            curve.iter().map(|(jobs, value)| format!("{:.1} {:.1}", x(*jobs), y(*value))).collect();
        let d = d.join("L");
        writeln!(out, "<path d=\"M{d}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>")?;
        for (jobs, value) in curve {
            let (x, y) = (x(*jobs), y(*value));
            writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>")?;
        }
    }
    Ok(())
}

/// Where a value is between the ends, by ratio.
fn share(value: f64, (low, high): (f64, f64)) -> f64 {
    (value / low).ln() / (high / low).ln()
}

type Axis<'a> = (&'a dyn Fn(f64) -> f64, (f64, f64));

fn write_axes(
    out: &mut String,
    at: (f64, f64),
    (x, jobs): Axis<'_>,
    (y, values): Axis<'_>,
) -> Result {
    let (left, right) = (at.0 + LEFT, at.0 + RIGHT);
    let (top, bottom) = (at.1 + TOP, at.1 + BOTTOM);
    writeln!(out, "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"#444\"/>")?;
    for mark in marks(values, 10.0, &[1.0, 2.0, 5.0]) {
        let (y, text) = (y(mark), number(mark));
        writeln!(out, "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>")?;
        let (x, y) = (left - 6.0, y + 4.0);
        writeln!(out, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>")?;
    }
    for mark in marks(jobs, 2.0, &[1.0]) {
        let (x, y) = (x(mark), bottom + 18.0);
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{mark}</text>")?;
    }
    Ok(())
}

/// The powers of `base` between the ends, times each of `steps`; only the powers where
/// that would be too many.
fn marks((low, high): (f64, f64), base: f64, steps: &[f64]) -> Vec<f64> {
    let mut found = Vec::new();
    let mut power = base.powf(low.log(base).floor());
    while power <= high {
        found.extend(steps.iter().map(|step| step * power).filter(|m| (low..=high).contains(m)));
        power *= base;
    }
    match found.len() > 8 && steps.len() > 1 {
        true => marks((low, high), base, &[1.0]),
        false => found,
    }
}

/// Where panel `index` of row `row` begins, below `top`.
pub fn corner(top: f64, row: usize, index: usize) -> (f64, f64) {
    (PANEL_WIDTH * index as f64, top + PANEL_HEIGHT * row as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_between_the_ends() {
        assert_eq!(marks((1.0, 64.0), 2.0, &[1.0]), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        assert_eq!(marks((3.0, 60.0), 10.0, &[1.0, 2.0, 5.0]), [5.0, 10.0, 20.0, 50.0]);
        let wide = marks((0.5, 20_000.0), 10.0, &[1.0, 2.0, 5.0]);
        assert_eq!(wide, [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
    }

    #[test]
    fn equal_ratios_are_equal_distances() {
        let ends = (1.0, 64.0);
        assert_eq!((share(1.0, ends), share(64.0, ends)), (0.0, 1.0));
        assert!((share(8.0, ends) - 0.5).abs() < 1e-9);
    }
}
