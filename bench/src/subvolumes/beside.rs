//! Creations and fsyncs beside balances, beside snapshots, and without either.

use super::place::{OwnVolume, Side};
use crate::balance::base::Scratch;
use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const FILES: u64 = 20_000;
const LARGE: usize = 512 << 20;
pub const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

/// Milliseconds at `QUANTILES` and at most, and how many operations there were.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub at: [f64; 3],
    pub most: f64,
    pub count: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub creates: Latency,
    pub fsyncs: Latency,
}

#[derive(Debug)]
pub struct Beside {
    pub alone: Work,
    pub balancing: Work,
    /// Balances of everything that ended meanwhile.
    pub balances: u64,
    pub snapshotting: Work,
    /// Snapshots of all files that were made meanwhile.
    pub snapshots: u64,
}

pub fn run(scratch: &Scratch, side: Side<'_>, seconds: u64) -> io::Result<Beside> {
    let place = OwnVolume::new(scratch, side, 8 << 30)?;
    fill(&place)?;
    let time = Duration::from_secs(seconds);
    let (alone, _) = work(&place, "alone", || {
        thread::sleep(time);
        Ok(0)
    })?;
    let (balancing, balances) = work(&place, "beside", || balance(&place, time))?;
    // Behind it, since each of them makes the balance longer.
    let (snapshotting, snapshots) = work(&place, "snapshots", || take_snapshots(&place, time))?;
    place.judged()?;
    Ok(Beside { alone, balancing, balances, snapshotting, snapshots })
}

fn fill(place: &OwnVolume<'_>) -> io::Result<()> {
    for dir in 0..20 {
        fs::create_dir(place.join(&format!("d{dir}")))?;
    }
    for file in 0..FILES {
        fs::write(place.join(&format!("d{}/{file}", file % 20)), [file as u8; 1500])?;
    }
    fs::write(place.join("large"), vec![9; LARGE])?;
    place.verb(&["subvolume", "snapshot", &place.path(""), &place.path("snapshot")])?;
    place.sync()
}

/// Of the subvolume that the others are at work in, with a fifth of a second between two.
fn take_snapshots(place: &OwnVolume<'_>, time: Duration) -> io::Result<u64> {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        let name = place.path(&format!("at-work-{count}"));
        place.verb(&["subvolume", "snapshot", &place.path(""), &name])?;
        count += 1;
        thread::sleep(Duration::from_millis(200));
    }
    Ok(count)
}

fn balance(place: &OwnVolume<'_>, time: Duration) -> io::Result<u64> {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        let mut command = Command::new(place.program());
        let output =
            command.args(["balance", "start", "--full-balance", &place.path("")]).output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        count += 1;
    }
    Ok(count)
}

/// What two threads do as long as `meanwhile` lasts.
fn work(
    place: &OwnVolume<'_>,
    name: &str,
    meanwhile: impl FnOnce() -> io::Result<u64>,
) -> io::Result<(Work, u64)> {
    let stop = AtomicBool::new(false);
    let dir = place.join(name);
    fs::create_dir(&dir)?;
    thread::scope(|scope| {
        let creates =
            scope.spawn(|| repeat(&stop, |n| fs::File::create(dir.join(n.to_string())).map(drop)));
        let fsyncs = scope.spawn(|| {
            let mut file = fs::File::create(dir.join("synced"))?;
            repeat(&stop, |n| {
                file.write_all(&[n as u8; 4096])?;
                file.sync_all()
            })
        });
        let count = meanwhile();
        stop.store(true, Ordering::Relaxed);
        let joined = |thread: thread::ScopedJoinHandle<'_, io::Result<Vec<f64>>>| {
            thread.join().map_err(|_| io::Error::other("a thread panicked"))?.map(latency)
        };
        Ok((Work { creates: joined(creates)?, fsyncs: joined(fsyncs)? }, count?))
    })
}

/// Milliseconds of each operation; between two there is a pause, so that room lasts.
fn repeat(stop: &AtomicBool, mut step: impl FnMut(u64) -> io::Result<()>) -> io::Result<Vec<f64>> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        step(times.len() as u64)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        thread::sleep(Duration::from_micros(200));
    }
    Ok(times)
}

fn latency(mut times: Vec<f64>) -> Latency {
    times.sort_by(f64::total_cmp);
    let last = times.len().saturating_sub(1);
    let at = |quantile: f64| times.get((times.len() as f64 * quantile) as usize);
    let at = QUANTILES.map(|q| at(q).or(times.get(last)).copied().unwrap_or(f64::NAN));
    Latency { at, most: times.last().copied().unwrap_or(f64::NAN), count: times.len() }
}

#[cfg(test)]
mod tests {
    use super::latency;

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let seen = latency((0..1000).rev().map(f64::from).collect());
        assert_eq!((seen.at, seen.most, seen.count), ([500.0, 990.0, 999.0], 999.0, 1000));
        assert_eq!(latency(vec![4.0]).at, [4.0; 3]);
        assert!(latency(Vec::new()).at[0].is_nan());
    }
}
