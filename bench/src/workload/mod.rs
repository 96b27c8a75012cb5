//! What is measured: the `Workload` trait, the sizes, and the list of all workloads.
//!
//! A new workload is a type with `info` and `run` (and mostly `setup`) in the file of
//! its family, and a line in that family's `all`. A workload gets an empty directory
//! of its own; between `setup` and `run` the runner syncs and, for a cold one,
//! remounts, so nothing but names and sizes may pass from one to the other.

mod budget;
mod called;
mod chains;
mod commit;
mod content;
mod dbench;
mod fio;
mod fs_mark;
mod inserts;
pub mod jobs;
mod many;
mod names;
mod npm;
mod orphans;
mod pace;
mod pattern;
mod program;
mod random;
mod sequential;
mod small;
mod stat;
mod storm;
mod sync;
mod tree;
mod trees;
mod vast;
mod writers;

use crate::source_tree::SourceTree;
use crate::target::{DirId, Target, remove_children};
use dbench::Load;
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// State of the caches when the clock starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// As `setup` and a sync left them.
    Warm,
    /// Unmounted, dropped, mounted again.
    Cold,
}

/// The ratio to the baseline (the kernel through system calls) that is to be reached.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Aims {
    pub mount: Option<f64>,
    pub library: Option<f64>,
    /// The longest latency of a mount may be at most this share of the baseline's.
    pub worst: Option<f64>,
    /// So may what 99 of 100 of its fsyncs take at most.
    pub p99: Option<f64>,
}

impl Aims {
    pub const NONE: Aims = Aims { mount: None, library: None, worst: None, p99: None };

    pub const fn mount(ratio: f64) -> Aims {
        Aims { mount: Some(ratio), ..Aims::NONE }
    }

    pub const fn both(mount: f64, library: f64) -> Aims {
        Aims { mount: Some(mount), library: Some(library), ..Aims::NONE }
    }

    pub const fn and_worst(self, share: f64) -> Aims {
        Aims { worst: Some(share), ..self }
    }

    pub const fn and_p99(self, share: f64) -> Aims {
        Aims { p99: Some(share), ..self }
    }
}

/// What one knows of a workload without running it.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub name: &'static str,
    pub about: &'static str,
    /// Of the rate; more is better.
    pub unit: &'static str,
    pub cache: Cache,
    pub aims: Aims,
    /// Part of the run when no workloads are named.
    pub standard: bool,
}

/// What was done in which time.
#[derive(Clone, Debug)]
pub struct Done {
    pub amount: f64,
    pub elapsed: Duration,
    /// `amount` is what was done, and no rate that a program told.
    counted: bool,
    /// What else the workload can tell, e.g. a latency for each kind of operation.
    pub details: Vec<Detail>,
    /// The longest that anything took, in milliseconds, where that is told.
    pub worst_ms: Option<f64>,
}

/// A row of numbers under a name; the columns are the same in all rows of a workload.
#[derive(Clone, PartialEq, Debug)]
pub struct Detail {
    pub name: String,
    pub values: Vec<(&'static str, f64)>,
}

impl Done {
    /// For a program that tells its own rate.
    pub fn from_rate(rate: f64) -> Done {
        Done { counted: false, ..Done::new(rate, Duration::from_secs(1)) }
    }

    pub fn new(amount: f64, elapsed: Duration) -> Done {
        Done { amount, elapsed, counted: true, details: Vec::new(), worst_ms: None }
    }

    /// How much was done, where that was counted.
    pub fn units(&self) -> Option<f64> {
        self.counted.then_some(self.amount)
    }

    pub fn rate(&self) -> f64 {
        self.amount / self.elapsed.as_secs_f64().max(1e-9)
    }
}

pub trait Workload: Send + Sync {
    fn info(&self) -> Info;
    /// Prepares what `run` works on; not timed.
    fn setup(&self, _env: &Env<'_>) -> io::Result<()> {
        Ok(())
    }
    /// Does the work and says how much of it took how long. `ErrorKind::Unsupported`
    /// (here or in `setup`) says that the workload does not apply to this side.
    fn run(&self, env: &Env<'_>) -> io::Result<Done>;
    /// Empties the workload's directory; not timed.
    fn teardown(&self, env: &Env<'_>) -> io::Result<()> {
        remove_children(env.target, env.dir)
    }
}

/// What a workload works on.
pub struct Env<'a> {
    pub target: &'a dyn Target,
    /// The workload's own directory.
    pub dir: DirId,
    /// Its name below the target's root.
    pub dir_name: &'a str,
    pub sizes: &'a Sizes,
    pub material: &'a Material,
}

impl Env<'_> {
    /// Where other programs find the workload's directory.
    pub fn host_dir(&self) -> Option<PathBuf> {
        Some(self.target.host_path()?.join(self.dir_name))
    }
}

/// How much of everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Files made or removed by one sample, over all its threads.
    pub files: u64,
    /// Entries of the directory that is listed or statted.
    pub walk_files: u64,
    /// Files of 4 KiB that are written and read back.
    pub small_files: u64,
    /// Length of the file of sequential and random I/O, a multiple of 1 MiB.
    pub file_bytes: u64,
    /// Random reads or writes of 4 KiB in one sample.
    pub random_ops: u64,
    /// Writes with fsync in one sample.
    pub fsyncs: u64,
    /// All files together of the writers that fsync, at most.
    pub fsync_bytes: u64,
    /// Files made before a commit that is to be big: four items each.
    pub commit_files: u64,
    /// Files of the source tree.
    pub tree_files: u64,
    /// Bytes that each thread cuts off a file, one by one.
    pub truncations: u64,
    /// Rounds of 1,000 creations of one name by each client.
    pub creat_clo_jobs: u64,
    /// Files that are made, each on its own clock, and left open in the library.
    pub inserts: u64,
    /// Seconds that a program with a clock of its own (dbench, fio) runs.
    pub program_seconds: u64,
}

impl Sizes {
    pub fn scaled(scale: f64, file_bytes: u64) -> Sizes {
        let of = |n: u64, min: u64| ((n as f64 * scale) as u64).max(min);
        let mib = of(file_bytes >> 20, 1);
        let file_bytes = mib << 20;
        Sizes {
            files: of(50_000, 16),
            walk_files: of(100_000, 16),
            small_files: of(20_000, 16),
            file_bytes,
            random_ops: of(50_000, 16).min(file_bytes / 4096),
            fsyncs: of(5_000, 4),
            fsync_bytes: of(2 << 10, 1) << 20,
            commit_files: of(250_000, 16),
            tree_files: of(8_000, 16),
            truncations: of(4_096, 16),
            creat_clo_jobs: of(20, 1),
            inserts: of(250_000, 16),
            program_seconds: of(10, 1),
        }
    }
}

/// Things made once, beforehand, outside the file systems that are measured.
pub struct Material {
    scratch: PathBuf,
    tree_files: u64,
    /// Of dbench.
    loadfile: PathBuf,
    tree: OnceLock<(SourceTree, PathBuf)>,
    load: OnceLock<Load>,
}

impl Material {
    /// `scratch` is an existing directory where a tar file may be put.
    /// `loadfile` need not exist where no dbench runs.
    pub fn new(scratch: &Path, sizes: &Sizes, loadfile: &Path) -> Material {
        Material {
            scratch: scratch.to_owned(),
            tree_files: sizes.tree_files,
            loadfile: loadfile.to_owned(),
            tree: OnceLock::new(),
            load: OnceLock::new(),
        }
    }

    pub(crate) fn loadfile(&self) -> &Path {
        &self.loadfile
    }

    pub(crate) fn load(&self) -> io::Result<&Load> {
        if self.load.get().is_none() {
            // Only the runner's thread comes here, so nobody else has set it meanwhile.
            let _ = self.load.set(Load::read(&self.loadfile)?);
        }
        self.load.get().ok_or_else(|| io::Error::other("no load"))
    }

    /// The source tree, and a tar file of it.
    pub(crate) fn tree(&self) -> io::Result<(&SourceTree, &Path)> {
        if self.tree.get().is_none() {
            let tree = SourceTree::generate(self.tree_files as usize);
            let path = self.scratch.join("tree.tar");
            let mut out = io::BufWriter::new(std::fs::File::create(&path)?);
            tree.write_tar(&mut out)?;
            io::Write::flush(&mut out)?;
            // Only the runner's thread comes here, so nobody else has set it meanwhile.
            let _ = self.tree.set((tree, path));
        }
        let (tree, path) = self.tree.get().ok_or_else(|| io::Error::other("no source tree"))?;
        Ok((tree, path))
    }
}

/// Every workload, in the order in which they run.
pub fn all() -> Vec<Box<dyn Workload>> {
    let mut list = Vec::new();
    list.extend(names::all());
    list.extend(small::all());
    list.extend(stat::all());
    list.extend(sequential::all());
    list.extend(random::all());
    list.extend(sync::all());
    list.extend(tree::all());
    list.extend(trees::all());
    list.extend(orphans::all());
    list.extend(dbench::all());
    list.extend(fs_mark::all());
    list.extend(inserts::all());
    list.extend(fio::all());
    list.extend(writers::all());
    list.extend(commit::all());
    list.extend(many::all());
    list.extend(vast::all());
    list.extend(chains::all());
    list.extend(storm::all());
    list.extend(budget::all());
    list.extend(content::all());
    list
}

/// The workloads named, the standard ones where none is, or the name that is unknown.
/// A name may end in `*`.
pub fn select(names: &[String]) -> Result<Vec<Box<dyn Workload>>, String> {
    let matches = |pattern: &str, name: &str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    };
    let everything = all();
    for pattern in names {
        if !everything.iter().any(|w| matches(pattern, w.info().name)) {
            return Err(pattern.clone());
        }
    }
    let wanted = |info: Info| {
        if names.is_empty() {
            info.standard
        } else {
            names.iter().any(|pattern| matches(pattern, info.name))
        }
    };
    Ok(everything.into_iter().filter(|w| wanted(w.info())).collect())
}

/// Runs `work(thread)` on `threads` threads that start together; the time is from that
/// start to the end of the last one.
fn in_parallel(threads: u64, work: impl Fn(u64) -> io::Result<()> + Sync) -> io::Result<Duration> {
    let barrier = Barrier::new(threads as usize);
    let timed = |thread| -> io::Result<(Instant, Instant)> {
        barrier.wait();
        let start = Instant::now();
        work(thread)?;
        Ok((start, Instant::now()))
    };
    std::thread::scope(|scope| {
        let timed = &timed;
        let handles: Vec<_> =
            (1..threads).map(|thread| scope.spawn(move || timed(thread))).collect();
        let (mut start, mut end) = timed(0)?;
        for handle in handles {
            let (s, e) = handle.join().map_err(|_| io::Error::other("a thread panicked"))??;
            (start, end) = (start.min(s), end.max(e));
        }
        Ok(end - start)
    })
}

/// `n` file names as a program might number them.
fn numbered(prefix: &str, n: u64) -> Vec<CString> {
    (0..n).filter_map(|i| CString::new(format!("{prefix}{i:07}")).ok()).collect()
}

fn not_here(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why.into())
}

#[cfg(test)]
mod tests;
