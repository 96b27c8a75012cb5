//! The trees of the last commit, piece by piece: who makes a stream of a mounted subvolume reads
//! them so, and the content from the files.
//!
//! Each call looks at the last commit of its own time. Of a read-only subvolume that is the same
//! at each call, unless a balance moves its nodes: what is read by an old address then is told by
//! its checksum, number or commit.
//!
//! All of it is for administrators. To ask who a caller is costs more than most answers, so only
//! [`wire::COMMITTED_TREE`] does; it hands out a number that nobody can guess, and who has it may go on.

use super::wire::{self, len64, number, put};
use super::{administrator, some};
use crate::error::IntoFs;
use crate::fs::BtrfsFs;
use crate::subvol::SubvolId;
use btrfs_disk::items::{FileExtent, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Expect, FixedSize, Generation, Key, Logical, TreeId};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use vfs::{Asker, Controlled, Errno, Result};

/// `None`: it is none of these.
pub(super) fn control(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    command: u32,
    input: &[u8],
) -> Option<Result<Controlled>> {
    let answer = match command {
        wire::COMMITTED_TREE => {
            let answered = administrator(asker).and_then(|()| tree(fs, input));
            return Some(answered.map(|answer| told(command, answer)));
        }
        wire::COMMITTED_NODE => node,
        wire::COMMITTED_REFERENCES => references,
        wire::COMMITTED_STORED => stored,
        wire::COMMITTED_CONTENT => content,
        _ => return None,
    };
    let answered = allowed(input).and_then(|input| answer(fs, input));
    Some(answered.map(|answer| told(command, answer)))
}

fn told(command: u32, mut answer: Vec<u8>) -> Controlled {
    answer.resize(wire::len(command), 0);
    Controlled::answer(answer)
}

/// What those have who were administrators when they asked for a tree. Of this process alone.
static TOKEN: LazyLock<[u64; 2]> =
    LazyLock::new(|| [0; 2].map(|_: u8| RandomState::new().hash_one("committed")));

/// The input behind the token.
fn allowed(input: &[u8]) -> Result<&[u8]> {
    let [high, low] = numbers(input)?;
    let wrong = (high ^ TOKEN[0]) | (low ^ TOKEN[1]);
    if wrong == 0 { Ok(&input[16..]) } else { Err(Errno::EPERM.into()) }
}

fn numbers<const N: usize>(input: &[u8]) -> Result<[u64; N]> {
    let mut all = [0; N];
    for (at, slot) in all.iter_mut().enumerate() {
        *slot = some(number(input, 8 * at))?;
    }
    Ok(all)
}

fn tree(fs: &BtrfsFs, input: &[u8]) -> Result<Vec<u8>> {
    let [id] = numbers(input)?;
    let committed = fs.committed()?;
    let (root, item) = committed.tree(TreeId(id)).ok_or(vfs::FsError::Posix(Errno::ENOENT))?;
    let geometry = committed.nodes().geometry();
    let mut answer = Vec::new();
    let sizes = [geometry.sector_size.into(), geometry.node_size.into()];
    put(&mut answer, &sizes);
    put(&mut answer, &[geometry.csum.to_disk().into()]);
    answer.extend_from_slice(&geometry.metadata_uuid);
    answer.extend_from_slice(&geometry.chunk_tree_uuid);
    put(&mut answer, &[root.logical.0, root.level.into(), root.generation.0]);
    answer.extend_from_slice(&item.to_vec());
    answer.resize(520, 0);
    put(&mut answer, &*TOKEN);
    Ok(answer)
}

fn node(fs: &BtrfsFs, input: &[u8]) -> Result<Vec<u8>> {
    let [logical, level, generation, from] = numbers(input)?;
    let expect = Expect {
        logical: Logical(logical),
        level: u8::try_from(level).map_err(|_| Errno::EINVAL)?,
        generation: Some(Generation(generation)),
        owner: None,
        first_key: None,
    };
    let committed = fs.committed()?;
    let node = committed.nodes().node(&expect).fs()?;
    let from = usize::try_from(from).map_err(|_| Errno::EINVAL)?;
    let rest = some(node.bytes().get(from..))?;
    Ok(rest[..rest.len().min(wire::len(wire::COMMITTED_NODE))].to_vec())
}

fn references(fs: &BtrfsFs, input: &[u8]) -> Result<Vec<u8>> {
    let [extent] = numbers(input)?;
    let mut all = fs.committed()?.references(Logical(extent))?;
    all.sort_unstable();
    all.dedup();
    all.truncate(wire::len(wire::COMMITTED_REFERENCES) / 16 - 1);
    let mut answer = Vec::new();
    put(&mut answer, &[len64(&all)]);
    all.iter().for_each(|(ino, base)| put(&mut answer, &[*ino, *base]));
    Ok(answer)
}

/// For an answer of `len` bytes; EINVAL: `command` has no room for it.
fn room(len: u64, command: u32) -> Result<Vec<u8>> {
    let len = usize::try_from(len).ok().filter(|len| *len <= wire::len(command));
    Ok(vec![0; len.ok_or(Errno::EINVAL)?])
}

/// Content of a file, zeros in holes and behind its end.
fn content(fs: &BtrfsFs, input: &[u8]) -> Result<Vec<u8>> {
    let [id, ino, offset, len] = numbers(input)?;
    let committed = fs.committed()?;
    let (root, _) = committed.subvolume(SubvolId(id))?;
    let key = Key::new(ino, kind::INODE_ITEM, 0);
    let inode = btrfs_tree::get(committed.nodes(), &root, &key).fs()?;
    let inode = inode.ok_or(vfs::FsError::Posix(Errno::ENOENT))?;
    let flags = InodeItem::read(inode.data()).fs()?.flags;
    if offset.checked_add(len).is_none() {
        return Err(Errno::EINVAL.into());
    }
    let mut answer = room(len, wire::COMMITTED_CONTENT)?;
    committed.read(TreeId(id), ino, flags, offset, &mut answer)?;
    Ok(answer)
}

/// Whole sectors of the extent whose item stands at an offset of a file, as they are stored.
fn stored(fs: &BtrfsFs, input: &[u8]) -> Result<Vec<u8>> {
    let [id, ino, offset, skip, len] = numbers(input)?;
    let committed = fs.committed()?;
    let (root, _) = committed.subvolume(SubvolId(id))?;
    let get = |kind, offset| {
        let found = btrfs_tree::get(committed.nodes(), &root, &Key::new(ino, kind, offset)).fs()?;
        found.ok_or(vfs::FsError::Posix(Errno::ENOENT))
    };
    let (inode, item) = (get(kind::INODE_ITEM, 0)?, get(kind::EXTENT_DATA, offset)?);
    let inode = InodeItem::read(inode.data()).fs()?;
    let FileExtent::Extent { fields, .. } = FileExtent::parse(item.data()).fs()? else {
        return Err(Errno::EINVAL.into());
    };
    let end = skip.checked_add(len).filter(|end| *end <= fields.disk_num_bytes);
    let sector = u64::from(committed.nodes().geometry().sector_size);
    let whole = skip.is_multiple_of(sector) && len.is_multiple_of(sector);
    if end.is_none() || !whole {
        return Err(Errno::EINVAL.into());
    }
    let mut answer = room(len, wire::COMMITTED_STORED)?;
    committed.read_stored(inode.flags, &fields, skip, &mut answer)?;
    Ok(answer)
}
