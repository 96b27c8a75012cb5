//! What touches the list of inodes being deleted or truncated, by more and more
//! threads: files cut byte by byte, and one name made and cut again and again.

use super::jobs::by_jobs;
use super::{Aims, Cache, Done, Env, Info, Workload, in_parallel, numbered};
use crate::target::{Access, OpenDir, OpenFile};
use std::ffi::CStr;
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    let mut list: Vec<Box<dyn Workload>> = Vec::new();
    for (name, threads) in by_jobs!("truncate": 1, 2, 4, 8, 16, 32, 64, 128) {
        list.push(Box::new(Truncate { name, threads: *threads }));
    }
    for (name, clients) in by_jobs!("creat-clo": 1, 7, 15, 23, 31) {
        list.push(Box::new(CreatClo { name, clients: *clients }));
    }
    list
}

fn info(name: &'static str, about: &'static str, unit: &'static str) -> Info {
    Info { name, about, unit, cache: Cache::Warm, aims: Aims::NONE, standard: false }
}

struct Truncate {
    name: &'static str,
    threads: u64,
}

impl Workload for Truncate {
    fn info(&self) -> Info {
        info(self.name, "so many threads, each cuts its file byte by byte", "ops/s")
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let data = vec![b'x'; env.sizes.truncations as usize];
        for name in numbered("file", self.threads) {
            OpenFile::create(env.target, env.dir, &name)?.write_at(0, &data)?;
        }
        Ok(())
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let open = |name| OpenFile::open(env.target, env.dir, name, Access::ReadWrite);
        let names = numbered("file", self.threads);
        let files: Vec<OpenFile<'_>> =
            names.iter().map(|name| open(name)).collect::<io::Result<_>>()?;
        let elapsed = in_parallel(self.threads, |thread| {
            let file = &files[thread as usize];
            (0..env.sizes.truncations).rev().try_for_each(|size| file.truncate(size))
        })?;
        for name in &names {
            if env.target.stat(env.dir, name)? != 0 {
                return Err(io::Error::other("a file that was cut to nothing has a size"));
            }
        }
        Ok(Done::new((self.threads * env.sizes.truncations) as f64, elapsed))
    }
}

struct CreatClo {
    name: &'static str,
    clients: u64,
}

/// Creations of one name in one job, as in the benchmark that this is named after.
const CREATIONS: u32 = 1000;
const NAME: &CStr = c"name";

impl Workload for CreatClo {
    fn info(&self) -> Info {
        let about = "so many clients; a job: 1,000 times creat and close, one unlink";
        info(self.name, about, "jobs/min")
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let make = |name| OpenDir::make(env.target, env.dir, name);
        let dirs: Vec<OpenDir<'_>> = numbered("client", self.clients)
            .iter()
            .map(|name| make(name))
            .collect::<io::Result<_>>()?;
        let jobs = env.sizes.creat_clo_jobs;
        let elapsed = in_parallel(self.clients, |client| {
            let dir = dirs[client as usize].id;
            for _ in 0..jobs {
                for _ in 0..CREATIONS {
                    drop(OpenFile::create_or_truncate(env.target, dir, NAME)?);
                }
                env.target.unlink(dir, NAME)?;
            }
            Ok(())
        })?;
        Ok(Done::new((self.clients * jobs * 60) as f64, elapsed))
    }
}
