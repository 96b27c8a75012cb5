//! Long random workloads: one thread, or several in directories of their own.

use super::base::THREADS;
use super::inside::Commits;
use super::rig::Case;
use testkit::ops::{Config, Generator, Op, OpKind, Rng, Target};

fn config() -> Config {
    let mut config = Config::all().without(&[
        // They change nothing, or make files that nothing can be done with.
        OpKind::Read,
        OpKind::Stat,
        OpKind::Seek,
        OpKind::Readlink,
        OpKind::Readdir,
        OpKind::GetXattr,
        OpKind::Fsync,
        OpKind::Sync,
        // The generator's slots are of no use without them.
        OpKind::Flags,
    ]);
    (config.names, config.depth, config.max_size) = (4, 2, 160 << 10);
    (config.callers, config.freeze) = (false, false);
    config
}

/// `steps` operations; after about every fourth something that they touched is synced.
fn ops(seed: u64, steps: usize) -> Vec<Op> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut list = Vec::new();
    let mut recent: Vec<Target> = Vec::new();
    for op in Generator::new(seed, config()).take(steps) {
        // The smaller nodes have no room for it, and the model knows only the larger ones.
        if matches!(&op, Op::SetXattr { value, .. } if value.0.len() > 5000) {
            continue;
        }
        recent.extend(op.touches());
        list.push(op);
        let keep = recent.len().saturating_sub(8);
        recent.drain(..keep);
        match rng.below(100) {
            0..2 => list.push(Op::Sync),
            2..25 if !recent.is_empty() => {
                let target = rng.pick(&recent).clone();
                list.push(Op::Fsync { target, datasync: rng.chance(25) });
            }
            _ => {}
        }
    }
    list
}

/// One thread.
pub fn single(seed: u64, steps: usize) -> Case {
    Case::new(format!("random:{seed}:{steps}"), seed, vec![ops(seed, steps)])
}

/// Several at once. What is written when depends on who runs when, so a failure may need some
/// tries to come again.
pub fn threads(seed: u64, steps: usize) -> Case {
    let threads = (0..THREADS as u64).map(|number| ops(seed * 100 + number, steps)).collect();
    Case::new(format!("threads:{seed}:{steps}"), seed, threads)
}

/// As `threads`, beside commits all the time, of a slow device: the engine's own with every
/// third seed.
pub fn commits(seed: u64, steps: usize) -> Case {
    let commits = if seed % 3 == 2 { Commits::Background } else { Commits::Always };
    Case { name: format!("commits:{seed}:{steps}"), commits, ..threads(seed, steps) }
}
