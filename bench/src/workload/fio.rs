//! fio: what it is known for. Random I/O of 4 KiB for a while, and writers that fsync,
//! each job a file of its own and all files together of one size.

use super::jobs::{by_jobs, fsync_detail};
use super::{Aims, Cache, Done, Env, Info, Workload, program, writers};
use crate::stats::Latency;
use serde_json::Value;
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    let mut list: Vec<Box<dyn Workload>> = Vec::new();
    for (name, about, words) in RANDOM {
        list.push(Box::new(Fio { name, about, words }));
    }
    for (name, jobs) in by_jobs!("fio-fsync-seq64k": 1, 2, 4, 8, 16, 32, 64) {
        list.push(Box::new(FioFsync { name, jobs: *jobs, pattern: writers::SEQUENTIAL }));
    }
    for (name, jobs) in by_jobs!("fio-fsync-rand4k": 1, 2, 4, 8, 16, 32, 64) {
        list.push(Box::new(FioFsync { name, jobs: *jobs, pattern: writers::RANDOM }));
    }
    list
}

const RANDOM: [(&str, &str, &str); 3] = [
    ("fio-randread-direct", "fio 4 KiB random read, O_DIRECT", "--rw=randread --bs=4k --direct=1"),
    (
        "fio-randwrite-direct",
        "fio 4 KiB random write, O_DIRECT",
        "--rw=randwrite --bs=4k --direct=1",
    ),
    ("fio-randwrite", "fio 4 KiB random write, buffered", "--rw=randwrite --bs=4k"),
];

/// One job, for the time given.
struct Fio {
    name: &'static str,
    about: &'static str,
    words: &'static str,
}

impl Workload for Fio {
    fn info(&self) -> Info {
        info(self.name, self.about, "ops/s", Aims::NONE)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let words = format!(
            "{COMMON} --ioengine=psync --size={} --time_based --runtime={} {}",
            env.sizes.file_bytes, env.sizes.program_seconds, self.words
        );
        let output = program::run(env, "fio", &words)?;
        parse(&output, "iops", 1.0).ok_or_else(|| program::not_understood("fio"))
    }
}

/// So many jobs, each writing a file of its own once, for the time given at most. In the
/// library, where fio cannot go, threads of this program do the same.
struct FioFsync {
    name: &'static str,
    jobs: u64,
    pattern: writers::Pattern,
}

impl Workload for FioFsync {
    fn info(&self) -> Info {
        let about = match self.pattern.random {
            true => writers::RANDOM_ABOUT,
            false => writers::SEQUENTIAL_ABOUT,
        };
        let aim = if self.jobs >= 8 { 1.3 } else { 1.0 };
        info(self.name, about, "MiB/s", Aims::mount(aim).and_p99(1.0))
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        if env.target.host_path().is_none() {
            return writers::run(env, self.jobs, self.pattern);
        }
        let block = self.pattern.block as u64;
        let words = format!(
            "{COMMON} --ioengine=sync --numjobs={} --size={} --runtime={} --rw={} --bs={block} \
             --fsync={}",
            self.jobs,
            (env.sizes.fsync_bytes / self.jobs / block).max(1) * block,
            env.sizes.program_seconds,
            if self.pattern.random { "randwrite" } else { "write" },
            self.pattern.fsync_every
        );
        let output = program::run(env, "fio", &words)?;
        parse(&output, "bw_bytes", 1048576.0).ok_or_else(|| program::not_understood("fio"))
    }
}

const COMMON: &str =
    "--name=f --directory=. --fallocate=none --group_reporting --output-format=json";

fn info(name: &'static str, about: &'static str, unit: &'static str, aims: Aims) -> Info {
    Info { name, about, unit, cache: Cache::Warm, aims, standard: false }
}

/// The rate of whichever direction did something, and the latency of its fsyncs.
fn parse(output: &str, member: &str, divisor: f64) -> Option<Done> {
    // fio may say something before its JSON.
    let json: Value = serde_json::from_str(output.get(output.find('{')?..)?).ok()?;
    let job = &json["jobs"][0];
    let of = |direction: &str| job[direction][member].as_f64().filter(|rate| *rate > 0.0);
    let mut done = Done::from_rate(of("write").or_else(|| of("read"))? / divisor);
    if let Some(latency) = fsync_latency(&job["sync"]["lat_ns"]) {
        done.worst_ms = Some(latency.max);
        done.details = vec![fsync_detail(&latency)];
    }
    Some(done)
}

/// `None` where nothing was synced. A percentile is the upper edge of its bucket, so it may
/// lie above the longest.
fn fsync_latency(json: &Value) -> Option<Latency> {
    let ms = |value: &Value| Some(value.as_f64()? / 1e6);
    let max = ms(&json["max"])?;
    let at = |percentile: &str| Some(ms(&json["percentile"][percentile])?.min(max));
    Some(Latency {
        count: json["N"].as_u64().filter(|n| *n > 0)? as usize,
        mean: ms(&json["mean"])?,
        p50: at("50.000000")?,
        p99: at("99.000000")?,
        p999: at("99.900000")?,
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::jobs::FSYNC;

    /// As fio 3.33 printed it.
    const FSYNCS: &str = include_str!("captured/fio-fsync.json");
    const READS: &str = include_str!("captured/fio-randread.json");

    #[test]
    fn bandwidth_and_fsync_latency_are_found() {
        let done = parse(FSYNCS, "bw_bytes", 1048576.0).unwrap();
        assert_eq!((done.rate() * 100.0).round(), 2260.0);
        let detail = &done.details[0];
        assert_eq!(detail.name, FSYNC);
        let expected = [
            ("Count", 254.0),
            ("Average", 5_198_822.047244 / 1e6),
            ("p50", 4.079616),
            ("p99", 22.675456),
            ("p99.9", 31.588352),
            ("Max", 31.660681),
        ];
        assert_eq!(detail.values, expected);
        assert_eq!(done.worst_ms, Some(expected[5].1));
    }

    #[test]
    fn no_percentile_is_above_the_longest() {
        let low = FSYNCS.replace("\"max\" : 31660681", "\"max\" : 20000000");
        assert_ne!(low, FSYNCS);
        let done = parse(&low, "bw_bytes", 1.0).unwrap();
        assert_eq!(done.details[0].values[3..], [("p99", 20.0), ("p99.9", 20.0), ("Max", 20.0)]);
    }

    #[test]
    fn a_read_has_a_rate_alone() {
        let done = parse(&format!("note: x\n{READS}"), "iops", 1.0).unwrap();
        assert_eq!(done.rate().round(), 12095.0);
        assert!(done.details.is_empty() && done.worst_ms.is_none());
        assert!(parse("nothing", "iops", 1.0).is_none());
        assert!(parse("{}", "iops", 1.0).is_none());
    }
}
