//! The program under the name `btrfs`, where btrfs-progs 6.14 says more than the older one that
//! machines may have: columns of chunks, limits of scrubs, units, words for all commands.
//!
//! Judge: btrfs-progs 6.14 on the kernel's mount of an image, and ours on a mount of a copy.

use crate::common;
use common::mount::Mount;
use common::streams::shell;
use common::{Image, KernelMount, PROGRAM, fine, json, text};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::oracle::newer_btrfs;
use testkit::require;

/// Looked at alone, `@` for the mount. Output and exit code are compared.
const LOOKS: &[&str] = &[
    "inspect-internal list-chunks @",
    "inspect-internal list-chunks --raw @",
    "inspect-internal list-chunks --kbytes @/dir",
    "inspect-internal list-chunks --si @",
    "inspect-internal list-chunks --sort lstart @",
    "inspect-internal list-chunks --sort length,lstart @",
    "device usage @",
    "device usage -b @ @",
    "device usage -k @",
    "device usage --si @",
    "device stats -T @",
    "--format json device stats @",
    "filesystem usage -T @",
    "filesystem usage -b @",
    "filesystem usage -H @",
    "filesystem usage -k @",
    "filesystem usage --iec @ @",
    "filesystem df -H @",
    "filesystem df --gbytes @",
    "subvolume list -t @",
    "-v balance status @",
];

/// Each changes something.
const CHANGES: &[&str] = &[
    "filesystem resize -1M @",
    "device usage @",
    "filesystem usage -T @",
    "filesystem resize --enqueue max @",
    "scrub status @",
    "scrub limit @",
    "scrub limit -a -l 10M @",
    "scrub limit @",
    "scrub limit --raw @",
    "scrub limit --si @",
    "scrub limit -d 1 --limit 0 @",
    "scrub start -B @",
    "scrub start -Bd --limit 500M @",
    "scrub limit @",
    "scrub start -BR @",
    "-q scrub start -B @",
    "scrub status --raw @",
    "scrub status -d --kbytes @",
    "scrub status -dR @",
    "-q subvolume create @/one",
    "--log quiet subvolume create @/two",
    "--dry-run subvolume delete @/one",
    "-v subvolume delete @/one",
    "-q subvolume delete @/two",
    "quota enable @",
    "quota rescan -w @",
    "-v balance start -dusage=0 @",
    "-q balance start -dusage=0 @",
    "balance start --enqueue -dusage=0 @",
    "filesystem defragment -v @/dir/file",
    "filesystem defragment -czstd -L 5 @/dir/file",
    "filesystem defragment -czstd --level 99 @/dir/file",
    "device scan -u",
    "scrub limit -l 5M @",
    "scrub limit -a @",
    "scrub limit -a -d 1 @",
    "scrub limit -d 7 -l 0 @",
    "scrub cancel @",
    "scrub resume @",
    "--dry-run subvolume create @/three",
    "--log=nothing subvolume list @",
    "device ready /dev/null",
    "device scan /tmp",
    "inspect-internal list-chunks --sort nothing @",
];

fn filled(name: &str) -> (Image, Image) {
    let (theirs, ours) = (Image::new(&format!("{name}-theirs")), Image::new(name));
    let mount = KernelMount::new(&theirs.path, "noatime").expect("mount");
    shell(&format!(
        "cd {}; mkdir dir; for i in $(seq 20); do head -c 1000000 /dev/urandom > dir/$i; sync -f .; done
        head -c 100000 /dev/urandom > dir/file; btrfs -q subvolume create sub",
        mount.path().display()
    ));
    mount.unmount().expect("unmount");
    shell(&format!("cp --sparse=always {} {}", theirs.word(), ours.word()));
    (theirs, ours)
}

/// What is told, but for times, and what differs between any two scrubs and mounts. Of tables with
/// the path of a device, which is of one digit or of two, the words alone.
fn without_what_differs(told: &str, at: &str) -> Vec<String> {
    let own = ["Scrub started:", "Duration:", "Rate:", "\tlast_physical:", "Total to scrub:"];
    let moves = [
        "\ttree_",
        "    Used:",
        "   Used ",
        "Metadata,DUP: Size",
        "Done, had to",
        "    Free (statfs",
    ];
    let exact = told.starts_with("Devid ");
    let mut lines = Vec::new();
    for line in told.replace(at, "@").lines() {
        if let Some(start) = own.iter().chain(&moves).find(|start| line.starts_with(**start)) {
            lines.push(format!("{start} {}", line.contains("(limit")));
        } else if exact {
            // The kernel's mount and ours have committed other numbers of nodes.
            lines.push(if line.contains("Metadata") {
                line[..line.len() - 6].into()
            } else {
                line.into()
            });
        } else if !line.ends_with(" s") {
            lines.push(line.split_whitespace().map(word).collect::<Vec<_>>().join(" "));
        }
    }
    lines
}

fn word(word: &str) -> String {
    if word.chars().all(|c| c == '-') {
        return "-".into();
    }
    let Some((before, behind)) = word.split_once("/dev/loop") else { return word.into() };
    format!("{before}DEVICE{}", behind.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// Whose records of scrubs are in `records`.
fn told(program: &[&Path], line: &str, at: &str, records: &Path) -> (Option<i32>, Vec<String>) {
    let words = line.split(' ').map(|word| word.replace('@', at));
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", "mount --bind $0 /var/lib/btrfs && exec \"$@\""])
        .arg(records)
        .args(program)
        .args(words)
        .output()
        .expect("it starts");
    // What is refused is said in other words.
    let out = if output.status.success() { text(&output.stdout) } else { String::new() };
    (output.status.code(), without_what_differs(&out, at))
}

fn compare(name: &str, lines: &[&str], options: &str) {
    require!(kernel_btrfs);
    require!(fuse);
    let newer = match newer_btrfs() {
        Ok(newer) => newer,
        Err(why) => testkit::skip!("{why}"),
    };
    let (theirs, ours) = filled(name);
    let link = ours.dir.join("btrfs");
    std::os::unix::fs::symlink(PROGRAM, &link).expect("a link");
    shell("mkdir -p /var/lib/btrfs");
    let kernels = KernelMount::new(&theirs.path, options).expect("mount");
    let mount = Mount::new(&ours, options);
    let (there, here) = (kernels.path().display().to_string(), mount.word());
    let mut differ = Vec::new();
    for line in lines {
        let expected = told(&[&newer], line, &there, theirs.dir.path());
        let found = told(&[&link], line, &here, ours.dir.path());
        if expected != found {
            differ.push(format!("{line}\n  theirs {expected:?}\n  ours   {found:?}"));
        }
    }
    kernels.unmount().expect("unmount");
    mount.umount();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn what_is_told_is_what_the_newer_one_tells() {
    compare("newer-looks", LOOKS, "ro,noatime");
}

#[test]
fn what_changes_something_is_said_and_ends_as_by_the_newer_one() {
    compare("newer-changes", CHANGES, "noatime");
}

/// A scrub reads no faster than it may, also one that is at work; and a limit of one scrub ends with it.
#[test]
fn a_scrub_keeps_to_its_limit() {
    require!(kernel_btrfs);
    require!(fuse);
    let (_, image) = filled("scrub-limit");
    let mount = Mount::new(&image, "");
    let top = mount.word();
    let scrub = |words: &[&str]| fine(&[&["scrub"], words, &[top.as_str()]].concat());
    let timed = |words: &[&str]| {
        let since = Instant::now();
        scrub(words);
        since.elapsed()
    };
    // 20 MB of content, and a little of nodes.
    assert!(timed(&["start", "-B", "--limit", "10M"]) >= Duration::from_millis(1900));
    assert!(scrub(&["limit"]).contains(" -  "), "it was for that scrub alone");
    let said = scrub(&["limit", "-a", "-l", "1M"]);
    assert!(said.ends_with("from unlimited to 1.00MiB/s\n"), "{said}");
    scrub(&["start", "-q"]);
    let since = Instant::now();
    let status = scrub(&["status"]);
    assert!(status.contains("running") && status.contains("(limit 1.00MiB/s)"), "{status}");
    // Who is to be slow is not slow to hear of something else.
    scrub(&["cancel"]);
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    scrub(&["resume", "-q"]);
    scrub(&["limit", "-d", "1", "-l", "0"]);
    common::eventually("it ends", || json(&scrub(&["status", "--json"]))["status"] == "finished");
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    mount.umount();
}
