//! stress-ng's file system stressors, each of which looks whether it finds what it left there, on a mount.

use std::time::Duration;

use suites::{Limited, Mounted, Volume, transports};
use testkit::oracle::run;
use testkit::require;

const LIMIT: Duration = Duration::from_secs(1800);

/// Not of files in directories: of the kernel's own file systems, of memory, of the whole machine.
const ELSEWHERE: [&str; 14] = [
    "bind-mount",
    "binderfs",
    "dup",
    "eventfd",
    "fanotify",
    "ioprio",
    "lease",
    "pipe",
    "procfs",
    "rawdev",
    "seal",
    "sysfs",
    "verity",
    "dnotify",
];
/// Those of CI, all at once.
const SOME: [&str; 16] = [
    "chattr",
    "copy-file",
    "dentry",
    "dirdeep",
    "fallocate",
    "fpunch",
    "fiemap",
    "getdent",
    "hdd",
    "iomix",
    "link",
    "lockofd",
    "rename",
    "sync-file",
    "utime",
    "xattr",
];

fn installed() -> bool {
    run("which", &["stress-ng"]).success()
}

/// What this version of it has.
fn all() -> Vec<String> {
    // It says so where the class has a question mark, as what is wrong with the command.
    let said = run("stress-ng", &["--class", "filesystem?"]).text();
    let (_, names) = said.split_once("stressors:").expect("a list of stressors");
    let names = names.split_whitespace().filter(|name| !ELSEWHERE.contains(name));
    names.map(str::to_owned).collect()
}

/// `groups` one after the other, the stressors of a group at once.
fn stress(groups: &[Vec<String>], seconds: u32) {
    require!(installed(), "no stress-ng");
    for transport in transports() {
        let volume = Volume::new("stress-ng", 4 << 30);
        let mount = volume.mount(transport, LIMIT);
        groups.iter().for_each(|group| run_group(&mount, group, seconds));
        let seen = mount.unmount_with_tree();
        volume.judge(&seen);
    }
}

fn run_group(mount: &Mounted, group: &[String], seconds: u32) {
    let mut command = Limited::new(seconds + 120, "stress-ng")
        .args(["--verify", "--timeout", &seconds.to_string(), "--temp-path"])
        .arg(mount.path());
    for name in group {
        command = command.args([&format!("--{name}"), "2"]);
    }
    let report = command.run();
    assert!(report.success(), "{group:?}: {}", report.text());
}

#[test]
fn some_at_once() {
    stress(&[SOME.map(str::to_owned).into()], 5);
}

#[test]
#[ignore = "minutes; scripts/soak.sh has it"]
fn each_alone() {
    require!(installed(), "no stress-ng");
    let groups: Vec<_> = all().into_iter().map(|name| vec![name]).collect();
    assert!(groups.len() > 20, "{groups:?}");
    stress(&groups, 4);
}
