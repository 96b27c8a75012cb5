//! Latencies that have an aim: how long a mount may take at most, as a share of the baseline's.
//! Each is the median of the samples.

use super::{Report, SideInfo, details};
use crate::runner::Row;
use crate::stats::{self, Verdict};

/// What is held to the baseline's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The longest that any operation took.
    Worst,
    /// What 99 of 100 fsyncs took at most.
    Fsyncs,
}

impl Limit {
    pub const ALL: [Limit; 2] = [Limit::Worst, Limit::Fsyncs];

    pub fn title(self) -> &'static str {
        match self {
            Limit::Worst => "Longest latency of any operation, ms",
            Limit::Fsyncs => "99th percentile of fsync, ms",
        }
    }

    /// Within a line of the terminal's table.
    pub fn short(self) -> &'static str {
        match self {
            Limit::Worst => "longest latency",
            Limit::Fsyncs => "99% of fsyncs",
        }
    }

    /// How the members of its numbers begin in JSON.
    pub fn member(self) -> &'static str {
        match self {
            Limit::Worst => "worst",
            Limit::Fsyncs => "p99",
        }
    }

    pub fn of_row(self, row: &Row) -> Option<f64> {
        match self {
            Limit::Worst => row.info.aims.worst,
            Limit::Fsyncs => row.info.aims.p99,
        }
    }
}

impl Report {
    /// In milliseconds, where the workload tells.
    pub fn latency(&self, limit: Limit, row: &Row, side: usize) -> Option<f64> {
        let cell = &row.cells[side];
        match limit {
            Limit::Worst => {
                let samples = cell.samples.iter().flatten();
                let worst: Vec<f64> = samples.filter_map(|sample| sample.worst_ms).collect();
                stats::median(&worst)
            }
            Limit::Fsyncs => details::fsync_value(cell, "p99"),
        }
    }

    pub fn share(&self, limit: Limit, row: &Row, side: usize) -> Option<f64> {
        let base = self.latency(limit, row, 0).filter(|base| *base > 0.0)?;
        Some(self.latency(limit, row, side)? / base)
    }

    pub fn share_aim(&self, limit: Limit, row: &Row, side: usize) -> Option<f64> {
        if judged(&self.sides[side]) { limit.of_row(row) } else { None }
    }

    /// Judges as printed, with two decimals.
    pub fn share_verdict(&self, limit: Limit, row: &Row, side: usize) -> Verdict {
        match (self.share_aim(limit, row, side), self.share(limit, row, side)) {
            (None, _) => Verdict::NoAim,
            (Some(_), None) => Verdict::NoResult,
            (Some(aim), Some(share)) if (share * 100.0).round() / 100.0 <= aim => Verdict::Pass,
            _ => Verdict::Miss,
        }
    }
}

/// Only a mount of ours has such aims.
pub fn judged(side: &SideInfo) -> bool {
    !side.is_library && !side.is_reference
}
