//! How long one more open inode takes, while they become many: each creation on its own
//! clock, with the distribution that the averages hide.
//!
//! In the library all of them stay open. Through system calls descriptors would run out,
//! so each is closed, and stays in memory as far as whoever caches inodes keeps it.

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, numbered};
use crate::target::OpenFile;
use std::io;
use std::time::{Duration, Instant};

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Inserts)]
}

struct Inserts;

impl Workload for Inserts {
    fn info(&self) -> Info {
        Info {
            name: "insert-times",
            about: "create many files, kept open in the library: time of each in ns, and how many \
                    took how long",
            unit: "files/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let names = numbered("inode", env.sizes.inserts);
        let keep = env.target.host_path().is_none();
        let (mut held, mut times) = (Vec::new(), Vec::with_capacity(names.len()));
        for name in &names {
            let start = Instant::now();
            let file = OpenFile::create(env.target, env.dir, name)?;
            times.push(start.elapsed().as_nanos() as u64);
            if keep {
                held.push(file);
            }
        }
        drop(held);
        let mut done = Done::new(times.len() as f64, Duration::from_nanos(times.iter().sum()));
        done.details = distribution(times);
        Ok(done)
    }
}

/// The columns of the published table, then a histogram with a bar for each factor of 2.
fn distribution(mut times: Vec<u64>) -> Vec<Detail> {
    times.sort_unstable();
    let (Some(highest), count) = (times.last().copied(), times.len()) else { return Vec::new() };
    let row = |name: String, value: f64| Detail { name, values: vec![("Value", value)] };
    let at = |share: f64| times[((share * count as f64).ceil() as usize).clamp(1, count) - 1];
    let mean = times.iter().sum::<u64>() as f64 / count as f64;
    let mut rows = vec![row("mean ns".into(), mean.round())];
    for (name, share) in [("median", 0.5), ("90th", 0.9), ("95th", 0.95), ("99th", 0.99)] {
        rows.push(row(format!("{name} ns"), at(share) as f64));
    }
    rows.push(row("longest ns".into(), highest as f64));
    let mut below = 0;
    for bits in 8..64 {
        let limit = 1u64 << bits;
        let up_to = times.partition_point(|time| *time <= limit);
        rows.push(row(format!("<= {limit} ns"), (up_to - below) as f64));
        below = up_to;
        if limit >= HISTOGRAM_END || up_to == count {
            break;
        }
    }
    rows.push(row(format!("> {HISTOGRAM_END} ns"), times.len().saturating_sub(below) as f64));
    rows
}

/// A millisecond and more is not the index.
const HISTOGRAM_END: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_everything_once() {
        let mut times: Vec<u64> = (1..=99).collect();
        times.extend([300, 5_000_000]);
        let rows = distribution(times);
        let value =
            |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.values[0].1);
        assert_eq!(value("median ns"), Some(51.0));
        assert_eq!((value("99th ns"), value("longest ns")), (Some(300.0), Some(5e6)));
        assert_eq!((value("<= 256 ns"), value("<= 512 ns")), (Some(99.0), Some(1.0)));
        assert_eq!((value("<= 1048576 ns"), value("> 1048576 ns")), (Some(0.0), Some(1.0)));
        let bars = rows.iter().filter(|row| row.name.starts_with(['<', '>']));
        assert_eq!(bars.map(|row| row.values[0].1).sum::<f64>(), 101.0);
        assert!(distribution(Vec::new()).is_empty());
    }
}
