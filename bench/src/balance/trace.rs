//! What the kernel counts of its own: extents that its quotas looked at, and those that it moved.

use super::base::run;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// An instance of the kernel's tracing with one event on, gone when it is dropped.
pub struct Trace {
    mounted: bool,
    top: PathBuf,
    instance: PathBuf,
}

const EVENT: &str = "events/btrfs/btrfs_qgroup_num_dirty_extents/enable";

impl Trace {
    /// `None`: this kernel does not let us.
    pub fn begin(beside: &Path) -> Option<Trace> {
        let top = beside.with_file_name("trace");
        fs::create_dir(&top).ok()?;
        let mounted = run("mount", &["-t", "tracefs", "nodev", &top.display().to_string()]).is_ok();
        let instance = top.join("instances/spinney-bench");
        let trace = Trace { mounted, top, instance };
        fs::create_dir(&trace.instance).ok()?;
        fs::write(trace.instance.join(EVENT), "1").ok()?;
        Some(trace)
    }

    /// The sum over all commits since the beginning.
    pub fn dirty_extents(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.instance.join("trace"))?;
        let numbers = text.lines().filter_map(|line| line.split("num_dirty_extents=").nth(1));
        Ok(numbers.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::write(self.instance.join(EVENT), "0");
        let _ = fs::remove_dir(&self.instance);
        if self.mounted {
            let _ = run("umount", &[&self.top.display().to_string()]);
        }
        let _ = fs::remove_dir(&self.top);
    }
}

/// Extents that the kernel says it has found in block groups, in its log behind `mark`.
pub fn found_extents(mark: f64) -> Option<u64> {
    let log = run("dmesg", &[]).ok()?;
    let behind = log.lines().filter(|line| time_of(line).is_some_and(|time| time > mark));
    let found = behind.filter(|line| line.contains("stage: move data extents"));
    let number = |line: &str| line.split("found ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    let all: Vec<u64> = found.filter_map(number).collect();
    (!all.is_empty()).then(|| all.iter().sum())
}

/// The time of the last line of the kernel's log. Not a count of lines: the log is a ring.
pub fn mark() -> f64 {
    let log = run("dmesg", &[]).unwrap_or_default();
    log.lines().rev().find_map(time_of).unwrap_or(0.0)
}

/// Seconds since the start of the machine, of `[12345.678901] text`.
fn time_of(line: &str) -> Option<f64> {
    line.strip_prefix('[')?.split(']').next()?.trim().parse().ok()
}
