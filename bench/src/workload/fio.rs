//! fio: what it is known for. Random I/O of 4 KiB for a while, and writers that fsync,
//! each job a file of its own and all files together of one size.

use super::{Aims, Cache, Done, Env, Info, Workload, program};
use serde_json::Value;
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    let mut list: Vec<Box<dyn Workload>> = Vec::new();
    for (name, about, words) in RANDOM {
        list.push(Box::new(Fio { name, about, unit: "ops/s", jobs: 1, words, whole: false }));
    }
    for (name, jobs) in SEQUENTIAL_FSYNC {
        let words = "--rw=write --bs=64k --fsync=1";
        let about = "fio, so many jobs: sequential 64 KiB, fsync after each";
        list.push(Box::new(Fio { name, about, unit: "MiB/s", jobs, words, whole: true }));
    }
    for (name, jobs) in RANDOM_FSYNC {
        let words = "--rw=randwrite --bs=4k --fsync=16";
        let about = "fio, so many jobs: random 4 KiB, fsync after 16";
        list.push(Box::new(Fio { name, about, unit: "MiB/s", jobs, words, whole: true }));
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

const SEQUENTIAL_FSYNC: [(&str, u64); 7] = [
    ("fio-fsync-seq64k-1", 1),
    ("fio-fsync-seq64k-2", 2),
    ("fio-fsync-seq64k-4", 4),
    ("fio-fsync-seq64k-8", 8),
    ("fio-fsync-seq64k-16", 16),
    ("fio-fsync-seq64k-32", 32),
    ("fio-fsync-seq64k-64", 64),
];

const RANDOM_FSYNC: [(&str, u64); 7] = [
    ("fio-fsync-rand4k-1", 1),
    ("fio-fsync-rand4k-2", 2),
    ("fio-fsync-rand4k-4", 4),
    ("fio-fsync-rand4k-8", 8),
    ("fio-fsync-rand4k-16", 16),
    ("fio-fsync-rand4k-32", 32),
    ("fio-fsync-rand4k-64", 64),
];

struct Fio {
    name: &'static str,
    about: &'static str,
    unit: &'static str,
    jobs: u64,
    words: &'static str,
    /// Write the files once from end to end, however long it takes; else go on for the
    /// time given.
    whole: bool,
}

impl Workload for Fio {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: self.about,
            unit: self.unit,
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let size = (env.sizes.file_bytes / self.jobs).max(1 << 20);
        let mut words = format!(
            "--name=f --directory=. --ioengine=psync --fallocate=none --group_reporting \
             --output-format=json --numjobs={} --size={size} {}",
            self.jobs, self.words
        );
        if !self.whole {
            words += &format!(" --time_based --runtime={}", env.sizes.program_seconds);
        }
        let output = program::run(env, "fio", &words)?;
        let rate = parse(&output, self.unit == "MiB/s");
        Ok(Done::from_rate(rate.ok_or_else(|| program::not_understood("fio"))?))
    }
}

/// Operations (or MiB) a second, of whichever direction did something.
fn parse(output: &str, mib: bool) -> Option<f64> {
    // fio may say something before its JSON.
    let json: Value = serde_json::from_str(output.get(output.find('{')?..)?).ok()?;
    let of = |direction: &str| {
        let part = &json["jobs"][0][direction];
        let value =
            if mib { part["bw_bytes"].as_f64()? / 1048576.0 } else { part["iops"].as_f64()? };
        (value > 0.0).then_some(value)
    };
    of("write").or_else(|| of("read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        let output = "note: x\n{\"jobs\": [{\"read\": {\"iops\": 5.5, \"bw_bytes\": 22528}, \
                      \"write\": {\"iops\": 0.0, \"bw_bytes\": 0}}]}";
        assert_eq!(parse(output, false), Some(5.5));
        assert_eq!(parse(&output.replace("22528", "3145728"), true), Some(3.0));
        assert_eq!(parse("nothing", false), None);
    }
}
