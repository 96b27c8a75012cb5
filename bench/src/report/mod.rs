//! What was measured, as text for people, JSON for programs and SVG for a page.

mod details;
mod json;
mod svg;
mod text;

use crate::runner::{Outcome, Row};
use crate::stats::{self, Ratio, Verdict};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

pub use json::to_json;
pub use svg::to_svg;
pub use text::to_text;

/// Where and how it was measured.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    pub kernel: String,
    pub cpus: usize,
    pub unix_time: u64,
    /// The command line.
    pub arguments: Vec<String>,
    pub rounds: usize,
    pub scale: f64,
}

impl Setting {
    pub fn here(arguments: Vec<String>, rounds: usize, scale: f64) -> Setting {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Setting {
            kernel: release.trim().to_string(),
            cpus: std::thread::available_parallelism().map_or(0, |n| n.get()),
            unix_time: now.map_or(0, |d| d.as_secs()),
            arguments,
            rounds,
            scale,
        }
    }
}

/// One side as the report knows it; the first one is the baseline.
#[derive(Clone, Debug)]
pub struct SideInfo {
    pub label: String,
    pub is_library: bool,
}

pub struct Report {
    pub setting: Setting,
    pub sides: Vec<SideInfo>,
    pub outcome: Outcome,
}

impl Report {
    fn ratio(&self, row: &Row, side: usize) -> Option<Ratio> {
        stats::ratio(&row.cells[side].rates(), &row.cells[0].rates())
    }

    fn aim(&self, row: &Row, side: usize) -> Option<f64> {
        match self.sides[side].is_library {
            true => row.info.aims.library,
            false => row.info.aims.mount,
        }
    }

    fn verdict(&self, row: &Row, side: usize) -> Verdict {
        if row.cells[side].not_here.is_some() {
            return Verdict::NoAim;
        }
        Verdict::of(self.ratio(row, side), self.aim(row, side))
    }

    /// How many aims were reached and how many missed (or left without a number), over
    /// all sides but the baseline.
    pub fn score(&self) -> (usize, usize) {
        let (mut reached, mut missed) = (0, 0);
        for row in &self.outcome.rows {
            for side in 1..self.sides.len() {
                if self.aim(row, side).is_none() || row.cells[side].not_here.is_some() {
                    continue;
                }
                match self.verdict(row, side) {
                    Verdict::Pass => reached += 1,
                    _ => missed += 1,
                }
            }
        }
        (reached, missed)
    }
}

fn median_rate(row: &Row, side: usize) -> Option<f64> {
    let rates: Vec<f64> = row.cells[side].rates().into_iter().flatten().collect();
    stats::median(&rates)
}

pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::write(path, text)
        .map_err(|e| std::io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests;
