//! A limit on the time that one piece of work may take. A file system in userspace
//! that hangs would take this program with it, in a system call that nothing ends;
//! what aborts its connection turns the hang into an error.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `work`. If it takes longer than `limit`, calls `abort`.
pub fn guard<T>(limit: Duration, abort: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    let (done, watched) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                abort();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn only_what_takes_too_long_is_aborted() {
        let aborted = AtomicBool::new(false);
        let abort = || aborted.store(true, Ordering::Relaxed);
        assert_eq!(guard(Duration::from_secs(60), abort, || 7), 7);
        assert!(!aborted.load(Ordering::Relaxed));
        guard(Duration::from_millis(1), abort, || {
            while !aborted.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}
