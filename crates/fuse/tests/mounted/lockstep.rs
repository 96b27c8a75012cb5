//! Random operations through a mount of the model must answer as the model itself does.
//!
//! `SPINNEY_SEEDS` and `SPINNEY_STEPS` make the runs longer.

use crate::fixture::{Mount, able, with_transport};
use crate::spy::Spy;
use fuse::Transport;
use testkit::PosixFs;
use testkit::ops::{Config, Tolerance, explain, generate, lockstep};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn through(config: &fuse::Config) {
    if !able() {
        return;
    }
    if let Err(vfs::FsError::Unsupported(what)) = Mount::new(config) {
        println!("SKIPPED: {what}");
        return;
    }
    let tolerance = Tolerance { tree_every: 200, ..Tolerance::default() };
    let steps = number("SPINNEY_STEPS", 1000) as usize;
    let run = |ops: &[testkit::ops::Op]| {
        let mount = Mount::new(config).unwrap();
        let model = Spy { without_attributes: true, ..Spy::new() };
        let mounted = PosixFs::open(&mount.path("")).unwrap();
        lockstep(&model, &mounted, ops, &tolerance)
    };
    for seed in 1..=number("SPINNEY_SEEDS", 3) {
        // The kernel does not know of a FUSE inode that it is frozen, and where two errors
        // are due it reports its own before it asks us.
        let kinds = Config { freeze: false, ..Config::fuse() };
        let ops = generate(seed, steps, &kinds);
        if let Err(divergence) = run(&ops) {
            panic!("{}", explain(seed, &ops, divergence, run));
        }
    }
}

#[test]
fn classic() {
    through(&with_transport(Transport::Classic));
}

#[test]
fn io_uring() {
    through(&with_transport(Transport::Uring));
}

#[test]
fn writeback() {
    through(&fuse::Config { writeback: true, ..with_transport(Transport::Auto) });
}
