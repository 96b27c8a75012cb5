//! The model in lockstep with a mount of the program: thousands of random operations
//! through system calls, FUSE and the engine must answer as the model does; then the
//! kernel and btrfs-progs judge the volume.
//!
//! `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_STEPS` choose others and more.

use std::path::PathBuf;
use std::time::Duration;

use suites::{Mounted, Volume, lacking, number};
use testkit::ops::{
    Config, Op, OpKind, Tolerance, check_private_trees, check_shared_tree, explain, generate,
    lockstep,
};
use testkit::{PosixFs, Profile, RefFs, skip};

/// The kernel does not know of a FUSE inode that it is frozen, and where two errors are
/// due it reports its own before it asks the server (docs/SEMANTICS.md).
fn without_freezing(config: Config) -> Config {
    Config { freeze: false, ..config }
}

fn tolerance() -> Tolerance {
    Tolerance { profile: Profile::FUSE, ..Tolerance::default() }
}

fn fresh_dir(mount: &Mounted, run: usize) -> PathBuf {
    let path = mount.join(&format!("run{run}"));
    std::fs::create_dir(&path).unwrap();
    path
}

fn in_lockstep(transport: &str, config: &Config) {
    if let Some(why) = lacking(transport) {
        skip!("{why}");
    }
    let volume = Volume::new("model", 2 << 30);
    let mount = volume.mount(transport, Duration::from_secs(number("SPINNEY_SUITE_LIMIT", 300)));
    let tolerance = Tolerance { tree_every: 500, ..tolerance() };
    let (first, steps) = (number("SPINNEY_SEED", 1), number("SPINNEY_STEPS", 1500) as usize);
    let mut runs = 0;
    let mut run = |ops: &[Op]| {
        runs += 1;
        let path = fresh_dir(&mount, runs);
        lockstep(&RefFs::like(tolerance.profile), &PosixFs::open(&path).unwrap(), ops, &tolerance)
    };
    for seed in first..first + number("SPINNEY_SEEDS", 2) {
        let ops = generate(seed, steps, config);
        if let Err(divergence) = run(&ops) {
            panic!("{}", explain(seed, &ops, divergence, run));
        }
    }
    let seen = mount.unmount_with_tree();
    volume.judge_mount(&seen, transport);
}

#[test]
fn everything_over_uring() {
    in_lockstep("uring", &without_freezing(Config::fuse()));
}

#[test]
fn everything_over_classic() {
    in_lockstep("classic", &without_freezing(Config::fuse()));
}

#[test]
fn everything_with_writeback() {
    in_lockstep("uring,writeback", &without_freezing(Config::fuse()));
}

#[test]
fn content_with_writeback() {
    let config = Config::data().without(&[OpKind::CloneRange]);
    in_lockstep("uring,writeback", &without_freezing(config));
}

#[test]
fn content_over_uring() {
    in_lockstep("uring", &without_freezing(Config::data()).without(&[OpKind::CloneRange]));
}

fn many_clients(transport: &str) {
    if let Some(why) = lacking(transport) {
        skip!("{why}");
    }
    let volume = Volume::new("clients", 2 << 30);
    let mount = volume.mount(transport, Duration::from_secs(number("SPINNEY_SUITE_LIMIT", 300)));
    let (config, tolerance) = (without_freezing(Config::fuse()), tolerance());
    let (private, shared) = (fresh_dir(&mount, 1), fresh_dir(&mount, 2));
    let steps = number("SPINNEY_STEPS", 1500) as usize;
    let seed = number("SPINNEY_SEED", 1);
    let fs = PosixFs::open(&private).unwrap();
    let told = |why: String| panic!("SPINNEY_SEED={seed}: {why}");
    check_private_trees(&fs, 169 + seed, 4, steps, &config, &tolerance).unwrap_or_else(told);
    drop(fs);
    let fs = PosixFs::open(&shared).unwrap();
    check_shared_tree(&fs, 179 + seed, 4, steps, &config).unwrap_or_else(told);
    drop(fs);
    let seen = mount.unmount_with_tree();
    volume.judge_mount(&seen, transport);
}

#[test]
fn many_clients_over_uring() {
    many_clients("uring");
}

#[test]
fn many_clients_over_classic() {
    many_clients("classic");
}
