//! What durability costs: small writes, each with its own fsync.

use super::pattern::{self, BLOCK};
use super::{Aims, Cache, Done, Env, Info, Workload};
use crate::target::OpenFile;
use std::io;
use std::time::Instant;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(WriteFsync)]
}

struct WriteFsync;

/// Blocks of the file that is written round and round.
const BLOCKS: u64 = 256;

impl Workload for WriteFsync {
    fn info(&self) -> Info {
        Info {
            name: "write4k-fsync",
            about: "write 4 KiB and fsync, in one file",
            unit: "ops/s",
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: true,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let file = OpenFile::create(env.target, env.dir, c"log")?;
        let mut buf = pattern::buffer(BLOCK);
        let start = Instant::now();
        for i in 0..env.sizes.fsyncs {
            let offset = i % BLOCKS * BLOCK as u64;
            pattern::stamp(&mut buf, offset);
            file.write_at(offset, &buf)?;
            file.fsync()?;
        }
        Ok(Done::new(env.sizes.fsyncs as f64, start.elapsed()))
    }
}
