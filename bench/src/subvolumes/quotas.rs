//! Small files made, written and removed, with and without quotas.

use super::place::{OwnVolume, Side};
use crate::balance::base::Scratch;
use std::fs;
use std::io;
use std::time::Instant;

const DIRS: u64 = 20;
pub const STEPS: [&str; 3] = ["create", "write 4 KiB", "delete"];

/// Seconds of each step, a commit at its end with it.
#[derive(Debug)]
pub struct Cost {
    pub without: [f64; 3],
    pub with: [f64; 3],
}

pub fn run(scratch: &Scratch, side: Side<'_>, files: u64) -> io::Result<Cost> {
    let without = steps(scratch, side, files, false)?;
    Ok(Cost { without, with: steps(scratch, side, files, true)? })
}

fn steps(scratch: &Scratch, side: Side<'_>, files: u64, quotas: bool) -> io::Result<[f64; 3]> {
    let place = OwnVolume::new(scratch, side, 4 << 30)?;
    if quotas {
        place.verb(&["quota", "enable", &place.path("")])?;
        place.verb(&["quota", "rescan", "-w", &place.path("")])?;
    }
    for dir in 0..DIRS {
        fs::create_dir(place.join(&dir.to_string()))?;
    }
    place.sync()?;
    let names: Vec<_> = (0..files).map(|n| place.join(&format!("{}/{n}", n % DIRS))).collect();
    let timed = |step: &dyn Fn() -> io::Result<()>| -> io::Result<f64> {
        let start = Instant::now();
        step()?;
        place.sync()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let create = timed(&|| names.iter().try_for_each(|name| fs::File::create(name).map(drop)))?;
    let write = timed(&|| names.iter().try_for_each(|name| fs::write(name, [3; 4096])))?;
    let delete = timed(&|| names.iter().try_for_each(fs::remove_file))?;
    place.judged()?;
    Ok([create, write, delete])
}
