//! One large file in a random order, 4 KiB at a time, through the page cache.

use super::pattern::{self, BLOCK};
use super::sequential::{FILE, make_file};
use super::{Aims, Cache, Done, Env, Info, Workload};
use crate::rng::Rng;
use crate::target::{Access, OpenFile};
use std::io;
use std::time::Instant;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Random { write: false }), Box::new(Random { write: true })]
}

struct Random {
    write: bool,
}

/// Block offsets in the file, none twice.
fn offsets(env: &Env<'_>) -> Vec<u64> {
    let mut all = Rng::new(0x5eed_0003).permutation(env.sizes.file_bytes / BLOCK as u64);
    all.truncate(env.sizes.random_ops as usize);
    all.iter().map(|block| block * BLOCK as u64).collect()
}

impl Workload for Random {
    fn info(&self) -> Info {
        let (name, about, cache, aim) = match self.write {
            false => ("rand-read-cold", "read 4 KiB blocks at random", Cache::Cold, 1.2),
            true => ("rand-overwrite", "overwrite 4 KiB blocks at random", Cache::Warm, 2.0),
        };
        Info { name, about, unit: "ops/s", cache, aims: Aims::mount(aim), standard: true }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        make_file(env)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let access = if self.write { Access::ReadWrite } else { Access::Read };
        let file = OpenFile::open(env.target, env.dir, FILE, access)?;
        let offsets = offsets(env);
        let mut buf = pattern::buffer(BLOCK);
        let start = Instant::now();
        for offset in &offsets {
            if self.write {
                pattern::stamp(&mut buf, *offset);
                file.write_at(*offset, &buf)?;
            } else {
                file.read_exact_at(*offset, &mut buf)?;
                pattern::verify(&buf, *offset)?;
            }
        }
        Ok(Done::new(offsets.len() as f64, start.elapsed()))
    }
}
