//! The directories of this machine that a copy is in, from its top down. `OPEN` of them are open at a time; one
//! further up is reached from the one below it, and must be the one that it was.

use super::host::{HostDir, HostStat, replaced};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

/// Few, as a process may have some hundreds; most trees are not so deep.
const OPEN: usize = 64;

#[derive(Default)]
pub(super) struct Dirs(Vec<Level>);

struct Level {
    path: PathBuf,
    /// Which one it is.
    key: (u64, u64),
    /// `None` while it is too far up to be open.
    dir: Option<Rc<HostDir>>,
}

impl Dirs {
    /// Goes into a directory that is in the last one.
    pub(super) fn push(&mut self, dir: HostDir) -> io::Result<()> {
        let key = HostStat::of_file(dir.file())?.key;
        self.0.push(Level { path: dir.path().to_owned(), key, dir: Some(Rc::new(dir)) });
        if let Some(far) = self.0.len().checked_sub(OPEN + 1) {
            self.0[far].dir = None;
        }
        Ok(())
    }

    /// The one that the copy is in.
    pub(super) fn last(&self) -> io::Result<Rc<HostDir>> {
        self.0.last().and_then(|level| level.dir.clone()).ok_or_else(replaced)
    }

    /// Leaves it, to the one that it is in. Ask for that before it gets permissions by which nobody passes.
    pub(super) fn pop(&mut self) -> io::Result<Rc<HostDir>> {
        let last = self.0.pop().and_then(|level| level.dir).ok_or_else(replaced)?;
        if let Some(above) = self.0.last_mut().filter(|above| above.dir.is_none()) {
            above.dir = Some(Rc::new(last.above(above.key, &above.path)?));
        }
        Ok(last)
    }
}
