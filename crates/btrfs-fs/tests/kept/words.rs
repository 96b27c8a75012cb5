//! Sequences in words: `mkdir A/D; create A/D/f; fsync A`, and all that can be made of a few.

use crate::ops::*;
use testkit::RefFs;
use testkit::ops::{Op, Outcome, Rng, Session};
use vfs::{FallocateMode, SetTime, Timestamp};

/// What a commit has before each sequence.
pub const BASE: &[&str] = &[
    "mkdir A",
    "mkdir A/C",
    "mkdir B",
    "create A/foo",
    "write A/foo",
    "create A/bar",
    "write A/bar",
    "create A/C/in",
    "create B/big",
    "write B/big",
    "mkdir B/empty",
    "setxattr A/bar",
];

/// What a sequence is made of.
const STEPS: &[&str] = &[
    "create A/new",
    "create B/new",
    "create new",
    "create D/f",
    "create D/E/f",
    "create A/C/f",
    "mkdir D",
    "mkdir D/E",
    "mkdir A/D",
    "mkdir A/C/D",
    "symlink A/sym",
    "symlink D/sym",
    "fifo A/fifo",
    "fifo D/fifo",
    "link A/foo A/link",
    "link A/foo B/link",
    "link A/foo D/link",
    "link A/bar A/C/link",
    "link A/new A/link",
    "rename A/foo A/moved",
    "rename A/foo B/foo",
    "rename A/foo D/foo",
    "rename A/bar A/foo",
    "rename A/new A/foo",
    "rename A/new B/big",
    "rename B/big A/foo",
    "rename B/big A/big",
    "rename A/link A/foo",
    "rename A/C A/E",
    "rename A/C B/C",
    "rename A/C D",
    "rename D B/D",
    "rename A B/A",
    "exchange A/foo A/bar",
    "exchange A/foo B/big",
    "unlink A/foo",
    "unlink A/bar",
    "unlink A/C/in",
    "unlink A/link",
    "unlink A/new",
    "rmdir A/C",
    "rmdir D",
    "write A/foo",
    "write A/new",
    "write D/f",
    "truncate A/foo",
    "truncate B/big",
    "setxattr A/foo",
    "setxattr A",
    "setxattr A/C",
    "chmod A/bar",
    "chown A/foo",
    "utimes A/bar",
    "removexattr A/bar",
    "allocate A/foo",
    "allocate A/new",
    "punch B/big",
    "clone B/big A/foo",
    "clone B/big A/new",
    "tmpfile A/tmp",
    "tmpfile D/tmp",
    "whiteout A/foo A/moved",
    "whiteout B/big A/big",
    "rename A/C B/empty",
    "rename D B/empty",
    "rename B/empty D",
];

/// Operations that are one step, from its words.
fn ops(text: &str) -> Vec<Op> {
    match text.strip_prefix("tmpfile ") {
        // A file without a name that gets one.
        Some(path) => {
            let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
            vec![
                tmpfile(dir, 0),
                write_open(0, 0, 5000, 7),
                link_open(0, path),
                Op::Close { slot: 0 },
            ]
        }
        None => vec![op(text)],
    }
}

/// One operation, from its words.
fn op(text: &str) -> Op {
    let words: Vec<&str> = text.split_whitespace().collect();
    let path = |at: usize| if words[at] == "." { "" } else { words[at] };
    let seed = testkit::ops::hash(text.as_bytes());
    match words[0] {
        "create" => create(path(1)),
        "mkdir" => mkdir(path(1)),
        "symlink" => symlink("somewhere", path(1)),
        "fifo" => fifo(path(1)),
        "link" => link(path(1), path(2)),
        "rename" => rename(path(1), path(2)),
        "exchange" => exchange(path(1), path(2)),
        "unlink" => unlink(path(1)),
        "rmdir" => rmdir(path(1)),
        "write" => write(path(1), 3000, 6000, seed),
        "truncate" => truncate(path(1), 1000),
        "setxattr" => set_xattr(path(1), "user.x", 40, seed),
        "chmod" => chmod(path(1), 0o600),
        "chown" => Op::Chown { target: at(path(1)), uid: Some(7), gid: Some(8) },
        "utimes" => {
            let time = Some(SetTime::At(Timestamp { secs: 1_000_000_000, nanos: 5 }));
            Op::Utimes { target: at(path(1)), atime: time, mtime: time }
        }
        "removexattr" => remove_xattr(path(1), "user.x"),
        "allocate" => fallocate(path(1), FallocateMode::Allocate, 2000, 50_000),
        "punch" => punch(path(1), 4096, 4096),
        "clone" => clone(path(1), path(2)),
        "whiteout" => whiteout(path(1), path(2)),
        "fsync" => fsync(path(1)),
        "fdatasync" => fdatasync(path(1)),
        other => panic!("no such operation: {other}"),
    }
}

pub fn parse(text: &str) -> Vec<String> {
    text.split(';').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

pub fn apply(session: &mut Session<'_>, text: &str) -> Result<(), String> {
    for op in ops(text) {
        if let Outcome::Error(code) = session.apply(&op) {
            return Err(format!("{text}: {code:?}"));
        }
    }
    Ok(())
}

/// Whether all of it can be done after `BASE`, and on what a sync can be called then.
fn paths_after(steps: &[&str]) -> Option<Vec<String>> {
    let model = RefFs::default();
    let mut session = Session::new(&model);
    for text in BASE.iter().chain(steps) {
        apply(&mut session, text).ok()?;
    }
    let tree = testkit::compare::TreeSnapshot::of(&model).expect("walk the model");
    let can = |kind| matches!(kind, vfs::FileKind::File | vfs::FileKind::Dir);
    let found = tree.nodes.iter().filter(|(_, node)| can(node.attr.kind));
    let name = |path: &testkit::ops::Path| {
        let parts: Vec<_> = path.components().map(|c| String::from_utf8_lossy(c)).collect();
        if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
    };
    Some(found.map(|(path, _)| name(path)).collect())
}

fn with_syncs(steps: &[&str], sync: &str, cases: &mut Vec<String>) {
    let Some(paths) = paths_after(steps) else { return };
    for path in paths {
        cases.push(format!("{}; {sync} {path}", steps.join("; ")));
    }
}

/// All sequences of `len` operations that can be done, each with each sync behind it.
pub fn all(len: usize, sync: &str) -> Vec<String> {
    let mut cases = Vec::new();
    let mut each = |steps: &[&str]| with_syncs(steps, sync, &mut cases);
    for first in STEPS {
        match len {
            1 => each(&[first]),
            2 => STEPS.iter().for_each(|second| each(&[first, second])),
            _ => {
                if paths_after(&[first]).is_none() {
                    continue;
                }
                for second in STEPS {
                    if paths_after(&[first, second]).is_some() {
                        STEPS.iter().for_each(|third| each(&[first, second, third]));
                    }
                }
            }
        }
    }
    cases
}

/// `count` of them, by a seed, with fsync or fdatasync at the end; of those that are `synced`
/// on the way as well, an fsync of anything.
pub fn sample(len: usize, seed: u64, count: usize, synced: bool) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let mut cases = Vec::new();
    while cases.len() < count {
        let steps: Vec<&str> = (0..len).map(|_| *rng.pick(STEPS)).collect();
        let Some(paths) = paths_after(&steps) else { continue };
        let mut steps: Vec<String> = steps.into_iter().map(str::to_owned).collect();
        if synced {
            let at = 1 + rng.below(len as u64 - 1) as usize;
            let before: Vec<&str> = steps[..at].iter().map(String::as_str).collect();
            let path = rng.pick(&paths_after(&before).expect("as before")).clone();
            steps.insert(at, format!("fsync {path}"));
        }
        let sync = if rng.chance(80) { "fsync" } else { "fdatasync" };
        cases.push(format!("{}; {sync} {}", steps.join("; "), rng.pick(&paths)));
    }
    cases
}
