//! A file becomes one with fs-verity.
//!
//! Its content stays as it is from the beginning on: who would change it meanwhile hears ETXTBSY. The
//! tree comes in steps, each an operation of its own, with an orphan item for the inode in front: where
//! a crash comes in between, the next mount takes the tree away (`orphan.rs`). The last step is one
//! operation: descriptor, flag, and the end of the orphan item. What of the content was in memory is in
//! extents by then, so no commit has the flag without it.
//!
//! What it does not know: who may, and who has the file open.

use super::file::check_file;
use super::subvolume;
use crate::engine::Engine;
use crate::error::IntoFs;
use crate::extents;
use crate::inode::{Inode, State, change, put_inode};
use crate::reserve::cost;
use crate::subvol::Caller;
use crate::verity::{put_bytes, put_descriptor};
use btrfs_disk::ids::compat_ro;
use btrfs_disk::items::inode_flags::RO_VERITY;
use btrfs_disk::key::kind::VERITY_MERKLE_ITEM;
use btrfs_txn::BATCH;
use fs_verity::{Builder, Descriptor, Hash, HashAlgorithm, MAX_SIGNATURE, Merkle, Params};
use inode_index::Ref;
use std::convert::Infallible;
use vfs::{Damage, Errno, Ino, Result};

/// Content that is read at a time.
/// Chosen, not measured.
const CHUNK: usize = 1 << 20;
/// Bytes of the tree that one operation puts, at most, but for what one chunk of content makes.
/// Chosen, not measured.
const STEP: usize = 128 << 10;

/// What a file is to be verified by from here on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// What its tree is made with. EINVAL for blocks above a sector, which the kernel could not read.
    pub params: Params,
    /// Kept for who asks for it, up to 16,128 bytes; nobody here does.
    pub signature: Vec<u8>,
}

impl Wish {
    /// By the numbers that control operations and streams have. EINVAL: nobody hashes so.
    pub fn of(algorithm: u32, block_size: u32, salt: &[u8], signature: &[u8]) -> Result<Wish> {
        let algorithm = HashAlgorithm::from_number(algorithm).ok_or(Errno::EINVAL)?;
        let params = Params::new(algorithm, block_size, salt).map_err(|_| Errno::EINVAL)?;
        Ok(Wish { params, signature: signature.to_vec() })
    }
}

/// EEXIST: it is one already. EBUSY: it is about to become one. EPERM: it may only grow.
pub(crate) fn may_enable(
    engine: &Engine,
    caller: Option<&Caller>,
    ino: Ino,
    wish: &Wish,
) -> Result<Ref<Inode>> {
    let inode = engine.inodes.get(ino)?;
    if let Some(caller) = caller {
        subvolume::may_write(engine, caller, inode.id, &*inode.read()?)?;
    }
    engine.subvol_writable(inode.id.tree)?;
    if u64::from(wish.params.block_size()) > engine.core.sector() {
        return Err(Errno::EINVAL.into());
    }
    if wish.signature.len() > MAX_SIGNATURE {
        return Err(Errno::EMSGSIZE.into());
    }
    may_begin(&*inode.read()?)?;
    Ok(inode)
}

/// Errors as of `may_enable`.
pub(crate) fn enable(
    engine: &Engine,
    caller: Option<&Caller>,
    ino: Ino,
    wish: &Wish,
    goes_on: GoesOn<'_>,
) -> Result<()> {
    let inode = may_enable(engine, caller, ino, wish)?;
    begin(engine, &inode)?;
    let made = make(engine, &inode, wish, goes_on);
    if made.is_err() {
        // Where there is no room even for that, or nothing may be changed, the next mount does it, or who
        // enables it again or erases the file.
        if let Err(error) = give_up(engine, &inode) {
            tracing::warn!(inode = inode.id.objectid, %error, "what was made for fs-verity stays");
        }
        if let Ok(mut state) = inode.write() {
            state.making_verity = false;
        }
    }
    made
}

fn may_begin(state: &State) -> Result<()> {
    check_file(state)?;
    if state.item.flags & RO_VERITY != 0 {
        return Err(Errno::EEXIST.into());
    }
    if state.making_verity {
        return Err(Errno::EBUSY.into());
    }
    state.content_is_replaced()
}

/// Also an inode without a name gets an item that is ours: its own goes when it gets one.
fn begin(engine: &Engine, inode: &Ref<Inode>) -> Result<()> {
    let _room = engine.reserver.reserve(cost::touch())?;
    let mut state = engine.write(inode)?;
    may_begin(&state)?;
    let op = engine.core.begin_change().fs()?;
    state.making_verity = true;
    engine.inodes.orphans().begin_steps(&op, inode.id);
    Ok(())
}

fn make(engine: &Engine, inode: &Ref<Inode>, wish: &Wish, goes_on: GoesOn<'_>) -> Result<()> {
    engine.writeback.flush_inode(inode)?;
    drop_all(engine, inode)?;
    let size = inode.read()?.item.size;
    let merkle = Merkle::new(&wish.params, size).map_err(|_| Errno::EFBIG)?;
    let root_hash = put_tree(engine, inode, &merkle, goes_on)?;
    let descriptor = Descriptor {
        params: wish.params.clone(),
        data_size: size,
        root_hash,
        signature: wish.signature.clone(),
    };
    finish(engine, inode, &descriptor.to_vec())
}

/// Asked whenever so much content is hashed as is written at a time elsewhere: a sparse file may have any size.
type GoesOn<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Blocks of a tree with their offsets.
type Blocks = Vec<(u64, Vec<u8>)>;

fn put_tree(
    engine: &Engine,
    inode: &Ref<Inode>,
    merkle: &Merkle,
    goes_on: GoesOn<'_>,
) -> Result<Hash> {
    let mut builder = Builder::new(merkle);
    let mut blocks = Blocks::new();
    let mut content = vec![0; CHUNK];
    let mut at = 0;
    while at < merkle.size() {
        if at.is_multiple_of(BATCH) {
            goes_on()?;
        }
        let read = {
            let state = inode.read()?;
            extents::read(&engine.core, inode.id, &state, at, &mut content)?
        };
        if read == 0 {
            return Err(Damage::new("a file is shorter than it was").into());
        }
        for block in content[..read].chunks(merkle.block_size()) {
            let Ok(()) = builder.add(block, &mut |at, block| note(&mut blocks, at, block));
        }
        if blocks.len() * merkle.block_size() >= STEP {
            put_blocks(engine, inode, &mut blocks)?;
        }
        at += read as u64;
    }
    let Ok(root) = builder.finish(&mut |at, block| note(&mut blocks, at, block));
    put_blocks(engine, inode, &mut blocks)?;
    Ok(root)
}

fn note(blocks: &mut Blocks, at: u64, block: Vec<u8>) -> std::result::Result<(), Infallible> {
    blocks.push((at, block));
    Ok(())
}

/// Those of each level lie side by side.
fn put_blocks(engine: &Engine, inode: &Ref<Inode>, blocks: &mut Blocks) -> Result<()> {
    blocks.sort_unstable_by_key(|(at, _)| *at);
    let follows = |a: &(u64, Vec<u8>), b: &(u64, Vec<u8>)| a.0 + a.1.len() as u64 == b.0;
    let runs: Vec<_> = blocks.chunk_by(follows).collect();
    let bytes = blocks.iter().map(|(_, block)| block.len() as u64).sum();
    let _room = engine.reserver.reserve(cost::verity_blocks(runs.len() as u64, bytes))?;
    let _state = engine.write(inode)?;
    let op = engine.core.begin_change().fs()?;
    for run in runs {
        op.run(|| {
            for (at, block) in run {
                put_bytes(&op, inode.id, VERITY_MERKLE_ITEM, *at, block);
            }
        });
    }
    drop(op);
    blocks.clear();
    Ok(())
}

fn finish(engine: &Engine, inode: &Ref<Inode>, descriptor: &[u8]) -> Result<()> {
    engine.subvol_writable(inode.id.tree)?;
    let _room = engine.reserver.reserve(cost::verity_descriptor(descriptor.len() as u64))?;
    let mut state = engine.write(inode)?;
    engine.core.volume.announce_ro(compat_ro::VERITY);
    change(&engine.core, |op| {
        // Who refuses changes waits for those who are inside.
        engine.core.health.changeable().fs()?;
        op.run(|| put_descriptor(op, inode.id, descriptor));
        engine.inodes.orphans().end_steps(op, inode.id, &mut state);
        state.item.flags |= RO_VERITY;
        put_inode(op, inode.id, &mut state);
        Ok(())
    })?;
    state.making_verity = false;
    Ok(())
}

fn give_up(engine: &Engine, inode: &Ref<Inode>) -> Result<()> {
    engine.core.health.changeable().fs()?;
    drop_all(engine, inode)?;
    let _room = engine.reserver.reserve_removal(cost::give_up_verity())?;
    let mut state = inode.write()?;
    engine.inodes.orphans().end_steps(&engine.core.begin(), inode.id, &mut state);
    Ok(())
}

/// Whatever the volume has of a tree for a file that has none.
fn drop_all(engine: &Engine, inode: &Ref<Inode>) -> Result<()> {
    engine.orphans.drop_verity(inode.id, || inode.write().map(Some))
}

/// EPERM: it is one, so nobody opens it to write.
pub(crate) fn may_write(engine: &Engine, ino: Ino) -> Result<()> {
    let flags = engine.inodes.get(ino)?.read()?.item.flags;
    if flags & RO_VERITY == 0 { Ok(()) } else { Err(Errno::EPERM.into()) }
}

/// What the file's content is measured by. ENODATA: it is not verified.
pub(crate) fn measure(engine: &Engine, ino: Ino) -> Result<Descriptor> {
    let inode = engine.inodes.get(ino)?;
    let state = inode.read()?;
    if state.item.flags & RO_VERITY == 0 {
        return Err(Errno::ENODATA.into());
    }
    Ok(engine.verity.file(inode.id, state.item.size)?.descriptor.clone())
}
