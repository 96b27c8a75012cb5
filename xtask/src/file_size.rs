//! Which Rust files have grown past a size that one can still read in one sitting.
//!
//! It looks at the files that git knows (or would take), not at build output.

use std::path::Path;
use std::process::Command;

const LIMIT: usize = 600;

pub fn run(args: &[String]) -> Result<bool, String> {
    let strict = match args {
        [] => false,
        [flag] if flag == "--strict" => true,
        _ => return Err("usage: cargo xtask file-size [--strict]".into()),
    };
    let files = rust_files()?;
    let long = over_limit(&files, LIMIT, |path| std::fs::read_to_string(path).ok());
    for (lines, path) in &long {
        println!("file-size: {path}: {lines} lines (aim: at most {LIMIT})");
    }
    println!("file-size: {} Rust files, {} over {LIMIT} lines", files.len(), long.len());
    Ok(long.is_empty() || !strict)
}

/// Those that git knows, or would take.
pub fn rust_files() -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.rs"])
        .output()
        .map_err(|e| format!("git ls-files: {e}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter(|path| Path::new(path).exists()).map(str::to_string).collect())
}

/// The files that are too long, the longest first.
fn over_limit(
    files: &[String],
    limit: usize,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<(usize, String)> {
    let mut long: Vec<(usize, String)> = files
        .iter()
        .filter_map(|path| Some((read(path)?.lines().count(), path.clone())))
        .filter(|(lines, _)| *lines > limit)
        .collect();
    long.sort_by(|a, b| b.cmp(a));
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_files_are_listed_and_the_longest_first() {
        let files = ["a".to_string(), "b".to_string(), "c".to_string(), "gone".to_string()];
        let read = |path: &str| match path {
            "a" => Some("x\n".repeat(601)),
            "b" => Some("x\n".repeat(600)),
            "c" => Some("x\n".repeat(900)),
            _ => None,
        };
        let long = over_limit(&files, 600, read);
        assert_eq!(long, [(900, "c".to_string()), (601, "a".to_string())]);
    }
}
