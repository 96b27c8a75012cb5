//! One side's run of one piece of work on a copy of the image.

use super::Cell;
use super::base::{Base, Mounted, run};
use super::trace::{self, Trace};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Metadata,
    Data,
    /// To half of its size.
    Shrink,
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Work::Metadata => "metadata balance",
            Work::Data => "data balance",
            Work::Shrink => "shrink to half",
        }
    }

    fn words(self, half: u64, place: &str) -> Vec<String> {
        let half = half.to_string();
        let words: &[&str] = match self {
            Work::Metadata => &["balance", "start", "-m", place],
            Work::Data => &["balance", "start", "-d", place],
            Work::Shrink => &["filesystem", "resize", &half, place],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Side<'a> {
    Kernel,
    Spinney(&'a Path),
}

impl Side<'_> {
    pub fn run(&self, base: &Base, what: Work, quotas: bool) -> io::Result<Cell> {
        base.copy(quotas)?;
        let half = fs::metadata(&base.work)?.len() / 2;
        let words = what.words(half, &base.mount.display().to_string());
        let cell = match self {
            Side::Kernel => kernel(base, &words),
            Side::Spinney(program) => spinney(program, base, &words),
        }?;
        // Whoever measures something wrong measures nothing.
        run("btrfs", &["check", "--readonly", &base.work.display().to_string()])?;
        Ok(cell)
    }
}

fn kernel(base: &Base, words: &[String]) -> io::Result<Cell> {
    let _mounted = Mounted::new(&base.work, &base.mount)?;
    let trace = Trace::begin(&base.mount);
    let mark = trace::mark();
    let mut cell = timed("btrfs".as_ref(), words, None)?;
    cell.relocated = trace::found_extents(mark);
    cell.quota_dirty = trace.and_then(|trace| trace.dirty_extents().ok());
    Ok(cell)
}

fn spinney(program: &Path, base: &Base, words: &[String]) -> io::Result<Cell> {
    let name = program.display().to_string();
    let (image, at) = (base.work.display().to_string(), base.mount.display().to_string());
    run(&name, &["mount", "-o", "noatime", &image, &at])?;
    let before = COUNTERS.map(|counter| counted(&name, &at, counter));
    let measured = server(program, &base.work).and_then(|pid| timed(program, words, Some(pid)));
    let after = COUNTERS.map(|counter| counted(&name, &at, counter));
    run(&name, &["umount", &at])?;
    let mut cell = measured?;
    let more = |n: usize| before[n].zip(after[n]).map(|(before, after)| after - before);
    (cell.relocated, cell.quota_dirty) = (more(0), more(1));
    Ok(cell)
}

/// Of `spinney stats`: extents and nodes that moved, extents whose owners quotas looked at.
const COUNTERS: [&str; 2] = ["balance.relocated_extents", "quota.extents"];

fn counted(program: &str, at: &str, counter: &str) -> Option<u64> {
    let stats = run(program, &["stats", at]).ok()?;
    let mut lines = stats.lines().map(str::split_whitespace);
    let mut line = lines.find(|line| line.clone().next() == Some(counter))?;
    line.nth(1)?.parse().ok()
}

/// The process that serves the image: the one with the most threads of those that name it.
pub(crate) fn server(program: &Path, image: &Path) -> io::Result<u32> {
    let program = program.canonicalize()?;
    let image = image.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let names = words.split(|b| *b == 0).any(|word| word == image.as_bytes());
        if names && fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program) {
            let threads = fs::read_dir(entry.path().join("task")).map_or(0, Iterator::count);
            found.push((threads, pid));
        }
    }
    let server = found.into_iter().max().map(|(_, pid)| pid);
    server.ok_or_else(|| io::Error::other("the server of the mount is not found"))
}

/// User and system time of a process and its threads, in seconds.
fn times_of(pid: u32) -> (f64, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) / 100.0, ticks(12) / 100.0)
}

/// Of children that were waited for.
fn times_of_children() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(13) / 100.0, ticks(14) / 100.0)
}

fn timed(program: &Path, words: &[String], server: Option<u32>) -> io::Result<Cell> {
    let times = || {
        let (own, other) = (times_of_children(), server.map_or((0.0, 0.0), times_of));
        (own.0 + other.0, own.1 + other.1)
    };
    let (before, start) = (times(), Instant::now());
    let output = Command::new(program).args(words).output()?;
    let wall = start.elapsed().as_secs_f64();
    let after = times();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}: {}", words.join(" "), said.trim())));
    }
    let (user, system) = (after.0 - before.0, after.1 - before.1);
    Ok(Cell { wall, user, system, ..Cell::default() })
}
