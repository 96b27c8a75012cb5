//! The program itself: on a plain directory anywhere, and (as root, with btrfs and a
//! loop device) with images that it makes, mounts and removes.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_spinney-bench");

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("bench-smoke-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(words: &str, paths: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words.split_whitespace());
    for (flag, path) in paths {
        command.arg(flag).arg(path);
    }
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for words in ["--list", "--help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(PROGRAM).arg(words).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{words}: {}", said(&output));
        assert_eq!(said(&output), "");
    }
}

#[test]
fn a_directory_gives_rates_and_stays_clean() {
    let scratch = Scratch::new("dir");
    let (work, out) = (Scratch::new("dir-work"), scratch.0.join("o.json"));
    let words = "run --scale 0.01 --rounds 2 --file-size 8M \
                 --workloads create-*,unlink-1t,stat-hot,seq-write-new,untar";
    let output = run(words, &[("--dir", &work.0), ("--backing", &scratch.0), ("--json", &out)]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("create-write4k-2t"));
    assert_eq!(work.names(), [""; 0], "the directory is as it was");
    assert_eq!(scratch.names(), ["o.json"], "and so is the backing");
    let json: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let rows = json["workloads"].as_array().unwrap();
    assert!(rows.len() >= 10, "{}", rows.len());
    for row in rows {
        let samples = row["sides"][0]["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 2);
        assert!(samples.iter().all(|s| s.as_f64().unwrap() > 0.0), "{row}");
    }
}

#[test]
fn two_directories_are_compared() {
    let (scratch, a, b) = (Scratch::new("two"), Scratch::new("two-a"), Scratch::new("two-b"));
    let (json, plot) = (scratch.0.join("o.json"), scratch.0.join("o.svg"));
    let paths = [
        ("--kernel-dir", &*a.0),
        ("--spinney-dir", &*b.0),
        ("--backing", &*scratch.0),
        ("--json", &*json),
        ("--plot", &*plot),
    ];
    let output = run("compare --scale 0.01 --rounds 1 --workloads create-1t,stat-hot", &paths);
    assert!(output.status.success(), "{}", said(&output));
    let json: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let side = &json["workloads"][0]["sides"][1];
    assert_eq!((side["label"].as_str(), side["aim"].as_f64()), (Some("spinney"), Some(0.35)));
    assert!(side["ratio"].as_f64().unwrap() > 0.0);
    let verdict = side["verdict"].as_str().unwrap();
    assert!(["pass", "miss"].contains(&verdict), "{verdict}");
    assert!(std::fs::read_to_string(&plot).unwrap().contains("create-1t"));
}

#[test]
fn a_directory_that_fails_is_reported_and_ends_with_1() {
    let (scratch, a) = (Scratch::new("bad"), Scratch::new("bad-a"));
    let paths = [
        ("--kernel-dir", &*a.0),
        ("--spinney-dir", Path::new("/proc")),
        ("--backing", &*scratch.0),
    ];
    let output = run("compare --scale 0.01 --rounds 1 --workloads create-1t", &paths);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("FAILED: create-1t on spinney"), "{}", said(&output));
}

/// The null server comes in a process of its own, counts its requests, and goes.
#[test]
fn the_null_server_is_a_side() {
    testkit::require!(fuse);
    let (scratch, a) = (Scratch::new("null"), Scratch::new("null-a"));
    let page = scratch.0.join("o.md");
    let paths = [("--kernel-dir", &*a.0), ("--backing", &*scratch.0), ("--markdown", &*page)];
    let words = "trees --null --scale 0.01 --rounds 1 --workloads untar,cp-a,find-warm,rm-rf";
    let output = run(words, &paths);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(scratch.names(), ["o.md"], "mount points are gone");
    let page = std::fs::read_to_string(&page).unwrap();
    let untar = page.lines().find(|line| line.starts_with("| untar | null | "));
    assert!(untar.is_some_and(|line| line.contains("write ")), "{page}");
}

#[test]
fn nonsense_ends_with_2() {
    assert_eq!(run("compare --rounds many", &[]).status.code(), Some(2));
    let unknown = run("run --dir /tmp --workloads nonsense", &[]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(said(&unknown).contains("nonsense"));
}

/// Every standard workload, cold ones too, on two images that the kernel mounts; one of
/// them through a `spinney` that is a shell script keeping the contract of `spinney
/// mount` and `umount`.
#[test]
fn images_are_made_mounted_and_removed() {
    testkit::require!(kernel_btrfs);
    let scratch = Scratch::new("images");
    let spinney = scratch.0.join("spinney");
    let script = "#!/bin/sh\nset -e\ncase $1 in\n\
        mount) [ \"$2 $3\" = '-o transport=classic' ]; exec mount -o loop,noatime \"$4\" \"$5\";;\n\
        umount) exec umount \"$2\";;\nstats) echo '{\"x\":1}';;\n*) exit 9;;\nesac\n";
    std::fs::write(&spinney, script).unwrap();
    assert!(Command::new("chmod").arg("755").arg(&spinney).status().unwrap().success());
    let out = scratch.0.join("o.json");
    let backing = Scratch(scratch.0.join("backing"));
    std::fs::create_dir(&backing.0).unwrap();
    let words = "compare --scale 0.002 --rounds 2 --image-size 512M --file-size 512M \
                 --transport classic --check";
    let paths = [("--spinney", &*spinney), ("--backing", &*backing.0), ("--json", &*out)];
    let output = run(words, &paths);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(backing.names(), [""; 0], "images and mount points are gone");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(backing.0.to_str().unwrap()), "nothing is mounted");
    let json: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(json["sides"][1]["label"], "spinney-classic");
    let rows = json["workloads"].as_array().unwrap();
    assert!(rows.len() > 20);
    for row in rows {
        assert!(row["sides"][1]["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
}

/// The engine in this process, on an image that it closes and `btrfs check` judges.
#[test]
fn the_library_runs_every_workload() {
    testkit::require!(kernel_btrfs);
    let scratch = Scratch::new("library");
    let out = scratch.0.join("o.json");
    let words = "compare --library --scale 0.002 --rounds 1 --image-size 512M --file-size 512M \
                 --check";
    let output = run(words, &[("--backing", &*scratch.0), ("--json", &*out)]);
    assert!(output.status.success(), "{}", said(&output));
    let json: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(json["sides"][1]["library"], true);
    for row in json["workloads"].as_array().unwrap() {
        assert!(row["sides"][1]["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(scratch.names(), ["o.json"], "images and mount points are gone");
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The rows of fsync on the kernel, two variants of a mount and of the library, in memory
/// and on disk, too short to mean anything.
#[test]
fn the_fsync_rows_run_everywhere() {
    testkit::require!(kernel_btrfs);
    testkit::require!(fuse);
    testkit::require!(installed("fio"), "fio is not installed");
    let (scratch, disk) = (Scratch::new("fsync"), Scratch::new("fsync-disk"));
    let (json, page) = (scratch.0.join("o.json"), scratch.0.join("o.md"));
    let words = "fsync --quick --jobs 8 --backing both --library --check --variant plain= \
                 --variant commit=fsync=commit";
    let paths = [
        ("--spinney", suites::spinney()),
        ("--disk", &*disk.0),
        ("--json", &*json),
        ("--markdown", &*page),
    ];
    let output = run(words, &paths);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(disk.names(), [""; 0], "images and mount points are gone");
    let labels = ["kernel", "spinney-plain", "spinney-commit", "library-plain", "library-commit"];
    for backing in ["ram", "disk"] {
        let json = json_of(&scratch.0.join(format!("o-{backing}.json")));
        assert_eq!(json["backing"], backing);
        let rows = json["workloads"].as_array().unwrap();
        assert_eq!(rows.len(), 3, "two families with 8 jobs, and the big commit");
        for side in rows.iter().flat_map(|row| row["sides"].as_array().unwrap()) {
            let label = side["label"].as_str().unwrap();
            assert!(labels.contains(&label) && side["median"].as_f64().unwrap() > 0.0, "{side}");
            let fsync = &side["details"][0][0];
            assert!(fsync["p50"].as_f64().unwrap() > 0.0, "{side}");
            assert!(fsync["Max"].as_f64() >= fsync["p99"].as_f64(), "{side}");
            let counted = side["counters"][0]["fsync.count"].as_f64();
            assert_eq!(counted.is_some(), label != "kernel", "{side}");
            let logged = side["counters"][0]["log.writes"].as_f64();
            assert!(logged.is_none() || label.ends_with("plain"), "it was to commit: {side}");
        }
    }
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("## On ram") && page.contains("## On disk"), "{page}");
}

#[test]
fn dbench_runs_on_mounts_and_is_played_in_the_library() {
    testkit::require!(kernel_btrfs);
    testkit::require!(fuse);
    testkit::require!(installed("dbench"), "dbench is not installed");
    let scratch = Scratch::new("dbench");
    let out = scratch.0.join("o.json");
    let paths = [("--spinney", suites::spinney()), ("--json", &*out)];
    let output = run("dbench --quick --library --check", &paths);
    assert!(output.status.success(), "{}", said(&output));
    let json = json_of(&out);
    assert_eq!(json["workloads"].as_array().unwrap().len(), 1);
    for side in json["workloads"][0]["sides"].as_array().unwrap() {
        assert!(side["median"].as_f64().unwrap() > 0.0, "{side}");
        assert!(side["worst_ms"][0].as_f64().unwrap() > 0.0, "{side}");
        let names: Vec<&str> = side["details"][0]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|d| d["name"].as_str())
            .collect();
        assert!(names.contains(&"WriteX") && names.contains(&"Flush"), "{names:?}");
    }
}
