//! Trees of the engine held against the kernel's: the same but for what the kernel makes up
//! when it is looked at.

use testkit::compare::{Difference, NodeView, Rules, TreeSnapshot, diff};
use testkit::ops::Path;

fn is_stand_in(node: &NodeView) -> bool {
    node.attr.ino.0 >> 63 == 1
}

/// Flags less the one by which the kernel remembers that content did not compress.
fn compressible(tree: &TreeSnapshot, found: &Difference) -> Option<u32> {
    const COMPRESS: u32 = 0x4;
    const NOCOMPRESS: u32 = 0x400;
    Some(tree.nodes.get(&found.path)?.flags? & !(COMPRESS | NOCOMPRESS))
}

pub fn assert_like(expected: &TreeSnapshot, seen: &TreeSnapshot, rules: &Rules) {
    assert_none(differences(expected, seen, rules));
}

pub fn assert_none(differences: Vec<Difference>) {
    let listed: Vec<String> = differences.iter().take(20).map(ToString::to_string).collect();
    assert!(differences.is_empty(), "{} differences: {listed:#?}", differences.len());
}

pub fn differences(expected: &TreeSnapshot, seen: &TreeSnapshot, rules: &Rules) -> Vec<Difference> {
    let mut differences = diff(expected, seen, rules);
    // The stand-in for a nested subvolume is an empty directory, made up when it is seen.
    let stand_in = |tree: &TreeSnapshot, path: &Path| tree.nodes.get(path).is_some_and(is_stand_in);
    differences.retain(|found| {
        if found.what == "flags" && compressible(expected, found) == compressible(seen, found) {
            return false;
        }
        let odd = stand_in(expected, &found.path) || stand_in(seen, &found.path);
        !odd || ["exists", "kind", "size"].contains(&found.what.as_str())
    });
    differences
}
