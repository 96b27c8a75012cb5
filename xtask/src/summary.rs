//! Adds up what a test run really said, for the last line of `scripts/test.sh`.
//!
//! It reads the output of `cargo test` (one "test result:" line per binary) or of
//! `cargo nextest` (one "Summary" line), and what tests say when they skip: a line
//! `SKIPPED: why` in the log, or a line of the file that `SPINNEY_SKIPS` names, or both
//! (testkit: `SKIPPED: why (place)` and `place: why`). A log without any result counts
//! as a failure: a run that was cut short must not look green.

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
    let noted = options.skips.and_then(|path| read(&path).ok()).unwrap_or_default();
    let skips = collect_skips(&log, &noted);
    let (counts, remarks) = total(&log, skips.len() as u64, &options.gates);
    for line in &skips {
        println!("SKIPPED: {line}");
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
    gates: Gates,
}

/// What was checked beside the tests, and how the program that ran the tests ended.
#[derive(Default)]
struct Gates {
    passed: Vec<String>,
    failed: Vec<String>,
    runner_status: i32,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let (mut log, mut skips, mut gates) = (None, None, Gates::default());
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().ok_or(format!("{flag} needs a value"))?.clone();
            match flag.as_str() {
                "--log" => log = Some(value),
                "--skips" => skips = Some(value),
                "--gate-passed" => gates.passed.push(value),
                "--gate-failed" => gates.failed.push(value),
                "--status" => {
                    gates.runner_status =
                        value.parse().map_err(|_| format!("--status {value} is no number"))?;
                }
                _ => return Err(format!("ci-summary does not know {flag}")),
            }
        }
        Ok(Options { log: log.ok_or("ci-summary needs --log")?, skips, gates })
    }
}

/// Every line of the file, and those of the log that are not in the file in either form.
fn collect_skips(log: &str, noted: &str) -> Vec<String> {
    let lines = noted.lines().map(|line| line.trim().trim_start_matches("SKIPPED:").trim());
    let mut skips: Vec<String> =
        lines.filter(|line| !line.is_empty()).map(str::to_string).collect();
    let as_printed = |line: &String| match line.split_once(": ") {
        Some((place, why)) => format!("{why} ({place})"),
        None => line.clone(),
    };
    let printed: Vec<String> = skips.iter().map(as_printed).collect();
    for line in log.lines().map(strip_colour) {
        let Some(said) = line.trim().strip_prefix("SKIPPED:") else { continue };
        let said = said.trim().to_string();
        if !printed.contains(&said) && !skips[..printed.len()].contains(&said) {
            skips.push(said);
        }
    }
    skips
}

/// Results of the log, plus one for each gate. A test or gate that skipped returned
/// early, so it was counted as passed: it moves over.
fn total(log: &str, skips: u64, gates: &Gates) -> (Counts, Vec<String>) {
    let mut counts = Counts::default();
    let mut remarks = gates.failed.clone();
    let mut results = 0;
    for (at, line) in log.lines().enumerate() {
        let line = strip_colour(line);
        if let Some(name) = failed_test(&line) {
            // Tests of several programs may have one name: the next that follows is this one's.
            remarks.push(match reason(log.lines().skip(at), &name) {
                Some(why) => format!("{name}: {why}"),
                None => name,
            });
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
    } else if gates.runner_status != 0 && counts.failed == 0 {
        remarks.push("a test program ended without telling its result".into());
        counts.failed += 1;
    }
    counts.failed += gates.failed.len() as u64;
    counts.passed += gates.passed.len() as u64;
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

/// The longest reason that the last lines repeat, in characters.
const REASON: usize = 600;

/// What the thread of a failed test said when it panicked, in one line: who reads no more of a
/// run than its end must not have to run it again to learn that.
fn reason<'l>(log: impl Iterator<Item = &'l str>, test: &str) -> Option<String> {
    let thread = format!("thread '{test}' ");
    let panicked = |line: &&str| line.starts_with(&thread) && line.contains("panicked at");
    let mut lines = log.skip_while(|line| !panicked(line));
    let place = lines.next()?.split_once("panicked at ")?.1;
    let ends = |line: &str| {
        let other = ["note: run with", "stack backtrace:", "thread '", "test "];
        line.is_empty() || other.iter().any(|start| line.starts_with(start))
    };
    let said: Vec<&str> = lines.map(str::trim).take_while(|line| !ends(line)).collect();
    let whole = format!("{place} {}", said.join(" "));
    Some(whole.trim_end().chars().take(REASON).collect())
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
        let (counts, remarks) = total(CARGO, 0, &Gates::default());
        assert_eq!(counts, Counts { passed: 5, failed: 1, skipped: 1 });
        assert_eq!(remarks, ["a::breaks"]);
    }

    #[test]
    fn nextest_results_add_up() {
        let log = "        FAIL [   0.003s] vfs attr::broken\n\
                   \u{1b}[31;1m     Summary\u{1b}[0m [   1.234s] 12 tests run: 9 passed (1 slow), \
                   2 failed, 1 timed out, 3 skipped";
        let (counts, remarks) = total(log, 0, &Gates::default());
        assert_eq!(counts, Counts { passed: 9, failed: 3, skipped: 3 });
        assert_eq!(remarks, ["vfs attr::broken"]);
    }

    #[test]
    fn a_skipped_test_is_not_a_passed_one() {
        let (counts, _) = total(CARGO, 2, &Gates::default());
        assert_eq!(counts, Counts { passed: 3, failed: 1, skipped: 3 });
    }

    #[test]
    fn a_skip_counts_once_however_it_was_told() {
        let noted = "a::b tests/x.rs:3: no FUSE\na::b tests/x.rs:3: no FUSE\n\nplain\n";
        let log = "SKIPPED: no FUSE (a::b tests/x.rs:3)\nSKIPPED: no FUSE (a::b tests/x.rs:3)\n\
                   SKIPPED: plain\n    SKIPPED: mkfs is missing\nSKIPPED: mkfs is missing\n";
        let skips = collect_skips(log, noted);
        assert_eq!(skips.len(), 5, "{skips:?}");
        assert_eq!(skips[3..], ["mkfs is missing", "mkfs is missing"]);
        assert_eq!(collect_skips("nothing", "").len(), 0);
    }

    #[test]
    fn a_failure_says_why() {
        let log = "test a ... FAILED\nthread 'a' (7) panicked at tests/a.rs:3:5:\n\
                   the kernel complains: [\n    \"loop0\",\n]\nnote: run with `RUST_BACKTRACE=1`\n\
                   test result: FAILED. 0 passed; 1 failed; 0 ignored";
        let (_, remarks) = total(log, 0, &Gates::default());
        assert_eq!(remarks, ["a: tests/a.rs:3:5: the kernel complains: [ \"loop0\", ]"]);
        let other = log.replace("tests/a.rs", "tests/b.rs");
        let (_, remarks) = total(&format!("{log}\n{other}"), 0, &Gates::default());
        assert!(remarks[0].contains("tests/a.rs") && remarks[1].contains("tests/b.rs"));
    }

    #[test]
    fn gates_count() {
        let log = "test result: ok. 1 passed; 0 failed; 0 ignored";
        let gates =
            Gates { passed: vec!["layers".into()], failed: vec!["fmt".into()], runner_status: 0 };
        let (counts, remarks) = total(log, 0, &gates);
        assert_eq!(counts, Counts { passed: 2, failed: 1, skipped: 0 });
        assert_eq!(remarks, ["fmt"]);
    }

    #[test]
    fn a_test_program_that_crashed_counts() {
        let log = "test result: ok. 1 passed; 0 failed; 0 ignored";
        let (counts, _) = total(log, 0, &Gates { runner_status: 101, ..Gates::default() });
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 0 });
        // A failure that was told explains the status.
        let (counts, _) = total(CARGO, 0, &Gates { runner_status: 101, ..Gates::default() });
        assert_eq!(counts.failed, 1);
    }

    #[test]
    fn an_empty_log_is_a_failure() {
        let (counts, remarks) = total("error: could not compile", 0, &Gates::default());
        assert_eq!(counts.failed, 1);
        assert_eq!(remarks, ["no test result in the log"]);
    }
}
