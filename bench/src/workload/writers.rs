//! Writers that fsync, in the pattern of fio's rows but as threads of this program, so
//! that the library can be measured: a file for each, written once, sequentially or in
//! random order, from empty, until the file is full or the time is up.

use super::jobs::{by_jobs, fsync_detail};
use super::pattern;
use super::{Aims, Cache, Done, Env, Info, Workload, in_parallel, numbered};
use crate::rng::Rng;
use crate::stats::Latency;
use crate::target::OpenFile;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How each writer writes.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    pub block: usize,
    pub random: bool,
    /// An fsync after so many writes.
    pub fsync_every: u64,
}

pub const SEQUENTIAL: Pattern = Pattern { block: 64 << 10, random: false, fsync_every: 1 };
pub const RANDOM: Pattern = Pattern { block: 4 << 10, random: true, fsync_every: 16 };

pub const SEQUENTIAL_ABOUT: &str = "sequential 64 KiB, fsync after each, one file a job";
pub const RANDOM_ABOUT: &str = "random 4 KiB, fsync after 16, one file a job";

pub fn all() -> Vec<Box<dyn Workload>> {
    let sequential = by_jobs!("fsync-seq64k": 1, 2, 4, 8, 16, 32, 64);
    let random = by_jobs!("fsync-rand4k": 1, 2, 4, 8, 16, 32, 64);
    let mut list: Vec<Box<dyn Workload>> = Vec::new();
    for (name, jobs) in sequential {
        let (jobs, pattern, about) = (*jobs, SEQUENTIAL, SEQUENTIAL_ABOUT);
        list.push(Box::new(Writers { name, about, jobs, pattern }));
    }
    for (name, jobs) in random {
        let (jobs, pattern, about) = (*jobs, RANDOM, RANDOM_ABOUT);
        list.push(Box::new(Writers { name, about, jobs, pattern }));
    }
    list
}

struct Writers {
    name: &'static str,
    about: &'static str,
    jobs: u64,
    pattern: Pattern,
}

impl Workload for Writers {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: self.about,
            unit: "MiB/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        run(env, self.jobs, self.pattern)
    }
}

/// MiB written, with the latencies of fsync. The size of a file is the run's share.
pub fn run(env: &Env<'_>, jobs: u64, pattern: Pattern) -> io::Result<Done> {
    let blocks = (env.sizes.fsync_bytes / jobs / pattern.block as u64).max(1);
    let names = numbered("w", jobs);
    let create = |name| OpenFile::create(env.target, env.dir, name);
    let files: Vec<OpenFile<'_>> = names.iter().map(|n| create(n)).collect::<io::Result<_>>()?;
    let orders: Vec<Vec<u64>> = (0..jobs).map(|job| order(blocks, pattern.random, job)).collect();
    let (written, latencies) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let limit = Duration::from_secs(env.sizes.program_seconds);
    let elapsed = in_parallel(jobs, |job| {
        let job = job as usize;
        let (count, own) = write(&files[job], &orders[job], pattern, limit)?;
        written.fetch_add(count * pattern.block as u64, Ordering::Relaxed);
        latencies.lock().map_err(|_| io::Error::other("a writer panicked"))?.extend(own);
        Ok(())
    })?;
    let latencies = latencies.into_inner().map_err(|_| io::Error::other("a writer panicked"))?;
    let mut done = Done::new(written.into_inner() as f64 / pattern::MIB as f64, elapsed);
    if let Some(latency) = Latency::of(latencies) {
        done.worst_ms = Some(latency.max);
        done.details = vec![fsync_detail(&latency)];
    }
    Ok(done)
}

/// One writer: how many blocks it wrote, and how long each fsync took in nanoseconds.
fn write(
    file: &OpenFile<'_>,
    order: &[u64],
    pattern: Pattern,
    limit: Duration,
) -> io::Result<(u64, Vec<u64>)> {
    let mut buf = pattern::buffer(pattern.block);
    let (mut count, mut latencies) = (0, Vec::with_capacity(1024));
    let start = Instant::now();
    for block in order {
        let offset = block * pattern.block as u64;
        pattern::stamp(&mut buf, offset);
        file.write_at(offset, &buf)?;
        count += 1;
        if count % pattern.fsync_every == 0 {
            let before = Instant::now();
            file.fsync()?;
            latencies.push(before.elapsed().as_nanos() as u64);
        }
        if start.elapsed() >= limit {
            break;
        }
    }
    Ok((count, latencies))
}

/// Every block once.
fn order(blocks: u64, random: bool, seed: u64) -> Vec<u64> {
    match random {
        true => Rng::new(0x5eed_0010 + seed).permutation(blocks),
        false => (0..blocks).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_order_has_every_block_once() {
        let (a, b) = (order(1000, true, 1), order(1000, true, 2));
        assert_ne!(a, b, "each job has its own");
        for mut blocks in [a, b] {
            assert_ne!(blocks, order(1000, false, 0));
            blocks.sort_unstable();
            assert_eq!(blocks, order(1000, false, 0));
        }
    }
}
