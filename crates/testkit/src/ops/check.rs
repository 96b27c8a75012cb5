//! The whole test in one call: generate, run in lockstep, and on a divergence shrink
//! and tell.

use vfs::FileSystem;

use super::config::Config;
use super::generate::generate;
use super::lockstep::{Divergence, Tolerance, lockstep};
use super::op::Op;
use super::shrink::{listing, minimise};
use crate::RefFs;

/// Runs `steps` operations from `seed` against a fresh model and a fresh file system
/// of `make`. The error is a report with a short failing sequence.
pub fn check_against_model<F: FileSystem>(
    seed: u64,
    steps: usize,
    config: &Config,
    tolerance: &Tolerance,
    mut make: impl FnMut() -> F,
) -> Result<(), String> {
    let ops = generate(seed, steps, config);
    let mut run = |ops: &[Op]| lockstep(&RefFs::like(tolerance.profile), &make(), ops, tolerance);
    let Err(divergence) = run(&ops) else { return Ok(()) };
    Err(explain(seed, &ops, divergence, run))
}

/// The report on a divergence; `run` repeats a sequence from the start.
pub fn explain(
    seed: u64,
    ops: &[Op],
    divergence: Divergence,
    mut run: impl FnMut(&[Op]) -> Result<(), Divergence>,
) -> String {
    let failing = &ops[..divergence.steps().min(ops.len())];
    let signature = divergence.signature();
    let fails = |ops: &[Op]| run(ops).is_err_and(|found| found.signature() == signature);
    let short = minimise(failing, fails);
    let Err(again) = run(&short) else {
        let last = listing(&failing[failing.len().saturating_sub(10)..]);
        return format!(
            "seed {seed} diverged, but not every time:\n{divergence}\nlast operations:\n{last}"
        );
    };
    format!(
        "seed {seed} diverged:\n{divergence}\nshortest sequence found ({} operations):\n{}{again}",
        short.len(),
        listing(&short)
    )
}
