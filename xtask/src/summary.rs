//! Adds up what a test run really said, for the last line of `scripts/test.sh`.
//!
//! It reads the output of `cargo test` (one "test result:" line per binary) or of
//! `cargo nextest` (one "Summary" line), and the file to which tests append a line
//! for each thing they had to skip. A log without any result counts as a failure:
//! a run that was cut short must not look green.

use std::collections::BTreeSet;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub fn run(args: &[String]) -> Result<bool, String> {
    let options = Options::parse(args)?;
    let read = |path: &str| std::fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned());
    let log = read(&options.log).map_err(|e| format!("{}: {e}", options.log))?;
    // No file means that no test had anything to skip.
    let skips = options.skips.and_then(|path| read(&path).ok()).unwrap_or_default();
    let skips: BTreeSet<&str> = skips.lines().filter(|line| !line.trim().is_empty()).collect();
    let (counts, remarks) = total(&log, skips.len() as u64, &options.gates_failed);
    for line in &skips {
        println!("SKIPPED: {}", line.trim_start_matches("SKIPPED:").trim());
    }
    for remark in remarks {
        println!("FAILED: {remark}");
    }
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    Ok(counts.failed == 0)
}

struct Options {
    log: String,
    skips: Option<String>,
    gates_failed: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let (mut log, mut skips, mut gates_failed) = (None, None, Vec::new());
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().ok_or(format!("{flag} needs a value"))?.clone();
            match flag.as_str() {
                "--log" => log = Some(value),
                "--skips" => skips = Some(value),
                "--gate-failed" => gates_failed.push(value),
                _ => return Err(format!("ci-summary does not know {flag}")),
            }
        }
        Ok(Options { log: log.ok_or("ci-summary needs --log")?, skips, gates_failed })
    }
}

/// Results of the log, plus one failure for each gate that failed. A test that
/// skipped returned early, so its runner counted it as passed: it moves over.
fn total(log: &str, skips: u64, gates_failed: &[String]) -> (Counts, Vec<String>) {
    let mut counts = Counts::default();
    let mut remarks = gates_failed.to_vec();
    let mut results = 0;
    for line in log.lines() {
        let line = strip_colour(line);
        if let Some(name) = failed_test(&line) {
            remarks.push(name);
        }
        if let Some(one) = result_line(&line).or_else(|| summary_line(&line)) {
            results += 1;
            counts.passed += one.passed;
            counts.failed += one.failed;
            counts.skipped += one.skipped;
        }
    }
    if results == 0 {
        remarks.push("no test result in the log".into());
        counts.failed += 1;
    }
    counts.failed += gates_failed.len() as u64;
    counts.passed = counts.passed.saturating_sub(skips);
    counts.skipped += skips;
    remarks.dedup();
    (counts, remarks)
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`
fn result_line(line: &str) -> Option<Counts> {
    let rest = line.trim_start().strip_prefix("test result: ")?;
    Some(Counts {
        passed: number_before(rest, "passed")?,
        failed: number_before(rest, "failed")?,
        skipped: number_before(rest, "ignored")?,
    })
}

/// `     Summary [   1.2s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 2 skipped`
fn summary_line(line: &str) -> Option<Counts> {
    let rest = line.trim_start().strip_prefix("Summary [")?;
    let (_, rest) = rest.split_once("run:")?;
    let bad = ["failed", "timed out", "exec failed"];
    Some(Counts {
        passed: number_before(rest, "passed")?,
        failed: bad.iter().filter_map(|word| number_before(rest, word)).sum(),
        skipped: number_before(rest, "skipped").unwrap_or(0),
    })
}

/// `test a::b ... FAILED` as cargo test says it, `FAIL [ 0.1s] crate a::b` as nextest does.
fn failed_test(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
        return Some(name.to_string());
    }
    let (_, name) = line.strip_prefix("FAIL [")?.split_once(']')?;
    Some(name.trim().to_string())
}

/// The number directly in front of `word`, where `word` stands after a comma,
/// semicolon, full stop or colon and a number.
fn number_before(text: &str, word: &str) -> Option<u64> {
    text.split([',', ';', '.', ':', '(']).find_map(|part| {
        let (number, rest) = part.trim().split_once(' ')?;
        let rest = rest.trim();
        (rest == word || rest.starts_with(&format!("{word} "))).then(|| number.parse().ok())?
    })
}

fn strip_colour(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(|c| c.is_ascii_alphabetic());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARGO: &str = "\
running 3 tests
test a::works ... ok
test a::breaks ... FAILED
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.0s
     Running tests/x.rs
test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    #[test]
    fn cargo_results_add_up() {
        let (counts, remarks) = total(CARGO, 0, &[]);
        assert_eq!(counts, Counts { passed: 5, failed: 1, skipped: 1 });
        assert_eq!(remarks, ["a::breaks"]);
    }

    #[test]
    fn nextest_results_add_up() {
        let log = "        FAIL [   0.003s] vfs attr::broken\n\
                   \u{1b}[31;1m     Summary\u{1b}[0m [   1.234s] 12 tests run: 9 passed (1 slow), \
                   2 failed, 1 timed out, 3 skipped";
        let (counts, remarks) = total(log, 0, &[]);
        assert_eq!(counts, Counts { passed: 9, failed: 3, skipped: 3 });
        assert_eq!(remarks, ["vfs attr::broken"]);
    }

    #[test]
    fn a_skipped_test_is_not_a_passed_one() {
        let (counts, _) = total(CARGO, 2, &[]);
        assert_eq!(counts, Counts { passed: 3, failed: 1, skipped: 3 });
    }

    #[test]
    fn a_failed_gate_counts() {
        let (counts, remarks) =
            total("test result: ok. 1 passed; 0 failed; 0 ignored", 0, &["fmt".to_string()]);
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 0 });
        assert_eq!(remarks, ["fmt"]);
    }

    #[test]
    fn an_empty_log_is_a_failure() {
        let (counts, remarks) = total("error: could not compile", 0, &[]);
        assert_eq!(counts.failed, 1);
        assert_eq!(remarks, ["no test result in the log"]);
    }
}
