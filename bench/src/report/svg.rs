//! A plot of the ratios: one bar per workload and side on a logarithmic axis, growing
//! from 1 (as fast as the baseline) to the right where faster, to the left where slower.
//! Below it the curves of what goes by jobs.

use super::drawn::{COLOURS, escape};
use super::{Report, curves};
use crate::runner::Row;
use crate::stats::Verdict;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
/// Where the axis begins and ends, and what stands there.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 770.0;
const LOWEST: f64 = 1.0 / 16.0;
const HIGHEST: f64 = 16.0;
const TOP: f64 = 70.0;
const BAR: f64 = 14.0;
const GAP: f64 = 8.0;

pub fn to_svg(report: &Report) -> String {
    let others = report.sides.len().saturating_sub(1).max(1) as f64;
    let row_height = BAR * others + GAP;
    let bars_end = TOP + row_height * report.outcome.rows.len() as f64 + 40.0;
    let panels = curves::panels(report);
    let height = bars_end + curves::PANEL_HEIGHT * panels.len() as f64;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_frame(&mut out, report, height, bars_end);
    for (i, row) in report.outcome.rows.iter().enumerate() {
        let _ = write_row(&mut out, report, row, TOP + row_height * i as f64);
    }
    for (row, both) in panels.iter().enumerate() {
        for (index, panel) in both.iter().enumerate() {
            let at = curves::corner(bars_end, row, index);
            let _ = panel.as_ref().map(|panel| curves::write(&mut out, panel, at));
        }
    }
    out.push_str("</svg>\n");
    out
}

fn x_of(ratio: f64) -> f64 {
    let clamped = ratio.clamp(LOWEST, HIGHEST);
    LEFT + (RIGHT - LEFT) * (clamped / LOWEST).log2() / (HIGHEST / LOWEST).log2()
}

fn write_frame(out: &mut String, report: &Report, height: f64, end: f64) -> std::fmt::Result {
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    )?;
    let s = &report.setting;
    let base = report.sides.first().map_or("", |side| &side.label);
    let title = format!(
        "Rate relative to {base} (Linux {}, {} CPUs, on {}, median of {}); thin line: rounds; \
         red tick: aim",
        s.kernel, s.cpus, s.backing, s.rounds
    );
    writeln!(out, "<text x=\"10\" y=\"18\" font-size=\"13\">{}</text>", escape(&title))?;
    let others = report.sides.len().saturating_sub(1).max(1) as f64;
    let step = (WIDTH / others).min(200.0);
    for (i, side) in report.sides.iter().skip(1).enumerate() {
        let (x, colour) = (10.0 + step * i as f64, COLOURS[i % COLOURS.len()]);
        let label = escape(&side.label);
        writeln!(out, "<rect x=\"{x}\" y=\"28\" width=\"12\" height=\"12\" fill=\"{colour}\"/>")?;
        writeln!(out, "<text x=\"{}\" y=\"39\">{label}</text>", x + 18.0)?;
    }
    let mut mark = LOWEST;
    while mark <= HIGHEST {
        let (x, bottom) = (x_of(mark), end - 30.0);
        let colour = if mark == 1.0 { "#444" } else { "#ddd" };
        let text = if mark < 1.0 { format!("1/{}", 1.0 / mark) } else { format!("{mark}") };
        let top = TOP - 6.0;
        writeln!(out, "<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"{colour}\"/>")?;
        let below = end - 14.0;
        writeln!(out, "<text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>")?;
        mark *= 2.0;
    }
    Ok(())
}

fn write_row(out: &mut String, report: &Report, row: &Row, top: f64) -> std::fmt::Result {
    let name = escape(row.info.name);
    let (x, y) = (LEFT - 10.0, top + 11.0);
    writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{name}</text>")?;
    for side in 1..report.sides.len() {
        let y = top + BAR * (side - 1) as f64;
        write_bar(out, report, row, side, y)?;
    }
    Ok(())
}

fn write_bar(
    out: &mut String,
    report: &Report,
    row: &Row,
    side: usize,
    y: f64,
) -> std::fmt::Result {
    let verdict = report.verdict(row, side);
    let word = match verdict {
        Verdict::NoAim => String::new(),
        other => format!(" {}", other.text()),
    };
    let value = match report.ratio(row, side) {
        Some(r) => {
            let (zero, end) = (x_of(1.0), x_of(r.value));
            let (from, width) = (zero.min(end), (zero - end).abs().max(1.0));
            let colour = COLOURS[(side - 1) % COLOURS.len()];
            let thick = BAR - 3.0;
            writeln!(
                out,
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{thick}\" \
                 fill=\"{colour}\"/>"
            )?;
            let (low, high, mid) = (x_of(r.low), x_of(r.high), y + thick / 2.0);
            writeln!(out, "<path d=\"M{low:.1} {mid:.1}H{high:.1}\" stroke=\"black\"/>")?;
            format!("{:.2}", r.value)
        }
        None => "-".to_string(),
    };
    if let Some(aim) = report.aim(row, side) {
        let (x, from, to) = (x_of(aim), y - 2.0, y + BAR - 1.0);
        let d = format!("M{x:.1} {from:.1}V{to:.1}");
        writeln!(out, "<path d=\"{d}\" stroke=\"#d02020\" stroke-width=\"2\"/>")?;
    }
    let (x, y) = (RIGHT + 12.0, y + 10.0);
    writeln!(out, "<text x=\"{x}\" y=\"{y:.1}\">{value}{word}</text>")
}
