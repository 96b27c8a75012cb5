//! How long an fsync takes while a big commit runs: many files are made, and then one
//! thread syncs the whole file system while others write and fsync small files.

use super::jobs::{COMMIT, fsync_detail};
use super::pattern::{self, BLOCK};
use super::{Aims, Cache, Done, Env, Info, Workload, in_parallel, numbered};
use crate::stats::Latency;
use crate::target::{OpenDir, OpenFile};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(FsyncInCommit)]
}

struct FsyncInCommit;

/// Threads that make the files, each in a directory of its own.
const MAKERS: u64 = 4;
/// Threads that fsync meanwhile.
const WRITERS: u64 = 4;

impl Workload for FsyncInCommit {
    fn info(&self) -> Info {
        Info {
            name: "fsync-in-commit",
            about: "fsyncs of 4 KiB by 4 threads while a commit of many new files runs",
            unit: "ops/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let small = numbered("small", WRITERS);
        let create = |name| OpenFile::create(env.target, env.dir, name);
        let files: Vec<OpenFile<'_>> =
            small.iter().map(|n| create(n)).collect::<io::Result<_>>()?;
        make_files(env)?;
        let (over, latencies) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let commit = Mutex::new(Duration::ZERO);
        let elapsed = in_parallel(WRITERS + 1, |thread| match files.get(thread as usize) {
            Some(file) => {
                let own = fsync_until(file, &over)?;
                lock(&latencies)?.extend(own);
                Ok(())
            }
            None => {
                let start = Instant::now();
                let result = env.target.sync();
                over.store(true, Ordering::Release);
                *lock(&commit)? = start.elapsed();
                result
            }
        })?;
        let latencies = latencies.into_inner().map_err(|_| panicked())?;
        let commit = commit.into_inner().map_err(|_| panicked())?;
        let mut done = Done::new(latencies.len() as f64, elapsed);
        if let Some(latency) = Latency::of(latencies) {
            let mut detail = fsync_detail(&latency);
            detail.values.push((COMMIT, commit.as_secs_f64() * 1e3));
            (done.worst_ms, done.details) = (Some(latency.max), vec![detail]);
        }
        Ok(done)
    }
}

fn panicked() -> io::Error {
    io::Error::other("a thread panicked")
}

fn lock<T>(mutex: &Mutex<T>) -> io::Result<std::sync::MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| panicked())
}

/// Nothing of this is to be durable before the commit that is measured, so what the
/// file system has pending from before goes first.
fn make_files(env: &Env<'_>) -> io::Result<()> {
    env.target.sync()?;
    let make = |name| OpenDir::make(env.target, env.dir, name);
    let dirs: Vec<OpenDir<'_>> =
        numbered("dir", MAKERS).iter().map(|name| make(name)).collect::<io::Result<_>>()?;
    let names = numbered("file", env.sizes.commit_files.div_ceil(MAKERS));
    in_parallel(MAKERS, |maker| {
        let dir = dirs[maker as usize].id;
        names.iter().try_for_each(|name| OpenFile::create(env.target, dir, name).map(drop))
    })
    .map(drop)
}

/// At least one, then more until the commit is over; nanoseconds of each.
fn fsync_until(file: &OpenFile<'_>, over: &AtomicBool) -> io::Result<Vec<u64>> {
    let mut buf = pattern::buffer(BLOCK);
    let mut latencies = Vec::new();
    loop {
        let offset = (latencies.len() % 256 * BLOCK) as u64;
        pattern::stamp(&mut buf, offset);
        file.write_at(offset, &buf)?;
        let start = Instant::now();
        file.fsync()?;
        latencies.push(start.elapsed().as_nanos() as u64);
        if over.load(Ordering::Acquire) {
            return Ok(latencies);
        }
    }
}
