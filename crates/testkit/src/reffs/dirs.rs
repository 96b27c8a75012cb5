//! Reading directories. Position 0 is `.`, 1 is `..`, an entry's own index follows.
//!
//! The caller's function runs without the model's lock, so it may call the model.

use vfs::{DirEntry, Entry, FileKind, FileSystem, Ino, Result};

use super::RefFs;
use super::state::{FIRST_INDEX, State};

struct Listed {
    ino: Ino,
    kind: FileKind,
    name: Vec<u8>,
    next: u64,
    entry: Option<Entry>,
}

impl State {
    /// The entry at or behind `offset`; none in a directory that was removed.
    fn listed(&mut self, dir: Ino, offset: u64, with_entry: bool) -> Result<Option<Listed>> {
        let body = self.dir(dir)?;
        let parent = body.parent;
        let dot = |ino, name: &[u8]| {
            let name = name.to_vec();
            Listed { ino, kind: FileKind::Dir, name, next: offset + 1, entry: None }
        };
        if self.get(dir)?.nlink == 0 {
            return Ok(None);
        }
        match offset {
            0 => return Ok(Some(dot(dir, b"."))),
            1 => return Ok(Some(dot(parent, b".."))),
            _ => {}
        }
        let Some((index, name, ino)) = body.entry_from(offset.max(FIRST_INDEX)) else {
            return Ok(None);
        };
        let (name, kind) = (name.to_vec(), self.get(ino)?.kind);
        let entry = if with_entry { Some(self.entry(ino)?) } else { None };
        Ok(Some(Listed { ino, kind, name, next: index + 1, entry }))
    }
}

impl State {
    pub(super) fn dir_end(&self, dir: Ino) -> Result<u64> {
        Ok(self.dir(dir)?.end())
    }
}

impl RefFs {
    pub(super) fn list(
        &self,
        dir: Ino,
        mut offset: u64,
        with_entries: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        let last = self.state().dir_end(dir)?;
        loop {
            let Some(listed) = self.state().listed(dir, offset, with_entries)? else {
                return Ok(());
            };
            let Listed { ino, kind, ref name, next, entry } = listed;
            if next > last || !emit(&DirEntry { ino, kind, name, next }, entry.as_ref()) {
                if entry.is_some() {
                    self.forget(ino, 1);
                }
                return Ok(());
            }
            offset = next;
        }
    }
}
