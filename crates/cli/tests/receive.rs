//! `spinney receive --dump`: streams that the kernel made are told as `btrfs` tells them, and
//! damaged ones up to the damage, with its offset.

mod common;

use common::streams::{Chain, Sender, chains};
use common::{PROGRAM, TempDir, text};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../btrfs-send/tests/golden");

fn receive(words: &[&str], input: Option<&Path>) -> Output {
    let input = input.map_or_else(Stdio::null, |path| File::open(path).unwrap().into());
    Command::new(PROGRAM).arg("receive").args(words).env("TZ", "UTC").stdin(input).output().unwrap()
}

#[test]
fn streams_are_told_from_a_file_and_from_standard_input() {
    for name in ["full", "incremental", "protocol2"] {
        let stream = format!("{GOLDEN}/{name}.stream");
        let expected = fs::read_to_string(format!("{GOLDEN}/{name}.dump")).unwrap();
        let from_file = receive(&["--dump", "-f", &stream], None);
        let from_input = receive(&["--dump"], Some(Path::new(&stream)));
        for done in [from_file, from_input] {
            assert!(done.status.success(), "{name}: {}", text(&done.stderr));
            assert_eq!(text(&done.stdout), expected, "{name}");
        }
    }
}

#[test]
fn damage_is_told_with_its_offset_behind_what_is_whole() {
    let dir = TempDir::new("receive-damaged").unwrap();
    let path = dir.join("cut.stream");
    let stream = fs::read(format!("{GOLDEN}/full.stream")).unwrap();
    fs::write(&path, &stream[..1000]).unwrap();
    let done = receive(&["--dump"], Some(&path));
    assert!(!done.status.success());
    let (told, said) = (text(&done.stdout), text(&done.stderr));
    let whole = fs::read_to_string(format!("{GOLDEN}/full.dump")).unwrap();
    assert!(told.lines().count() > 2 && whole.starts_with(&told), "{told}");
    assert!(said.contains("standard input") && said.contains("at byte "), "{said}");
}

#[test]
fn chains_that_the_kernel_sent() {
    let kind = Chain {
        name: "receive-chain",
        rounds: 8,
        mkfs: &["-n", "4096"],
        mount: "noatime",
        sender: Sender::Kernels(""),
        into_mount: false,
    };
    chains(kind, 3);
}

#[test]
fn chains_that_the_kernel_sent_in_protocol_2() {
    let kind = Chain {
        name: "receive-2",
        rounds: 6,
        mkfs: &[],
        mount: "noatime,compress-force=zstd",
        sender: Sender::Kernels("--proto 2 --compressed-data"),
        into_mount: false,
    };
    chains(kind, 3);
}

#[test]
fn chains_into_a_mount() {
    let kernels = Chain {
        name: "receive-mount",
        rounds: 5,
        mkfs: &["-n", "4096"],
        mount: "noatime",
        sender: Sender::Kernels(""),
        into_mount: true,
    };
    chains(kernels, 2);
    let sender = Sender::Ours(&["--proto", "2", "--compressed-data"]);
    chains(Chain { mount: "noatime,compress-force=lzo", sender, ..kernels }, 2);
}
