//! Blocks of trees that were verified, and files whose descriptor was read: a bounded number of each.

use crate::ino::InodeId;
use fs_verity::{Descriptor, Merkle};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Of the younger blocks, and of the older ones.
/// Chosen, not measured.
const MOST_BYTES: usize = 2 << 20;
/// Chosen, not measured.
const MOST_FILES: usize = 1024;

/// A file as this mount knows it, and a block of its tree by its offset there.
pub(super) type BlockKey = (u64, u64);

/// Two generations: what is asked for stays young, and the older ones go all at once.
#[derive(Default)]
pub(super) struct Blocks {
    young: FxHashMap<BlockKey, Arc<[u8]>>,
    old: FxHashMap<BlockKey, Arc<[u8]>>,
    young_bytes: usize,
}

impl Blocks {
    pub(super) fn get(&mut self, key: BlockKey) -> Option<Arc<[u8]>> {
        if let Some(block) = self.young.get(&key) {
            return Some(block.clone());
        }
        let block = self.old.remove(&key)?;
        self.put(key, block.clone());
        Some(block)
    }

    pub(super) fn put(&mut self, key: BlockKey, block: Arc<[u8]>) {
        if self.young_bytes + block.len() > MOST_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        let len = block.len();
        if self.young.insert(key, block).is_none() {
            self.young_bytes += len;
        }
    }
}

/// A file whose descriptor has been read.
pub(crate) struct Verified {
    pub(crate) descriptor: Descriptor,
    pub(super) merkle: Merkle,
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Files {
    files: FxHashMap<InodeId, Arc<Verified>>,
    /// Given out so far: no two of a mount have the same.
    numbers: u64,
}

impl Files {
    pub(super) fn get(&self, id: InodeId) -> Option<Arc<Verified>> {
        self.files.get(&id).cloned()
    }

    pub(super) fn put(&mut self, id: InodeId, make: impl FnOnce(u64) -> Verified) -> Arc<Verified> {
        if self.files.len() >= MOST_FILES {
            self.files.clear();
        }
        self.numbers += 1;
        let file = Arc::new(make(self.numbers));
        self.files.insert(id, file.clone());
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_memory_is_bounded() {
        let mut blocks = Blocks::default();
        for at in 0..10_000u64 {
            blocks.put((1, at), vec![0; 4096].into());
            assert!(blocks.get((1, 0)).is_some(), "gone at {at}");
            let kept = blocks.young.len() + blocks.old.len();
            assert!(kept * 4096 <= 2 * MOST_BYTES, "{kept} blocks");
        }
        assert!(blocks.get((1, 1)).is_none());
    }
}
