//! Many files: whether the millionth is made as fast as the first, what a directory of a million
//! costs, and how long single operations take while all of it is committed.

use super::pace::{Pace, percentiles};
use super::{Aims, Cache, Detail, Done, Env, Info, Workload, in_parallel, numbered};
use crate::memory::{Memory, Watch};
use crate::target::{OpenDir, OpenFile, Target};
use std::ffi::CString;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Rounds), Box::new(OneDirectory), Box::new(CreateFsync), Box::new(OpsInCommit)]
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
        let (count, target) = (names.len() as u64, env.target);
        let dir = OpenDir::make(target, env.dir, c"dir")?;
        let watch = Watch::on(target.host_path())?;
        let make = |at: usize| OpenFile::create(target, dir.id, &names[at]).map(drop);
        // Far from each other, one after the other.
        let stat = |at: usize| target.stat(dir.id, &names[at * 7919 % names.len()]).map(drop);
        let list = || match target.list_long(dir.id)? {
            found if found == count => Ok(()),
            found => Err(io::Error::other(format!("{found} files of {count}"))),
        };
        let paces = [
            ("create", Pace::of(&watch, count, make)?),
            ("look up", Pace::of(&watch, count, stat)?),
            ("list", Pace::whole(&watch, count, list)?),
            ("remove", Pace::of(&watch, count, |at| target.unlink(dir.id, &names[at]))?),
        ];
        let total = paces.iter().map(|(_, pace)| pace.elapsed()).sum();
        let mut done = Done::new(count as f64, total);
        done.details = paces.iter().map(|(name, pace)| pace.detail(name)).collect();
        Ok(done)
    }
}

/// New files in one directory that are durable before the next one comes, as mail servers make them.
struct CreateFsync;

impl Workload for CreateFsync {
    fn info(&self) -> Info {
        info(
            "create-fsync",
            "10,000 files in a new directory, an fsync of each behind its creation",
        )
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let names = numbered("file", env.sizes.files / 5);
        let dir = OpenDir::make(env.target, env.dir, c"dir")?;
        let watch = Watch::on(env.target.host_path())?;
        let pace = Pace::of(&watch, names.len() as u64, |at| {
            OpenFile::create(env.target, dir.id, &names[at])?.fsync()
        })?;
        let mut done = Done::new(names.len() as f64, pace.elapsed());
        done.details = vec![pace.detail("create and fsync")];
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
        let watch = Watch::on(env.target.host_path())?;
        let ((during, commit), memory) =
            watch.during(|| load(env, &dirs, "during", &|| env.target.sync()))?;
        let (alone, _) = load(env, &dirs, "alone", &|| {
            std::thread::sleep(commit);
            Ok(())
        })?;
        let mut done = Done::new(during.len() as f64, commit);
        done.details = percentiles("alone", alone);
        done.details.extend(percentiles("in a commit", during));
        done.details.extend(beside(commit, memory));
        Ok(done)
    }
}

/// What is no time of an operation, in the same column.
fn beside(commit: Duration, memory: Memory) -> [Detail; 3] {
    let mib = |bytes: u64| (bytes >> 20) as f64;
    [
        ("commit ms", commit.as_secs_f64() * 1e3),
        ("process MiB", mib(memory.process)),
        ("in kernel MiB", mib(memory.kernel)),
    ]
    .map(|(name, value)| Detail { name: name.into(), values: vec![("us", value)] })
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
