//! One large file, front to back, 1 MiB at a time.

use super::pattern::{self, MIB};
use super::{Aims, Cache, Done, Env, Info, Workload};
use crate::target::{Access, OpenFile};
use std::ffi::CStr;
use std::io;
use std::time::Instant;

pub const FILE: &CStr = c"large";

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(Write { overwrite: false }),
        Box::new(Write { overwrite: true }),
        Box::new(Read { cache: Cache::Cold }),
        Box::new(Read { cache: Cache::Warm }),
    ]
}

/// Makes the file of sequential and random I/O.
pub fn make_file(env: &Env<'_>) -> io::Result<()> {
    let file = OpenFile::create(env.target, env.dir, FILE)?;
    write_all(env, &file, &mut pattern::buffer(MIB))
}

fn write_all(env: &Env<'_>, file: &OpenFile<'_>, buf: &mut [u8]) -> io::Result<()> {
    for offset in (0..env.sizes.file_bytes).step_by(buf.len()) {
        pattern::stamp(buf, offset);
        file.write_at(offset, buf)?;
    }
    Ok(())
}

/// Reads and checks the whole file.
fn read_all(env: &Env<'_>, file: &OpenFile<'_>, buf: &mut [u8]) -> io::Result<()> {
    for offset in (0..env.sizes.file_bytes).step_by(buf.len()) {
        file.read_exact_at(offset, buf)?;
        pattern::verify(buf, offset)?;
    }
    Ok(())
}

fn megabytes(env: &Env<'_>, passes: u64) -> f64 {
    (env.sizes.file_bytes * passes) as f64 / 1e6
}

struct Write {
    overwrite: bool,
}

impl Workload for Write {
    fn info(&self) -> Info {
        let (name, about, aims) = match self.overwrite {
            false => ("seq-write-new", "write a new file, 1 MiB each, and fsync", 0.7),
            true => ("seq-overwrite", "overwrite a file, 1 MiB each, and fsync", 1.2),
        };
        Info {
            name,
            about,
            unit: "MB/s",
            cache: Cache::Warm,
            aims: Aims::mount(aims),
            standard: true,
        }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        if self.overwrite { make_file(env) } else { Ok(()) }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let mut buf = pattern::buffer(MIB);
        let start = Instant::now();
        let file = match self.overwrite {
            false => OpenFile::create(env.target, env.dir, FILE)?,
            true => OpenFile::open(env.target, env.dir, FILE, Access::ReadWrite)?,
        };
        write_all(env, &file, &mut buf)?;
        file.fsync()?;
        drop(file);
        Ok(Done::new(megabytes(env, 1), start.elapsed()))
    }
}

struct Read {
    cache: Cache,
}

impl Workload for Read {
    fn info(&self) -> Info {
        let (name, about, aims) = match self.cache {
            Cache::Cold => ("seq-read-cold", "read a file, 1 MiB each", Aims::both(0.8, 1.0)),
            Cache::Warm => ("seq-read-hot", "the same, read before", Aims::mount(0.95)),
        };
        Info { name, about, unit: "MB/s", cache: self.cache, aims, standard: true }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        make_file(env)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let mut buf = vec![1; MIB];
        let file = OpenFile::open(env.target, env.dir, FILE, Access::Read)?;
        let passes = match self.cache {
            Cache::Cold => 1,
            Cache::Warm => {
                read_all(env, &file, &mut buf)?;
                4
            }
        };
        let start = Instant::now();
        for _ in 0..passes {
            read_all(env, &file, &mut buf)?;
        }
        Ok(Done::new(megabytes(env, passes), start.elapsed()))
    }
}
