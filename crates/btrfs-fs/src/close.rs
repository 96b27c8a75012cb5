//! Closing: unnamed inodes go, everything is committed.

use crate::engine::Engine;
use std::sync::atomic::Ordering;
use vfs::{FsError, Result, Stat};

impl Engine {
    pub fn close(&self) -> Result<()> {
        // What has no name goes at the next mount.
        let shut_down = self.shut_down.load(Ordering::Acquire);
        if self.read_only.is_some() || self.is_still() || shut_down {
            return Ok(());
        }
        self.erase_unnamed();
        let committed = self.commit();
        if self.is_short_of_room() {
            let changes = self.layers.load().current.items.slots();
            tracing::error!(changes, "no room to commit: what was not synced is lost");
        }
        match self.name_unwritten() {
            0 => committed,
            files => committed.map_err(|error| match error {
                FsError::Io { context, source } => {
                    let context = format!("content of {files} files is lost: {context}");
                    FsError::Io { context, source }
                }
                other => other,
            }),
        }
    }

    /// Says which files lose what is in memory alone; answers how many they are.
    fn name_unwritten(&self) -> usize {
        let mut files = 0;
        for inode in self.inodes.all() {
            let Ok(state) = inode.read() else { continue };
            let bytes = state.dirty.as_ref().map_or(0, |dirty| dirty.bytes());
            if bytes > 0 && state.item.nlink > 0 {
                let (tree, inode) = (inode.id.tree, inode.id.objectid);
                tracing::error!(%tree, inode, bytes, "written content of this file is lost");
                files += 1;
            }
        }
        files
    }

    /// Nobody can refer to anything any more: what has no name goes with this commit.
    fn erase_unnamed(&self) {
        for inode in self.inodes.all() {
            let unnamed = inode.read().is_ok_and(|s| s.item.nlink == 0 && s.orphan);
            if unnamed && let Err(error) = crate::orphan::erase(self, &inode) {
                tracing::warn!(inode = inode.id.objectid, %error, "left for the next mount");
            }
        }
    }

    pub fn all_stats(&self) -> Vec<Stat> {
        let mut all = self.stats.list();
        let layers = self.layers.load();
        let cache = self.store.counters();
        let volume = self.volume.counters();
        let mut add = |name, value| all.push(Stat { name, value });
        add("generation", layers.roots.generation.0);
        add("delta.bytes", layers.current.bytes());
        add("delta.items", layers.current.items.slots());
        add("delta.dirty_bytes", self.dirty_bytes.load(std::sync::atomic::Ordering::Relaxed));
        add("inodes.open", self.inodes.len() as u64);
        let waits = crate::inode::LOCK_WAITS.load(std::sync::atomic::Ordering::Relaxed);
        add("inodes.lock_waits", waits);
        add("data.refused", self.refusals.count());
        add("commit.unpaid_nodes", self.space.unpaid_nodes());
        add("cache.hits", cache.hits);
        add("cache.misses", cache.misses);
        for (name, value) in volume.list() {
            add(name, value);
        }
        all
    }
}
