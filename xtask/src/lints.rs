//! What every library of the product refuses: items without documentation, and items that say
//! `pub` and that nobody outside can name. The compiler counts; here is asked whether it does.
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

pub fn run() -> Result<bool, String> {
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
    fn tools_and_programs_are_not_asked() {
        let target =
            |name: &str, kind: &str| json!({"name": name, "kind": [kind], "src_path": "l.rs"});
        let targets = [target("a", "lib"), target("a", "test"), target("p", "bin")];
        let tool = [target("testkit", "lib")];
        let metadata = json!({"packages": [{"targets": targets}, {"targets": tool}]});
        assert_eq!(libraries(&metadata), Ok(vec![("a".to_string(), "l.rs".to_string())]));
    }
}
