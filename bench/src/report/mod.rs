//! What was measured, as text for people, JSON for programs and SVG for a page.

mod curves;
mod details;
mod drawn;
mod json;
mod limits;
mod markdown;
mod requests;
mod svg;
mod text;

use crate::runner::{Outcome, Row};
use crate::side::Side;
use crate::stats::{self, Ratio, Verdict};
use limits::Limit;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

pub use drawn::COLOURS;
pub use json::to_json;
pub use markdown::to_markdown;
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
    /// What the images lie on.
    pub backing: String,
    /// For what goes by time.
    pub seconds: u64,
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
            ..Setting::default()
        }
    }
}

/// One side as the report knows it; the first one is the baseline.
#[derive(Clone, Debug)]
pub struct SideInfo {
    pub label: String,
    pub is_library: bool,
    /// Held to no aim.
    pub is_reference: bool,
}

impl From<&dyn Side> for SideInfo {
    fn from(side: &dyn Side) -> SideInfo {
        let (is_library, is_reference) = (side.is_library(), side.is_reference());
        SideInfo { label: side.label().to_string(), is_library, is_reference }
    }
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
        match &self.sides[side] {
            side if side.is_reference => None,
            side if side.is_library => row.info.aims.library,
            _ => row.info.aims.mount,
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
            for side in (1..self.sides.len()).filter(|side| row.cells[*side].not_here.is_none()) {
                let rate = self.aim(row, side).map(|_| self.verdict(row, side));
                let limits = Limit::ALL.into_iter().filter_map(|limit| {
                    self.share_aim(limit, row, side).map(|_| self.share_verdict(limit, row, side))
                });
                for verdict in rate.into_iter().chain(limits) {
                    match verdict {
                        Verdict::Pass => reached += 1,
                        _ => missed += 1,
                    }
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

/// `1234567.8` as `1,234,568`; small numbers keep decimals, if they have some.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        small if small < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::write(path, text)
        .map_err(|e| std::io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests;
