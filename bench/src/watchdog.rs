//! A limit on the time that one piece of work may take. A file system in userspace
//! that hangs would take this program with it, in a system call that nothing ends;
//! aborting its FUSE connection turns the hang into an error.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `work`. If it takes longer than `limit`, says so and writes to `abort`, the
/// control file of a FUSE connection.
pub fn guard<T>(limit: Duration, abort: Option<PathBuf>, work: impl FnOnce() -> T) -> T {
    let (done, watched) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if watched.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            eprintln!("no end after {} s", limit.as_secs());
            if let Some(path) = abort {
                let result = std::fs::write(&path, "1");
                eprintln!("aborting the FUSE connection by {}: {result:?}", path.display());
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

    #[test]
    fn only_what_takes_too_long_is_aborted() {
        let scratch = crate::target::tests::Scratch::new("watchdog");
        let file = scratch.0.join("abort");
        assert_eq!(guard(Duration::from_secs(60), Some(file.clone()), || 7), 7);
        assert!(!file.exists());
        guard(Duration::from_millis(1), Some(file.clone()), || {
            while std::fs::read(&file).ok().as_deref() != Some(b"1") {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}
