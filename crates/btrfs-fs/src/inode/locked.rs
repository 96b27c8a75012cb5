//! Locking several inodes at once, always in ascending order.

use super::{Inode, State};
use crate::ino::InodeId;
use inode_index::Ref;
use locks::RwLockWriteGuard;
use vfs::Result;

/// Exclusive access to a few inodes.
pub(crate) struct Locked<'a> {
    guards: Vec<(InodeId, RwLockWriteGuard<'a, State>)>,
}

impl<'a> Locked<'a> {
    /// Locks each inode once, whatever the order and repetition in `inodes`.
    pub(crate) fn new(inodes: &[&'a Ref<Inode>]) -> Result<Locked<'a>> {
        let mut sorted: Vec<&'a Ref<Inode>> = inodes.to_vec();
        sorted.sort_by_key(|inode| inode.id);
        sorted.dedup_by_key(|inode| inode.id);
        let mut guards = Vec::with_capacity(sorted.len());
        for inode in sorted {
            guards.push((inode.id, inode.write()?));
        }
        Ok(Locked { guards })
    }

    pub(crate) fn get(&self, inode: &Inode) -> &State {
        let found = self.guards.iter().find(|(id, _)| *id == inode.id);
        &found.expect("the inode was locked").1
    }

    pub(crate) fn state(&mut self, inode: &Inode) -> &mut State {
        let found = self.guards.iter_mut().find(|(id, _)| *id == inode.id);
        &mut found.expect("the inode was locked").1
    }
}
