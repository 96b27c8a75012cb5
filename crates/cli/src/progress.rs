//! A line of progress on standard error, only where that is a terminal.
//!
//! The line is rewritten at most ten times a second and wiped at the end, so that it
//! never mixes with errors or output.

use std::cell::RefCell;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(100);

pub struct Progress {
    /// When the line was last drawn; `None` where nobody looks.
    drawn: Option<RefCell<Option<Instant>>>,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { drawn: stderr().is_terminal().then(RefCell::default) }
    }

    /// Shows the line if it is time for it; `line` runs only then.
    pub fn show(&self, line: impl FnOnce() -> String) {
        let Some(drawn) = &self.drawn else { return };
        let now = Instant::now();
        let mut drawn = drawn.borrow_mut();
        if drawn.is_some_and(|at| now - at < INTERVAL) {
            return;
        }
        *drawn = Some(now);
        let _ = write!(stderr(), "\r\x1b[K{}", line());
    }

    /// Wipes the line, so that something else can be said.
    pub fn wipe(&self) {
        let Some(drawn) = &self.drawn else { return };
        if drawn.borrow_mut().take().is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}
