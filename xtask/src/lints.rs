//! What every library of the product refuses: items without documentation, and items that say
//! `pub` and that nobody outside can name. The compiler counts; here is asked whether it does.
//!
//! And what stands in front of a file system passes each of its calls on: of one that has a default the compiler
//! would not say that it is missing.
//!
//! It does not know binaries and tests. Tools, which nobody builds on but tests and measurements,
//! are not asked.

use serde_json::Value;

/// How the sources of a library say it.
const REFUSED: [&str; 2] =
    ["#![deny(missing_docs)]", "#![cfg_attr(not(test), deny(unreachable_pub))]"];

/// Libraries that may go without; that of the command line has nothing in it.
const TOOLS: [&str; 6] =
    ["blocksim", "fuzzing", "spinney_bench", "spinney_cli", "suites", "testkit"];

/// The trait of file systems, and what of the product has another behind it.
const TRAIT: &str = "crates/vfs/src/file_system.rs";
const WRAPPERS: [&str; 2] = ["crates/spinney/src/guard.rs", "crates/cli/src/mount/fault.rs"];

pub fn run() -> Result<bool, String> {
    let libraries = libraries_refuse()?;
    Ok(wrappers_pass_on()? && libraries)
}

fn wrappers_pass_on() -> Result<bool, String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let all = read(TRAIT)?;
    let mut whole = true;
    for path in WRAPPERS {
        for name in missing(&all, &read(path)?) {
            println!("lints: {path} does not pass on {name}");
            whole = false;
        }
    }
    println!("lints: {} wrappers of file systems", WRAPPERS.len());
    Ok(whole)
}

/// Methods of the trait in `all` that `wrapper` has none of.
fn missing<'t>(all: &'t str, wrapper: &str) -> Vec<&'t str> {
    let methods = all.split_once("pub trait FileSystem").map_or("", |(_, methods)| methods);
    let own = wrapper.split_once("FileSystem for").map_or("", |(_, own)| own);
    let names = methods.lines().filter_map(|line| line.strip_prefix("    fn ")?.split_once('('));
    names.map(|(name, _)| name).filter(|name| !own.contains(&format!("fn {name}("))).collect()
}

fn libraries_refuse() -> Result<bool, String> {
    let roots = libraries(&crate::layers::metadata()?)?;
    let mut complaints = Vec::new();
    for (name, path) in &roots {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
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
    fn a_default_is_not_passed_on_by_itself() {
        let all = "fn other(\npub trait FileSystem: Send {\n    fn root(&self);\n    fn sync_by(\n";
        let wrapper = "impl FileSystem for Guard {\n    fn root(&self) {}\n";
        assert_eq!(missing(all, wrapper), ["sync_by"]);
        assert!(missing(all, &format!("{wrapper}    fn sync_by(&self)")).is_empty());
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
