//! Many snapshots of one subvolume, with a write in each.

use super::place::{OwnVolume, Side};
use crate::balance::base::Scratch;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const FILES: u64 = 8;
/// Subvolumes that one command deletes.
const BATCH: usize = 500;

/// Seconds, and bytes.
#[derive(Debug)]
pub struct Many {
    pub made: f64,
    pub listed: f64,
    pub deleted: f64,
    /// Until all of it was dropped.
    pub dropped: f64,
    pub memory: u64,
    pub left: u64,
}

pub fn run(scratch: &Scratch, side: Side<'_>, count: u64) -> io::Result<Many> {
    let place = OwnVolume::new(scratch, side, 8 << 30)?;
    place.verb(&["subvolume", "create", &place.path("s")])?;
    for file in 0..FILES {
        fs::write(place.join(&format!("s/f{file}")), [7; 5000])?;
    }
    place.sync()?;
    let (used, memory) = (place.used()?, place.memory()?);
    let start = Instant::now();
    make(&place, count)?;
    let made = start.elapsed().as_secs_f64();
    let (start, listed) = (Instant::now(), place.verb(&["subvolume", "list", &place.path("")])?);
    let seconds = start.elapsed().as_secs_f64();
    if listed.lines().count() as u64 != count + 1 {
        return Err(io::Error::other("not all snapshots are listed"));
    }
    let start = Instant::now();
    delete(&place, count)?;
    let deleted = start.elapsed().as_secs_f64();
    place.sync()?;
    place.verb(&["subvolume", "sync", &place.path("")])?;
    let dropped = start.elapsed().as_secs_f64();
    place.sync()?;
    let taken = match side {
        Side::Kernel => place.memory()?.saturating_sub(memory),
        Side::Spinney(_) => place.memory()?,
    };
    let left = place.used()?.saturating_sub(used);
    place.judged()?;
    Ok(Many { made, listed: seconds, deleted, dropped, memory: taken, left })
}

fn make(place: &OwnVolume<'_>, count: u64) -> io::Result<()> {
    let open = |file| fs::File::options().write(true).open(place.join(&format!("s/f{file}")));
    let files: Vec<fs::File> = (0..FILES).map(open).collect::<io::Result<_>>()?;
    let source = place.path("s");
    for number in 0..count {
        let name = format!("n{number}");
        files[(number % FILES) as usize].write_all_at(&[number as u8; 4096], 0)?;
        place.verb(&["subvolume", "snapshot", &source, &place.path(&name)])?;
        fs::write(place.join(&name).join("own"), [number as u8; 3000])?;
    }
    place.sync()
}

fn delete(place: &OwnVolume<'_>, count: u64) -> io::Result<()> {
    let names: Vec<String> = (0..count).map(|n| place.path(&format!("n{n}"))).collect();
    for some in names.chunks(BATCH) {
        let mut words = vec!["subvolume", "delete"];
        words.extend(some.iter().map(String::as_str));
        place.verb(&words)?;
    }
    Ok(())
}
