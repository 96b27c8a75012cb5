//! Threads of work that goes on beside operations. Each holds the engine, and with it the device, which who has
//! closed or dropped a volume may open again at once: so none is left behind that.
//!
//! What it does not know: what the work is; that it ends soon where the volume is being closed is its own.

use crate::engine::Engine;
use crate::error::IntoFs;
use btrfs_txn::Defect;
use locks::{Mutex, Rank};
use std::sync::Arc;
use std::thread::JoinHandle;
use vfs::{FsError, Result};

pub(crate) struct Beside {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Default for Beside {
    fn default() -> Beside {
        Beside { threads: Mutex::new(Rank::Leaf, Vec::new()) }
    }
}

impl Beside {
    /// Runs `work` in a thread of its own. `given_up` is called where nobody will work it off: no thread could
    /// be had, or it panicked. EROFS: the volume is being closed.
    pub(crate) fn start(
        &self,
        engine: &Arc<Engine>,
        name: &str,
        work: impl FnOnce(&Engine) + Send + 'static,
        given_up: fn(&Engine),
    ) -> Result<()> {
        let its = engine.clone();
        let work = move || {
            let _told = Panicking(&its, given_up);
            if its.core.injection.has(Defect::WorkPanics) {
                panic!("as a test wants it");
            }
            work(&its);
        };
        self.spawn(engine, name, work).inspect_err(|_| given_up(engine))
    }

    fn spawn(
        &self,
        engine: &Engine,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let mut threads = self.threads.lock();
        // Under the lock: `end` says so first, and joins then what is there.
        engine.core.health.stays_open().fs()?;
        threads.retain(|thread| !thread.is_finished());
        let thread = std::thread::Builder::new().name(format!("spinney-{name}"));
        let started = match engine.core.injection.has(Defect::NoThreads) {
            true => Err(std::io::Error::from_raw_os_error(libc::EAGAIN)),
            false => thread.spawn(work).map(|thread| threads.push(thread)),
        };
        let context = format!("starting the thread of the {name}");
        started.map_err(|source| FsError::Io { context, source })
    }

    /// Returns when no work is left, nor its thread: a status says sooner that it has ended.
    pub(crate) fn end(&self, engine: &Engine) {
        engine.core.health.close();
        engine.balancer.rest();
        engine.scrubber.rest();
        // Held until then: who closes the volume beside this one waits, too.
        for thread in self.threads.lock().drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// Who waits for work that panics would wait for ever, be it to close the volume. What the work left half
/// done in memory nobody knows, so nothing of it is written.
struct Panicking<'a>(&'a Engine, fn(&Engine));

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.core.health.poison("work in the background panicked");
            self.1(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::reserve::tests::volume;
    use vfs::FileSystem;

    /// Somebody has asked whether the volume is open, and comes to begin his work when it is being closed.
    #[test]
    fn nothing_is_begun_behind_the_end() {
        let fs = volume(256, 16384);
        fs.resize_beside(256 << 20).expect("it is open").recv().expect("an answer").expect("done");
        fs.beside.end(&fs.engine);
        let told = fs.resize_beside(256 << 20).map(drop);
        assert_eq!(told.expect_err("it is being closed").errno(), libc::EROFS);
        fs.destroy().expect("close");
    }
}
