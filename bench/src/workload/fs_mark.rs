//! fs_mark: empty files by two threads, round after round in the same file system.

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, program};
use crate::stats;
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(FsMark)]
}

struct FsMark;

const THREADS: u64 = 2;
const ROUNDS: u64 = 5;

impl Workload for FsMark {
    fn info(&self) -> Info {
        Info {
            name: "fs-mark",
            about: "fs_mark -S 0 -s 0 -t 2, median of its 5 rounds",
            unit: "files/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let files = env.sizes.files / THREADS;
        // A directory for each thread, as -d given once for each makes it.
        let dirs: Vec<String> = (0..THREADS).map(|t| format!("-d ./t{t}")).collect();
        let words = format!("-S 0 -s 0 -L {ROUNDS} -n {files} {} -l /dev/null", dirs.join(" "));
        let output = program::run(env, "fs_mark", &words)?;
        parse(&output).ok_or_else(|| program::not_understood("fs_mark"))
    }
}

/// The rows below the heading `FSUse% Count Size Files/sec App Overhead`.
fn parse(output: &str) -> Option<Done> {
    let table = output.lines().skip_while(|line| !line.contains("Files/sec")).skip(1);
    let rates: Vec<f64> = table
        .filter(|line| !line.trim().is_empty())
        .map_while(|line| line.split_whitespace().nth(3)?.parse().ok())
        .collect();
    let mut done = Done::from_rate(stats::median(&rates)?);
    let row = |(i, rate): (usize, &f64)| Detail {
        name: format!("round {}", i + 1),
        values: vec![("files/s", *rate)],
    };
    done.details = rates.iter().enumerate().map(row).collect();
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rounds_are_found() {
        let output = "#  fs_mark\n\nFSUse%        Count         Size    Files/sec     App Overhead\n     \
            1        40000            0      89000.0           412345\n     \
            1        80000            0      91000.5           412345\n     \
            2       120000            0      70000.0           412345\n";
        let done = parse(output).unwrap();
        assert_eq!(done.rate(), 89000.0);
        assert_eq!(done.details.len(), 3);
        assert_eq!(done.details[1].values, [("files/s", 91000.5)]);
        assert!(parse("nothing").is_none());
    }
}
