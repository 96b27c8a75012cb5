//! Ten thousand quota groups: what a commit reads of them does not grow with their number, and limits are
//! held against what all of them say.

use crate::common;
use btrfs_fs::{BtrfsFs, LimitChange, Options, QgroupId};
use common::Image;
use std::time::Instant;
use vfs::FileSystem;

const MIB: u64 = 1 << 20;

fn high(number: u64) -> QgroupId {
    QgroupId(1 << 48 | number)
}

/// Nodes that were asked for, and time, of each of some small commits.
fn small_commits(fs: &BtrfsFs, name: &str) -> (u64, f64) {
    const COMMITS: u64 = 20;
    let asked = || common::stat(fs, "cache.hits") + common::stat(fs, "cache.misses");
    common::new_file(fs, name, &[1; 100]);
    fs.sync().expect("commit");
    let (before, begin) = (asked(), Instant::now());
    for number in 0..COMMITS {
        common::new_file(fs, &format!("{name}{number}"), &[7; 5000]);
        fs.sync().expect("commit");
    }
    ((asked() - before) / COMMITS, begin.elapsed().as_secs_f64() * 1e3 / COMMITS as f64)
}

#[test]
fn a_small_commit_reads_few_of_many_groups() {
    testkit::require!(btrfs_progs);
    let image = Image::new(512 * MIB, &[]);
    let fs = image.open_with(Options { background: false, ..Options::default() });
    fs.enable_quotas().expect("on");
    fs.wait_for_rescan().expect("counted");
    let few = small_commits(&fs, "few");
    for number in 0..10_000 {
        fs.create_qgroup(high(number)).expect("a group");
    }
    fs.sync().expect("commit");
    let most = LimitChange { referenced: Some(Some(100 * MIB)), ..LimitChange::default() };
    fs.limit_qgroup(high(5000), &most).expect("a limit");
    fs.assign_qgroup(QgroupId(5), high(5000)).expect("a member");
    let many = small_commits(&fs, "many");
    println!("nodes asked for, ms a commit: {few:?} with one group, {many:?} with ten thousand");
    assert!(many.0 <= few.0 + 20, "{} and {} nodes a commit", few.0, many.0);
    assert!(fs.limits_are_right().expect("read"));
    // Leaves go with all that they have, and with limits between them that are left.
    for number in (0..10_000).filter(|number| number % 5000 != 0) {
        fs.destroy_qgroup(high(number)).expect("gone");
    }
    fs.sync().expect("commit");
    assert!(fs.limits_are_right().expect("read"));
    let ino = common::new_file(&fs, "large", &[1]);
    let full = fs.write(&common::CX, ino, 0, &vec![5; 120 << 20], Default::default());
    assert_eq!(full.expect_err("a limit").errno(), libc::EDQUOT);
    common::close_and_judge(&image, fs);
}
