//! A directory of a test's own, gone when the test is over, also when it failed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::command::sh;

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

    /// What is mounted below, in the order in which it was.
    fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(1));
        points.filter(|point| Path::new(point).starts_with(&self.path)).map(String::from).collect()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A test that failed may have left a mount. What could not be undone must not be emptied:
        // one file system only.
        for point in self.mounts().iter().rev() {
            eprintln!("{point} is still mounted: {:?}", sh("umount", &["-l", point]));
        }
        if !self.mounts().is_empty() {
            eprintln!("{} still has a mount in it and stays", self.path.display());
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}
