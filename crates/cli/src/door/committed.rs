//! The trees of a mount's last commit, piece by piece (`btrfs_fs::control`).

use super::Door;
use btrfs_disk::checksum::CSUM_FIELD;
use btrfs_disk::items::RootItem;
use btrfs_disk::{ChecksumType, Expect, Generation, Geometry, Logical, TreeId};
use btrfs_fs::control::wire;
use btrfs_tree::TreeRoot;
use std::io;

/// Content in one answer: whole sectors.
const CONTENT: usize = 12 << 10;

/// A subvolume's tree.
pub struct CommittedTree {
    pub geometry: Geometry,
    pub root: TreeRoot,
    pub item: RootItem,
    pub token: Token,
}

/// What the server has given to who may go on asking.
#[derive(Clone, Copy, Default)]
pub struct Token([u64; 2]);

impl Door {
    /// ENOENT: there is no such subvolume.
    pub fn committed_tree(&self, id: u64) -> io::Result<CommittedTree> {
        let answer = self.ask(wire::COMMITTED_TREE, id.to_le_bytes().to_vec())?;
        read_tree(id, &answer).ok_or_else(odd)
    }

    /// The bytes of a node, its checksum made anew.
    pub fn committed_node(
        &self,
        token: Token,
        expect: &Expect,
        geometry: &Geometry,
    ) -> io::Result<Box<[u8]>> {
        let size = geometry.node_size as usize;
        let mut bytes = Vec::with_capacity(size);
        // So a node of 16 KiB comes in one answer.
        bytes.resize(CSUM_FIELD.min(size), 0);
        while bytes.len() < size {
            let generation = expect.generation.map_or(0, |generation| generation.0);
            let at = bytes.len() as u64;
            let numbers = [expect.logical.0, expect.level.into(), generation, at];
            let answer = self.ask_with(token, wire::COMMITTED_NODE, &numbers)?;
            let some = answer.len().min(size - bytes.len());
            bytes.extend_from_slice(&answer[..some]);
        }
        let digest = geometry.csum.digest(&bytes[CSUM_FIELD..]);
        bytes[..CSUM_FIELD].copy_from_slice(&digest);
        Ok(bytes.into())
    }

    /// Files that share an extent, as `btrfs_fs::Committed::references`.
    pub fn committed_references(
        &self,
        token: Token,
        extent: Logical,
    ) -> io::Result<Vec<(u64, u64)>> {
        let answer = self.ask_with(token, wire::COMMITTED_REFERENCES, &[extent.0])?;
        let count = wire::number(&answer, 0).ok_or_else(odd)? as usize;
        let number = |at: usize| wire::number(&answer, 8 * at);
        let one = |at: usize| Some((number(1 + 2 * at)?, number(2 + 2 * at)?));
        (0..count).map(|at| one(at).ok_or_else(odd)).collect()
    }

    /// Fills `buf` with content of a file from `offset` on.
    pub fn committed_content(
        &self,
        token: Token,
        (tree, ino): (TreeId, u64),
        mut offset: u64,
        buf: &mut [u8],
    ) -> io::Result<()> {
        for part in buf.chunks_mut(CONTENT) {
            let numbers = [tree.0, ino, offset, part.len() as u64];
            let answer = self.ask_with(token, wire::COMMITTED_CONTENT, &numbers)?;
            part.copy_from_slice(answer.get(..part.len()).ok_or_else(odd)?);
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Fills `buf` with the first bytes of the extent at an offset of a file; whole sectors.
    pub fn committed_stored(
        &self,
        token: Token,
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
            let answer = self.ask_with(token, wire::COMMITTED_STORED, &numbers)?;
            part.copy_from_slice(answer.get(..part.len()).ok_or_else(odd)?);
            skip += part.len() as u64;
        }
        Ok(())
    }

    fn ask_with(&self, Token(token): Token, command: u32, numbers: &[u64]) -> io::Result<Vec<u8>> {
        let record = token.iter().chain(numbers).flat_map(|number| number.to_le_bytes()).collect();
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
    let item = RootItem::parse(answer.get(80..519)?).ok()?;
    let token = Token([number(520)?, number(528)?]);
    Some(CommittedTree { geometry, root, item, token })
}
