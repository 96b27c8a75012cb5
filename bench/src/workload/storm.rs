//! Renames from everywhere: 64 threads move their files between the same two directories, half of
//! them one way and half the other.

use super::pace::percentiles;
use super::{Aims, Cache, Done, Env, Info, Workload, in_parallel};
use crate::target::{OpenDir, OpenFile};
use std::ffi::{CStr, CString};
use std::io;
use std::sync::Mutex;
use std::time::Instant;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Storm)]
}

const THREADS: u64 = 64;
/// Files of each thread.
const FILES: u64 = 16;

struct Storm;

fn own_names(thread: u64) -> io::Result<Vec<CString>> {
    let name = |file| CString::new(format!("file-{thread:02}-{file:02}"));
    Ok((0..FILES).map(name).collect::<Result<_, _>>()?)
}

/// Moves each of `names` away and back again, until so many moves are done.
fn moves(
    env: &Env<'_>,
    [from, to]: [&OpenDir<'_>; 2],
    names: &[CString],
    count: u64,
) -> io::Result<Vec<u64>> {
    let mut times = Vec::with_capacity(count as usize);
    let names_again = names.iter().cycle();
    let mut one = |from: &OpenDir<'_>, to: &OpenDir<'_>, name: &CStr| {
        let start = Instant::now();
        env.target.rename(from.id, name, to.id, name)?;
        times.push(start.elapsed().as_nanos() as u64);
        io::Result::Ok(())
    };
    for name in names_again.take((count / 2).max(1) as usize) {
        one(from, to, name)?;
        one(to, from, name)?;
    }
    Ok(times)
}

impl Workload for Storm {
    fn info(&self) -> Info {
        Info {
            name: "rename-storm",
            about: "renames between two directories by 64 threads, both ways: us that single ones take",
            unit: "ops/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let make = |name| OpenDir::make(env.target, env.dir, name);
        let dirs = [make(c"one")?, make(c"other")?];
        let names: Vec<Vec<CString>> = (0..THREADS).map(own_names).collect::<io::Result<_>>()?;
        // Whose files are where at the start.
        let way = |thread: u64| match thread % 2 {
            0 => [&dirs[0], &dirs[1]],
            _ => [&dirs[1], &dirs[0]],
        };
        for thread in 0..THREADS {
            for name in &names[thread as usize] {
                drop(OpenFile::create(env.target, way(thread)[0].id, name)?);
            }
        }
        let (all, each) = (Mutex::new(Vec::new()), env.sizes.files * 4 / THREADS);
        let elapsed = in_parallel(THREADS, |thread| {
            let own = moves(env, way(thread), &names[thread as usize], each)?;
            all.lock().map_err(|_| io::Error::other("a thread panicked"))?.extend(own);
            Ok(())
        })?;
        let times = all.into_inner().map_err(|_| io::Error::other("a thread panicked"))?;
        let mut done = Done::new(times.len() as f64, elapsed);
        done.worst_ms = times.iter().max().map(|ns| *ns as f64 / 1e6);
        done.details = percentiles("rename", times);
        Ok(done)
    }
}
