//! What the compiler would say of the libraries if it were asked: items without documentation,
//! and items that say `pub` and that nobody outside can name. Numbers that may only fall.
//!
//! Where a number has become 0 the crate denies the lint itself, and has no line here. It does
//! not know binaries, tests and tools.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const LINTS: [&str; 2] = ["missing_docs", "unreachable_pub"];

/// A library, a lint, and how often it may be heard. Lower these where the sources allow it.
const MOST: &[(&str, &str, usize)] = &[];

/// A lint that was heard, and where.
type Heard = BTreeMap<(String, String), BTreeSet<String>>;

pub fn run() -> Result<bool, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["clippy", "--workspace", "--lib", "--quiet", "--message-format=json", "--"]);
    let output = command.args(LINTS.iter().flat_map(|lint| ["-W", lint])).output();
    let output = output.map_err(|e| format!("cargo clippy: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo clippy: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let heard = read(&String::from_utf8_lossy(&output.stdout));
    let complaints = check(&heard, MOST);
    complaints.iter().for_each(|complaint| println!("lints: {complaint}"));
    Ok(complaints.is_empty())
}

fn read(messages: &str) -> Heard {
    let mut heard = Heard::new();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let code = message["message"]["code"]["code"].as_str().unwrap_or_default();
        if !LINTS.contains(&code) {
            continue;
        }
        let library = message["target"]["name"].as_str().unwrap_or_default();
        let span = &message["message"]["spans"][0];
        let file = span["file_name"].as_str().unwrap_or_default();
        let place = format!("{file}:{}:{}", span["line_start"], span["column_start"]);
        heard.entry((library.into(), code.into())).or_default().insert(place);
    }
    heard
}

/// Libraries without a line are those that deny the lint, and tools.
fn check(heard: &Heard, most: &[(&str, &str, usize)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (library, lint, most) in most {
        let places = heard.get(&(library.to_string(), lint.to_string()));
        let count = places.map_or(0, BTreeSet::len);
        println!("lints: {library}: {lint} {count} times (at most {most})");
        if count > *most {
            let places = places.into_iter().flatten().cloned().collect::<Vec<_>>().join("\n  ");
            complaints.push(format!("{library}: {lint} {count} times:\n  {places}"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(library: &str, lint: &str, line: u32) -> String {
        let span = json!({"file_name": "f.rs", "line_start": line, "column_start": 1});
        let message = json!({"code": {"code": lint}, "spans": [span]});
        json!({"target": {"name": library}, "message": message}).to_string()
    }

    #[test]
    fn more_than_there_were_is_too_many() {
        let said = [message("a", "missing_docs", 1), message("a", "missing_docs", 2)].join("\n");
        let heard = read(&said);
        assert_eq!(check(&heard, &[("a", "missing_docs", 2)]), Vec::<String>::new());
        let complaints = check(&heard, &[("a", "missing_docs", 1)]);
        assert_eq!(complaints, ["a: missing_docs 2 times:\n  f.rs:1:1\n  f.rs:2:1"]);
    }

    #[test]
    fn what_is_said_twice_counts_once_and_other_lints_do_not() {
        let one = message("a", "unreachable_pub", 1);
        let heard = read(&[one.clone(), one, message("a", "dead_code", 1)].join("\n"));
        assert_eq!(check(&heard, &[("a", "unreachable_pub", 1)]), Vec::<String>::new());
        assert_eq!(heard.len(), 1);
    }
}
