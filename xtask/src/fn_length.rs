//! How many functions of the product are longer than one screen: a number that may only fall.
//!
//! A function ends with the first line that closes its brace at its own indentation, as rustfmt
//! writes it. Only `src` is looked at: a test may tell a long story.

use crate::file_size::rust_files;
use std::fs;

/// Lines that a function has at most, but for so many of them, each at most so long. Lower these
/// where the sources allow it.
const LIMIT: usize = 40;
const MOST: usize = 48;
const LONGEST: usize = 75;

struct Function {
    lines: usize,
    place: String,
}

pub fn run() -> Result<bool, String> {
    let mut long = Vec::new();
    for path in rust_files()?.into_iter().filter(|path| counts(path)) {
        let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        long.extend(functions(&path, &text).into_iter().filter(|f| f.lines > LIMIT));
    }
    long.sort_by_key(|function| std::cmp::Reverse(function.lines));
    let longest = long.first().map_or(0, |function| function.lines);
    println!(
        "fn-length: {} functions over {LIMIT} lines (at most {MOST}), the longest {longest} (at \
         most {LONGEST})",
        long.len()
    );
    let too_long = long.iter().take_while(|function| function.lines > LONGEST).count();
    let more = long.len().saturating_sub(MOST);
    for function in &long[..too_long.max(if more > 0 { long.len() } else { 0 })] {
        println!("fn-length: {}: {} lines", function.place, function.lines);
    }
    Ok(too_long == 0 && more == 0)
}

/// What fuzzers and tests of other crates damage volumes with is a test, too.
fn counts(path: &str) -> bool {
    path.contains("/src/") && !path.contains("crates/fuzzing/")
}

fn functions(path: &str, text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((indent, name)) = head(line) else { continue };
        let close = format!("{}}}", " ".repeat(indent));
        // A declaration has no body; one that fits its line ends there.
        let first = lines[at..].iter().position(|l| l.contains('{') || l.ends_with(';'));
        let Some(first) = first.filter(|first| lines[at + first].trim_end().ends_with('{')) else {
            continue;
        };
        let rest = &lines[at + first + 1..];
        let Some(body) = rest.iter().position(|line| line.starts_with(&close)) else { continue };
        let place = format!("{path}:{}: {name}", at + 1);
        found.push(Function { lines: first + body + 2, place });
    }
    found
}

/// Indentation and name, of a line that begins a function.
fn head(line: &str) -> Option<(usize, &str)> {
    let code = line.trim_start();
    let indent = line.len() - code.len();
    let (before, after) = code.split_once("fn ")?;
    let words = ["pub", "const", "unsafe", "async", "extern"];
    let is_head = before.split_whitespace().all(|word| {
        words.contains(&word) || word.starts_with("pub(") || word.ends_with(')') || word == "\"C\""
    });
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_head && !name.is_empty()).then_some((indent, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_from_their_first_line_to_their_last() {
        let text = "pub(crate) fn a(\n    x: u8,\n) -> u8 {\n    x\n}\n\nfn b() {}\n// fn c\nimpl X {\n    \
                    const fn d(&self) {\n        if true {\n        }\n    }\n}\ntrait T {\n    fn e();\n}\n";
        let found = functions("f.rs", text);
        let seen: Vec<_> = found.iter().map(|f| (f.place.as_str(), f.lines)).collect();
        assert_eq!(seen, [("f.rs:1: a", 5), ("f.rs:10: d", 4)]);
    }
}
