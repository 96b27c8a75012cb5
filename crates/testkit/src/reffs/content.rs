//! The bytes of one file: a map of 4 KiB blocks with holes between them.
//!
//! Invariants: no block lies wholly behind the size unless it is preallocated there;
//! every byte of a written block behind the size is zero, so growing a file shows
//! zeros without further work.
//!
//! Not known here: inodes, times, sharing (a clone is a copy in this model).

use std::collections::BTreeMap;

pub(super) const BLOCK: u64 = 4096;

#[derive(Clone)]
enum Block {
    Written(Box<[u8]>),
    /// Written, and what a seed fills, up to there; zeros behind. Tests write little else.
    Filled {
        seed: u64,
        len: u16,
    },
    /// Allocated, reads as zeros, seeks as a hole.
    Prealloc,
}

impl Block {
    /// With `bytes`, which are held as the seed that makes them if there is one.
    fn written(bytes: Box<[u8]>) -> Block {
        let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        match blocksim::seed_of(&bytes[..len]) {
            Some(seed) => Block::Filled { seed, len: len as u16 },
            None => Block::Written(bytes),
        }
    }

    fn bytes(&self) -> Box<[u8]> {
        let mut bytes: Box<[u8]> = vec![0; BLOCK as usize].into();
        match self {
            Block::Written(written) => bytes.copy_from_slice(written),
            Block::Filled { seed, len } => {
                blocksim::Rng::new(*seed).fill(&mut bytes[..usize::from(*len)]);
            }
            Block::Prealloc => {}
        }
        bytes
    }

    /// `zeros`: also if there are only zeros.
    fn is_data(&self, zeros: bool) -> bool {
        match self {
            Block::Written(bytes) => zeros || bytes.iter().any(|&byte| byte != 0),
            Block::Filled { .. } => true,
            Block::Prealloc => false,
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Content {
    pub size: u64,
    blocks: BTreeMap<u64, Block>,
}

/// The part of block `index` that `start..end` covers, as offsets inside the block.
fn overlap(index: u64, start: u64, end: u64) -> (usize, usize) {
    let base = index * BLOCK;
    ((start.max(base) - base) as usize, (end.min(base + BLOCK) - base) as usize)
}

impl Content {
    /// Blocks that are written or preallocated.
    pub fn allocated(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let end = self.size.min(offset.saturating_add(buf.len() as u64));
        if offset >= end {
            return 0;
        }
        let len = (end - offset) as usize;
        buf[..len].fill(0);
        for index in offset / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = overlap(index, offset, end);
            let part = &mut buf[(index * BLOCK + from as u64 - offset) as usize..][..to - from];
            match self.blocks.get(&index) {
                Some(Block::Written(bytes)) => part.copy_from_slice(&bytes[from..to]),
                Some(filled @ Block::Filled { .. }) => {
                    part.copy_from_slice(&filled.bytes()[from..to]);
                }
                Some(Block::Prealloc) | None => {}
            }
        }
        len
    }

    /// Changes the block as written bytes; what was a hole becomes zeros.
    fn change(&mut self, index: u64, change: impl FnOnce(&mut [u8])) {
        let block = self.blocks.entry(index).or_insert(Block::Prealloc);
        let mut bytes = match std::mem::replace(block, Block::Prealloc) {
            Block::Written(bytes) => bytes,
            other => other.bytes(),
        };
        change(&mut bytes);
        *block = Block::written(bytes);
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        self.grow(offset);
        for index in offset / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = overlap(index, offset, end);
            let at = (index * BLOCK + from as u64 - offset) as usize;
            let part = &data[at..at + to - from];
            self.change(index, |block| block[from..to].copy_from_slice(part));
        }
        self.size = self.size.max(end);
    }

    /// Raises the size.
    pub fn grow(&mut self, size: u64) {
        if size > self.size {
            self.settle_end();
            self.size = size;
        }
    }

    /// Where something happens behind the end, btrfs rewrites the block that holds the
    /// end: a hole there turns into data.
    pub fn settle_end(&mut self) {
        if !self.size.is_multiple_of(BLOCK) {
            self.change(self.size / BLOCK, |_| {});
        }
    }

    pub fn truncate(&mut self, size: u64) {
        if size > self.size {
            return self.grow(size);
        }
        self.blocks.split_off(&size.div_ceil(BLOCK));
        let last = size / BLOCK;
        if let Some(Block::Written(_) | Block::Filled { .. }) = self.blocks.get(&last) {
            self.change(last, |block| block[(size % BLOCK) as usize..].fill(0));
        }
        self.size = size;
    }

    /// True if no block that `start..end` touches is written or preallocated.
    pub fn is_hole(&self, start: u64, end: u64) -> bool {
        self.blocks.range(start / BLOCK..end.div_ceil(BLOCK)).next().is_none()
    }

    /// Whole blocks of `start..end` become holes, parts of blocks become zeros (and data,
    /// where they were preallocated).
    pub fn punch(&mut self, start: u64, end: u64) {
        for index in start / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = overlap(index, start, end);
            if (from, to) == (0, BLOCK as usize) {
                self.blocks.remove(&index);
            } else if self.blocks.contains_key(&index) && index * BLOCK < self.size {
                self.change(index, |block| block[from..to].fill(0));
            }
        }
    }

    /// Whole blocks of `start..end`, and holes at the edges, end up preallocated; parts
    /// of written blocks become zeros.
    pub fn zero(&mut self, start: u64, end: u64) {
        for index in start / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = overlap(index, start, end);
            match self.blocks.get(&index) {
                Some(Block::Written(_) | Block::Filled { .. }) if to - from < BLOCK as usize => {
                    self.change(index, |block| block[from..to].fill(0));
                }
                _ => {
                    self.blocks.insert(index, Block::Prealloc);
                }
            }
        }
    }

    /// Holes that `start..end` touches become preallocated blocks.
    pub fn allocate(&mut self, start: u64, end: u64) {
        for index in start / BLOCK..end.div_ceil(BLOCK) {
            self.blocks.entry(index).or_insert(Block::Prealloc);
        }
    }

    /// Blocks as they stand in `from` (holes stay holes); all numbers are multiples of
    /// the block size but `len`, which may end with the source's last, partial block.
    pub fn clone_blocks(&mut self, from: &Content, from_offset: u64, offset: u64, len: u64) {
        self.grow(offset);
        let (first, to) = (from_offset / BLOCK, offset / BLOCK);
        for step in 0..len.div_ceil(BLOCK) {
            match from.blocks.get(&(first + step)) {
                Some(block) => self.blocks.insert(to + step, block.clone()),
                None => self.blocks.remove(&(to + step)),
            };
        }
        self.size = self.size.max(offset + len);
    }

    /// First offset at or behind `offset`, below the size, that is data.
    pub fn next_data(&self, offset: u64, zeros: bool) -> Option<u64> {
        self.blocks
            .range(offset / BLOCK..self.size.div_ceil(BLOCK))
            .find(|(_, block)| block.is_data(zeros))
            .map(|(index, _)| offset.max(index * BLOCK))
    }

    /// First offset at or behind `offset` (below the size) that is a hole, or the size.
    pub fn next_hole(&self, offset: u64, zeros: bool) -> u64 {
        let mut index = offset / BLOCK;
        while self.blocks.get(&index).is_some_and(|block| block.is_data(zeros)) {
            index += 1;
        }
        offset.max(index * BLOCK).min(self.size)
    }
}
