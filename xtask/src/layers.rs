//! Who may depend on whom: the plan's table, and the check against `cargo metadata`.
//!
//! A room is called as its directory: packages have `spinney-` in front, since their names must
//! be free in the registry.
//!
//! Invariant: the table is written from the ground up (a unit test holds it to that), so "below" means
//! something. docs/ARCHITECTURE.md shows it, without what serves tests and measurements; the picture is
//! held against it. It does not know crates from outside the workspace.

use crate::circles;
use crate::modules::{self, Line, picture};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A crate, and the crates of this workspace that it may build on.
const LAYERS: &[Line] = &[
    ("blockdev", &[]),
    ("vfs", &[]),
    ("locks", &[]),
    // Knows no format: what is open, by number.
    ("inode-index", &["locks"]),
    // Knows no format: what is being deleted or truncated.
    ("orphans", &[]),
    // Knows no file system: descriptors, trees of hashes.
    ("fs-verity", &[]),
    ("btrfs-disk", &[]),
    // A format of its own, beside that of volumes.
    ("btrfs-send", &[]),
    ("blocksim", &["blockdev"]),
    ("btrfs-volume", &["locks", "blockdev", "btrfs-disk"]),
    ("btrfs-tree", &["locks", "btrfs-disk", "btrfs-volume"]),
    ("btrfs-space", &["locks", "btrfs-disk", "btrfs-volume", "btrfs-tree"]),
    ("btrfs-txn", &["locks", "btrfs-disk", "btrfs-volume", "btrfs-tree", "btrfs-space"]),
    (
        "btrfs-fs",
        &[
            "vfs",
            "blockdev",
            "btrfs-disk",
            "btrfs-volume",
            "btrfs-tree",
            "btrfs-space",
            "btrfs-txn",
            "inode-index",
            "orphans",
            "fs-verity",
            "locks",
        ],
    ),
    // What makes streams, of trees that others read for it.
    ("btrfs-sender", &["vfs", "fs-verity", "btrfs-disk", "btrfs-send", "btrfs-tree"]),
    // What plays streams, into what others change for it.
    ("btrfs-receiver", &["vfs", "btrfs-disk", "btrfs-send"]),
    ("btrfs-check", &["blockdev", "btrfs-disk", "btrfs-volume", "btrfs-tree", "fs-verity"]),
    ("btrfs-image", &["blockdev", "btrfs-disk", "btrfs-volume", "btrfs-tree", "vfs"]),
    ("fuse", &["vfs"]),
    // The face for programs: whatever it has, nobody needs FUSE for it.
    (
        "spinney",
        &[
            "locks",
            "blockdev",
            "vfs",
            "fs-verity",
            "btrfs-disk",
            "btrfs-volume",
            "btrfs-tree",
            "btrfs-send",
            "btrfs-sender",
            "btrfs-receiver",
            "btrfs-fs",
            "btrfs-check",
            "btrfs-image",
        ],
    ),
    (
        "cli",
        &[
            "spinney",
            "blockdev",
            "vfs",
            "fs-verity",
            "btrfs-disk",
            "btrfs-volume",
            "btrfs-tree",
            "btrfs-space",
            "btrfs-send",
            "btrfs-sender",
            "btrfs-receiver",
            "btrfs-fs",
            "btrfs-check",
            "btrfs-image",
            "fuse",
        ],
    ),
    // For its seeded generator, and the locks of models.
    ("testkit", &["vfs", "blockdev", "blocksim", "locks"]),
    ("suites", &["testkit"]),
    // The null side serves a file system of its own through our own transport.
    (
        "bench",
        &[
            "vfs",
            "blockdev",
            "btrfs-fs",
            "btrfs-volume",
            "inode-index",
            "orphans",
            "locks",
            "fuse",
            "testkit",
        ],
    ),
    // What fuzzers feed, from single structures to the whole engine; nothing builds on it.
    (
        "fuzzing",
        &[
            "blockdev",
            "btrfs-disk",
            "btrfs-fs",
            "btrfs-image",
            "btrfs-tree",
            "btrfs-volume",
            "btrfs-send",
            "btrfs-receiver",
            "testkit",
            "vfs",
        ],
    ),
    ("xtask", &[]),
];

/// Tools of tests: any crate may use them in its tests (`[dev-dependencies]`).
const TEST_TOOLS: &[&str] = &["testkit", "blocksim"];

/// What serves tests and measurements alone: not in the picture.
const TOOLS: &[&str] = &["blocksim", "testkit", "suites", "fuzzing", "bench", "xtask"];

/// Edges that tests need and that go neither down nor to a test tool, one by one.
const TEST_EDGES: &[(&str, &str)] = &[
    // The engine's tests make their volumes in this process, without mkfs.btrfs.
    ("btrfs-fs", "btrfs-image"),
    // What damages volumes is shared with the fuzzers, which drive the engine.
    ("btrfs-fs", "fuzzing"),
    ("btrfs-check", "fuzzing"),
    ("spinney", "fuzzing"),
    // They are judged by our own check beside `btrfs check`.
    ("btrfs-fs", "btrfs-check"),
    ("btrfs-space", "btrfs-check"),
    // Its smoke test mounts with the same program as the suites.
    ("bench", "suites"),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Normal,
    Build,
    Dev,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Edge {
    from: String,
    to: String,
    kind: Kind,
}

/// The room that a package is.
fn room(package: &str) -> &str {
    package.strip_prefix("spinney-").unwrap_or(package)
}

/// Runs the check on the workspace that cargo finds here.
pub fn run() -> Result<bool, String> {
    let (members, edges) = read_workspace(&metadata()?)?;
    let mut complaints = check(&members, &edges);
    complaints.extend(modules::run()?);
    complaints.extend(circles::run()?);
    if !modules::page()?.contains(&picture(&product())) {
        complaints.push(
            "docs/ARCHITECTURE.md does not show the crates as they are; \
             `cargo xtask layers --picture` prints them"
                .into(),
        );
    }
    for complaint in &complaints {
        println!("layers: {complaint}");
    }
    if complaints.is_empty() {
        println!(
            "layers: {} crates, {} edges and the modules of the large ones, all in the plan",
            members.len(),
            edges.len()
        );
    }
    Ok(complaints.is_empty())
}

/// The pictures of the crates, and of the modules in them.
pub fn pictures() -> String {
    format!("{}\n{}", picture(&product()), modules::pictures())
}

fn product() -> Vec<Line> {
    LAYERS.iter().filter(|(name, _)| !TOOLS.contains(name)).copied().collect()
}

/// What cargo says of this workspace's packages.
pub fn metadata() -> Result<Value, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// The member crates and every dependency edge between two of them.
fn read_workspace(metadata: &Value) -> Result<(BTreeSet<String>, BTreeSet<Edge>), String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let name_of = |package: &Value| package["name"].as_str().map(|name| room(name).to_string());
    let members: BTreeSet<String> = packages.iter().filter_map(name_of).collect();
    let mut edges = BTreeSet::new();
    for package in packages {
        let from = name_of(package).ok_or("cargo metadata: a package without a name")?;
        let dependencies = package["dependencies"].as_array().ok_or("no dependency list")?;
        for dependency in dependencies {
            let to = room(dependency["name"].as_str().unwrap_or_default());
            // A crate of the registry may bear a member's name; only a path is ours. A crate's
            // tests may have the crate itself with more features.
            if !dependency["path"].is_string() || !members.contains(to) || to == from {
                continue;
            }
            let kind = match dependency["kind"].as_str() {
                Some("dev") => Kind::Dev,
                Some("build") => Kind::Build,
                _ => Kind::Normal,
            };
            edges.insert(Edge { from: from.clone(), to: to.to_string(), kind });
        }
    }
    Ok((members, edges))
}

/// One line per crate or edge that the table does not name.
fn check(members: &BTreeSet<String>, edges: &BTreeSet<Edge>) -> Vec<String> {
    let table: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    let mut complaints = Vec::new();
    for member in members {
        if !table.contains_key(member.as_str()) {
            complaints.push(format!("crate {member} is not in the table of xtask/src/layers.rs"));
        }
    }
    for edge in edges {
        let Some(allowed) = table.get(edge.from.as_str()) else { continue };
        let ok = match edge.kind {
            Kind::Normal | Kind::Build => allowed.contains(&edge.to.as_str()),
            Kind::Dev => dev_edge_allowed(&edge.from, &edge.to),
        };
        if !ok {
            let how = match edge.kind {
                Kind::Normal => "",
                Kind::Build => " (build)",
                Kind::Dev => " (dev)",
            };
            complaints.push(format!("{} -> {}{how} is not in the plan", edge.from, edge.to));
        }
    }
    complaints
}

/// Tests may use a test tool, whatever lies below the crate, and what `TEST_EDGES` names.
fn dev_edge_allowed(from: &str, to: &str) -> bool {
    // A tool that tested itself with a crate above it would make a knot.
    let tool = TEST_TOOLS.contains(&to) && !below(to).contains(from);
    tool || below(from).contains(to) || TEST_EDGES.contains(&(from, to))
}

/// Everything that `name` may reach by normal edges.
fn below(name: &str) -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    let mut todo = vec![name];
    while let Some(at) = todo.pop() {
        let targets = LAYERS.iter().find(|(crate_name, _)| *crate_name == at).map(|(_, t)| *t);
        for target in targets.unwrap_or_default() {
            if seen.insert(*target) {
                todo.push(target);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> = dependencies
            .iter()
            .map(|(to, kind)| json!({"name": to, "kind": kind, "path": format!("/w/{to}")}))
            .collect();
        json!({"name": name, "dependencies": dependencies})
    }

    fn complaints(packages: &[Value]) -> Vec<String> {
        let (members, edges) = read_workspace(&json!({"packages": packages})).unwrap();
        check(&members, &edges)
    }

    #[test]
    fn the_table_is_written_from_the_ground_up() {
        for (at, (name, targets)) in LAYERS.iter().enumerate() {
            for target in *targets {
                let mut before = LAYERS[..at].iter();
                assert!(before.any(|(known, _)| known == target), "{name} -> {target}");
            }
        }
    }

    #[test]
    fn the_picture_has_all_of_the_product_and_no_tool() {
        let picture = picture(&product());
        let shown: BTreeSet<&str> = picture.split_whitespace().collect();
        for (name, _) in LAYERS {
            assert_ne!(shown.contains(name), TOOLS.contains(name), "{name}");
        }
    }

    #[test]
    fn an_edge_of_the_plan_passes() {
        let packages = [
            package("vfs", &[]),
            package("fuse", &[("vfs", None)]),
            package("testkit", &[("vfs", None)]),
        ];
        assert_eq!(complaints(&packages), Vec::<String>::new());
    }

    #[test]
    fn an_edge_upwards_is_named() {
        let packages = [package("vfs", &[("fuse", None)]), package("fuse", &[])];
        assert_eq!(complaints(&packages), ["vfs -> fuse is not in the plan"]);
        let packages = [package("blockdev", &[("vfs", Some("build"))]), package("vfs", &[])];
        assert_eq!(complaints(&packages), ["blockdev -> vfs (build) is not in the plan"]);
    }

    #[test]
    fn tests_may_use_tools_and_what_lies_below() {
        let packages = [
            package("blockdev", &[]),
            package("testkit", &[("blockdev", None)]),
            package("btrfs-tree", &[("blockdev", Some("dev")), ("testkit", Some("dev"))]),
        ];
        assert_eq!(complaints(&packages), Vec::<String>::new());
    }

    #[test]
    fn tests_may_not_look_up() {
        let packages =
            [package("btrfs-disk", &[("btrfs-fs", Some("dev"))]), package("btrfs-fs", &[])];
        assert_eq!(complaints(&packages), ["btrfs-disk -> btrfs-fs (dev) is not in the plan"]);
    }

    #[test]
    fn a_new_crate_is_named() {
        let packages = [package("ext4-disk", &[])];
        assert_eq!(
            complaints(&packages),
            ["crate ext4-disk is not in the table of xtask/src/layers.rs"]
        );
    }

    #[test]
    fn a_package_is_the_room_behind_its_prefix() {
        let packages = [package("spinney-vfs", &[("spinney-fuse", None)]), package("fuse", &[])];
        assert_eq!(complaints(&packages), ["vfs -> fuse is not in the plan"]);
        assert_eq!(complaints(&[package("spinney", &[])]), Vec::<String>::new());
    }

    #[test]
    fn a_registry_crate_of_the_same_name_is_not_ours() {
        let fuse = json!({"name": "vfs", "dependencies": [{"name": "fuse", "kind": null}]});
        assert_eq!(complaints(&[fuse, package("fuse", &[])]), Vec::<String>::new());
    }
}
