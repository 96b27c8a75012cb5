//! Directories that a commit has, removed with all that was in them, in all ways that differ
//! for a log: what else happened to what was in there, what took the name, what is synced.
//!
//! A replay takes everything away that the commit has in a directory without names.

use super::ops::*;
use super::rig::{Case, all_succeed, case};
use testkit::ops::{Op, Rng};

type Part = fn() -> Vec<Op>;

/// Durable before all else: what is in the directory, beside D/f, D/s/g and D/s/t.
const INSIDE: &[Part] = &[
    || vec![],
    || vec![link("D/f", "h")],
    || vec![link("D/f", "D/s/h")],
    || vec![mkdir("D/s/t/u"), symlink("f", "D/s/t/u/sym"), link("D/s/g", "D/g")],
];

/// Logs that are there already.
const SYNCED: &[Part] = &[
    || vec![],
    || vec![append("D/f", 5000, 2), fsync("D/f")],
    || vec![create("D/s/n"), write("D/s/n", 0, 300, 3), fsync("D/s/n")],
    || vec![rename("D/s/g", "D/s/moved"), fsync("D/s")],
    || vec![mkdir("D/n"), create("D/n/x"), fsync("D/n/x"), fsync("D")],
];

/// What leaves the directory in another way than by being unlinked.
const LEAVING: &[Part] = &[
    || vec![],
    || vec![rename("D/f", "A/f")],
    || vec![rename("D/s", "A/s")],
    || vec![rename("D/s/t", "t")],
    || vec![create("D/new"), rename("D/new", "A/new")],
    || vec![unlink("A/foo"), rename("D/f", "A/foo")],
];

/// What happens to the name.
const AFTER: &[Part] = &[
    || vec![],
    || vec![mkdir("D"), create("D/f"), write("D/f", 0, 9000, 4)],
    || vec![create("D"), write("D", 0, 100, 5)],
    || vec![rename("A", "D")],
    || vec![mkdir("D"), mkdir("D/s"), create("D/s/g"), rename("A/bar", "D/f")],
];

/// What is synced in the end, where it is there.
const LAST: &[&str] = &["", "D", "D/f", "D/s/g", "D/foo", "A", "A/f", "A/s", "t", "A/foo", "h"];

/// What may be in the directory at its end, from the inside out, and its own.
const FILES: &[&str] =
    &["D/s/t/u/sym", "D/s/g", "D/s/moved", "D/s/h", "D/s/n", "D/n/x", "D/f", "D/g"];
const DIRS: &[&str] = &["D/s/t/u", "D/s/t", "D/s", "D/n", "D"];

fn count() -> u64 {
    [INSIDE.len(), SYNCED.len(), LEAVING.len(), AFTER.len(), LAST.len()].iter().product::<usize>()
        as u64
}

/// One of them; `None` if one of its operations has nothing to act on.
pub fn nth(number: u64) -> Option<Case> {
    let mut rest = number as usize;
    let mut digit = |base: usize| {
        let digit = rest % base;
        rest /= base;
        digit
    };
    let mut ops = vec![mkdir("D"), create("D/f"), write("D/f", 0, 5000, 1)];
    ops.extend([mkdir("D/s"), create("D/s/g"), mkdir("D/s/t")]);
    let last = LAST[digit(LAST.len())];
    let (after, leaving) = (AFTER[digit(AFTER.len())], LEAVING[digit(LEAVING.len())]);
    let synced = SYNCED[digit(SYNCED.len())];
    ops.extend(INSIDE[digit(INSIDE.len())]());
    ops.push(sync());
    ops.extend(synced());
    ops.extend(leaving());
    empty(&mut ops);
    ops.extend(after());
    ops.push(fsync(last));
    // A second log on top of the first.
    ops.extend([create("x"), fsync("x")]);
    all_succeed(&ops).then(|| case(format!("removed:{number}"), ops))
}

/// Removes what is there by now, as `rm -r` does.
fn empty(ops: &mut Vec<Op>) {
    let paths = FILES.iter().map(|path| unlink(path)).chain(DIRS.iter().map(|path| rmdir(path)));
    for op in paths {
        ops.push(op);
        if !all_succeed(ops) {
            ops.pop();
        }
    }
}

/// In no order, without end.
pub fn sample(seed: u64) -> impl Iterator<Item = Case> + Send {
    let mut rng = Rng::new(seed ^ 0x6e0d);
    std::iter::repeat_with(move || nth(rng.below(count()))).flatten()
}
