//! Where in the tree which hash is.
//!
//! Level 0 has the hashes of the content's blocks, each level above those of the blocks of the one
//! below, the top level is one block. The tree begins with the top. Content of one block has no
//! tree: its hash is the root hash.

use crate::Bad;
use crate::hash::{Hash, HashAlgorithm, MAX_SALT, Salted};
use std::ops::Range;

/// Levels of a tree, at most.
pub const MAX_LEVELS: usize = 8;
const LOG_BLOCKS: std::ops::RangeInclusive<u8> = 10..=16;

/// What a tree is made with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    pub(crate) algorithm: HashAlgorithm,
    pub(crate) log_block: u8,
    pub(crate) salt: Vec<u8>,
}

impl Params {
    /// Blocks are of 1 KiB to 64 KiB, a power of two; salts of up to 32 bytes.
    pub fn new(algorithm: HashAlgorithm, block_size: u32, salt: &[u8]) -> Result<Params, Bad> {
        if !block_size.is_power_of_two() {
            return Err(Bad(format!("verity block of {block_size} bytes")));
        }
        let log_block = u8::try_from(block_size.trailing_zeros()).expect("of 32 bits at most");
        Params::with_log(algorithm, log_block, salt)
    }

    pub(crate) fn with_log(algo: HashAlgorithm, log_block: u8, salt: &[u8]) -> Result<Params, Bad> {
        if !LOG_BLOCKS.contains(&log_block) {
            return Err(Bad(format!("verity block of 2^{log_block} bytes")));
        }
        if salt.len() > MAX_SALT {
            return Err(Bad(format!("verity salt of {} bytes", salt.len())));
        }
        Ok(Params { algorithm: algo, log_block, salt: salt.to_vec() })
    }

    /// How blocks are hashed.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        1 << self.log_block
    }

    /// Hashes that a block of the tree has.
    fn hashes_in_block(&self) -> u64 {
        let size = u32::try_from(self.algorithm.size()).expect("64 bytes at most");
        u64::from(self.block_size() / size)
    }

    /// What each block has in front.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }
}

/// The tree over content of a certain size: its shape, and how its blocks are hashed.
#[derive(Debug)]
pub struct Merkle {
    salted: Salted,
    algorithm: HashAlgorithm,
    log_block: u8,
    /// Hashes that a block of the tree has.
    each: u64,
    size: u64,
    /// From level 0 up: number of the first block in the tree, and how many.
    levels: Vec<(u64, u64)>,
}

/// Where the hash of a block is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HashLocation {
    /// Number of the block in its level.
    pub index: u64,
    /// Bytes in that block.
    pub range: Range<usize>,
}

impl Merkle {
    /// Of content of `size` bytes.
    pub fn new(params: &Params, size: u64) -> Result<Merkle, Bad> {
        let log_block = params.log_block;
        let each = params.hashes_in_block();
        let mut counts = Vec::new();
        let mut blocks = size.div_ceil(1 << log_block);
        while blocks > 1 {
            if counts.len() == MAX_LEVELS {
                return Err(Bad(format!("verity tree over {size} bytes has too many levels")));
            }
            blocks = blocks.div_ceil(each);
            counts.push(blocks);
        }
        let mut first = 0;
        let mut levels: Vec<(u64, u64)> = Vec::with_capacity(counts.len());
        for count in counts.iter().rev() {
            levels.push((first, *count));
            first += count;
        }
        levels.reverse();
        let salted = Salted::new(params.algorithm, &params.salt);
        Ok(Merkle { salted, algorithm: params.algorithm, log_block, each, size, levels })
    }

    /// Bytes of a block, of the content as of the tree.
    pub fn block_size(&self) -> usize {
        1 << self.log_block
    }

    /// Bytes of content.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the tree.
    pub fn tree_size(&self) -> u64 {
        self.levels.iter().map(|(_, count)| count << self.log_block).sum()
    }

    /// How many levels it has.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Of a block; what it lacks in length is zeros.
    pub fn hash(&self, block: &[u8]) -> Hash {
        self.salted.hash(block, self.block_size().saturating_sub(block.len()))
    }

    /// Where `level` has the hash of block `index` of what is below it.
    pub fn place(&self, index: u64) -> HashLocation {
        let size = self.algorithm.size();
        let within = usize::try_from(index % self.each).expect("less than a block has");
        let at = within * size;
        HashLocation { index: index / self.each, range: at..at + size }
    }

    /// Where in the tree block `index` of `level` begins, in bytes.
    pub fn offset(&self, level: usize, index: u64) -> u64 {
        (self.levels[level].0 + index) << self.log_block
    }

    pub(crate) fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }
}
