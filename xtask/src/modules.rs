//! Who may use whom inside a crate: its modules stand in layers, as crates do. Crates of few
//! modules have no table.
//!
//! A module is a file or a directory directly below `src`. What it uses is what its files name
//! behind `crate::`; names that the crate's root re-exports count for the module that they
//! come from, and those that the root itself defines for none. The tables are written from the
//! ground up, and a module may use those above it in the table that its line names: so there is no
//! circle. They are the pictures of docs/ARCHITECTURE.md, which are held against them.
//!
//! What it does not know: tests, which may use what they like (what follows `#[cfg(test)]` in a
//! file, files called `tests.rs` and all below a directory `tests`), macros' paths, and paths that
//! leave a module by `super`.

mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module, and the modules of its crate that it may use; or a crate, and those that it may build on.
pub type Line = (&'static str, &'static [&'static str]);

type Table = &'static [Line];

const CRATES: &[(&str, Table)] = &[
    ("btrfs-txn", TXN),
    ("btrfs-fs", FS),
    ("btrfs-disk", tables::DISK),
    ("btrfs-volume", tables::VOLUME),
    ("btrfs-tree", tables::TREE),
    ("btrfs-space", tables::SPACE),
    ("btrfs-check", tables::CHECK),
    ("spinney", tables::LIBRARY),
    ("fuse", tables::FUSE),
    ("cli", tables::CLI),
];

const TXN: Table = &[
    ("sync", &[]),
    ("object", &[]),
    ("time", &[]),
    ("counter", &[]),
    ("memory", &[]),
    ("pacing", &[]),
    ("health", &[]),
    ("discards", &[]),
    ("injection", &[]),
    ("turns", &["sync"]),
    ("requests", &["turns"]),
    ("roots", &[]),
    ("budget", &[]),
    ("delta", &["sync", "object", "budget"]),
    ("view", &["delta", "roots"]),
    (
        "core",
        &[
            "sync",
            "object",
            "time",
            "counter",
            "memory",
            "pacing",
            "health",
            "discards",
            "injection",
            "requests",
            "roots",
            "budget",
            "delta",
            "view",
        ],
    ),
    ("throttle", &["core"]),
    ("commit", &["injection", "roots", "delta", "core", "throttle"]),
];

const FS: Table = &[
    ("sync", &[]),
    ("error", &[]),
    ("options", &[]),
    ("stats", &[]),
    ("acl", &[]),
    ("label", &[]),
    ("each_item", &[]),
    ("device_extents", &["each_item"]),
    ("rate_limit", &[]),
    ("runs", &[]),
    ("ino", &[]),
    ("tickets", &[]),
    ("lost_names", &["ino"]),
    ("numbers", &["sync"]),
    ("join", &["sync"]),
    ("semaphore", &["sync"]),
    ("rescue", &["error", "options", "each_item", "device_extents"]),
    ("writeback_errors", &["rate_limit", "ino"]),
    ("names", &["error", "ino"]),
    ("xattrs", &["error", "ino"]),
    ("file_path", &["error", "ino", "names"]),
    ("qgroup", &[]),
    ("subvol", &["error", "options", "ino", "numbers", "names", "qgroup"]),
    ("inode", &["sync", "error", "ino", "options", "stats"]),
    ("unsettled", &["subvol"]),
    ("extents", &["error", "ino", "file_path", "inode"]),
    ("verity", &["error", "ino", "file_path", "extents"]),
    ("erasures", &["inode"]),
    ("reserve", &["error", "subvol", "inode"]),
    (
        "writeback",
        &[
            "error",
            "options",
            "stats",
            "ino",
            "writeback_errors",
            "xattrs",
            "subvol",
            "inode",
            "extents",
            "reserve",
        ],
    ),
    ("device_stats", &["error", "reserve"]),
    ("log", &["error", "options", "stats", "ino", "names", "inode", "extents", "writeback"]),
    (
        "commit",
        &[
            "error",
            "stats",
            "label",
            "writeback_errors",
            "subvol",
            "inode",
            "reserve",
            "device_stats",
            "writeback",
            "log",
        ],
    ),
    (
        "reserver",
        &["error", "stats", "writeback_errors", "erasures", "reserve", "writeback", "commit"],
    ),
    ("fsync", &["error", "stats", "join", "semaphore", "log", "commit"]),
    ("orphan", &["error", "ino", "inode", "erasures", "extents", "verity", "reserve", "reserver"]),
    ("cleaner", &["error", "reserve", "commit", "reserver"]),
    (
        "balance",
        &[
            "error", "extents", "qgroup", "runs", "stats", "cleaner", "commit", "reserve",
            "reserver",
        ],
    ),
    ("scrub", &["error", "extents", "runs"]),
    (
        "engine",
        &[
            "error",
            "options",
            "stats",
            "label",
            "subvol",
            "inode",
            "erasures",
            "reserve",
            "writeback",
            "log",
            "device_stats",
            "commit",
            "reserver",
            "fsync",
            "orphan",
            "cleaner",
            "balance",
            "scrub",
            "tickets",
            "lost_names",
            "unsettled",
            "verity",
        ],
    ),
    ("recover", &["error", "log", "engine"]),
    ("convert", &["error", "reserve", "engine"]),
    (
        "ops",
        &[
            "error",
            "options",
            "acl",
            "label",
            "ino",
            "writeback_errors",
            "names",
            "xattrs",
            "qgroup",
            "subvol",
            "inode",
            "extents",
            "verity",
            "reserve",
            "writeback",
            "log",
            "engine",
        ],
    ),
    ("close", &["writeback_errors", "writeback", "engine"]),
    ("beside", &["engine", "error"]),
    (
        "fs",
        &[
            "subvol",
            "unsettled",
            "options",
            "ino",
            "extents",
            "device_stats",
            "commit",
            "orphan",
            "cleaner",
            "balance",
            "engine",
            "ops",
            "close",
            "beside",
        ],
    ),
    ("uuid_tree", &["reserve", "engine", "fs"]),
    ("find_new", &["error", "ino", "names", "subvol", "fs"]),
    ("remount", &["error", "fs", "ops"]),
    ("committed", &["error", "ino", "subvol", "extents", "engine", "fs"]),
    ("maintenance", &["balance", "scrub", "engine", "fs"]),
    ("subvolumes", &["error", "subvol", "ops", "fs"]),
    ("quotas", &["qgroup", "ops", "fs"]),
    ("usage", &["error", "reserve", "engine", "ops", "fs"]),
    (
        "control",
        &[
            "balance", "scrub", "error", "options", "ino", "names", "qgroup", "subvol", "engine",
            "ops", "fs", "find_new", "usage",
        ],
    ),
    (
        "open",
        &[
            "error",
            "options",
            "device_extents",
            "ino",
            "subvol",
            "commit",
            "orphan",
            "cleaner",
            "engine",
            "rescue",
            "recover",
            "convert",
            "ops",
            "fs",
            "uuid_tree",
            "beside",
        ],
    ),
];

/// Checks the crates of this workspace, and the picture of them; says what is wrong.
pub fn run() -> Result<Vec<String>, String> {
    let mut complaints = Vec::new();
    for (name, table) in CRATES {
        let uses = read_crate(&Path::new("crates").join(name).join("src"))?;
        complaints.extend(check(name, table, &uses));
    }
    let page = page()?;
    for (name, table) in CRATES {
        if !page.contains(&picture(table)) {
            complaints.push(format!(
                "docs/ARCHITECTURE.md does not show the modules of {name} as they are; \
                 `cargo xtask layers --picture` prints them"
            ));
        }
    }
    Ok(complaints)
}

/// The page that has the pictures.
pub fn page() -> Result<String, String> {
    fs::read_to_string("docs/ARCHITECTURE.md").map_err(|e| format!("docs: {e}"))
}

/// All tables as docs/ARCHITECTURE.md has them.
pub fn pictures() -> String {
    CRATES.iter().map(|(name, table)| format!("{name}\n\n{}\n", picture(table))).collect()
}

/// The layers from the top: each module stands above all that it uses.
pub fn picture(table: &[Line]) -> String {
    let mut height: BTreeMap<&str, usize> = BTreeMap::new();
    for (module, uses) in table {
        let below = uses.iter().map(|used| height[used] + 1).max().unwrap_or(0);
        height.insert(module, below);
    }
    let top = height.values().max().copied().unwrap_or(0);
    let mut out = String::new();
    for level in (0..=top).rev() {
        let here = table.iter().map(|(module, _)| *module).filter(|module| height[module] == level);
        let line = here.collect::<Vec<_>>().join("  ");
        out += &format!("    {level:>2}  {line}\n");
    }
    out
}

fn check(name: &str, table: Table, uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = table.iter().copied().collect();
    let mut complaints = Vec::new();
    for (module, used) in uses {
        let Some(may) = allowed.get(module.as_str()) else {
            complaints.push(format!("{name}: module {module} is not in the table"));
            continue;
        };
        for other in used.iter().filter(|other| !may.contains(&other.as_str())) {
            complaints.push(format!("{name}: {module} uses {other}, which its line does not name"));
        }
    }
    for (module, may) in table {
        let none = BTreeSet::new();
        let used = uses.get(*module).unwrap_or(&none);
        for other in may.iter().filter(|other| !used.contains(**other)) {
            complaints.push(format!("{name}: {module} does not use {other}, which its line names"));
        }
    }
    complaints
}

/// What each module of a crate uses.
fn read_crate(src: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let files = sources(src)?;
    let is_root = |path: &str| path == "lib.rs" || path == "main.rs";
    let root = files.iter().find(|(path, _)| is_root(path)).ok_or("no lib.rs and no main.rs")?;
    let from = reexports(&root.1);
    let module_of = |path: &str| {
        let first = path.split('/').next().unwrap_or_default();
        first.trim_end_matches(".rs").to_string()
    };
    let all: BTreeSet<String> = files.iter().map(|(path, _)| module_of(path)).collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in &files {
        if is_root(path) || is_test(path) {
            continue;
        }
        let module = module_of(path);
        let mine = uses.entry(module.clone()).or_default();
        for name in named(text) {
            let owner = from.get(&name).cloned().unwrap_or(name);
            if owner != module && all.contains(&owner) {
                mine.insert(owner);
            }
        }
    }
    Ok(uses)
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// All Rust files below `dir`, with their paths from there.
pub fn sources(dir: &Path) -> Result<Vec<(String, String)>, String> {
    fn walk(top: &Path, dir: &Path, files: &mut Vec<(String, String)>) -> std::io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                walk(top, &path, files)?;
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(top).unwrap_or(&path).to_string_lossy().into_owned();
                files.push((name, fs::read_to_string(&path)?));
            }
        }
        Ok(())
    }
    let mut files = Vec::new();
    walk(dir, dir, &mut files).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(files)
}

/// The module that each name comes from which the crate's root re-exports.
fn reexports(root: &str) -> BTreeMap<String, String> {
    let mut from = BTreeMap::new();
    for statement in root.split(';').filter_map(|s| s.trim().split("pub use ").nth(1)) {
        let Some((module, names)) = statement.trim_start_matches("crate::").split_once("::") else {
            continue;
        };
        let names = names.trim_matches(|c| c == '{' || c == '}');
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            from.insert(name.to_string(), module.to_string());
        }
    }
    from
}

/// The lines in front of a module of tests, which is the last thing in a file.
pub fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().zip(text.lines().skip(1).chain([""]));
    let begins = |line: &str, next: &str| {
        let only_tests = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,");
        only_tests && next.starts_with("mod ") && next.ends_with('{')
    };
    lines.take_while(move |(line, next)| !begins(line, next)).map(|(line, _)| line)
}

/// The names directly behind `crate::`, comments and tests left out.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = without_tests(text)
        .map(|line| line.split("//").next().unwrap_or_default())
        .fold(String::new(), |all, line| all + line + "\n");
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => _ = names.insert(word(rest)),
            Some(group) => {
                // One level is all that there is.
                let group = group.split("};").next().unwrap_or_default();
                names.extend(group.split(',').map(|part| word(part.trim())));
            }
        }
    }
    names.remove("");
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_written_from_the_ground_up() {
        for (name, table) in CRATES {
            let mut known = BTreeSet::new();
            for (module, uses) in *table {
                for used in *uses {
                    assert!(
                        known.contains(used),
                        "{name}: {module} uses {used}, which is above it"
                    );
                }
                assert!(known.insert(*module), "{name}: {module} stands twice");
            }
        }
    }

    #[test]
    fn uses_are_found_and_held_against_the_table() {
        const TABLE: Table = &[("low", &[]), ("mid", &["low"]), ("top", &["low", "mid"])];
        let text = "use crate::low::X; // crate::top\nuse crate::{mid, low::{self, Y}};\nfn f() { crate::Z::new() }";
        let mut names = named(text);
        assert!(names.contains("low") && names.contains("mid") && names.contains("Z"));
        assert!(!names.contains("top"));
        let tested = "#[cfg(test)]\nmod tests;\nuse crate::low::X;\n#[cfg(test)]\nmod more {\n use crate::top;\n}";
        assert_eq!(named(tested), BTreeSet::from(["low".to_string()]));
        assert!(is_test("a/tests.rs") && is_test("a/tests/b.rs") && !is_test("contests.rs"));
        assert_eq!(reexports("pub use top::{Z, W};\npub use low::V;")["Z"], "top");
        names.clear();
        let uses = |pairs: &[(&str, &[&str])]| -> BTreeMap<String, BTreeSet<String>> {
            let set = |used: &[&str]| used.iter().map(|u| u.to_string()).collect();
            pairs.iter().map(|(m, used)| (m.to_string(), set(used))).collect()
        };
        let fine = uses(&[("low", &[]), ("mid", &["low"]), ("top", &["low", "mid"])]);
        assert!(check("c", TABLE, &fine).is_empty());
        let up = uses(&[("low", &["top"]), ("mid", &["low"]), ("top", &["low", "mid"])]);
        assert_eq!(check("c", TABLE, &up), ["c: low uses top, which its line does not name"]);
        let less = uses(&[("low", &[]), ("mid", &[]), ("top", &["low", "mid"])]);
        assert_eq!(check("c", TABLE, &less).len(), 1);
        assert_eq!(picture(TABLE), "     2  top\n     1  mid\n     0  low\n");
    }
}
