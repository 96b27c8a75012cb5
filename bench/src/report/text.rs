//! The table on the terminal.

use super::limits::Limit;
use super::{Report, details, median_rate, number, requests};
use std::fmt::Write;

/// One block per side beside the baseline, or plain rates if there is only one side.
pub fn to_text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_setting(&mut out, report);
    for side in 1..report.sides.len() {
        let _ = write_comparison(&mut out, report, side);
    }
    if report.sides.len() == 1 {
        let _ = write_rates(&mut out, report);
    }
    let rows: Vec<_> = report.outcome.rows.iter().collect();
    let _ = requests::write(&mut out, report, &rows);
    let _ = details::write_fsyncs(&mut out, &report.sides, &report.outcome.rows);
    for row in &report.outcome.rows {
        let _ = details::write(&mut out, &report.sides, row);
    }
    let _ = write_problems(&mut out, report);
    out
}

fn write_setting(out: &mut String, report: &Report) -> std::fmt::Result {
    let s = &report.setting;
    let plural = if s.rounds == 1 { "" } else { "s" };
    writeln!(
        out,
        "\nLinux {}, {} CPUs, on {}, medians of {} round{plural}, scale {}",
        s.kernel, s.cpus, s.backing, s.rounds, s.scale
    )
}

fn write_comparison(out: &mut String, report: &Report, side: usize) -> std::fmt::Result {
    let base = &report.sides[0].label;
    let label = &report.sides[side].label;
    writeln!(
        out,
        "\n{:<20} {:<8} {base:>12} {label:>16}  ratio  (lowest-highest)   aim",
        "workload", "unit"
    )?;
    for row in &report.outcome.rows {
        let (name, unit) = (row.info.name, row.info.unit);
        let cell = |side| median_rate(row, side).map_or_else(|| "-".to_string(), number);
        write!(out, "{name:<20} {unit:<8} {:>12} {:>16}  ", cell(0), cell(side))?;
        match report.ratio(row, side) {
            Some(r) => {
                let range = format!("({:.2}-{:.2})", r.low, r.high);
                write!(out, "{:>5.2}  {range:<18}", r.value)?;
            }
            None => write!(out, "{:>5}  {:<18}", "-", "")?,
        }
        let aim = report.aim(row, side).map_or_else(|| "-".to_string(), |a| format!("{a:.2}"));
        write!(out, "{aim:>5}  {}", report.verdict(row, side).text())?;
        for limit in Limit::ALL {
            if let (Some(share), Some(aim)) =
                (report.share(limit, row, side), report.share_aim(limit, row, side))
            {
                let verdict = report.share_verdict(limit, row, side).text();
                write!(out, "; {} {share:.2}, at most {aim:.2}: {verdict}", limit.short())?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_rates(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "\n{:<20} {:<8} {:>12}", "workload", "unit", report.sides[0].label)?;
    for row in &report.outcome.rows {
        let rate = median_rate(row, 0).map_or_else(|| "-".to_string(), number);
        writeln!(out, "{:<20} {:<8} {rate:>12}", row.info.name, row.info.unit)?;
    }
    Ok(())
}

fn write_problems(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out)?;
    for row in &report.outcome.rows {
        for (side, cell) in report.sides.iter().zip(&row.cells) {
            if let Some(why) = &cell.not_here {
                writeln!(out, "not measured: {} on {}: {why}", row.info.name, side.label)?;
            }
            for failure in &cell.failures {
                writeln!(out, "FAILED: {} on {}: {failure}", row.info.name, side.label)?;
            }
        }
    }
    for damage in &report.outcome.damage {
        writeln!(out, "DAMAGED: {damage}")?;
    }
    if report.outcome.interrupted {
        writeln!(out, "interrupted: the rounds above are not complete")?;
    }
    if report.sides.len() > 1 {
        let (reached, missed) = report.score();
        let failures = report.outcome.failures();
        writeln!(out, "aims: {reached} reached, {missed} missed; {failures} samples failed")?;
    }
    Ok(())
}
