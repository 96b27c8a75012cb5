//! `btrfs check` under that name: where it begins, what it reports, and how it ends.
//!
//! Judge: btrfs-progs 6.14, with the same command line on the same image.

use crate::common;
use common::streams::shell;
use common::{Image, KernelMount, PROGRAM, copies, sh, text, told_behind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use testkit::oracle::newer_btrfs;
use testkit::require;

fn filled(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    shell(&format!(
        "cd {}; btrfs -q subvolume create sub; head -c 3000000 /dev/urandom > sub/f
        for i in $(seq 300); do echo $i > sub/small-$i; done; sync -f .
        btrfs -q subvolume snapshot sub snap; btrfs quota enable .; btrfs qgroup create 1/7 .
        btrfs quota rescan -w . > /dev/null; cp --reflink sub/f sub/g; truncate -s 1M sub/hole
        fallocate -l 100000 sub/pre; head -c 70000 /dev/urandom > snap/own; sync -f .
        yes | head -c 500000 > top",
        mount.path().display()
    ));
    mount.unmount().expect("unmount");
    image
}

/// Exit code and standard output.
fn told(program: &[&Path], line: &str, image: &str) -> (Option<i32>, String) {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).args(line.split_whitespace()).arg(image);
    let output = command.output().expect("it starts");
    (output.status.code(), text(&output.stdout))
}

/// Holds each command line against btrfs-progs' and gives back how they ended.
fn compare(image: &Image, lines: &[String]) -> Vec<i32> {
    let newer = newer_btrfs().expect("asked for before");
    let before = std::fs::metadata(&image.path).and_then(|m| m.modified()).expect("a time");
    let mut ends = Vec::new();
    for line in lines {
        let line = format!("check {line}");
        let expected = told(&[&newer], &line, &image.word());
        let found = told(&[Path::new(PROGRAM), Path::new("btrfs")], &line, &image.word());
        assert_eq!(found, expected, "{line}");
        ends.push(found.0.expect("an exit code"));
    }
    let after = std::fs::metadata(&image.path).and_then(|m| m.modified()).expect("a time");
    assert_eq!(before, after, "nothing is written");
    ends
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

macro_rules! newer {
    () => {
        require!(kernel_btrfs);
        if let Err(why) = newer_btrfs() {
            testkit::skip!("{why}");
        }
    };
}

/// What stands behind a word of a superblock, in the order in which it is printed.
fn behind(image: &Image, word: &str) -> Vec<String> {
    let dump = sh(&format!("btrfs inspect-internal dump-super -f {}", image.word()));
    let dump = text(&dump.stdout);
    let found = dump.lines().filter_map(|line| line.trim().strip_prefix(word));
    found.filter_map(|rest| Some(rest.split_whitespace().next()?.to_owned())).collect()
}

#[test]
fn a_check_of_what_is_sound() {
    newer!();
    let image = filled("check-sound");
    let ends = compare(
        &image,
        &lines(&[
            "",
            "--readonly",
            "-s 0",
            "--super 1",
            "--mode lowmem",
            "--mode=original",
            "-r 0",
            "--check-data-csum",
            "--force",
            "-Q",
            "--qgroup-report -s 1",
            "-E 256",
            "-E 257",
            "--subvol-extents 5",
            "-E 999",
        ]),
    );
    assert!(ends.iter().all(|end| *end == 0), "{ends:?}");
    let (root, chunks) = (behind(&image, "root\t"), behind(&image, "chunk_root\t"));
    let here = [format!("-r {}", root[0]), format!("--chunk-root {} -E 5", chunks[0])];
    assert_eq!(compare(&image, &here), [0, 0]);
    let wrong = ["-s 2", "-s 3", "--mode best", "-r 1000", "-r abc"];
    assert_eq!(compare(&image, &lines(&wrong)), [1; 5]);
}

#[test]
fn a_check_by_older_roots() {
    newer!();
    let image = filled("check-older");
    let last = behind(&image, "generation\t")[0].clone();
    let roots = behind(&image, "backup_tree_root:\t");
    let older = roots.iter().find(|root| **root != behind(&image, "root\t")[0]).expect("one");
    let asked = [
        "-b".to_owned(),
        "-b -Q".into(),
        "-b -E 256".into(),
        "--backup -s 1".into(),
        format!("-Q -r {older}"),
    ];
    compare(&image, &asked);
    // The backup is not complained of for its age, a root is.
    let mut command = Command::new(PROGRAM);
    let output = command.args(["btrfs", "check", "-r", older]).arg(&image.path).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(&format!("the superblock of {last}")), "{output:?}");
}

#[test]
fn a_check_where_the_first_superblock_or_the_last_root_is_damaged() {
    newer!();
    let image = filled("check-damaged");
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    let mut first = vec![0; 4096];
    std::fs::File::open(&image.path).expect("open").read_exact_at(&mut first, 65536).expect("read");
    file.write_all_at(&[0xaa; 4096], 65536).expect("write");
    assert_eq!(compare(&image, &lines(&["-s 1", "-s 1 -Q", "-s 0"])), [0, 0, 1]);
    file.write_all_at(&first, 65536).expect("write");
    let root = behind(&image, "root\t")[0].parse().expect("a number");
    for at in copies(&image.path, root) {
        file.write_all_at(&[0; 4096], at).expect("write");
    }
    assert_eq!(compare(&image, &lines(&["", "-b"])), [1, 1]);
    compare(&image, &lines(&["-b -E 257", "-b -Q"]));
}

#[test]
fn a_check_of_quotas_that_are_wrong() {
    newer!();
    let image = filled("check-quotas");
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    let at = mount.path().display();
    shell(&format!("btrfs qgroup assign --no-rescan 0/256 1/7 {at} 2> /dev/null; sync -f {at}"));
    mount.unmount().expect("unmount");
    compare(&image, &lines(&["", "-Q"]));
    let told = told(&[Path::new(PROGRAM), Path::new("btrfs")], "check -Q", &image.word()).1;
    assert!(told.contains("1/7 are different"), "{told}");
    assert!(told_behind(&told, "diff:\t\treferenced ")[0] > 3_000_000, "{told}");
}

#[test]
fn what_would_write_is_refused_by_name() {
    for option in ["--repair", "--init-csum-tree", "--init-extent-tree", "--clear-ino-cache"] {
        let output = Command::new(PROGRAM).args(["btrfs", "check", option, "x"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(&format!("`btrfs check {option}` is not there yet")), "{said}");
    }
}
