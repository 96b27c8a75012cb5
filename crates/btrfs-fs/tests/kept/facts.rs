//! What of a sequence's outcome is there after a crash, as facts that two file systems can
//! be compared by.
//!
//! An entry is a directory, a name and what it stands for, all three by identity: a file
//! that is there under an old directory's name is there. Times are no facts.

use std::collections::{BTreeMap, BTreeSet};
use testkit::compare::{NodeView, TreeSnapshot};
use testkit::ops::Path;

pub type Facts = BTreeSet<String>;

/// Numbers of inodes: of other subvolumes, a mark lies above (`PosixFs`).
const OWN: u64 = (1 << 40) - 1;

/// A directory, a name in it, and what it stands for.
type Entry = (u64, Vec<u8>, u64);

fn entries(tree: &TreeSnapshot) -> BTreeMap<Entry, &Path> {
    let ino = |path: &Path| tree.nodes[path].attr.ino.0 & OWN;
    let entry = |path: &Path| {
        let (parent, name) = path.split();
        (ino(&parent), name.to_vec(), ino(path))
    };
    tree.nodes.keys().filter(|p| **p != Path::default()).map(|p| (entry(p), p)).collect()
}

fn inodes(tree: &TreeSnapshot) -> BTreeMap<u64, (&Path, &NodeView)> {
    let mut found = BTreeMap::new();
    for (path, node) in &tree.nodes {
        found.entry(node.attr.ino.0 & OWN).or_insert((path, node));
    }
    found
}

/// What `found` has of what led from `base` to `last`.
pub fn kept(base: &TreeSnapshot, last: &TreeSnapshot, found: &TreeSnapshot) -> Facts {
    let mut facts = Facts::new();
    let (before, after, seen) = (entries(base), entries(last), entries(found));
    for (entry, path) in &after {
        if seen.contains_key(entry) {
            facts.insert(format!("name {path:?}"));
        }
    }
    for (entry, path) in before.iter().filter(|(entry, _)| !after.contains_key(*entry)) {
        if !seen.contains_key(entry) {
            facts.insert(format!("gone {path:?}"));
        }
    }
    let there = inodes(found);
    for (ino, (path, node)) in inodes(last) {
        let Some((_, other)) = there.get(&ino) else { continue };
        let same = |what: bool, word: &str, facts: &mut Facts| {
            what.then(|| facts.insert(format!("{word} {path:?}")));
        };
        let (a, b) = (&node.attr, &other.attr);
        let attr = (a.kind, a.perm, a.uid, a.gid, a.rdev) == (b.kind, b.perm, b.uid, b.gid, b.rdev);
        same(attr, "attr", &mut facts);
        same(node.content == other.content && node.target == other.target, "content", &mut facts);
        same(node.xattrs == other.xattrs, "xattrs", &mut facts);
    }
    facts
}
