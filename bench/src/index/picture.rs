//! The histogram: how many inserts took how long, a curve for each structure.

use super::Measured;
use crate::report::COLOURS;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 880.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 380.0;
/// The axis ends here; what took longer is in the table.
const END: u32 = 1500;
/// Of a step of a curve.
const STEP: u32 = 10;

pub fn to_svg(all: &[Measured]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    _ = write(&mut out, all);
    out
}

fn write(out: &mut String, all: &[Measured]) -> std::fmt::Result {
    let curves: Vec<Vec<f64>> = all.iter().map(|one| shares(&one.times)).collect();
    let highest = curves.iter().flatten().copied().fold(0.01, f64::max);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"18\" font-size=\"13\">Share of inserts by time, in steps of {STEP} ns\
         </text>"
    )?;
    axes(out, highest)?;
    for (index, (one, curve)) in all.iter().zip(&curves).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let y = TOP + 16.0 * index as f64;
        writeln!(
            out,
            "<rect x=\"660\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
            y
        )?;
        writeln!(out, "<text x=\"678\" y=\"{}\">{}</text>", y + 11.0, one.name)?;
        write!(out, "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" d=\"")?;
        for (step, share) in curve.iter().enumerate() {
            let x = x_of(step as u32 * STEP);
            let y = BOTTOM - (BOTTOM - TOP) * share / highest;
            write!(out, "{}{x:.1} {y:.1}", if step == 0 { "M" } else { "L" })?;
        }
        writeln!(out, "\"/>")?;
    }
    writeln!(out, "</svg>")
}

fn x_of(ns: u32) -> f64 {
    LEFT + (RIGHT - LEFT) * f64::from(ns) / f64::from(END)
}

/// Of all, those of each step.
fn shares(times: &[u32]) -> Vec<f64> {
    let below = |ns: u32| times.partition_point(|time| *time < ns);
    let steps = (0..END).step_by(STEP as usize);
    steps.map(|ns| (below(ns + STEP) - below(ns)) as f64 / times.len() as f64).collect()
}

fn axes(out: &mut String, highest: f64) -> std::fmt::Result {
    for ns in (0..=END).step_by(100) {
        let x = x_of(ns);
        writeln!(out, "<path d=\"M{x:.1} {TOP}V{BOTTOM}\" stroke=\"#ddd\"/>")?;
        let y = BOTTOM + 16.0;
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{ns}</text>")?;
    }
    writeln!(out, "<text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">ns</text>", BOTTOM + 32.0)?;
    writeln!(out, "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" stroke=\"#444\" fill=\"none\"/>")?;
    let (y, share) = (TOP + 4.0, 100.0 * highest);
    writeln!(out, "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{share:.0}%</text>", LEFT - 6.0)
}
