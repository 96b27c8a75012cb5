//! The results as JSON, with every sample, so that they can be judged again later.
//!
//! Readers go by `schema`: it grows when a member changes its meaning or goes away.

use super::limits::Limit;
use super::{Report, median_rate};
use crate::runner::{Cell, Row};
use crate::workload::{Cache, Detail};
use serde_json::{Value, json};

pub const SCHEMA: u32 = 1;

pub fn to_json(report: &Report) -> String {
    let s = &report.setting;
    let sides: Vec<Value> = report
        .sides
        .iter()
        .map(|side| json!({"label": side.label, "library": side.is_library}))
        .collect();
    let rows: Vec<Value> = report.outcome.rows.iter().map(|row| row_json(report, row)).collect();
    let (reached, missed) = report.score();
    let all = json!({
        "schema": SCHEMA,
        "kernel": s.kernel,
        "cpus": s.cpus,
        "unix_time": s.unix_time,
        "arguments": s.arguments,
        "rounds": s.rounds,
        "scale": s.scale,
        "backing": s.backing,
        "seconds": s.seconds,
        "interrupted": report.outcome.interrupted,
        "damage": report.outcome.damage,
        "sides": sides,
        "workloads": rows,
        "aims": {"reached": reached, "missed": missed},
    });
    format!("{all:#}\n")
}

fn row_json(report: &Report, row: &Row) -> Value {
    let cells: Vec<Value> = row
        .cells
        .iter()
        .enumerate()
        .map(|(side, cell)| {
            let mut value = cell_json(cell, median_rate(row, side));
            value["label"] = json!(report.sides[side].label);
            if side > 0 {
                let ratio = report.ratio(row, side);
                value["ratio"] = json!(ratio.map(|r| r.value));
                value["ratio_range"] = json!(ratio.map(|r| [r.low, r.high]));
                value["aim"] = json!(report.aim(row, side));
                value["verdict"] = json!(report.verdict(row, side).text());
                for limit in Limit::ALL {
                    let member = |what: &str| format!("{}_{what}", limit.member());
                    value[member("ratio")] = json!(report.share(limit, row, side));
                    value[member("aim")] = json!(report.share_aim(limit, row, side));
                    let verdict = report.share_verdict(limit, row, side).text();
                    value[member("verdict")] = json!(verdict);
                }
            }
            value
        })
        .collect();
    let cache = match row.info.cache {
        Cache::Warm => "warm",
        Cache::Cold => "cold",
    };
    json!({
        "name": row.info.name,
        "about": row.info.about,
        "unit": row.info.unit,
        "cache": cache,
        "sides": cells,
    })
}

fn cell_json(cell: &Cell, median: Option<f64>) -> Value {
    let settle: Vec<Option<f64>> =
        cell.samples.iter().map(|sample| sample.as_ref().map(|s| s.settle_seconds)).collect();
    let details: Vec<Vec<Value>> = cell
        .samples
        .iter()
        .flatten()
        .map(|s| s.details.iter().map(detail_json).collect())
        .collect();
    let of_samples = || cell.samples.iter().map(Option::as_ref);
    let worst: Vec<_> = of_samples().map(|sample| sample.and_then(|s| s.worst_ms)).collect();
    let counters: Vec<_> = of_samples().map(|sample| sample.map(|s| &s.counters)).collect();
    json!({
        "median": median,
        "samples": cell.rates(),
        "settle_seconds": settle,
        "worst_ms": worst,
        "details": details,
        "counters": counters,
        "failures": cell.failures,
        "not_here": cell.not_here,
    })
}

fn detail_json(detail: &Detail) -> Value {
    let mut value = json!({"name": detail.name});
    for (column, number) in &detail.values {
        value[*column] = json!(number);
    }
    value
}
