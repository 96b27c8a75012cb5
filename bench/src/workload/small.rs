//! Small files: 4 KiB each, written one after the other and read back.

use super::pattern::{self, BLOCK};
use super::{Aims, Cache, Done, Env, Info, Workload, in_parallel, numbered};
use crate::target::{Access, OpenDir, OpenFile};
use std::ffi::CString;
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(Write { threads: 1, name: "create-write4k-1t" }),
        Box::new(Write { threads: 2, name: "create-write4k-2t" }),
        Box::new(Read { cache: Cache::Cold, name: "small-read-cold" }),
        Box::new(Read { cache: Cache::Warm, name: "small-read-hot" }),
    ]
}

struct Write {
    threads: u64,
    name: &'static str,
}

/// Makes every file of `names` in `dir` with one block of data.
fn write_files(env: &Env<'_>, dir: &OpenDir<'_>, names: &[CString]) -> io::Result<()> {
    let mut data = pattern::buffer(BLOCK);
    for (i, name) in names.iter().enumerate() {
        pattern::stamp(&mut data, (i * BLOCK) as u64);
        OpenFile::create(env.target, dir.id, name)?.write_at(0, &data)?;
    }
    Ok(())
}

impl Workload for Write {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: "create, write 4 KiB, close",
            unit: "files/s",
            cache: Cache::Warm,
            aims: Aims::mount(0.9),
            standard: true,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let make = |name: &CString| OpenDir::make(env.target, env.dir, name);
        let dirs: Vec<OpenDir<'_>> =
            numbered("thread", self.threads).iter().map(make).collect::<io::Result<_>>()?;
        let names = numbered("file", env.sizes.small_files / self.threads);
        let elapsed =
            in_parallel(self.threads, |thread| write_files(env, &dirs[thread as usize], &names))?;
        Ok(Done::new((names.len() as u64 * self.threads) as f64, elapsed))
    }
}

struct Read {
    cache: Cache,
    name: &'static str,
}

/// Opens, reads and checks every file.
fn read_files(env: &Env<'_>, dir: &OpenDir<'_>, names: &[CString]) -> io::Result<()> {
    let mut data = vec![0; BLOCK];
    for (i, name) in names.iter().enumerate() {
        let file = OpenFile::open(env.target, dir.id, name, Access::Read)?;
        file.read_exact_at(0, &mut data)?;
        pattern::verify(&data, (i * BLOCK) as u64)?;
    }
    Ok(())
}

impl Workload for Read {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: "open, read 4 KiB, close",
            unit: "files/s",
            cache: self.cache,
            aims: Aims::NONE,
            standard: true,
        }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let dir = OpenDir::make(env.target, env.dir, c"files")?;
        write_files(env, &dir, &numbered("file", env.sizes.small_files))
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let dir = OpenDir::open(env.target, env.dir, c"files")?;
        let names = numbered("file", env.sizes.small_files);
        if self.cache == Cache::Warm {
            read_files(env, &dir, &names)?;
        }
        let elapsed = in_parallel(1, |_| read_files(env, &dir, &names))?;
        Ok(Done::new(names.len() as f64, elapsed))
    }
}
