//! `spinney-bench index`: the index of open inodes beside what it could have been, in this
//! process, without a file system.
//!
//! What it does not know: volumes, sides and rounds of the other commands.

mod maps;
mod picture;
mod table;

use crate::rng::Rng;
use maps::Map;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use picture::to_svg;
pub use table::to_markdown;

/// Inserts of the first table.
const INSERTS: f64 = 5e6;
/// Inserts by several threads, and numbers that lookups choose among.
const SHARED: f64 = 1e6;
/// Numbers of the first inode and on, as in a subvolume.
const FIRST: u64 = 257;
/// Threads insert numbers in stretches of so many: as a directory's files come.
const STRETCH: u64 = 1024;
pub const THREADS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Of one structure.
pub struct Measured {
    pub name: &'static str,
    /// Of each insert of one thread, in ns, ascending.
    pub times: Vec<u32>,
    /// Of all threads together, by [`THREADS`], in millions a second.
    pub inserts: Vec<f64>,
    pub lookups: Vec<f64>,
    /// Lookups while one more thread inserts and removes.
    pub lookups_beside: Vec<f64>,
}

/// Measures all of them; says what it is at.
pub fn run(scale: f64, progress: &mut dyn FnMut(&str)) -> Vec<Measured> {
    let mut all = Vec::new();
    let mut next = |name, measure: &dyn Fn(&'static str, f64) -> Measured| {
        progress(name);
        all.push(measure(name, scale));
    };
    next("radix tree", &measure::<maps::Radix>);
    next("radix tree, reserved", &measure::<maps::Reserved>);
    next("lock, BTreeMap", &measure::<maps::LockedTree>);
    next("sharded hash maps", &measure::<maps::Sharded>);
    #[cfg(feature = "other-maps")]
    {
        next("dashmap", &measure::<maps::Dash>);
        next("papaya", &measure::<maps::Papaya>);
    }
    all
}

fn measure<M: Map + Default>(name: &'static str, scale: f64) -> Measured {
    let count = |of: f64| ((of * scale) as u64).max(STRETCH);
    let times = insert_times::<M>(count(INSERTS));
    let inserts = THREADS.map(|threads| insert_rate::<M>(threads, count(SHARED)));
    let map = M::default();
    let numbers = count(SHARED);
    (FIRST..FIRST + numbers).for_each(|number| map.insert(number, M::make(number)));
    let time = Duration::from_secs_f64((0.4 * scale).max(0.01));
    let lookups = THREADS.map(|threads| lookup_rate(&map, threads, numbers, time, false));
    let beside = THREADS.map(|threads| lookup_rate(&map, threads, numbers, time, true));
    Measured {
        name,
        times,
        inserts: inserts.to_vec(),
        lookups: lookups.to_vec(),
        lookups_beside: beside.to_vec(),
    }
}

/// The inodes are made before; the clock itself is in it.
fn insert_times<M: Map + Default>(count: u64) -> Vec<u32> {
    let map = M::default();
    let inodes: Vec<M::Held> = (FIRST..FIRST + count).map(M::make).collect();
    let mut times = vec![0; count as usize];
    for ((number, inode), time) in (FIRST..).zip(inodes).zip(&mut times) {
        let start = Instant::now();
        map.insert(number, inode);
        *time = start.elapsed().as_nanos().min(u32::MAX.into()) as u32;
    }
    times.sort_unstable();
    times
}

/// Millions a second.
fn insert_rate<M: Map + Default>(threads: u64, count: u64) -> f64 {
    let map = M::default();
    let stretches = count.div_ceil(STRETCH * threads) * threads;
    let barrier = Barrier::new(threads as usize);
    let numbers = |thread: u64| {
        let mine = (thread..stretches).step_by(threads as usize);
        mine.flat_map(|stretch| (0..STRETCH).map(move |at| FIRST + stretch * STRETCH + at))
    };
    let work = |thread: u64| {
        let inodes: Vec<_> = numbers(thread).map(|n| (n, M::make(n))).collect();
        barrier.wait();
        let start = Instant::now();
        inodes.into_iter().for_each(|(number, inode)| map.insert(number, inode));
        (start, Instant::now())
    };
    let work = &work;
    let spans: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|t| scope.spawn(move || work(t))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no insert panics")).collect()
    });
    (stretches * STRETCH) as f64 / over_all(&spans).as_secs_f64() / 1e6
}

/// From the first start to the last end: whoever only waits for the threads may be late.
fn over_all(spans: &[(Instant, Instant)]) -> Duration {
    let first = spans.iter().map(|span| span.0).min();
    let last = spans.iter().map(|span| span.1).max();
    first.zip(last).map_or(Duration::MAX, |(first, last)| last - first)
}

/// Millions a second, of numbers chosen at random.
fn lookup_rate<M: Map>(map: &M, threads: u64, numbers: u64, time: Duration, beside: bool) -> f64 {
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(threads as usize + 1));
    let (stop, barrier) = (&stop, &barrier);
    let look = move |thread: u64| {
        let (mut rng, mut found) = (Rng::new(thread), 0u64);
        barrier.wait();
        let start = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..64 {
                black_box(map.find(FIRST + rng.below(numbers)).expect("it is there"));
            }
            found += 64;
        }
        (found, (start, Instant::now()))
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|t| scope.spawn(move || look(t))).collect();
        if beside {
            scope.spawn(|| come_and_go(map, FIRST + numbers, stop));
        }
        barrier.wait();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let done = handles.into_iter().map(|h| h.join().expect("no lookup panics"));
        let (found, spans): (Vec<u64>, Vec<_>) = done.unzip();
        found.iter().sum::<u64>() as f64 / over_all(&spans).as_secs_f64() / 1e6
    })
}

/// Inserts numbers behind all others, and removes them again a stretch later.
fn come_and_go<M: Map>(map: &M, from: u64, stop: &AtomicBool) {
    let remove = |number| assert!(map.remove(number), "it was inserted");
    let mut next = from;
    while !stop.load(Ordering::Relaxed) {
        map.insert(next, M::make(next));
        if next >= from + STRETCH {
            remove(next - STRETCH);
        }
        next += 1;
    }
    (next.saturating_sub(STRETCH).max(from)..next).for_each(remove);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_structure_is_measured_and_shown() {
        let mut names = Vec::new();
        let all = run(0.0005, &mut |name| names.push(name.to_string()));
        assert!(all.len() >= 4 && all.len() == names.len());
        for one in &all {
            assert_eq!(one.times.len(), 2500);
            assert!(one.times.is_sorted());
            for rates in [&one.inserts, &one.lookups, &one.lookups_beside] {
                assert_eq!(rates.len(), THREADS.len());
                assert!(rates.iter().all(|rate| *rate > 0.0), "{}", one.name);
            }
        }
        let (page, picture) =
            (to_markdown(&crate::report::Setting::here(Vec::new(), 1, 1.0), &all), to_svg(&all));
        for name in names {
            assert!(page.contains(&name) && picture.contains(&name), "{name}");
        }
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    }

    #[test]
    fn what_was_removed_is_not_found() {
        fn holds<M: Map + Default>() {
            let map = M::default();
            (FIRST..FIRST + 200).for_each(|number| map.insert(number, M::make(number)));
            assert_eq!(map.find(FIRST + 7), Some(FIRST + 7));
            assert!(map.remove(FIRST + 7) && !map.remove(FIRST + 7));
            assert_eq!((map.find(FIRST + 7), map.find(1 << 40)), (None, None));
        }
        holds::<maps::Radix>();
        holds::<maps::Reserved>();
        holds::<maps::LockedTree>();
        holds::<maps::Sharded>();
    }
}
