//! A million small files, a look at all of them, and 200 writers with fsync in one mount, in portions:
//! whether the memory of who does the work stays within what it was given (`-o memory=`), and how
//! fast each portion is beside the first.
//!
//! What it does not know: the budget. The tables show the process beside the option.

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, in_parallel, numbered};
use crate::memory::{Memory, Watch};
use crate::rng::Rng;
use crate::target::{OpenDir, OpenFile};
use std::ffi::CString;
use std::io;
use std::time::Duration;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Budget)]
}

struct Budget;

const THREADS: u64 = 2;
const WRITERS: u64 = 200;
const PORTIONS: u64 = 10;
/// Bytes of a small file: small enough to be among the items.
const SMALL: usize = 100;
const BLOCK: usize = 4096;

/// What came out of the portions so far.
#[derive(Default)]
struct Table {
    amount: f64,
    elapsed: Duration,
    details: Vec<Detail>,
}

impl Table {
    fn add(&mut self, name: String, amount: u64, took: Duration, memory: Memory) {
        self.amount += amount as f64;
        self.elapsed += took;
        let mib = |bytes: u64| (bytes >> 20) as f64;
        let values = vec![
            ("per s", amount as f64 / took.as_secs_f64().max(1e-9)),
            ("process MiB", mib(memory.process)),
            ("in kernel MiB", mib(memory.kernel)),
        ];
        self.details.push(Detail { name, values });
    }
}

/// Numbers of the files of one thread in one portion.
fn portion(of: u64, portion: u64) -> std::ops::Range<u64> {
    of * portion / PORTIONS..of * (portion + 1) / PORTIONS
}

fn file_name(number: u64) -> io::Result<CString> {
    Ok(CString::new(format!("file{number:07}"))?)
}

fn make_files(env: &Env<'_>, watch: &Watch, table: &mut Table) -> io::Result<()> {
    let dirs: Vec<OpenDir<'_>> = dirs(env, true)?;
    let each = env.sizes.files * 20 / THREADS;
    for number in 0..PORTIONS {
        let (took, memory) = watch.during(|| {
            in_parallel(THREADS, |thread| {
                portion(each, number).try_for_each(|file| {
                    let dir = dirs[thread as usize].id;
                    let file = OpenFile::create(env.target, dir, &file_name(file)?)?;
                    file.write_at(0, &[b'x'; SMALL])
                })
            })
        })?;
        let amount = portion(each, number).count() as u64 * THREADS;
        table.add(format!("files {}", number + 1), amount, took, memory);
    }
    Ok(())
}

fn dirs<'e>(env: &Env<'e>, make: bool) -> io::Result<Vec<OpenDir<'e>>> {
    let open = |name: &CString| match make {
        true => OpenDir::make(env.target, env.dir, name),
        false => OpenDir::open(env.target, env.dir, name),
    };
    numbered("dir", THREADS).iter().map(open).collect()
}

/// Reads files from everywhere, as many as a fifth of all.
fn read_files(env: &Env<'_>, watch: &Watch, table: &mut Table) -> io::Result<()> {
    let dirs = dirs(env, false)?;
    let files = env.sizes.files * 20 / THREADS;
    for number in 0..PORTIONS {
        let amount = portion(files / 5, number).count() as u64;
        let (took, memory) = watch.during(|| {
            in_parallel(THREADS, |thread| {
                let mut rng = Rng::new(number * THREADS + thread);
                let mut buf = [0; SMALL];
                (0..amount).try_for_each(|_| {
                    let name = file_name(rng.below(files))?;
                    let dir = dirs[thread as usize].id;
                    let access = crate::target::Access::Read;
                    OpenFile::open(env.target, dir, &name, access)?.read_exact_at(0, &mut buf)
                })
            })
        })?;
        table.add(format!("read {}", number + 1), amount * THREADS, took, memory);
    }
    Ok(())
}

fn write_and_fsync(env: &Env<'_>, watch: &Watch, table: &mut Table) -> io::Result<()> {
    let names = numbered("writer", WRITERS);
    let create = |name: &CString| OpenFile::create(env.target, env.dir, name);
    let files: Vec<OpenFile<'_>> = names.iter().map(create).collect::<io::Result<_>>()?;
    let each = (env.sizes.fsyncs * 10 / WRITERS).max(PORTIONS);
    for number in 0..PORTIONS {
        let (took, memory) = watch.during(|| {
            in_parallel(WRITERS, |writer| {
                let file = &files[writer as usize];
                portion(each, number).try_for_each(|block| {
                    file.write_at(block * BLOCK as u64, &[b'y'; BLOCK])?;
                    file.fsync()
                })
            })
        })?;
        let amount = portion(each, number).count() as u64 * WRITERS;
        table.add(format!("fsync {}", number + 1), amount, took, memory);
    }
    Ok(())
}

impl Workload for Budget {
    fn info(&self) -> Info {
        Info {
            name: "in-budget",
            about: "a million files of 100 bytes made, a fifth of them read here and there, 200 writers \
                    with fsync: the rate and the memory of each tenth",
            unit: "ops/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let (watch, mut table) = (Watch::on(env.target.host_path())?, Table::default());
        make_files(env, &watch, &mut table)?;
        read_files(env, &watch, &mut table)?;
        write_and_fsync(env, &watch, &mut table)?;
        let mut done = Done::new(table.amount, table.elapsed);
        done.details = table.details;
        Ok(done)
    }
}
