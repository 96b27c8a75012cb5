//! Many threads on one file system at once.
//!
//! Each in a directory of its own: then each must see exactly what its own model says.
//! All on the same names: then no single answer can be foretold, but nothing may hang
//! or break, and the tree must make sense when all are done.

use std::thread;

use vfs::{Context, FileSystem, Ino};

use super::config::Config;
use super::generate::generate;
use super::lockstep::{Subject, Tolerance, lockstep_below};
use super::session::Session;
use crate::RefFs;
use crate::compare::TreeSnapshot;

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0o022 };

/// Runs `work` for 0..`threads` at the same time; the first error (or panic) wins.
fn together(threads: u64, work: impl Fn(u64) -> Result<(), String> + Sync) -> Result<(), String> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        let ends: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        ends.into_iter().try_for_each(|end| match end {
            Ok(result) => result,
            Err(_) => Err("a thread panicked".to_owned()),
        })
    })
}

/// Every thread works in `dir<number>`, in lockstep with a model of its own.
pub fn check_private_trees(
    fs: &dyn FileSystem,
    seed: u64,
    threads: u64,
    steps: usize,
    config: &Config,
    tolerance: &Tolerance,
) -> Result<(), String> {
    together(threads, |number| {
        let name = format!("dir{number}");
        let made = fs.mkdir(&CX, fs.root(), name.as_bytes(), 0o755);
        let root: Ino = made.map_err(|error| format!("mkdir {name}: {error}"))?.attr.ino;
        let ops = generate(seed + number, steps, config);
        let model = RefFs::like(tolerance.profile);
        let tested = Subject { fs, root };
        let result = lockstep_below(Subject::whole(&model), tested, &ops, tolerance);
        fs.forget(root, 1);
        result.map_err(|divergence| format!("{name}, seed {}: {divergence}", seed + number))
    })
}

/// All threads work on the same names. The volume should be empty before.
pub fn check_shared_tree(
    fs: &dyn FileSystem,
    seed: u64,
    threads: u64,
    steps: usize,
    config: &Config,
) -> Result<(), String> {
    together(threads, |number| {
        let mut session = Session::new(fs).among_others();
        for op in generate(seed + number, steps, config) {
            session.apply(&op);
        }
        Ok(())
    })?;
    let tree = TreeSnapshot::of(fs).map_err(|error| format!("the tree cannot be read: {error}"))?;
    let wrong = tree.contradictions();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}
