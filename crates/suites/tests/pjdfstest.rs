//! pjdfstest, nearly 400 tests of what POSIX says of names, owners, modes and times, on
//! the kernel's btrfs and on mounts of the program. Nothing may fail here that does not
//! fail there, but what `pjdfstest.allowed` names with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use suites::{Limited, Tool, Volume, lacking, tool};
use testkit::oracle::{TempDir, run};
use testkit::skip;

const PJDFSTEST: Tool = Tool { name: "pjdfstest", version: "0.2.2" };

/// What Linux and btrfs have. The users are Debian's own.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = true

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Failures on a mount that the kernel does not share, one a line: the test's name, and
/// why that must be. Everything behind `#` is a remark.
const ALLOWED: &str = include_str!("pjdfstest.allowed");

/// How each test ended: `ok`, `FAILED` or `skipped`.
type Results = BTreeMap<String, String>;

fn results(text: &str) -> Results {
    let result = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, end) = (words.next()?, words.next()?);
        let known = ["ok", "FAILED", "skipped"].contains(&end) && words.next().is_none();
        (known && !line.starts_with('\t')).then(|| (name.to_owned(), end.to_owned()))
    };
    text.lines().filter_map(result).collect()
}

fn examine(program: &Path, dir: &Path) -> Results {
    let aside = TempDir::new("pjdfstest").unwrap();
    let config = aside.join("config.toml");
    std::fs::write(&config, CONFIG).unwrap();
    // Other users must be able to enter.
    for path in [dir, aside.path()] {
        run("chmod", &["755", &path.to_string_lossy()]);
    }
    let report = Limited::new(240, program)
        .arg("-c")
        .arg(&config)
        .arg("-p")
        .arg(dir)
        // For EXDEV.
        .arg("-s")
        .arg(aside.path())
        .run();
    let results = results(&report.stdout);
    assert!(report.stdout.contains("Summary"), "it did not finish: {}", report.text());
    assert!(results.len() > 350, "too few tests: {}", report.text());
    results
}

fn ended<'a>(results: &'a Results, how: &str) -> BTreeSet<&'a str> {
    let ended = results.iter().filter(|(_, end)| *end == how);
    ended.map(|(name, _)| name.as_str()).collect()
}

/// What is said of `name` in the list, if it is there.
fn allowed(name: &str) -> bool {
    let lines = ALLOWED.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).any(|entry| entry == name)
}

fn compare(transport: &str) {
    if let Some(why) = lacking(transport) {
        skip!("{why}");
    }
    let program = match tool(&PJDFSTEST) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let volume = Volume::new("posix", 2 << 30);
    let kernel = volume.mount_by_kernel();
    let expected = examine(&program, kernel.path());
    kernel.unmount().unwrap();

    let mount = volume.mount(transport, Duration::from_secs(300));
    let found = examine(&program, mount.path());
    let failed: BTreeSet<_> = ended(&found, "FAILED");
    let shared = ended(&expected, "FAILED");
    println!("{} passed, {} failed", ended(&found, "ok").len(), failed.len());
    println!("failures that the kernel shares: {shared:?}");
    let ours: Vec<_> = failed.difference(&shared).filter(|name| !allowed(name)).collect();
    assert!(ours.is_empty(), "the kernel's btrfs passes what we do not: {ours:#?}");
    assert_eq!(ended(&found, "skipped"), ended(&expected, "skipped"));
    let seen = mount.unmount_with_tree();
    volume.judge(&seen);
}

#[test]
fn over_uring() {
    compare("uring");
}

#[test]
fn over_classic() {
    compare("classic");
}
