//! Content of files with fs-verity against their trees of hashes, and those against the descriptors.
//!
//! Content is read as readers get it: of a file with checksums any copy can be the good one, of one
//! without the first. Of a tree one block of each level is in memory.

use crate::content;
use crate::items::items;
use crate::refs::TreeStart;
use crate::source::Context;
use crate::{Finding, FindingKind};
use btrfs_disk::Key;
use btrfs_disk::key::kind::{INODE_ITEM, VERITY_MERKLE_ITEM};
use fs_verity::{Descriptor, Hash, Merkle};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Content that is read at a time: whole blocks, whatever their size.
/// Chosen, not measured.
const CHUNK: u64 = 1 << 20;

/// A file whose descriptor, size and items fit together.
pub(crate) struct Sealed {
    pub ino: u64,
    /// It has no checksums.
    pub unsummed: bool,
    pub descriptor: Descriptor,
}

/// Holds one file of a subvolume against its tree.
pub(crate) fn check(cx: &mut Context<'_>, start: &TreeStart, sealed: &Sealed) {
    let Ok(merkle) = sealed.descriptor.merkle() else { return };
    let levels = vec![None; merkle.levels()];
    let mut file = File { start, sealed, merkle, levels, bad: BTreeSet::new(), run: None };
    let size = file.merkle.size();
    let mut at = 0;
    while at < size {
        let len = CHUNK.min(size - at);
        file.chunk(cx, at, len as usize);
        cx.report.totals.verity_bytes += len;
        cx.step(len, 64 << 20);
        at += len;
    }
    file.end_run(cx);
}

/// A block of the tree that was held against the one above: its number, and `None` if it is bad.
type Held = Option<(u64, Option<Rc<[u8]>>)>;

struct File<'s> {
    start: &'s TreeStart,
    sealed: &'s Sealed,
    merkle: Merkle,
    levels: Vec<Held>,
    /// Places in the tree that were reported.
    bad: BTreeSet<u64>,
    /// Content that does not match, from and to.
    run: Option<(u64, u64)>,
}

impl File<'_> {
    fn chunk(&mut self, cx: &mut Context<'_>, at: u64, len: usize) {
        let size = self.merkle.block_size();
        let mut wrong: Option<Vec<u64>> = None;
        let mut buf = vec![0; len];
        let mut copy = 0;
        loop {
            let copies = content::read(cx, self.start, self.sealed.ino, (at, copy), &mut buf);
            let still: Vec<u64> = (at..)
                .step_by(size)
                .zip(buf.chunks(size))
                .filter(|(place, _)| wrong.as_ref().is_none_or(|wrong| wrong.contains(place)))
                .filter(|(place, block)| !self.matches(cx, *place, block))
                .map(|(place, _)| place)
                .collect();
            copy += 1;
            let more = !still.is_empty() && !self.sealed.unsummed && copy < copies;
            wrong = Some(still);
            if !more {
                break;
            }
        }
        for place in wrong.unwrap_or_default() {
            self.note(cx, place, (size as u64).min(self.merkle.size() - place));
        }
    }

    /// Whether a block of content is the one that was hashed; what cannot be told is no fault of it.
    fn matches(&mut self, cx: &mut Context<'_>, at: u64, block: &[u8]) -> bool {
        let hash = self.merkle.hash(block);
        self.named(cx, 0, at / self.merkle.block_size() as u64, &hash).unwrap_or(true)
    }

    /// Whether `level` has this hash of block `index` of what is below it. `None`: that is damaged itself.
    fn named(
        &mut self,
        cx: &mut Context<'_>,
        level: usize,
        index: u64,
        hash: &Hash,
    ) -> Option<bool> {
        if level == self.merkle.levels() {
            return Some(*hash == self.sealed.descriptor.root_hash);
        }
        let place = self.merkle.place(index);
        let block = self.block(cx, level, place.index)?;
        Some(hash.as_bytes() == &block[place.range])
    }

    fn block(&mut self, cx: &mut Context<'_>, level: usize, index: u64) -> Option<Rc<[u8]>> {
        if let Some((held, block)) = &self.levels[level]
            && *held == index
        {
            return block.clone();
        }
        let at = self.merkle.offset(level, index);
        let block = self.tree_bytes(cx, at).filter(|block| {
            let hash = self.merkle.hash(block);
            // Below damage everything is unknown, and no finding of its own.
            let Some(named) = self.named(cx, level + 1, index, &hash) else { return false };
            if !named && self.bad.insert(at) {
                let kind = FindingKind::VerityTree { ino: self.sealed.ino, at };
                self.add(cx, kind);
            }
            named
        });
        let block: Option<Rc<[u8]>> = block.map(Into::into);
        self.levels[level] = Some((index, block.clone()));
        block
    }

    fn tree_bytes(&self, cx: &mut Context<'_>, at: u64) -> Option<Vec<u8>> {
        let (ino, end) = (self.sealed.ino, at + self.merkle.block_size() as u64);
        let key = |at| Key::new(ino, VERITY_MERKLE_ITEM, at);
        let mut block = Vec::with_capacity(self.merkle.block_size());
        let range = (key(at), key(end - 1));
        let complete = items(cx, self.start, range, &mut |_, found, data| {
            let here = at + block.len() as u64;
            let skip = here.checked_sub(found.offset).filter(|_| found == key(found.offset));
            let rest = skip.and_then(|skip| data.get(usize::try_from(skip).ok()?..));
            let rest = rest.unwrap_or(&[]);
            block.extend_from_slice(&rest[..rest.len().min((end - here) as usize)]);
        });
        (complete && block.len() == self.merkle.block_size()).then_some(block)
    }

    /// One finding for each run of blocks.
    fn note(&mut self, cx: &mut Context<'_>, at: u64, len: u64) {
        match &mut self.run {
            Some((_, to)) if *to == at => *to += len,
            _ => {
                self.end_run(cx);
                self.run = Some((at, at + len));
            }
        }
    }

    fn end_run(&mut self, cx: &mut Context<'_>) {
        if let Some((from, to)) = self.run.take() {
            let kind = FindingKind::VerityContent { ino: self.sealed.ino, from, len: to - from };
            self.add(cx, kind);
        }
    }

    fn add(&self, cx: &mut Context<'_>, kind: FindingKind) {
        let key = Key::new(self.sealed.ino, INODE_ITEM, 0);
        cx.add(Finding::new(kind).tree(self.start.id).key(key));
    }
}
