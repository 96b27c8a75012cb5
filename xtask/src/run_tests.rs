//! Runs the test programs of the workspace, as many at a time as there are processors, one test
//! at a time in each.
//!
//! `cargo test` runs one program after the other, and while the last long test of a program
//! runs, or waits for a timer, all processors but one have nothing to do. This is the same number of tests
//! at a time without those pauses.
//!
//! Invariants: every program that `cargo test --no-run` names runs once, from its package's folder as
//! under cargo; its output is printed whole when it has ended. A program that ends without success
//! makes the run fail, also when it was killed.
//!
//! What it does not know: what the results say (`ci-summary` counts them), doc tests.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What takes longest begins first, so that nothing of it is left for the end.
const LONG: &[&str] = &[
    "kernel_relocation",
    "fill",
    "enospc",
    "alternate",
    "crash",
    "starts",
    "kept",
    "fits",
    "mounted",
    "fsx",
];

struct Program {
    path: PathBuf,
    folder: PathBuf,
    name: String,
}

/// Builds and runs them all; false if one failed.
pub fn run() -> Result<bool, String> {
    let mut programs = build()?;
    programs.sort_by_key(|program| LONG.iter().position(|l| *l == program.name).unwrap_or(99));
    programs.reverse();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (queue, good) = (Mutex::new(programs), AtomicBool::new(true));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(program) = next(&queue) {
                    let (ended_well, said) = one(&program);
                    // Nobody may be reading any more; the result says what became of the tests.
                    let _ = std::io::stdout().lock().write_all(&said);
                    if !ended_well {
                        good.store(false, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    Ok(good.into_inner())
}

fn next(queue: &Mutex<Vec<Program>>) -> Option<Program> {
    queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop()
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn build() -> Result<Vec<Program>, String> {
    let words = ["test", "--workspace", "--no-run", "--message-format=json"];
    let output = Command::new(cargo()).args(words).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo test: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo test --no-run: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| program(&serde_json::from_str(line).ok()?)).collect())
}

/// What a message of cargo says, if it is of a test program.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let name = message["target"]["name"].as_str()?.to_owned();
    Some(Program { path, folder, name })
}

/// Whether it ended with success, and all that there is to print.
fn one(program: &Program) -> (bool, Vec<u8>) {
    let start = Instant::now();
    let mut command = Command::new(&program.path);
    command.args(["--show-output", "--test-threads=1"]).current_dir(&program.folder);
    command.env("CARGO", cargo()).env("CARGO_MANIFEST_DIR", &program.folder);
    // What the kernel says of no volume in particular may be of another program's.
    command.env("SPINNEY_BESIDE", "1");
    let (good, ended, output) = match command.stdin(Stdio::null()).output() {
        Ok(o) => (o.status.success(), o.status.to_string(), [o.stdout, o.stderr].concat()),
        Err(error) => (false, error.to_string(), Vec::new()),
    };
    let (name, seconds) = (program.path.display(), start.elapsed().as_secs_f32());
    let head = format!("     Running {name} ({seconds:.1} s, {ended})\n");
    (good, [head.into_bytes(), output].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_with_tests_are_run() {
        let message = |test: bool, executable: Value| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "profile": {"test": test},
                "executable": executable,
                "manifest_path": "/w/crates/x/Cargo.toml",
                "target": {"name": "fill"},
            })
        };
        let found = program(&message(true, "/t/fill-1".into())).unwrap();
        assert_eq!((found.folder.as_path(), &*found.name), (Path::new("/w/crates/x"), "fill"));
        assert!(program(&message(false, "/t/fill-1".into())).is_none());
        assert!(program(&message(true, Value::Null)).is_none());
    }

    #[test]
    fn a_killed_program_is_a_failure() {
        let of =
            |path: &str| Program { path: path.into(), folder: "/".into(), name: String::new() };
        assert!(one(&of("/bin/true")).0);
        assert!(!one(&of("/bin/false")).0);
        assert!(!one(&of("/nowhere")).0);
    }
}
