//! Makes a tree of content that comes block by block, with one block of each level in memory.

use crate::hash::Hash;
use crate::merkle::Merkle;

/// Takes the blocks of content in their order, and gives those of the tree as they are full.
pub struct Builder<'m> {
    merkle: &'m Merkle,
    /// Of each level: the block that fills, and how many were full before it.
    filling: Vec<(Vec<u8>, u64)>,
    root: Option<Hash>,
}

impl Builder<'_> {
    /// For a tree of this shape.
    pub fn new(merkle: &Merkle) -> Builder<'_> {
        Builder { merkle, filling: vec![(Vec::new(), 0); merkle.levels()], root: None }
    }

    /// The next block of content; only the last one may be short. `emit` takes blocks of the tree
    /// with their offsets in it.
    pub fn add<E>(
        &mut self,
        block: &[u8],
        emit: &mut impl FnMut(u64, Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut hash = self.merkle.hash(block);
        let mut level = 0;
        while level < self.filling.len() {
            let filling = &mut self.filling[level].0;
            filling.extend_from_slice(hash.as_bytes());
            if filling.len() < self.merkle.block_size() {
                return Ok(());
            }
            hash = self.full(level, emit)?;
            level += 1;
        }
        self.root = Some(hash);
        Ok(())
    }

    fn full<E>(
        &mut self,
        level: usize,
        emit: &mut impl FnMut(u64, Vec<u8>) -> Result<(), E>,
    ) -> Result<Hash, E> {
        let (filling, before) = &mut self.filling[level];
        let mut block = std::mem::take(filling);
        block.resize(self.merkle.block_size(), 0);
        let offset = self.merkle.offset(level, *before);
        *before += 1;
        let hash = self.merkle.hash(&block);
        emit(offset, block)?;
        Ok(hash)
    }

    /// All content was there: gives what is left of the tree, and answers its root hash.
    pub fn finish<E>(
        mut self,
        emit: &mut impl FnMut(u64, Vec<u8>) -> Result<(), E>,
    ) -> Result<Hash, E> {
        let mut below = None;
        for level in 0..self.filling.len() {
            if let Some(hash) = below.take() {
                let hash: Hash = hash;
                self.filling[level].0.extend_from_slice(hash.as_bytes());
            }
            if !self.filling[level].0.is_empty() {
                below = Some(self.full(level, emit)?);
            }
        }
        Ok(below.or(self.root).unwrap_or(Hash::zero(self.merkle.algorithm())))
    }
}
