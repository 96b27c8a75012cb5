//! All short workloads, in the manner of CrashMonkey's ACE: sequences of operations on a few
//! files and directories, with a sync of each kind (or none) after each of them, and always
//! one after the last.

use super::ops::*;
use super::rig::{Case, all_succeed, case};
use testkit::ops::{Op, Rng};
use vfs::FallocateMode;

/// An operation, and what may be synced after it: directories and files.
struct Step {
    op: fn(u64) -> Op,
    dirs: &'static [&'static str],
    files: &'static [&'static str],
}

macro_rules! steps {
    ($($op:expr => $dirs:expr, $files:expr;)*) => {
        &[$(Step { op: |seed| { let _ = seed; $op(seed) }, dirs: &$dirs, files: &$files }),*]
    };
}

const STEPS: &[Step] = steps! {
    |_| create("A/new") => ["A"], ["A/new"];
    |_| create("B/new") => ["B", "A"], ["B/new"];
    |_| mkdir("A/D") => ["A", "A/D"], [];
    |_| mkdir("A/C/D") => ["A/C", "A/C/D"], [];
    |_| symlink("somewhere", "A/sym") => ["A"], ["A/foo"];
    |_| fifo("B/fifo") => ["B"], [];
    |_| link("A/foo", "A/link") => ["A"], ["A/foo", "A/link"];
    |_| link("A/foo", "B/foo") => ["A", "B"], ["A/foo"];
    |_| link("A/bar", "A/C/bar") => ["A/C"], ["A/bar"];
    |_| unlink("A/foo") => ["A"], ["A/bar"];
    |_| unlink("A/bar") => ["A"], ["A/foo"];
    |_| unlink("B/sym") => ["B"], ["B/big"];
    |_| rmdir("A/C") => ["A"], ["A/foo"];
    |_| rename("A/foo", "A/moved") => ["A"], ["A/moved"];
    |_| rename("A/foo", "B/foo") => ["A", "B"], ["B/foo"];
    |_| rename("A/bar", "A/foo") => ["A"], ["A/foo"];
    |_| rename("B/big", "A/bar") => ["A", "B"], ["A/bar"];
    |_| rename("A/C", "B/C") => ["A", "B", "B/C"], [];
    |_| rename("A", "B/A") => ["B", "B/A"], ["B/A/foo"];
    |_| exchange("A/foo", "A/bar") => ["A"], ["A/foo", "A/bar"];
    |_| exchange("A/foo", "B/big") => ["A", "B"], ["A/foo"];
    |_| exchange("A/C", "B") => ["A", "B"], ["A/C/big"];
    |_| whiteout("A/foo", "B/foo") => ["A", "B"], ["B/foo"];
    |s| write("A/foo", 0, 4096, s) => ["A"], ["A/foo"];
    |s| write("A/foo", 5000, 300, s) => [], ["A/foo", "A/bar"];
    |s| write("A/foo", 100_000, 5000, s) => [], ["A/foo"];
    |s| write("A/bar", 0, 200_000, s) => ["A"], ["A/bar"];
    |s| append("A/foo", 6000, s) => [], ["A/foo"];
    |s| append("A/bar", 700, s) => [], ["A/bar"];
    |s| append("A/bar", 9000, s) => [], ["A/bar", "A/foo"];
    |_| truncate("A/foo", 0) => ["A"], ["A/foo"];
    |_| truncate("A/foo", 5000) => [], ["A/foo"];
    |_| truncate("A/foo", 70_000) => [], ["A/foo"];
    |_| truncate("A/bar", 10) => [], ["A/bar"];
    |_| punch("A/foo", 4096, 4096) => [], ["A/foo"];
    |_| punch("B/big", 10_000, 70_000) => [], ["B/big"];
    |_| fallocate("A/foo", FallocateMode::ZeroRange { keep_size: true }, 2000, 6000) => [], ["A/foo"];
    |_| fallocate("A/foo", FallocateMode::Allocate, 8192, 40_000) => [], ["A/foo"];
    |_| prealloc("A/foo", 16_384, 65_536) => ["A"], ["A/foo"];
    |_| clone("B/big", "A/foo") => ["B"], ["A/foo", "B/big"];
    |_| clone_part("B/big", 8192, "A/bar", 4096, 16_384) => [], ["A/bar"];
    |_| copy("A/foo", 0, "A/bar", 4096, 8192) => [], ["A/bar", "A/foo"];
    |s| set_xattr("A/foo", "user.y", 100, s) => ["A"], ["A/foo"];
    |s| set_xattr("A/foo", "user.x", 3000, s) => [], ["A/foo"];
    |_| remove_xattr("A/foo", "user.x") => [], ["A/foo", "A/bar"];
    |_| chmod("A/foo", 0o600) => ["A"], ["A/foo"];
    |_| create("new") => [""], ["new"];
    |_| mkdir("D") => ["", "D"], [];
    |_| link("A/foo", "link") => ["", "A"], ["A/foo"];
    |_| rename("A/foo", "foo") => ["", "A"], ["foo"];
    |_| rename("A/C", "C") => ["", "A", "C"], [];
    |_| rename("A", "B/A") => [""], [];
    |_| exchange("A", "B") => ["", "A"], ["A/big"];
    |_| set_xattr("", "user.root", 100, 7) => [""], ["A/foo"];
};

/// Everything that can stand at one place: an operation with one sync, or without.
fn places(last: bool) -> Vec<(usize, Option<Op>)> {
    let mut places = Vec::new();
    for (number, step) in STEPS.iter().enumerate() {
        let mut add = |sync| places.push((number, sync));
        if !last {
            add(None);
        }
        add(Some(sync()));
        step.dirs.iter().for_each(|dir| add(Some(fsync(dir))));
        step.files.iter().for_each(|file| add(Some(fsync(file))));
        step.files.iter().for_each(|file| add(Some(fdatasync(file))));
    }
    // Behind the others, which keep their numbers.
    for (number, step) in STEPS.iter().enumerate() {
        step.dirs.iter().for_each(|dir| places.push((number, Some(fdatasync(dir)))));
    }
    places
}

/// How many sequences of a length there are.
pub fn count(len: usize) -> u64 {
    let (inner, last) = (places(false).len() as u64, places(true).len() as u64);
    inner.pow(len as u32 - 1) * last
}

/// One of them; `None` if one of its operations has nothing to act on.
pub fn nth(len: usize, number: u64) -> Option<Case> {
    let (inner, last) = (places(false), places(true));
    let mut rest = number;
    let mut ops = Vec::new();
    for position in 0..len {
        let list = if position + 1 == len { &last } else { &inner };
        let (step, sync) = &list[(rest % list.len() as u64) as usize];
        rest /= list.len() as u64;
        ops.push((STEPS[*step].op)(number ^ (position as u64) << 56));
        ops.extend(sync.clone());
    }
    all_succeed(&ops).then(|| case(format!("ace{len}:{number}"), ops))
}

/// A seeded sample, without those that do nothing.
pub fn sample(len: usize, seed: u64) -> impl Iterator<Item = Case> {
    let mut rng = Rng::new(seed);
    let all = count(len);
    std::iter::repeat_with(move || nth(len, rng.below(all))).flatten()
}

/// All of them.
pub fn all(len: usize) -> impl Iterator<Item = Case> {
    (0..count(len)).filter_map(move |number| nth(len, number))
}
