//! The three forms of a report must tell the same, failures included.

use super::*;
use crate::runner::{Cell, Sample};
use crate::workload::jobs::FSYNC;
use crate::workload::{Aims, Cache, Detail, Info};
use serde_json::Value;

fn cell(rates: &[Option<f64>]) -> Cell {
    let sample = |rate: &Option<f64>| {
        rate.map(|rate| Sample {
            rate,
            units: Some(10.0),
            settle_seconds: 0.5,
            details: vec![Detail { name: "Flush".into(), values: vec![("AvgLat", rate / 1e6)] }],
            worst_ms: None,
            counters: [
                ("commit.count".to_string(), 3),
                ("other".to_string(), 4),
                ("fuse.requests.read".to_string(), 25),
                ("log.max_ns".to_string(), 5),
            ]
            .into(),
        })
    };
    Cell { samples: rates.iter().map(sample).collect(), ..Cell::default() }
}

fn info(name: &'static str, aims: Aims) -> Info {
    Info { name, about: "", unit: "files/s", cache: Cache::Cold, aims, standard: true }
}

fn side(label: &str, is_library: bool) -> SideInfo {
    SideInfo { label: label.into(), is_library, is_reference: false }
}

/// The baseline, a mount and the library; three workloads.
fn example() -> Report {
    let mut broken = cell(&[None, None]);
    broken.failures = vec!["run: <broken> & bad".into(), "run: again".into()];
    let not_here = Cell { not_here: Some("needs a directory".into()), ..Cell::default() };
    let base = || cell(&[Some(100_000.0), Some(100_000.0)]);
    let rows = vec![
        Row {
            info: info("reached", Aims::both(0.35, 3.0)),
            cells: vec![
                base(),
                cell(&[Some(30_000.0), Some(50_000.0)]),
                cell(&[Some(2e5), Some(2e5)]),
            ],
        },
        Row { info: info("breaks", Aims::mount(1.0)), cells: vec![base(), broken, base()] },
        Row {
            info: info("elsewhere", Aims::both(1.0, 1.0)),
            cells: vec![base(), base(), not_here],
        },
    ];
    Report {
        setting: Setting {
            kernel: "6.18".into(),
            cpus: 2,
            rounds: 2,
            scale: 1.0,
            ..Setting::default()
        },
        sides: vec![side("kernel", false), side("spinney-uring", false), side("library", true)],
        outcome: Outcome { rows, interrupted: false, damage: vec!["library: torn".into()] },
    }
}

/// One family, on a kernel and on two sides; fsync latencies are a tenth of the rate. Of the mount's
/// aims the last row misses those for latencies.
fn by_jobs() -> Report {
    let cell = |rate: f64, worst: f64| {
        let columns = ["Count", "p50", "p99", "p99.9", "Max"];
        let values = columns.map(|column| (column, rate / 10.0)).to_vec();
        let mut cell = cell(&[Some(rate)]);
        let sample = cell.samples[0].as_mut().unwrap();
        sample.worst_ms = Some(worst);
        sample.details = vec![Detail { name: FSYNC.into(), values }];
        cell
    };
    let row = |name, aims, worst| Row {
        info: info(name, aims),
        cells: vec![cell(100.0, 50.0), cell(150.0, worst), cell(300.0, 1.0)],
    };
    Report {
        setting: Setting { backing: "ram".into(), ..Setting::default() },
        sides: vec![side("kernel", false), side("spinney", false), side("library", true)],
        outcome: Outcome {
            rows: vec![
                row("f-1", Aims::mount(1.0).and_worst(0.5).and_p99(1.5), 25.0),
                row("f-8", Aims::mount(1.3).and_worst(0.5).and_p99(1.0), 26.0),
            ],
            interrupted: false,
            damage: Vec::new(),
        },
    }
}

#[test]
fn a_family_is_one_markdown_table_by_jobs() {
    let text = to_markdown(&by_jobs());
    for line in [
        "### `f`: ",
        "| jobs | kernel, files/s | spinney | ratio (lowest-highest) | aim | library | ratio \
         (lowest-highest) |",
        "| 1 | 100 | 150 | 1.50 (1.50-1.50) | 1.00 pass | 300 | 3.00 (3.00-3.00) |",
        "| 8 | 50 | 26 | 0.52 | at most 0.50 miss | 1 | 0.02 |",
        "99th percentile of fsync, ms:",
        "| 1 | 10 | 15 | 1.50 | at most 1.50 pass | 30 | 3.00 |",
        "| 8 | 10 | 15 | 1.50 | at most 1.00 miss | 30 | 3.00 |",
        "| 8 | 10 / 10 / 10 / 10 | 15 / 15 / 15 / 15 | 30 / 30 / 30 / 30 |",
        "Counted by spinney:",
        "| jobs | commit.count |",
        "| 8 | 3 |",
        "Aims: 4 reached, 2 missed.",
    ] {
        let found = text.lines().filter(|l| *l == line).count();
        assert!(found >= 1, "{line} is not in\n{text}");
    }
    assert!(!text.contains("other"), "only some counters belong into the page");
    assert!(!text.contains("in detail"), "the fsyncs have their own table");
}

#[test]
fn markdown_tells_details_and_problems_too() {
    let text = to_markdown(&example());
    assert!(text.contains("| Flush | 0.100 | 0.040 | 0.200 |"), "{text}");
    assert!(text.contains("of these |\n|---|---|---:|---|\n| "), "{text}");
    assert!(text.contains(" | spinney-uring | 2.5 | read 2.5 |"), "{text}");
    assert!(text.contains("**Failed:** `breaks` on spinney-uring: run: again"));
    assert!(text.contains("**Damaged:** library: torn"));
    assert!(text.contains("Not measured: `elsewhere` on library: needs a directory"));
}

#[test]
fn aims_for_latencies_count() {
    let report = by_jobs();
    assert_eq!(report.score(), (4, 2));
    let json: Value = serde_json::from_str(&to_json(&report)).unwrap();
    let side = &json["workloads"][1]["sides"][1];
    assert_eq!((side["worst_ratio"].as_f64(), side["worst_aim"].as_f64()), (Some(0.52), Some(0.5)));
    assert_eq!(side["worst_verdict"], "miss");
    assert_eq!((side["p99_ratio"].as_f64(), side["p99_aim"].as_f64()), (Some(1.5), Some(1.0)));
    assert_eq!(side["p99_verdict"], "miss");
    assert!(json["workloads"][1]["sides"][2]["p99_aim"].is_null(), "the library has no such aim");
    assert_eq!(side["worst_ms"], serde_json::json!([26.0]));
    assert_eq!(
        side["counters"][0],
        serde_json::json!({"commit.count": 3, "fuse.requests.read": 25, "other": 4, "log.max_ns": 5})
    );
    assert_eq!(json["backing"], "ram");
    let text = to_text(&report);
    assert!(text.contains("longest latency 0.52, at most 0.50: miss"));
    assert!(text.contains("; 99% of fsyncs 1.50, at most 1.00: miss"));
    let fsyncs = text.lines().find(|line| line.starts_with("f-8 ") && line.contains(" / "));
    let numbers: Vec<&str> = fsyncs.unwrap().split_whitespace().skip(1).collect();
    assert_eq!(numbers.join(" "), "10 / 10 / 10 / 10 15 / 15 / 15 / 15 30 / 30 / 30 / 30");
}

#[test]
fn what_goes_by_jobs_has_curves() {
    assert!(!to_svg(&example()).contains("<circle"), "nothing goes by jobs there");
    let svg = to_svg(&by_jobs());
    // Rate and latency, three sides, two rows.
    assert_eq!(svg.matches("<circle").count(), 2 * 3 * 2);
    assert!(
        svg.contains(">f, files/s by jobs (grey: kernel)<")
            && svg.contains(">f, 99% of fsyncs, ms<")
    );
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let mut failed = by_jobs();
    failed.outcome.rows[0].cells[1] = Cell::default();
    assert_eq!(to_svg(&failed).matches("<circle").count(), 2 * (3 + 2));
}

#[test]
fn numbers_are_grouped_and_keep_what_counts() {
    let numbers = [1_234_567.8, 123.4, 1000.0, 12.34, 9.876, 0.0402, 0.0].map(number);
    assert_eq!(numbers, ["1,234,568", "123", "1,000", "12.3", "9.88", "0.040", "0"]);
}

#[test]
fn the_score_counts_aims_that_apply() {
    // Reached: 0.40 of 0.35, and 1.0 of 1.0. Missed: 2.0 of 3.0, and what broke.
    assert_eq!(example().score(), (2, 2));
    assert_eq!(example().outcome.failures(), 2);
}

#[test]
fn another_baseline_is_held_to_no_aim() {
    let mut report = by_jobs();
    report.sides[1].is_reference = true;
    assert_eq!(report.score(), (0, 0));
    assert!(!to_markdown(&report).contains("aim |"));
    assert!(!to_text(&report).contains("at most"));
}

#[test]
fn the_table_has_numbers_verdicts_and_failures() {
    let text = to_text(&example());
    let line = text.lines().find(|l| l.starts_with("reached")).unwrap();
    for part in ["100,000", "40,000", "0.40", "(0.30-0.50)", "0.35", "pass"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(text.contains("FAILED: breaks on spinney-uring: run: again"));
    // The details of all sides in one line, each the median of its samples.
    let flush = text.lines().find(|l| l.starts_with("Flush")).unwrap();
    let numbers: Vec<&str> = flush.split_whitespace().skip(1).collect();
    assert_eq!(numbers, ["0.100", "0.040", "0.200"]);
    assert!(text.contains("DAMAGED: library: torn"));
    assert!(text.contains("not measured: elsewhere on library: needs a directory"));
    assert!(text.ends_with("aims: 2 reached, 2 missed; 2 samples failed\n"), "{text}");
}

#[test]
fn json_keeps_to_its_schema() {
    let json: Value = serde_json::from_str(&to_json(&example())).unwrap();
    assert_eq!(json["schema"], 1);
    for member in ["kernel", "cpus", "unix_time", "arguments", "rounds", "scale", "interrupted"] {
        assert!(!json[member].is_null(), "{member}");
    }
    assert_eq!(json["damage"], serde_json::json!(["library: torn"]));
    assert_eq!(json["sides"][2]["library"], true);
    let row = &json["workloads"][0];
    assert_eq!((row["name"].as_str(), row["cache"].as_str()), (Some("reached"), Some("cold")));
    assert!(row["sides"][0]["ratio"].is_null(), "the baseline has no ratio");
    let mount = &row["sides"][1];
    assert_eq!(mount["label"], "spinney-uring");
    assert_eq!(mount["median"], 40_000.0);
    assert_eq!(mount["samples"], serde_json::json!([30_000.0, 50_000.0]));
    assert_eq!(mount["settle_seconds"], serde_json::json!([0.5, 0.5]));
    assert_eq!((mount["ratio"].as_f64(), mount["aim"].as_f64()), (Some(0.4), Some(0.35)));
    assert_eq!(mount["ratio_range"], serde_json::json!([0.3, 0.5]));
    assert_eq!(mount["details"][1][0], serde_json::json!({"name": "Flush", "AvgLat": 0.05}));
    assert_eq!(mount["verdict"], "pass");
    assert_eq!(row["sides"][2]["verdict"], "miss");
    let broken = &json["workloads"][1]["sides"][1];
    assert_eq!((broken["verdict"].as_str(), broken["ratio"].is_null()), (Some("no result"), true));
    assert_eq!(broken["failures"].as_array().unwrap().len(), 2);
    assert_eq!(json["aims"], serde_json::json!({"reached": 2, "missed": 2}));
}

#[test]
fn the_plot_has_a_bar_per_ratio_and_escapes_text() {
    let mut report = example();
    report.sides[1].label = "a<b".into();
    let svg = to_svg(&report);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    // Background, two legend marks, and the ratios that exist: 2 + 1 + 1.
    assert_eq!(svg.matches("<rect").count(), 1 + 2 + 4);
    assert!(svg.contains(">0.40 pass<"));
}
