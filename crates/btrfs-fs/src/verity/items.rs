//! The items of such files: descriptor and tree, each in pieces one behind the other.
//!
//! Pieces are written as the kernel writes them, of 2,048 bytes from a block's begin on; read are
//! pieces of any length.

use crate::error::IntoFs;
use crate::ino::InodeId;
use btrfs_disk::items::VerityItem;
use btrfs_disk::key::kind::{VERITY_DESC_ITEM, VERITY_MERKLE_ITEM};
use btrfs_disk::{Corrupt, FixedSize, Key};
use btrfs_txn::{Op, View};
use fs_verity::{DESCRIPTOR_SIZE, Descriptor, MAX_DESCRIPTOR};
use std::ops::Range;
use vfs::Result;

const PIECE: usize = 2048;
/// Where the descriptor's bytes begin: offset 0 has its length.
const DESCRIPTOR_AT: u64 = 1;

/// Bytes of items of one kind from `at` on.
fn read_bytes(view: &View<'_>, id: InodeId, kind: u8, at: u64, buf: &mut [u8]) -> Result<()> {
    let missing = |at: u64| {
        let key = Key::new(id.objectid, kind, at);
        Corrupt::new("fs-verity has nothing here").key(key)
    };
    let wanted = Key::new(id.objectid, kind, at);
    let first = view.previous(id.tree, &wanted).fs()?;
    let first = first.map(|(key, _)| key).filter(|key| key.kind == kind);
    let mut scan = view.scan(id.tree, first.ok_or_else(|| missing(at)).fs()?);
    let mut filled = 0;
    while filled < buf.len() {
        let here = at + filled as u64;
        let Some((key, data)) = scan.next().fs()? else { return Err(missing(here)).fs() };
        let skip = here.checked_sub(key.offset).and_then(|skip| usize::try_from(skip).ok());
        let rest = skip.filter(|_| key.kind == kind).and_then(|skip| data.get(skip..));
        let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
            return Err(missing(here)).fs();
        };
        let take = rest.len().min(buf.len() - filled);
        buf[filled..filled + take].copy_from_slice(&rest[..take]);
        filled += take;
    }
    Ok(())
}

pub(super) fn read_tree(view: &View<'_>, id: InodeId, at: u64, buf: &mut [u8]) -> Result<()> {
    read_bytes(view, id, VERITY_MERKLE_ITEM, at, buf)
}

pub(super) fn read_descriptor(view: &View<'_>, id: InodeId) -> Result<Descriptor> {
    let key = Key::new(id.objectid, VERITY_DESC_ITEM, 0);
    let bad = |what: String| Corrupt::new(what).key(key);
    let Some(item) = view.get(id.tree, &key).fs()? else {
        return Err(bad("a file with fs-verity has no descriptor".into())).fs();
    };
    let item = VerityItem::read(&item).map_err(|corrupt| corrupt.key(key)).fs()?;
    let len = usize::try_from(item.size).ok();
    let len = len.filter(|len| (DESCRIPTOR_SIZE..=MAX_DESCRIPTOR).contains(len));
    let Some(len) = len.filter(|_| item.encryption == 0) else {
        let VerityItem { size, encryption, .. } = item;
        return Err(bad(format!(
            "fs-verity descriptor of {size} bytes, encrypted by {encryption}"
        )))
        .fs();
    };
    let mut bytes = vec![0; len];
    read_bytes(view, id, VERITY_DESC_ITEM, DESCRIPTOR_AT, &mut bytes)?;
    Descriptor::parse(&bytes).map_err(|why| bad(why.to_string())).fs()
}

/// Puts `bytes`, which begin at `at`, in pieces.
pub(crate) fn put_bytes(op: &Op<'_>, id: InodeId, kind: u8, at: u64, bytes: &[u8]) {
    for (piece, at) in bytes.chunks(PIECE).zip((at..).step_by(PIECE)) {
        op.put(id, kind, at, piece.into());
    }
}

pub(crate) fn put_descriptor(op: &Op<'_>, id: InodeId, descriptor: &[u8]) {
    let item = VerityItem { size: descriptor.len() as u64, reserved: [0; 16], encryption: 0 };
    op.put(id, VERITY_DESC_ITEM, 0, item.to_vec().into_boxed_slice());
    put_bytes(op, id, VERITY_DESC_ITEM, DESCRIPTOR_AT, descriptor);
}

const KINDS: Range<u8> = VERITY_DESC_ITEM..VERITY_MERKLE_ITEM + 1;

/// Takes up to `most` of them away; true when none is left.
pub(crate) fn drop_some(op: &Op<'_>, id: InodeId, most: usize) -> Result<bool> {
    let (first, end) = (Key::new(id.objectid, KINDS.start, 0), Key::new(id.objectid, KINDS.end, 0));
    let mut keys = Vec::new();
    let mut scan = op.view.scan_below(id.tree, first, end);
    while keys.len() < most {
        let Some((key, _)) = scan.next().fs()? else { break };
        keys.push(key);
    }
    op.run(|| op.edit(id, |o| keys.iter().for_each(|key| o.delete(key.kind, key.offset))));
    Ok(keys.len() < most)
}
