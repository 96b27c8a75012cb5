//! Programs that must end in time.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use testkit::oracle::{Report, run};

/// A program with a limit: one that hangs (or waits for a mount that hangs) is killed.
pub struct Limited {
    words: Vec<OsString>,
}

impl Limited {
    pub fn new(seconds: u32, program: impl AsRef<OsStr>) -> Limited {
        let words = ["--kill-after=5", &seconds.to_string()].map(OsString::from);
        Limited { words: words.into() }.arg(program)
    }

    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Limited {
        self.words.push(word.as_ref().to_owned());
        self
    }

    pub fn args<T: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = T>) -> Limited {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// However it ends; exit code 124 says that it was too slow.
    pub fn run(&self) -> Report {
        run("timeout", &self.words)
    }

    /// Its output; panics with all that it said if it fails.
    #[track_caller]
    pub fn ok(&self) -> String {
        self.run().output().unwrap_or_else(|said| panic!("{said}"))
    }
}

/// A script of a few lines in `dir`, which ends at the first command that fails.
#[track_caller]
pub fn shell(seconds: u32, dir: &Path, script: &str) -> String {
    let script = format!("set -euo pipefail\ncd '{}'\n{script}", dir.display());
    Limited::new(seconds, "bash").args(["-c", &script]).ok()
}
