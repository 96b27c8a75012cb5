//! What every library of the product refuses: items without documentation, and items that say
//! `pub` and that nobody outside can name. The compiler counts; here is asked whether it does.
//!
//! Where bytes become numbers, no number is cut in silence (`as_conversions`).
//!
//! A library's public enum may gain variants (`non_exhaustive`), or says why it never will without
//! everybody hearing of it (`// Exhaustive: ...`).
//!
//! And what stands in front of a file system or a block device passes each of its calls on: of one that
//! has a default the compiler would not say that it is missing.
//!
//! It does not know binaries and tests. Tools, which nobody builds on but tests and measurements,
//! are not asked.

use serde_json::Value;
use std::path::Path;

/// How the sources of a library say it.
const REFUSED: [&str; 2] =
    ["#![deny(missing_docs)]", "#![cfg_attr(not(test), deny(unreachable_pub))]"];

/// Libraries that may go without; that of the command line has nothing in it.
const TOOLS: [&str; 6] =
    ["blocksim", "fuzzing", "spinney_bench", "spinney_cli", "suites", "testkit"];

/// Where bytes of a stranger become numbers, and how it says that none is cut.
const NUMBERS: [&str; 6] = [
    "crates/btrfs-disk/src/lib.rs",
    "crates/btrfs-send/src/lib.rs",
    "crates/fs-verity/src/lib.rs",
    "crates/btrfs-fs/src/control/mod.rs",
    "crates/fuse/src/abi/mod.rs",
    "crates/fuse/src/dispatch/control.rs",
];
const UNCUT: &str = "#![cfg_attr(not(test), deny(clippy::as_conversions))]";

/// Traits of which something of the product has another behind it: name, file, and what that is.
const WRAPPED: [(&str, &str, &[&str]); 2] = [
    (
        "FileSystem",
        "crates/vfs/src/file_system.rs",
        &["crates/spinney/src/guard.rs", "crates/cli/src/mount/fault.rs"],
    ),
    (
        "BlockDevice",
        "crates/blockdev/src/lib.rs",
        &[
            "crates/blockdev/src/lib.rs",
            "crates/blockdev/src/slice.rs",
            "crates/blockdev/src/sticky.rs",
            "crates/cli/src/commands/mkfs/held.rs",
        ],
    ),
];
/// Defaults that say nothing of their own.
const DERIVED: [&str; 1] = ["is_empty"];

pub fn run() -> Result<bool, String> {
    let libraries = libraries_refuse()?;
    let enums = enums_are_decided()?;
    let numbers = numbers_are_whole()?;
    Ok(wrappers_pass_on()? && libraries && enums && numbers)
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

fn numbers_are_whole() -> Result<bool, String> {
    let mut whole = true;
    for path in NUMBERS {
        if !read(path)?.lines().any(|line| line == UNCUT) {
            println!("lints: {path} lacks {UNCUT}");
            whole = false;
        }
    }
    Ok(whole)
}

fn enums_are_decided() -> Result<bool, String> {
    let (mut count, mut complaints) = (0, Vec::new());
    for (_, root) in libraries(&crate::layers::metadata()?)? {
        let src = Path::new(&root).parent().ok_or("a library without a directory")?;
        for (path, text) in crate::modules::sources(src)? {
            let (all, open) = enums(&text);
            count += all;
            let says = "is neither non_exhaustive nor says why not (`// Exhaustive: ...`)";
            let open =
                open.into_iter().map(|name| format!("{}/{path}: {name} {says}", src.display()));
            complaints.extend(open);
        }
    }
    complaints.iter().for_each(|complaint| println!("lints: {complaint}"));
    println!("lints: {count} public enums, {} undecided", complaints.len());
    Ok(complaints.is_empty())
}

/// How many public enums there are, and the names of those that say nothing of variants to come.
/// What belongs to an enum stands right above it.
fn enums(text: &str) -> (usize, Vec<&str>) {
    let (mut count, mut open, mut decided) = (0, Vec::new(), false);
    for line in crate::modules::without_tests(text).map(str::trim_start) {
        if let Some(rest) = line.strip_prefix("pub enum ") {
            count += 1;
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            open.extend(name.filter(|_| !decided));
        }
        let belongs = line.starts_with("#[") || line.starts_with("//");
        let says = line == "#[non_exhaustive]" || line.starts_with("// Exhaustive: ");
        decided = belongs && (decided || says);
    }
    (count, open)
}

fn wrappers_pass_on() -> Result<bool, String> {
    let (mut whole, mut count) = (true, 0);
    for (name, file, wrappers) in WRAPPED {
        let all = read(file)?;
        for path in wrappers {
            count += 1;
            for call in missing(name, &all, &read(path)?) {
                println!("lints: {path} does not pass on {call}");
                whole = false;
            }
        }
    }
    println!("lints: {count} wrappers of file systems and block devices");
    Ok(whole)
}

/// Methods of the trait `name` in `all` that `wrapper` has none of.
fn missing<'t>(name: &str, all: &'t str, wrapper: &str) -> Vec<&'t str> {
    let methods = all.split_once(&format!("pub trait {name}")).map_or("", |(_, methods)| methods);
    let methods = methods.split_once("\n}").map_or(methods, |(methods, _)| methods);
    let own = wrapper.split_once(&format!("{name} for")).map_or("", |(_, own)| own);
    let calls = methods.lines().filter_map(|line| line.strip_prefix("    fn ")?.split_once('('));
    let lacks = |call: &&str| !own.contains(&format!("fn {call}(")) && !DERIVED.contains(call);
    calls.map(|(call, _)| call).filter(lacks).collect()
}

fn libraries_refuse() -> Result<bool, String> {
    let roots = libraries(&crate::layers::metadata()?)?;
    let mut complaints = Vec::new();
    for (name, path) in &roots {
        let text = read(path)?;
        complaints.extend(lacks(&text).map(|line| format!("{name}: {path} lacks {line}")));
    }
    complaints.iter().for_each(|complaint| println!("lints: {complaint}"));
    println!("lints: {} libraries, {} lines that are lacking", roots.len(), complaints.len());
    Ok(complaints.is_empty())
}

/// Name and root file of each library of the workspace that is no tool.
fn libraries(metadata: &Value) -> Result<Vec<(String, String)>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    let is_library = |target: &&Value| {
        target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"))
    };
    let of = |target: &Value, member: &str| target[member].as_str().unwrap_or_default().to_string();
    let all = targets.filter(is_library).map(|target| (of(target, "name"), of(target, "src_path")));
    Ok(all.filter(|(name, _)| !TOOLS.contains(&name.as_str())).collect())
}

fn lacks(text: &str) -> impl Iterator<Item = &'static str> {
    REFUSED.into_iter().filter(|refused| !text.lines().any(|line| line == *refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_library_says_both_lines_and_no_comment_counts() {
        let both = REFUSED.join("\n");
        assert_eq!(lacks(&both).count(), 0);
        assert_eq!(lacks(REFUSED[0]).collect::<Vec<_>>(), [REFUSED[1]]);
        assert_eq!(lacks(&format!("// {both}")).collect::<Vec<_>>(), [REFUSED[0]]);
    }

    #[test]
    fn an_enum_says_whether_variants_may_come() {
        let text = "#[non_exhaustive]\npub enum A {\n}\n/// Words.\n// Exhaustive: why\n// it is.\n\
                    #[derive(Debug)]\npub enum B<'a> {\n}\n#[derive(Debug)]\npub enum C {\n}\n\
                    #[non_exhaustive]\npub struct S;\npub enum D<'a> {}\npub(crate) enum E {}\n";
        assert_eq!(enums(text), (4, vec!["C", "D"]));
    }

    #[test]
    fn a_default_is_not_passed_on_by_itself() {
        let all = "fn other(\npub trait FileSystem: Send {\n    fn root(&self);\n    fn is_empty(\n    fn sync_by(\n}\n    fn no(\n";
        let wrapper = "impl FileSystem for Guard {\n    fn root(&self) {}\n";
        assert_eq!(missing("FileSystem", all, wrapper), ["sync_by"]);
        assert!(missing("Other", all, wrapper).is_empty());
        let whole = format!("{wrapper}    fn sync_by(&self)");
        assert!(missing("FileSystem", all, &whole).is_empty());
    }

    #[test]
    fn tools_and_programs_are_not_asked() {
        let target =
            |name: &str, kind: &str| json!({"name": name, "kind": [kind], "src_path": "l.rs"});
        let targets = [target("a", "lib"), target("a", "test"), target("p", "bin")];
        let tool = [target("testkit", "lib")];
        let metadata = json!({"packages": [{"targets": targets}, {"targets": tool}]});
        assert_eq!(libraries(&metadata), Ok(vec![("a".to_string(), "l.rs".to_string())]));
    }
}
