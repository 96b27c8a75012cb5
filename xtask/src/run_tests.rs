//! Runs the tests of the workspace, as many at a time as there are processors and half of that, since
//! a test that waits for a device, a timer or the kernel leaves its processor to others.
//!
//! `cargo test` runs one program after the other, and while the last long test of a program
//! runs, or waits for a timer, all processors but one have nothing to do. A program below `tests/`
//! has many modules, since each program costs seconds to compile and link; each module runs in a
//! process of its own here, one test at a time, as if it were a program. So no test can disturb those
//! of other files by what a process has once: memory that is counted, descriptors, threads.
//!
//! Invariants: every test of every program that `cargo test --no-run` names runs once, from its
//! package's folder as under cargo; the output of a process is printed whole when it has ended. One that
//! ends without success makes the run fail, also when it was killed, and a program that does not list
//! its tests runs whole.
//!
//! With `SPINNEY_TIMES` set each test's line says how long it took.
//!
//! What it does not know: what the results say (`ci-summary` counts them), doc tests.

use serde_json::Value;
use std::collections::BTreeMap;
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
    "relocate",
    "starts",
    "limits",
    "kill_balance",
    "fits",
    "signals",
    "hostile",
    "space_cache",
    "sound",
    "kept",
    "mounted",
    "fsx",
];

struct Program {
    path: PathBuf,
    folder: PathBuf,
    name: String,
    /// Whether it is one of `tests/`, so that its modules stand for files.
    integration: bool,
}

/// What runs in one process: the tests of one module, or all of a program.
struct Job {
    path: PathBuf,
    folder: PathBuf,
    /// The module's name, or the program's.
    name: String,
    /// None: all.
    tests: Option<Vec<String>>,
}

/// Builds and runs them all; false if one failed.
pub fn run() -> Result<bool, String> {
    let mut jobs: Vec<Job> = build()?.into_iter().flat_map(jobs_of).collect();
    jobs.sort_by_key(|job| LONG.iter().position(|long| *long == job.name).unwrap_or(LONG.len()));
    jobs.reverse();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = processors + processors.div_ceil(2);
    let (queue, good) = (Mutex::new(jobs), AtomicBool::new(true));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(job) = next(&queue) {
                    let (ended_well, said) = one(&job);
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

fn next(queue: &Mutex<Vec<Job>>) -> Option<Job> {
    queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop()
}

/// A program below `tests/` falls apart into its modules.
fn jobs_of(program: Program) -> Vec<Job> {
    let job = |name: &String, tests| Job {
        path: program.path.clone(),
        folder: program.folder.clone(),
        name: name.clone(),
        tests,
    };
    let modules = if program.integration { by_module(&list(&program)) } else { BTreeMap::new() };
    if modules.len() < 2 {
        return vec![job(&program.name, None)];
    }
    let name = |module| if String::is_empty(module) { &program.name } else { module };
    modules.iter().map(|(module, tests)| job(name(module), Some(tests.clone()))).collect()
}

/// Its tests, as it lists them; nothing if it does not.
fn list(program: &Program) -> String {
    let mut command = Command::new(&program.path);
    let listed = command.args(["--list", "--format=terse"]).current_dir(&program.folder).output();
    let listed = listed.ok().filter(|output| output.status.success());
    listed.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default()
}

/// The tests of a list by the modules of the root that they are in.
fn by_module(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules = BTreeMap::<String, Vec<String>>::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or("", |(module, _)| module);
        modules.entry(module.to_owned()).or_default().push(test.to_owned());
    }
    modules
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
    let kinds = message["target"]["kind"].as_array()?;
    let integration = kinds.iter().any(|kind| kind == "test");
    Some(Program { path, folder, name, integration })
}

/// Whether it ended with success, and all that there is to print.
fn one(job: &Job) -> (bool, Vec<u8>) {
    let start = Instant::now();
    let mut command = Command::new(&job.path);
    command.args(["--show-output", "--test-threads=1"]).current_dir(&job.folder);
    if let Some(tests) = &job.tests {
        command.arg("--exact").args(tests);
    }
    if std::env::var_os("SPINNEY_TIMES").is_some() {
        // What tells how long each test took is unstable: it is for who makes the run shorter.
        command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    }
    command.env("CARGO", cargo()).env("CARGO_MANIFEST_DIR", &job.folder);
    // What the kernel says of no volume in particular may be of another program's.
    command.env("SPINNEY_BESIDE", "1");
    let (good, ended, output) = match command.stdin(Stdio::null()).output() {
        Ok(o) => (o.status.success(), o.status.to_string(), [o.stdout, o.stderr].concat()),
        Err(error) => (false, error.to_string(), Vec::new()),
    };
    let (path, name, seconds) = (job.path.display(), &job.name, start.elapsed().as_secs_f32());
    let head = format!("     Running {path} {name} ({seconds:.1} s, {ended})\n");
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
                "target": {"name": "fill", "kind": ["test"]},
            })
        };
        let found = program(&message(true, "/t/fill-1".into())).unwrap();
        assert_eq!((found.folder.as_path(), &*found.name), (Path::new("/w/crates/x"), "fill"));
        assert!(found.integration);
        assert!(program(&message(false, "/t/fill-1".into())).is_none());
        assert!(program(&message(true, Value::Null)).is_none());
    }

    #[test]
    fn a_killed_program_is_a_failure() {
        let of = |path: &str| Job {
            path: path.into(),
            folder: "/".into(),
            name: String::new(),
            tests: None,
        };
        assert!(one(&of("/bin/true")).0);
        assert!(!one(&of("/bin/false")).0);
        assert!(!one(&of("/nowhere")).0);
    }

    #[test]
    fn each_test_is_in_one_module() {
        let modules = by_module("a::one: test\nb::c::two: test\nthree: test\na::four: test\n");
        let names: Vec<(&str, usize)> =
            modules.iter().map(|(m, t)| (m.as_str(), t.len())).collect();
        assert_eq!(names, [("", 1), ("a", 2), ("b", 1)]);
        assert_eq!(modules["b"], ["b::c::two"]);
        assert!(by_module("").is_empty());
    }

    #[test]
    fn a_program_that_lists_nothing_runs_whole() {
        let program = Program {
            path: "/bin/false".into(),
            folder: "/".into(),
            name: "x".into(),
            integration: true,
        };
        let jobs = jobs_of(program);
        assert_eq!((jobs.len(), &jobs[0].tests), (1, &None));
        assert!(!one(&jobs[0]).0);
    }
}
