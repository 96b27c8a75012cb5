//! The background thread: a commit when the interval has passed or somebody asks.
//!
//! It holds the engine weakly, so that it never keeps a volume open.

use super::{Pace, Wanted};
use crate::engine::Engine;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

pub struct Background {
    engine: Weak<Engine>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub fn start(engine: &Arc<Engine>) -> std::io::Result<Background> {
        let weak = Arc::downgrade(engine);
        let for_thread = weak.clone();
        let thread = std::thread::Builder::new()
            .name("spinney-commit".into())
            .spawn(move || run(&for_thread))?;
        Ok(Background { engine: weak, thread: Some(thread) })
    }
}

fn run(engine: &Weak<Engine>) {
    let mut last = Instant::now();
    loop {
        let Some(engine) = engine.upgrade() else { return };
        let Some(wanted) = engine.committer.wait(last + engine.options.commit_interval) else {
            return;
        };
        let result = match wanted {
            // Chunks that nobody uses yet: who has to use one that no commit knows waits for it.
            Wanted::Landed => engine.commit_landed_at(Pace::Easy),
            Wanted::Everything => {
                last = Instant::now();
                engine.commit_at(Pace::Easy)
            }
        };
        match result {
            Err(error) if error.errno() == libc::ENOSPC => {
                tracing::warn!("writeback found no space; it is tried again");
            }
            // Its writers are told; that it is tried again may help.
            Err(error) if engine.writable().is_ok() => tracing::error!(%error, "a commit"),
            Err(error) => {
                tracing::error!(%error, "the background commit failed");
                return;
            }
            Ok(()) => {}
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.committer.stop();
        }
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
