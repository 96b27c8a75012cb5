//! Workloads around commits: other workloads, of which parts run while a commit is held between
//! two of its writes; and several threads beside one that commits all the time.

use super::hold::{HOLDS, HOLDS_OF_READS, Hold};
use super::ops::set_xattr;
use super::rig::{Beside, Case, Rig, apply};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::durability::Witness;
use testkit::ops::{Op, Rng, hash};

/// The operations [from, to) run while a commit is held, which began after those before.
#[derive(Clone, Debug)]
pub struct Part {
    pub hold: Hold,
    pub from: usize,
    pub to: usize,
}

/// Who commits beside the workload's own `sync`.
#[derive(Clone, Default, Debug)]
pub enum Commits {
    #[default]
    Nobody,
    /// One thread's operations; the parts are in order and apart.
    Held(Vec<Part>),
    /// A thread that does nothing else, until the others are done.
    Always,
    /// The engine's own, every few milliseconds.
    Background,
}

/// Whether commits of a workload read nodes again all the time.
pub fn reads_much(seed: u64) -> bool {
    seed & 12 == 0
}

/// Parts that end with an fsync; in none is a `sync`, which would wait for the held commit.
fn plan(ops: &[Op], seed: u64) -> Vec<Part> {
    let mut rng = Rng::new(seed);
    let (mut parts, mut start) = (Vec::new(), 0);
    loop {
        let fsyncs: Vec<usize> =
            (start..ops.len()).filter(|at| matches!(ops[*at], Op::Fsync { .. })).collect();
        if fsyncs.is_empty() || !parts.is_empty() && rng.chance(20) {
            return parts;
        }
        let last = fsyncs[rng.below(fsyncs.len().min(4) as u64) as usize];
        let sync = ops[start..last].iter().rposition(|op| matches!(op, Op::Sync));
        let first = sync.map_or(start, |sync| start + sync + 1);
        let from = last - rng.below((last - first).min(6) as u64 + 1) as usize;
        let holds = if reads_much(seed) { HOLDS_OF_READS } else { HOLDS };
        parts.push(Part { hold: *rng.pick(holds), from, to: last + 1 });
        start = last + 1;
    }
}

/// `inner` with commits in it; which and where, `number` says. `None` without an fsync.
pub fn around(inner: Case, number: u64) -> Option<Case> {
    let name = format!("inside:{number}:{}", inner.name);
    let seed = hash(name.as_bytes());
    let parts = plan(&inner.threads[0], seed);
    let found = !parts.is_empty();
    found.then_some(Case { name, seed, commits: Commits::Held(parts), ..inner })
}

/// Applies the operations, each part while a commit is held.
pub fn apply_in_parts(
    rig: &Rig,
    beside: Beside<'_>,
    witness: &mut Witness<'_>,
    ops: &[Op],
    parts: &[Part],
) -> Result<(), String> {
    let gate = beside.gate;
    let mut done = 0;
    for (number, part) in parts.iter().enumerate() {
        apply(rig, beside, witness, &ops[done..part.from])?;
        // Or there may be nothing to commit.
        apply(rig, beside, witness, &[set_xattr("t0", "user.turn", 9, number as u64)])?;
        gate.arm(part.hold);
        std::thread::scope(|scope| {
            let committer = scope.spawn(|| commit(beside));
            rig.tally.held.fetch_add(gate.wait_held() as usize, Ordering::Relaxed);
            let applied = apply(rig, beside, witness, &ops[part.from..part.to]);
            gate.release();
            let committed = committer.join();
            applied.and(committed.unwrap_or_else(|_| Err("the commit panicked".to_owned())))
        })?;
        done = part.to;
    }
    apply(rig, beside, witness, &ops[done..])
}

fn commit(beside: Beside<'_>) -> Result<(), String> {
    let Beside { fs, history, gate, device } = beside;
    let sync = || history.sync_beside(&|| device.position(), || fs.sync());
    gate.commit(sync).map_err(|error| format!("a commit: {error}"))
}

/// Commits until `stop`.
pub fn commit_always(beside: Beside<'_>, stop: &AtomicBool) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        commit(beside)?;
        std::thread::yield_now();
    }
    Ok(())
}
