//! Reads that verify.

use super::cache::{Blocks, Files, Verified};
use super::items::{read_descriptor, read_tree};
use crate::extents::read_extents;
use crate::file_path;
use crate::ino::InodeId;
use btrfs_txn::Core;
use fs_verity::Hash;
use locks::{Mutex, Rank};
use std::sync::Arc;
use vfs::{Damage, DamageKind, Result};

/// Content that is read and verified at a time: whole blocks, whatever their size.
/// Chosen, not measured.
const CHUNK: u64 = 1 << 20;

/// Of a mount.
pub(crate) struct Verity {
    core: Arc<Core>,
    files: Mutex<Files>,
    blocks: Mutex<Blocks>,
}

impl Verity {
    pub(crate) fn new(core: Arc<Core>) -> Verity {
        let files = Mutex::new(Rank::Leaf, Files::default());
        let blocks = Mutex::new(Rank::Leaf, Blocks::default());
        Verity { core, files, blocks }
    }

    /// Of an inode with the flag; `size` is its size.
    pub(crate) fn file(&self, id: InodeId, size: u64) -> Result<Arc<Verified>> {
        let known = self.files.lock().get(id);
        if let Some(file) = known.filter(|file| file.merkle.size() == size) {
            return Ok(file);
        }
        self.load(id, size).inspect_err(|error| {
            let path = file_path::path(&self.core.view(), id);
            tracing::error!("{path}: cannot be verified: {error}");
        })
    }

    fn load(&self, id: InodeId, size: u64) -> Result<Arc<Verified>> {
        let descriptor = read_descriptor(&self.core.view(), id)?;
        if descriptor.data_size != size {
            let of = descriptor.data_size;
            return Err(Damage::new(format!("fs-verity of {of} bytes on a file of {size}")).into());
        }
        let merkle = descriptor.merkle().map_err(|why| Damage::new(why.to_string()))?;
        let make = |number| Verified { descriptor, merkle, number };
        Ok(self.files.lock().put(id, make))
    }

    /// Fills `buf` from `offset` up to the end of the file, which has `size` bytes and these
    /// `flags`. After an error nothing of what was read is in `buf`.
    pub(crate) fn read(
        &self,
        (id, flags, size): (InodeId, u64, u64),
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        let file = self.file(id, size)?;
        let mut at = 0;
        while at < len {
            let here = offset + at as u64;
            let end = ((here / CHUNK + 1) * CHUNK).min(offset + len as u64);
            let part = &mut buf[at..at + (end - here) as usize];
            if let Err(error) = self.read_chunk(&file, (id, flags), here, part) {
                buf.fill(0);
                return Err(error);
            }
            at += (end - here) as usize;
        }
        Ok(len)
    }

    fn read_chunk(
        &self,
        file: &Verified,
        (id, flags): (InodeId, u64),
        at: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let block = file.merkle.block_size() as u64;
        let end = at + buf.len() as u64;
        let (from, to) = (at / block * block, end.next_multiple_of(block).min(file.merkle.size()));
        if (from, to) == (at, end) {
            read_extents(&self.core, id, flags, at, buf)?;
            return self.verify(file, id, at, buf);
        }
        let mut whole = vec![0; (to - from) as usize];
        read_extents(&self.core, id, flags, from, &mut whole)?;
        self.verify(file, id, from, &whole)?;
        buf.copy_from_slice(&whole[(at - from) as usize..][..buf.len()]);
        Ok(())
    }

    /// Whole blocks of content, but for the last one of the file.
    fn verify(&self, file: &Verified, id: InodeId, at: u64, content: &[u8]) -> Result<()> {
        let size = file.merkle.block_size();
        let mut hashes: Option<(u64, Arc<[u8]>)> = None;
        let first = at / size as u64;
        for (block, index) in content.chunks(size).zip(first..) {
            let hash = file.merkle.hash(block);
            let good = match file.merkle.levels() {
                0 => hash == file.descriptor.root_hash,
                _ => {
                    let place = file.merkle.place(index);
                    let hashes = match &mut hashes {
                        Some((of, hashes)) if *of == place.index => hashes,
                        other => {
                            let read = self.block(file, id, 0, place.index)?;
                            &mut other.insert((place.index, read)).1
                        }
                    };
                    hash.as_bytes() == &hashes[place.range]
                }
            };
            if !good {
                return Err(self.mismatch(id, "content", index * size as u64));
            }
        }
        Ok(())
    }

    /// A block of the tree, verified.
    fn block(&self, file: &Verified, id: InodeId, level: usize, index: u64) -> Result<Arc<[u8]>> {
        let at = file.merkle.offset(level, index);
        let key = (file.number, at);
        if let Some(block) = self.blocks.lock().get(key) {
            return Ok(block);
        }
        let mut block = vec![0; file.merkle.block_size()];
        read_tree(&self.core.view(), id, at, &mut block).inspect_err(|error| {
            let path = file_path::path(&self.core.view(), id);
            tracing::error!("{path}: no fs-verity tree at its byte {at}: {error}");
        })?;
        let hash = file.merkle.hash(&block);
        if !self.is_named_above(file, id, (level, index), &hash)? {
            return Err(self.mismatch(id, "the fs-verity tree", at));
        }
        let block: Arc<[u8]> = block.into();
        self.blocks.lock().put(key, block.clone());
        Ok(block)
    }

    fn is_named_above(
        &self,
        file: &Verified,
        id: InodeId,
        (level, index): (usize, u64),
        hash: &Hash,
    ) -> Result<bool> {
        if level + 1 == file.merkle.levels() {
            return Ok(*hash == file.descriptor.root_hash);
        }
        let place = file.merkle.place(index);
        let above = self.block(file, id, level + 1, place.index)?;
        Ok(hash.as_bytes() == &above[place.range])
    }

    fn mismatch(&self, id: InodeId, what: &str, at: u64) -> vfs::FsError {
        let path = file_path::path(&self.core.view(), id);
        let text = format!("{path}: {what} at offset {at} is not what fs-verity says");
        tracing::error!("{text}");
        let mut damage = Damage::new(text);
        damage.kind = DamageKind::Content;
        damage.into()
    }
}
