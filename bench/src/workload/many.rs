//! Many files: whether the millionth is made as fast as the first, what a directory of a million
//! costs, and how long single operations take while all of it is committed.

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, in_parallel, numbered};
use crate::target::{OpenDir, OpenFile, Target};
use std::ffi::CString;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Rounds), Box::new(OneDirectory), Box::new(OpsInCommit)]
}

const THREADS: u64 = 2;
const ROUNDS: u64 = 10;

fn info(name: &'static str, about: &'static str) -> Info {
    let (cache, aims) = (Cache::Warm, Aims::NONE);
    Info { name, about, unit: "files/s", cache, aims, standard: false }
}

fn own_dirs<'e>(env: &Env<'e>) -> io::Result<Vec<OpenDir<'e>>> {
    let make = |name: &CString| OpenDir::make(env.target, env.dir, name);
    numbered("dir", THREADS).iter().map(make).collect()
}

/// Empty files of these names.
pub(super) fn create(target: &dyn Target, dir: &OpenDir<'_>, names: &[CString]) -> io::Result<()> {
    names.iter().try_for_each(|name| OpenFile::create(target, dir.id, name).map(drop))
}

/// What fs_mark does, on any side: empty files, round after round, all of them kept.
struct Rounds;

impl Workload for Rounds {
    fn info(&self) -> Info {
        info(
            "create-rounds",
            "10 rounds of 100,000 empty files by two threads, each in a directory \
             of its own; the rate of all of them, and of each round",
        )
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let dirs = own_dirs(env)?;
        let (mut total, mut details) = (Duration::ZERO, Vec::new());
        let each = env.sizes.files;
        for round in 0..ROUNDS {
            let names = numbered(&format!("round{round}-"), each);
            let elapsed = in_parallel(THREADS, |t| create(env.target, &dirs[t as usize], &names))?;
            total += elapsed;
            let rate = (each * THREADS) as f64 / elapsed.as_secs_f64();
            let name = format!("round {}", round + 1);
            details.push(Detail { name, values: vec![("files/s", rate)] });
        }
        let mut done = Done::new((each * THREADS * ROUNDS) as f64, total);
        done.details = details;
        Ok(done)
    }
}

/// A million files in one directory.
struct OneDirectory;

impl Workload for OneDirectory {
    fn info(&self) -> Info {
        info(
            "one-dir",
            "a million files in one directory created, looked up, listed with \
             attributes and removed by one thread; each step on its own below",
        )
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let names = numbered("file", env.sizes.files * 20);
        let dir = OpenDir::make(env.target, env.dir, c"dir")?;
        let mut details = Vec::new();
        let mut total = Duration::ZERO;
        let mut step = |name: &str, work: &dyn Fn() -> io::Result<()>| {
            let start = Instant::now();
            work()?;
            let elapsed = start.elapsed();
            total += elapsed;
            let rate = names.len() as f64 / elapsed.as_secs_f64();
            details.push(Detail { name: name.into(), values: vec![("files/s", rate)] });
            io::Result::Ok(())
        };
        step("create", &|| create(env.target, &dir, &names))?;
        // Far from each other, one after the other.
        let stat = |at: usize| env.target.stat(dir.id, &names[at * 7919 % names.len()]).map(drop);
        step("look up", &|| (0..names.len()).try_for_each(stat))?;
        step("list", &|| env.target.list_long(dir.id).map(drop))?;
        step("remove", &|| names.iter().try_for_each(|name| env.target.unlink(dir.id, name)))?;
        let mut done = Done::new(names.len() as f64, total);
        done.details = details;
        Ok(done)
    }
}

/// Creations and stats by two threads: alone, and while what was made before is committed.
struct OpsInCommit;

impl Workload for OpsInCommit {
    fn info(&self) -> Info {
        info(
            "ops-in-commit",
            "create and stat by two threads while a commit of a million items \
             runs, and as long without one: us that single ones take",
        )
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        env.target.sync()?;
        let dirs = own_dirs(env)?;
        let names = numbered("before", env.sizes.commit_files.div_ceil(THREADS));
        in_parallel(THREADS, |t| create(env.target, &dirs[t as usize], &names))?;
        let (during, commit) = load(env, &dirs, "during", &|| env.target.sync())?;
        let (alone, _) = load(env, &dirs, "alone", &|| {
            std::thread::sleep(commit);
            Ok(())
        })?;
        let mut done = Done::new(during.len() as f64, commit);
        let ms =
            Detail { name: "commit ms".into(), values: vec![("us", commit.as_secs_f64() * 1e3)] };
        done.details = percentiles("alone", alone);
        done.details.extend(percentiles("in a commit", during));
        done.details.push(ms);
        Ok(done)
    }
}

/// Nanoseconds of each operation while `work` goes on, and how long that took.
fn load(
    env: &Env<'_>,
    dirs: &[OpenDir<'_>],
    prefix: &str,
    work: &(dyn Fn() -> io::Result<()> + Sync),
) -> io::Result<(Vec<u64>, Duration)> {
    let (over, all, took) = (AtomicBool::new(false), Mutex::new(Vec::new()), Mutex::default());
    let panicked = || io::Error::other("a thread panicked");
    in_parallel(THREADS + 1, |thread| match dirs.get(thread as usize) {
        Some(dir) => {
            let own = operate(env.target, dir, prefix, &over)?;
            all.lock().map_err(|_| panicked())?.extend(own);
            Ok(())
        }
        None => {
            let start = Instant::now();
            let result = work();
            over.store(true, Ordering::Release);
            *took.lock().map_err(|_| panicked())? = start.elapsed();
            result
        }
    })?;
    let took = took.into_inner().map_err(|_| panicked())?;
    Ok((all.into_inner().map_err(|_| panicked())?, took))
}

fn operate(
    target: &dyn Target,
    dir: &OpenDir<'_>,
    prefix: &str,
    over: &AtomicBool,
) -> io::Result<Vec<u64>> {
    let mut times = Vec::new();
    let mut note = |start: Instant| times.push(start.elapsed().as_nanos() as u64);
    for number in 0u64.. {
        let name = CString::new(format!("{prefix}{number:07}"))?;
        let start = Instant::now();
        drop(OpenFile::create(target, dir.id, &name)?);
        note(start);
        let start = Instant::now();
        target.stat(dir.id, &name)?;
        note(start);
        if over.load(Ordering::Acquire) {
            break;
        }
    }
    Ok(times)
}

fn percentiles(what: &str, mut times: Vec<u64>) -> Vec<Detail> {
    times.sort_unstable();
    let row = |name: &str, share: f64| {
        let at = ((share * times.len() as f64).ceil() as usize).clamp(1, times.len()) - 1;
        let us = times[at] as f64 / 1e3;
        Detail { name: format!("{what} {name} us"), values: vec![("us", us)] }
    };
    if times.is_empty() {
        return Vec::new();
    }
    vec![row("50 %", 0.5), row("99 %", 0.99), row("99.9 %", 0.999), row("100 %", 1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_list() {
        let rows = percentiles("x", (1..=1000).map(|n| n * 1000).collect());
        let values: Vec<f64> = rows.iter().map(|row| row.values[0].1).collect();
        assert_eq!(values, [500.0, 990.0, 999.0, 1000.0]);
        assert!(percentiles("x", Vec::new()).is_empty());
    }
}
