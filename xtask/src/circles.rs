//! Which files of a crate import each other, straight or by way of others: none may. So a reader who
//! follows an import comes to an end.
//!
//! What a file imports is what it names behind `crate::` and `super::`; the longest path that is a
//! file counts.
//!
//! What it does not know: what a directory's `mod.rs` hands on (a file that imports by way of its
//! face is not seen), methods that one file gives the type of another, and tests.

use crate::modules::{sources, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

type Files = BTreeMap<Vec<String>, String>;
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Says which files are in a circle.
pub fn run() -> Result<Vec<String>, String> {
    let mut complaints = Vec::new();
    for dir in crates()? {
        let name = Path::new(&dir).file_name().unwrap_or_default().to_string_lossy().into_owned();
        for circle in circles(&imports(&sources(&Path::new(&dir).join("src"))?)) {
            let files = circle.join(", ");
            complaints.push(format!("{name}: these files import each other: {files}"));
        }
    }
    Ok(complaints)
}

fn crates() -> Result<Vec<String>, String> {
    let entries = fs::read_dir("crates").map_err(|e| format!("crates: {e}"))?;
    let mut dirs: Vec<String> = vec!["bench".into(), "xtask".into()];
    for entry in entries {
        dirs.push(entry.map_err(|e| format!("crates: {e}"))?.path().display().to_string());
    }
    dirs.sort();
    Ok(dirs)
}

/// `a/b.rs` and `a/b/mod.rs` are `[a, b]`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(str::to_string).collect()
}

fn imports(all: &[(String, String)]) -> Imports {
    let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
    // A face has what it hands on from below, and what uses it stands below it, too.
    let is_face = |path: &str| path.ends_with("mod.rs") || ["lib.rs", "main.rs"].contains(&path);
    let files: Files = all
        .iter()
        .filter(|(path, _)| !is_test(path) && !is_face(path))
        .map(|(path, _)| (module_of(path), path.clone()))
        .collect();
    let mut uses = Imports::new();
    for (path, text) in all.iter().filter(|(path, _)| !is_test(path) && !is_face(path)) {
        let named = paths(&module_of(path), text);
        let targets = named.iter().filter_map(|named| file_of(&files, named));
        uses.insert(path.clone(), targets.filter(|target| target != path).collect());
    }
    uses
}

/// The longest beginning of a path that is a file.
fn file_of(files: &Files, path: &[String]) -> Option<String> {
    (1..=path.len()).rev().find_map(|len| files.get(&path[..len]).cloned())
}

/// The paths from the crate's root that a file names.
fn paths(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code: String = without_tests(text)
        .map(|line| line.split("//").next().unwrap_or_default())
        .fold(String::new(), |all, line| all + line + "\n");
    let mut found = Vec::new();
    let above = |levels: usize| module[..module.len().saturating_sub(levels)].to_vec();
    for rest in code.split("crate::").skip(1) {
        follow(&[], rest, &mut found);
    }
    for rest in code.replace("super::super::", "above::").split("super::").skip(1) {
        follow(&above(1), rest, &mut found);
    }
    for rest in code.split("super::super::").skip(1) {
        follow(&above(2), rest, &mut found);
    }
    found
}

/// What follows behind `from`: one path, or a group of them.
fn follow(from: &[String], rest: &str, found: &mut Vec<Vec<String>>) {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    let (word, behind) = rest.split_at(end);
    let path = || from.iter().cloned().chain([word.to_string()]).collect::<Vec<_>>();
    if word.is_empty() {
        if let Some(group) = behind.strip_prefix('{') {
            members(group).into_iter().for_each(|member| follow(from, member, found));
        }
        return;
    }
    match behind.strip_prefix("::") {
        Some(deeper) => follow(&path(), deeper, found),
        None => found.push(path()),
    }
}

/// The members of a group up to its closing brace, in which others may be.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut from, mut members) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                members.push(group[from..at].trim());
                return members;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                members.push(group[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    members
}

/// Files that reach each other, sorted.
fn circles(uses: &Imports) -> Vec<Vec<String>> {
    let reached: Imports = uses.keys().map(|file| (file.clone(), reach(uses, file))).collect();
    let mut circles = BTreeSet::new();
    for (file, far) in &reached {
        let back = far.iter().filter(|other| reached[*other].contains(file));
        let circle: Vec<String> = back.cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reach(uses: &Imports, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&String> = uses[from].iter().collect();
    while let Some(file) = next.pop() {
        if seen.insert(file.clone()) {
            next.extend(&uses[file]);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<_> = files.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect();
        circles(&imports(&files))
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let one = ("a/b.rs", "use super::c::{X, Y};");
        let back = ("a/c.rs", "use crate::{a::{b::Z, d}, e};");
        assert_eq!(of(&[one, back]), [["a/b.rs", "a/c.rs"]]);
        let by_others = ("a/c.rs", "use super::super::e::E;");
        let last = ("e.rs", "fn f() { crate::a::b::g() }");
        assert_eq!(of(&[one, by_others, last]), [["a/b.rs", "a/c.rs", "e.rs"]]);
    }

    #[test]
    fn what_runs_one_way_is_no_circle_nor_what_tests_and_comments_say() {
        let one = ("a/b.rs", "use super::c::X;");
        let comment = (
            "a/c.rs",
            "// use super::b::Z;\n#[cfg(test)]\nmod tests {\n use super::super::b::Z;\n}",
        );
        assert!(of(&[one, comment, ("a/mod.rs", "pub use b::B; use crate::a::c::X;")]).is_empty());
    }
}
