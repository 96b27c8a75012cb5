//! Immutable, sparse content of a device: blocks over the blocks of another image.
//!
//! Invariants: an image never changes; a block that no layer has reads as zeros. Cloning
//! is cheap.

use crate::rng::{Rng, seed_of};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// What layers are made of.
pub const BLOCK: u64 = 4096;
/// What is exported in one write at most, but for a block: large enough that the calls cost nothing.
const EXPORTED: usize = 1 << 20;
/// What a crash tears writes into.
pub const SECTOR: u64 = 512;

type Bytes = [u8; BLOCK as usize];

/// One of an image. What tests fill files with is made of a seed, and need not be kept.
#[derive(Clone)]
pub(crate) enum Block {
    Kept(Arc<Bytes>),
    Filled(u64),
}

impl Block {
    pub(crate) fn of(bytes: &Bytes) -> Block {
        seed_of(bytes).map_or_else(|| Block::Kept(Arc::new(*bytes)), Block::Filled)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Block::Kept(bytes) => **bytes,
            Block::Filled(seed) => {
                let mut bytes = [0; BLOCK as usize];
                Rng::new(*seed).fill(&mut bytes);
                bytes
            }
        }
    }

    /// Fills `buf` from `within`.
    pub(crate) fn read(&self, within: usize, buf: &mut [u8]) {
        match self {
            Block::Kept(bytes) => buf.copy_from_slice(&bytes[within..][..buf.len()]),
            Block::Filled(_) => buf.copy_from_slice(&self.bytes()[within..][..buf.len()]),
        }
    }

    fn write(&mut self, within: usize, data: &[u8]) {
        if let Block::Filled(_) = self {
            *self = Block::Kept(Arc::new(self.bytes()));
        }
        if let Block::Kept(bytes) = self {
            Arc::make_mut(bytes)[within..][..data.len()].copy_from_slice(data);
        }
    }

    /// Holds the same bytes as `other` once, if they are the same.
    pub(crate) fn share(&mut self, other: &Block) {
        if let (Block::Kept(ours), Block::Kept(theirs)) = (&*self, other)
            && !Arc::ptr_eq(ours, theirs)
            && ours == theirs
        {
            *self = other.clone();
        }
    }
}

pub(crate) type Blocks = HashMap<u64, Block>;

#[derive(Clone)]
pub struct Image(Arc<Layer>);

struct Layer {
    len: u64,
    below: Option<Image>,
    blocks: Blocks,
}

impl Image {
    pub fn zeros(len: u64) -> Image {
        Image(Arc::new(Layer { len, below: None, blocks: Blocks::new() }))
    }

    pub(crate) fn over(below: &Image, blocks: Blocks) -> Image {
        let len = below.len();
        Image(Arc::new(Layer { len, below: Some(below.clone()), blocks }))
    }

    pub fn len(&self) -> u64 {
        self.0.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn block(&self, number: u64) -> Option<&Block> {
        let mut layer = &self.0;
        loop {
            if let Some(block) = layer.blocks.get(&number) {
                return Some(block);
            }
            layer = &layer.below.as_ref()?.0;
        }
    }

    /// Fills `buf` from `offset`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.len(), offset, buf.len() as u64)?;
        for piece in pieces(offset, buf.len()) {
            let part = &mut buf[piece.range];
            match self.block(piece.block) {
                Some(block) => block.read(piece.within, part),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    /// One layer with the same content.
    pub fn flatten(&self) -> Image {
        let blocks = self.numbers().into_iter().filter_map(|n| Some((n, self.block(n)?.clone())));
        let blocks = blocks.collect();
        Image(Arc::new(Layer { len: self.len(), below: None, blocks }))
    }

    /// Blocks that some layer has.
    fn numbers(&self) -> HashSet<u64> {
        let mut numbers = HashSet::new();
        let mut layer = Some(self);
        while let Some(Image(inner)) = layer {
            numbers.extend(inner.blocks.keys());
            layer = inner.below.as_ref();
        }
        numbers
    }

    /// Makes a sparse file of it, for judges outside.
    pub fn export(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.len())?;
        // What follows each other goes in one write, zeros in none: judges want many images.
        let mut numbers: Vec<u64> = self.numbers().into_iter().collect();
        numbers.sort_unstable();
        let (mut from, mut run) = (0, Vec::new());
        for number in numbers {
            let Some(block) = self.block(number) else { continue };
            let at = number * BLOCK;
            let len = BLOCK.min(self.len() - at) as usize;
            let bytes = &block.bytes()[..len];
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            if from + run.len() as u64 != at || run.len() >= EXPORTED {
                file.write_all_at(&run, from)?;
                run.clear();
                from = at;
            }
            run.extend_from_slice(bytes);
        }
        file.write_all_at(&run, from)
    }

    /// The content of a file.
    pub fn import(path: &Path) -> io::Result<Image> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut blocks = Blocks::new();
        let mut buf = vec![0; 1 << 20];
        for start in (0..len).step_by(buf.len()) {
            let part = &mut buf[..(len - start).min(1 << 20) as usize];
            file.read_exact_at(part, start)?;
            for (i, bytes) in part.chunks(BLOCK as usize).enumerate() {
                if bytes.iter().any(|byte| *byte != 0) {
                    let mut block = [0; BLOCK as usize];
                    block[..bytes.len()].copy_from_slice(bytes);
                    blocks.insert(start / BLOCK + i as u64, Block::of(&block));
                }
            }
        }
        Ok(Image(Arc::new(Layer { len, below: None, blocks })))
    }
}

pub(crate) fn check_range(len: u64, offset: u64, want: u64) -> io::Result<()> {
    match offset.checked_add(want) {
        Some(end) if end <= len => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range behind the end")),
    }
}

/// The part of a range that is in one block.
pub(crate) struct Piece {
    pub block: u64,
    pub within: usize,
    /// Of the caller's buffer.
    pub range: std::ops::Range<usize>,
}

pub(crate) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK) as usize;
        let take = (len - done).min(BLOCK as usize - within);
        let range = done..done + take;
        done += take;
        (take > 0).then_some(Piece { block: at / BLOCK, within, range })
    })
}

/// Puts bytes into `blocks`, which lie over `below`.
pub(crate) fn put(blocks: &mut Blocks, below: &Image, offset: u64, data: &[u8]) {
    for piece in pieces(offset, data.len()) {
        let part = &data[piece.range];
        if let Ok(whole) = part.try_into() {
            blocks.insert(piece.block, Block::of(whole));
            continue;
        }
        let block = blocks.entry(piece.block).or_insert_with(|| {
            let old = below.block(piece.block).cloned();
            old.unwrap_or_else(|| Block::Kept(Arc::new([0; BLOCK as usize])))
        });
        block.write(piece.within, part);
    }
}
