//! Closing: unnamed inodes go, everything is committed.

use crate::engine::Engine;
use vfs::{Result, Stat};

impl Engine {
    pub fn close(&self) -> Result<()> {
        if self.read_only.is_some() {
            return Ok(());
        }
        self.erase_unnamed();
        self.commit()
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
        add("commit.unpaid_nodes", self.space.unpaid_nodes());
        add("cache.hits", cache.hits);
        add("cache.misses", cache.misses);
        for (name, value) in volume.list() {
            add(name, value);
        }
        all
    }
}
