//! Files of which the last commit has content: cut, written again, made holes in and grown, in any order, and synced
//! on the way. What is a hole then has no item, and the log must say so wherever the commit has something else.
//!
//! It does not know which sequences are dangerous: it mixes what changes the ranges of a file.

use super::ops::*;
use super::rig::{Case, all_succeed, case};
use testkit::ops::{Op, Rng};
use vfs::FallocateMode;

/// What begins with whole extents, with one, and inline.
const FILES: &[&str] = &["B/big", "A/foo", "A/bar"];

/// Lengths on all sides of a sector, of an inline item, and of what goes straight to an extent.
const LENGTHS: &[u64] =
    &[50, 900, 4096, 5000, 8192, 12_288, 30_000, 65_536, 100_000, 140_000, 200_000];

fn place(rng: &mut Rng) -> u64 {
    match rng.below(3) {
        0 => 0,
        1 => *rng.pick(LENGTHS),
        _ => rng.below(40) * 4096,
    }
}

fn cut(file: &str, rng: &mut Rng) -> Op {
    truncate(file, if rng.chance(50) { 0 } else { place(rng) })
}

/// One change of `file`, or a sync of it.
fn step(file: &str, rng: &mut Rng, seed: u64) -> Op {
    let (at, len) = (place(rng), *rng.pick(LENGTHS));
    let other = *rng.pick(FILES);
    match rng.below(100) {
        0..18 => cut(file, rng),
        18..32 => append(file, len as usize, seed),
        32..46 => write(file, at, len as usize, seed),
        46..68 => punch(file, at, len.next_multiple_of(4096)),
        68..72 => punch(file, at, len),
        72..78 => {
            let keep_size = rng.chance(50);
            fallocate(file, FallocateMode::ZeroRange { keep_size }, at, len)
        }
        78..82 => prealloc(file, at, len),
        82..85 => fallocate(file, FallocateMode::Allocate, at, len),
        85..90 => clone_part(other, 4096 * rng.below(3), file, 4096 * rng.below(20), 8192),
        90..92 => sync(),
        92..95 => fdatasync(file),
        _ => fsync(file),
    }
}

/// One of them, of a few steps; those that have nothing to act on are left out.
pub fn nth(number: u64) -> Case {
    let mut rng = Rng::new(number ^ 0x9e70);
    let file = *rng.pick(FILES);
    let mut ops = vec![cut(file, &mut rng)];
    for position in 0..3 + rng.below(5) {
        ops.push(step(file, &mut rng, number ^ position << 56));
        if !all_succeed(&ops) {
            ops.pop();
        }
    }
    ops.push(fsync(file));
    case(format!("regrown:{number}"), ops)
}

/// In no order, without end.
pub fn sample(seed: u64) -> impl Iterator<Item = Case> + Send {
    let mut rng = Rng::new(seed ^ 0x6109);
    std::iter::repeat_with(move || nth(rng.below(1 << 40)))
}
