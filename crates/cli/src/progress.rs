//! A line of progress on standard error, only where that is a terminal.
//!
//! The line is rewritten at most ten times a second and wiped at the end, so that it
//! never mixes with errors or output. There is one terminal, and so one line.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Between two looks of the same line; faster nobody reads.
const INTERVAL: Duration = Duration::from_millis(100);

/// When the line was last drawn, if it is there.
static DRAWN: Mutex<Option<Instant>> = Mutex::new(None);

pub struct Progress {
    /// Somebody looks.
    seen: bool,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { seen: stderr().is_terminal() }
    }

    /// Shows the line if it is time for it; `line` runs only then.
    pub fn show(&self, line: impl FnOnce() -> String) {
        if !self.seen {
            return;
        }
        let now = Instant::now();
        let Ok(mut drawn) = DRAWN.lock() else { return };
        if drawn.is_some_and(|at| now - at < INTERVAL) {
            return;
        }
        *drawn = Some(now);
        let _ = write!(stderr(), "\r\x1b[K{}", line());
    }
}

/// Wipes the line, so that something else can be said.
pub fn wipe() {
    let Ok(mut drawn) = DRAWN.lock() else { return };
    if drawn.take().is_some() {
        let _ = write!(stderr(), "\r\x1b[K");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        wipe();
    }
}
