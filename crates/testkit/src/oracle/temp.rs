//! A directory of a test's own, gone when the test is over, also when it failed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

static COUNT: AtomicUsize = AtomicUsize::new(0);

pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Under `SPINNEY_TMP`, or `/tmp/spinney` where that is not set.
    pub fn new(name: &str) -> io::Result<TempDir> {
        let base = std::env::var_os("SPINNEY_TMP").map(PathBuf::from);
        let base = base.unwrap_or_else(|| std::env::temp_dir().join("spinney"));
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(TempDir { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A mount that could not be undone must not be emptied: one file system only.
        let mounted = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let inside = |line: &str| {
            let point = line.split(' ').nth(1).unwrap_or_default();
            Path::new(point).starts_with(&self.path)
        };
        if mounted.lines().any(inside) {
            eprintln!("{} still has a mount in it and stays", self.path.display());
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}
