//! A tree of five million files in directories of a thousand: made, walked cold, removed cold, and
//! the memory that the machine has in use for it.
//!
//! What is in use is everybody's: pages without a file, and the kernel's own objects. So it says of a
//! server what it holds and of the kernel what it holds for it, in one number for all sides.

use super::many::create;
use super::{Aims, Cache, Detail, Done, Env, Info, Workload, in_parallel, numbered};
use crate::target::{DirId, OpenDir, Target, remove_children};
use std::ffi::CString;
use std::io;
use std::time::Duration;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Create), Box::new(WALK), Box::new(REMOVE)]
}

const THREADS: u64 = 2;
const FILES_OF_DIR: u64 = 1_000;
/// Files for each that other workloads make.
const TIMES: u64 = 100;

fn info(name: &'static str, about: &'static str, cache: Cache) -> Info {
    Info { name, about, unit: "files/s", cache, aims: Aims::NONE, standard: false }
}

/// Directories of each thread.
fn dirs(env: &Env<'_>) -> u64 {
    (env.sizes.files * TIMES).div_ceil(FILES_OF_DIR * THREADS)
}

/// How many files there are.
fn files(env: &Env<'_>) -> f64 {
    (dirs(env) * THREADS * FILES_OF_DIR) as f64
}

/// Runs `work` on the directory of each thread, which has its directories of files.
fn on_each(
    env: &Env<'_>,
    work: impl Fn(&dyn Target, DirId) -> io::Result<()> + Sync,
) -> io::Result<Duration> {
    let tops: Vec<OpenDir<'_>> = numbered("top", THREADS)
        .iter()
        .map(|name| OpenDir::open(env.target, env.dir, name))
        .collect::<io::Result<_>>()?;
    in_parallel(THREADS, |thread| work(env.target, tops[thread as usize].id))
}

fn make(env: &Env<'_>) -> io::Result<Duration> {
    for name in numbered("top", THREADS) {
        env.target.mkdir(env.dir, &name)?;
    }
    let (dirs, files) = (numbered("dir", dirs(env)), numbered("file", FILES_OF_DIR));
    on_each(env, |target, top| {
        dirs.iter().try_for_each(|name| {
            let dir = OpenDir::make(target, top, name)?;
            create(target, &dir, &files)
        })
    })
}

fn subdirs(target: &dyn Target, top: DirId) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    target.list(top, &mut |name, _| {
        names.push(name.to_owned());
        Ok(())
    })?;
    Ok(names)
}

fn walk(target: &dyn Target, top: DirId) -> io::Result<()> {
    for name in subdirs(target, top)? {
        let dir = OpenDir::open(target, top, &name)?;
        let found = target.list_long(dir.id)?;
        if found < FILES_OF_DIR {
            return Err(io::Error::other(format!("{found} files of {FILES_OF_DIR}")));
        }
    }
    Ok(())
}

/// The work between two looks at the machine's memory.
fn with_memory(env: &Env<'_>, work: impl FnOnce() -> io::Result<Duration>) -> io::Result<Done> {
    let before = in_use()?;
    let elapsed = work()?;
    let more = in_use()?.saturating_sub(before);
    let mut done = Done::new(files(env), elapsed);
    let values = vec![("MiB", (more >> 10) as f64)];
    done.details.push(Detail { name: "memory in use more".into(), values });
    Ok(done)
}

/// KiB of pages without a file and of the kernel's objects.
fn in_use() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let all = of("AnonPages:").zip(of("Slab:")).map(|(anonymous, slab)| anonymous + slab);
    all.ok_or_else(|| io::Error::other("/proc/meminfo does not tell"))
}

struct Create;

impl Workload for Create {
    fn info(&self) -> Info {
        let about = "5,000,000 empty files, a thousand to a directory, made by two threads";
        info("vast-create", about, Cache::Warm)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        with_memory(env, || make(env))
    }
}

/// What is done with the files when nothing of them is cached.
struct Cold {
    name: &'static str,
    about: &'static str,
    work: fn(&dyn Target, DirId) -> io::Result<()>,
}

const WALK: Cold = Cold {
    name: "vast-walk",
    about: "those files listed with attributes by two threads, nothing cached",
    work: walk,
};

const REMOVE: Cold = Cold {
    name: "vast-remove",
    about: "those files and directories removed by two threads, nothing cached",
    work: remove_children,
};

impl Workload for Cold {
    fn info(&self) -> Info {
        info(self.name, self.about, Cache::Cold)
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        make(env).map(drop)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        with_memory(env, || on_each(env, self.work))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_tells_what_is_in_use() {
        assert!(super::in_use().expect("meminfo") > 1024);
    }
}
