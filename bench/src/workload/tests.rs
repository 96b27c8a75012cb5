//! Every workload must run on both kinds of target, do the work it says, and leave
//! nothing behind.

use super::*;
use crate::target::tests::Scratch;
use crate::target::{OpenDir, PosixDir, VfsTarget};
use std::collections::BTreeSet;
use std::sync::Arc;
use testkit::RefFs;

fn each_workload(target: &dyn Target, scratch: &Path) {
    let sizes = Sizes::scaled(0.0, 4 << 20);
    let material = Material::new(scratch, &sizes, Path::new("/nonexistent"));
    for workload in all() {
        let info = workload.info();
        // Programs are slow and may be missing; their output is tested on its own.
        if ["dbench", "fio", "fs-mark"].iter().any(|program| info.name.starts_with(program)) {
            continue;
        }
        let on_trees = ["cp-a", "find-", "grep-", "git-", "npm-"];
        if target.host_path().is_none() && on_trees.iter().any(|p| info.name.starts_with(p)) {
            continue;
        }
        let dir = OpenDir::make(target, target.root(), c"work").unwrap();
        let env = Env { target, dir: dir.id, dir_name: "work", sizes: &sizes, material: &material };
        workload.setup(&env).unwrap_or_else(|e| panic!("{}: setup: {e}", info.name));
        let done = workload.run(&env).unwrap_or_else(|e| panic!("{}: run: {e}", info.name));
        assert!(done.amount >= 1.0 && done.rate() > 0.0, "{}", info.name);
        workload.teardown(&env).unwrap_or_else(|e| panic!("{}: teardown: {e}", info.name));
        assert_eq!(target.list_long(dir.id).unwrap(), 0, "{} leaves something", info.name);
        drop(dir);
        target.rmdir(target.root(), c"work").unwrap();
    }
}

#[test]
fn all_run_on_a_directory() {
    let scratch = Scratch::new("workloads");
    let root = scratch.0.join("root");
    std::fs::create_dir(&root).unwrap();
    each_workload(&PosixDir::open(&root).unwrap(), &scratch.0);
}

#[test]
fn all_run_on_the_library() {
    let scratch = Scratch::new("workloads-library");
    let fs = Arc::new(RefFs::new());
    each_workload(&VfsTarget::new(fs.clone()), &scratch.0);
    assert_eq!(fs.held_references(), 0);
}

#[test]
fn names_are_unique_and_can_be_selected() {
    let names: Vec<&str> = all().iter().map(|w| w.info().name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    let pick = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|p| p.to_string()).collect();
        select(&patterns).map(|list| list.iter().map(|w| w.info().name).collect::<Vec<_>>())
    };
    assert_eq!(pick(&["stat-hot", "create-1t"]).unwrap(), ["create-1t", "stat-hot"]);
    assert_eq!(pick(&["unlink-*"]).unwrap(), ["unlink-1t", "unlink-2t"]);
    assert_eq!(pick(&["nonsense"]).unwrap_err(), "nonsense");
    assert!(!pick(&[]).unwrap().contains(&"dbench-8"), "programs are not standard");
}

#[test]
fn threads_start_together_and_errors_surface() {
    let hit = std::sync::atomic::AtomicU64::new(0);
    let elapsed = in_parallel(3, |thread| {
        hit.fetch_add(1 << (8 * thread), std::sync::atomic::Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    });
    assert!(elapsed.unwrap() >= Duration::from_millis(5));
    assert_eq!(hit.into_inner(), 0x010101);
    let failed = in_parallel(2, |thread| match thread {
        1 => Err(io::Error::other("no")),
        _ => Ok(()),
    });
    assert_eq!(failed.unwrap_err().to_string(), "no");
}

#[test]
fn scale_shrinks_but_never_to_nothing() {
    let full = Sizes::scaled(1.0, 256 << 20);
    assert_eq!((full.walk_files, full.file_bytes), (100_000, 256 << 20));
    let tenth = Sizes::scaled(0.1, 256 << 20);
    assert_eq!((tenth.walk_files, tenth.file_bytes), (10_000, 25 << 20));
    assert_eq!(tenth.random_ops, 5_000);
    assert!(Sizes::scaled(0.0, 256 << 20).file_bytes > 0);
}
