//! The trees of a mount's last commit, piece by piece (`btrfs_fs::control`).

use super::Door;
use btrfs_disk::items::RootItem;
use btrfs_disk::{ChecksumType, Expect, Generation, Geometry, Logical, TreeId};
use btrfs_fs::control::wire;
use btrfs_tree::TreeRoot;
use std::io;

/// A subvolume's tree.
pub struct CommittedTree {
    pub geometry: Geometry,
    pub root: TreeRoot,
    pub item: RootItem,
}

impl Door {
    /// ENOENT: there is no such subvolume.
    pub fn committed_tree(&self, id: u64) -> io::Result<CommittedTree> {
        let answer = self.ask(wire::COMMITTED_TREE, id.to_le_bytes().to_vec())?;
        read_tree(id, &answer).ok_or_else(odd)
    }

    /// The bytes of a node.
    pub fn committed_node(&self, expect: &Expect, size: usize) -> io::Result<Box<[u8]>> {
        let mut bytes = Vec::with_capacity(size);
        while bytes.len() < size {
            let generation = expect.generation.map_or(0, |generation| generation.0);
            let at = bytes.len() as u64;
            let numbers = [expect.logical.0, expect.level.into(), generation, at];
            let answer = self.ask_numbers(wire::COMMITTED_NODE, &numbers)?;
            let some = answer.len().min(size - bytes.len());
            bytes.extend_from_slice(&answer[..some]);
        }
        Ok(bytes.into())
    }

    /// Files that share an extent, as `btrfs_fs::Committed::references`.
    pub fn committed_references(&self, extent: Logical) -> io::Result<Vec<(u64, u64)>> {
        let answer = self.ask_numbers(wire::COMMITTED_REFERENCES, &[extent.0])?;
        let count = wire::number(&answer, 0).ok_or_else(odd)? as usize;
        let number = |at: usize| wire::number(&answer, 8 * at);
        let one = |at: usize| Some((number(1 + 2 * at)?, number(2 + 2 * at)?));
        (0..count).map(|at| one(at).ok_or_else(odd)).collect()
    }

    /// Fills `buf` with the first bytes of the extent at an offset of a file; whole sectors.
    pub fn committed_stored(
        &self,
        (tree, ino, offset): (TreeId, u64, u64),
        sector: usize,
        buf: &mut [u8],
    ) -> io::Result<()> {
        let most = wire::len(wire::COMMITTED_STORED) / sector * sector;
        if most == 0 {
            return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
        }
        let mut skip = 0;
        for part in buf.chunks_mut(most) {
            let numbers = [tree.0, ino, offset, skip, part.len() as u64];
            let answer = self.ask_numbers(wire::COMMITTED_STORED, &numbers)?;
            part.copy_from_slice(answer.get(..part.len()).ok_or_else(odd)?);
            skip += part.len() as u64;
        }
        Ok(())
    }

    fn ask_numbers(&self, command: u32, numbers: &[u64]) -> io::Result<Vec<u8>> {
        let record = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.ask(command, record)
    }
}

fn odd() -> io::Error {
    io::Error::other("the server's answer makes no sense")
}

fn read_tree(id: u64, answer: &[u8]) -> Option<CommittedTree> {
    let number = |at: usize| wire::number(answer, at);
    let uuid = |at: usize| <[u8; 16]>::try_from(answer.get(at..at + 16)?).ok();
    let geometry = Geometry {
        sector_size: u32::try_from(number(0)?).ok()?,
        node_size: u32::try_from(number(8)?).ok()?,
        csum: ChecksumType::from_disk(u16::try_from(number(16)?).ok()?).ok()?,
        metadata_uuid: uuid(24)?,
        chunk_tree_uuid: uuid(40)?,
    };
    let root = TreeRoot {
        id: TreeId(id),
        logical: Logical(number(56)?),
        level: u8::try_from(number(64)?).ok()?,
        generation: Generation(number(72)?),
    };
    Some(CommittedTree { geometry, root, item: RootItem::parse(answer.get(80..519)?).ok()? })
}
