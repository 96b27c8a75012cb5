//! dbench: a file server's load by several clients, with the latency of each operation.

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, program};
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(Dbench { clients: 8, name: "dbench-8" }),
        Box::new(Dbench { clients: 16, name: "dbench-16" }),
    ]
}

struct Dbench {
    clients: u32,
    name: &'static str,
}

impl Workload for Dbench {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: "dbench with so many clients, latency in ms",
            unit: "MB/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        // In less time dbench tells no throughput.
        let seconds = env.sizes.program_seconds.max(3);
        let output = program::run(env, "dbench", &format!("-t {seconds} -D . {}", self.clients))?;
        parse(&output).ok_or_else(|| program::not_understood("dbench"))
    }
}

/// The table of operations, then `Throughput 814.21 MB/sec  8 clients  8 procs ...`.
fn parse(output: &str) -> Option<Done> {
    let last = output.lines().rev().find_map(|line| line.trim().strip_prefix("Throughput "))?;
    let mut done = Done::from_rate(last.split_whitespace().next()?.parse().ok()?);
    let table = output.lines().skip_while(|line| !line.trim().starts_with("Operation"));
    done.details = table.skip(2).map_while(operation).collect();
    Some(done)
}

/// ` NTCreateX      19830     0.024     5.037`
fn operation(line: &str) -> Option<Detail> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, count, average, highest] = words[..] else { return None };
    Some(Detail {
        name: name.to_string(),
        values: vec![
            ("Count", count.parse().ok()?),
            ("AvgLat", average.parse().ok()?),
            ("MaxLat", highest.parse().ok()?),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_and_the_table_are_found() {
        let output = "   2  33966   399.45 MB/sec  execute   1 sec  latency 39.157 ms\n\n \
            Operation      Count    AvgLat    MaxLat\n \
            ----------------------------------------\n \
            NTCreateX      19830     0.024     5.037\n \
            Flush           1404     1.208    39.539\n\n\
            Throughput 399.452 MB/sec  2 clients  2 procs  max_latency=39.157 ms\n";
        let done = parse(output).unwrap();
        assert_eq!(done.rate(), 399.452);
        assert_eq!(done.details.len(), 2);
        let flush = &done.details[1];
        assert_eq!(flush.name, "Flush");
        assert_eq!(flush.values, [("Count", 1404.0), ("AvgLat", 1.208), ("MaxLat", 39.539)]);
        assert!(parse("nothing").is_none());
    }
}
