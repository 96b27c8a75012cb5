//! dbench: a file server's load by several clients, with the latency of each operation.

mod load;
mod replay;

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, program};
use std::io;
use std::time::Duration;

pub use load::Load;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(Dbench { clients: 8, name: "dbench-8", replay: false }),
        Box::new(Dbench { clients: 16, name: "dbench-16", replay: false }),
        Box::new(Dbench { clients: 8, name: "dbench-replay-8", replay: true }),
        Box::new(Dbench { clients: 16, name: "dbench-replay-16", replay: true }),
    ]
}

struct Dbench {
    clients: u64,
    name: &'static str,
    /// By threads of this program, everywhere; else only in the library.
    replay: bool,
}

impl Workload for Dbench {
    fn info(&self) -> Info {
        let (about, aims) = match self.replay {
            true => ("dbench's load played by so many threads, latency in ms", Aims::NONE),
            false => {
                let aims = Aims::mount(1.0).and_worst(0.5);
                ("dbench with so many clients, latency in ms", aims)
            }
        };
        Info { name: self.name, about, unit: "MB/s", cache: Cache::Warm, aims, standard: false }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        // In less time dbench tells no throughput.
        let seconds = env.sizes.program_seconds.max(3);
        let loadfile = env.material.loadfile();
        if self.replay || env.target.host_path().is_none() {
            if !loadfile.exists() {
                return Err(super::not_here(format!("no loadfile {}", loadfile.display())));
            }
            let limit = Duration::from_secs(seconds);
            return replay::run(env, env.material.load()?, self.clients, limit);
        }
        let own = loadfile.exists().then(|| format!("-c {} ", loadfile.display()));
        let words = format!("{}-t {seconds} -D . {}", own.unwrap_or_default(), self.clients);
        let output = program::run(env, "dbench", &words)?;
        parse(&output).ok_or_else(|| program::not_understood("dbench"))
    }
}

/// The table of operations, then `Throughput 814.21 MB/sec  8 clients  8 procs ...`. The
/// longest latency is that of the table: the last line leaves out what took longest in
/// the last second.
fn parse(output: &str) -> Option<Done> {
    let last = output.lines().rev().find_map(|line| line.trim().strip_prefix("Throughput "))?;
    let mut done = Done::from_rate(last.split_whitespace().next()?.parse().ok()?);
    let table = output.lines().skip_while(|line| !line.trim().starts_with("Operation"));
    done.details = table.skip(2).map_while(operation).collect();
    let highest = done.details.iter().filter_map(|detail| Some(detail.values.get(2)?.1));
    done.worst_ms = highest.reduce(f64::max);
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

    /// As dbench 4.00 printed it.
    const OUTPUT: &str = include_str!("../captured/dbench.txt");

    #[test]
    fn the_result_and_the_table_are_found() {
        let done = parse(OUTPUT).unwrap();
        assert_eq!(done.rate(), 214.01);
        let names: Vec<&str> = done.details.iter().map(|detail| detail.name.as_str()).collect();
        assert_eq!(names, load::KINDS);
        let flush = &done.details[15];
        assert_eq!(flush.values, [("Count", 740.0), ("AvgLat", 3.407), ("MaxLat", 65.459)]);
        assert_eq!(done.worst_ms, Some(65.459), "not the 44.162 of the last line");
        assert!(parse("nothing").is_none());
    }
}
