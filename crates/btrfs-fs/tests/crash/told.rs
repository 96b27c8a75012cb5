//! Content that is gone before any commit has it, on a device that is told of what is free and
//! forgets it: what a log names is there after a crash, and so is what came in its place.

use super::ops::*;
use super::rig::Case;
use testkit::ops::Op;

/// So long that it goes straight to an extent.
const LONG: usize = 200_000;

fn ops() -> Vec<Op> {
    let mut ops = Vec::new();
    for turn in 0..3 {
        let seed = 10 * turn;
        ops.extend([
            create("A/gone"),
            write("A/gone", 0, LONG, seed),
            create("A/logged"),
            write("A/logged", 0, LONG, seed + 1),
            fsync("A/logged"),
            unlink("A/gone"),
            create("A/next"),
            write("A/next", 0, LONG, seed + 2),
            fsync("A/next"),
            unlink("A/logged"),
            write("A/next", 0, LONG, seed + 3),
            write("A/next", 0, LONG, seed + 4),
            fsync("A/next"),
            sync(),
            create("A/later"),
            write("A/later", 0, LONG, seed + 5),
            fsync("A/later"),
            truncate("A/later", 0),
            write("A/next", 4096, LONG, seed + 6),
            fsync("A/next"),
            unlink("A/later"),
            unlink("A/next"),
            sync(),
        ]);
    }
    ops
}

/// On either volume; the seed's second bit has the device told.
pub fn case(seed: u64) -> Case {
    Case::new(format!("told:{seed}"), seed | 2, vec![ops()])
}
