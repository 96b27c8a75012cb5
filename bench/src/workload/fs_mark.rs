//! fs_mark: empty files by two threads, round after round in the same file system, all of
//! them kept. In the library, where it cannot go, threads of this program do the same.

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, in_parallel, numbered, program};
use crate::stats;
use crate::target::{OpenDir, OpenFile};
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(FsMark::SHORT), Box::new(FsMark::LONG)]
}

struct FsMark {
    name: &'static str,
    about: &'static str,
    rounds: u64,
    /// Files for each that other workloads make.
    times: u64,
}

const THREADS: u64 = 2;

impl FsMark {
    const SHORT: FsMark = FsMark {
        name: "fs-mark",
        about: "fs_mark -S 0 -s 0 -t 2, median of its 5 rounds",
        rounds: 5,
        times: 1,
    };
    const LONG: FsMark = FsMark {
        name: "fs-mark-100k",
        about: "the same with 100,000 files a round, 10 rounds",
        rounds: 10,
        times: 2,
    };
}

impl Workload for FsMark {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: self.about,
            unit: "files/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let files = env.sizes.files * self.times / THREADS;
        if env.target.host_path().is_none() {
            return in_library(env, files, self.rounds);
        }
        // A directory for each thread, as -d given once for each makes it.
        let dirs: Vec<String> = (0..THREADS).map(|t| format!("-d ./t{t}")).collect();
        let (rounds, dirs) = (self.rounds, dirs.join(" "));
        let words = format!("-S 0 -s 0 -L {rounds} -n {files} {dirs} -l /dev/null");
        let output = program::run(env, "fs_mark", &words)?;
        parse(&output).ok_or_else(|| program::not_understood("fs_mark"))
    }
}

/// `files` by each thread and round, with names as long as fs_mark's.
fn in_library(env: &Env<'_>, files: u64, rounds: u64) -> io::Result<Done> {
    let make = |name| OpenDir::make(env.target, env.dir, name);
    let dirs: Vec<OpenDir<'_>> =
        numbered("t", THREADS).iter().map(|name| make(name)).collect::<io::Result<_>>()?;
    let mut rates = Vec::new();
    for round in 0..rounds {
        let names = numbered(&format!("{round:08x}{:~<25}", ""), files);
        let elapsed = in_parallel(THREADS, |thread| {
            let dir = dirs[thread as usize].id;
            let create = |name| OpenFile::create_or_truncate(env.target, dir, name).map(drop);
            names.iter().try_for_each(|name| create(name))
        })?;
        rates.push((files * THREADS) as f64 / elapsed.as_secs_f64());
    }
    from_rates(&rates).ok_or_else(|| io::Error::other("no rounds"))
}

/// The rows below the heading `FSUse% Count Size Files/sec App Overhead`.
fn parse(output: &str) -> Option<Done> {
    let table = output.lines().skip_while(|line| !line.contains("Files/sec")).skip(1);
    let rates: Vec<f64> = table
        .filter(|line| !line.trim().is_empty())
        .map_while(|line| line.split_whitespace().nth(3)?.parse().ok())
        .collect();
    from_rates(&rates)
}

fn from_rates(rates: &[f64]) -> Option<Done> {
    let mut done = Done::from_rate(stats::median(rates)?);
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
    use crate::target::{Target, VfsTarget};
    use crate::workload::{Material, Sizes};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn the_library_gets_the_same_files() {
        let target = VfsTarget::new(Arc::new(testkit::RefFs::new()));
        let sizes = Sizes::scaled(0.0, 1 << 20);
        let material = Material::new(Path::new("/"), &sizes, Path::new("/"));
        let dir = target.root();
        let env = Env { target: &target, dir, dir_name: "", sizes: &sizes, material: &material };
        let done = FsMark::SHORT.run(&env).unwrap();
        assert_eq!(done.details.len(), 5);
        let own = OpenDir::open(&target, dir, c"t0000001").unwrap();
        assert_eq!(target.list_long(own.id).unwrap(), 5 * sizes.files / THREADS);
        let mut longest = 0;
        let measure = &mut |name: &std::ffi::CStr, _| {
            longest = longest.max(name.to_bytes().len());
            Ok(())
        };
        target.list(own.id, measure).unwrap();
        assert_eq!(longest, 40);
    }

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
