//! Threads of which a test has to know that they wait, where nothing tells it but the kernel.
//!
//! Invariant: who is waited for was seen asleep at two looks in a row, or is done. It does not know
//! for what a thread sleeps.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Begins `work` in a thread of its own, and waits until that sleeps, or is done.
pub fn begun<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (tell, told) = channel();
    let thread = scope.spawn(move || {
        let place = std::fs::read_link("/proc/thread-self").expect("procfs");
        tell.send(place).expect("somebody asks");
        work()
    });
    let place = Path::new("/proc").join(told.recv().expect("it begins")).join("stat");
    let (start, mut looks) = (Instant::now(), 0);
    while looks < 2 && !thread.is_finished() {
        assert!(start.elapsed() < Duration::from_secs(20), "it neither ends nor waits");
        sleep(BETWEEN_LOOKS);
        looks = if is_asleep(&place) { looks + 1 } else { 0 };
    }
    thread
}

/// By the letter behind the name, which is in parentheses.
fn is_asleep(stat: &PathBuf) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}
