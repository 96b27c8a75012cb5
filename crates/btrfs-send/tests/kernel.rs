//! Streams of the kernel's own: decoded, told, and encoded again byte for byte. Those in
//! `golden` it made once; where the machine has btrfs, it makes more, and tells them beside us.

use btrfs_send::{Decoder, Dump, Encoder, Time};
use std::fs;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use testkit::oracle::{KernelMount, TempDir, mkfs_btrfs, sh};

const GOLDEN: [(&str, &[u8], &str); 3] = [
    ("full", include_bytes!("golden/full.stream"), include_str!("golden/full.dump")),
    ("2", include_bytes!("golden/protocol2.stream"), include_str!("golden/protocol2.dump")),
    ("-p", include_bytes!("golden/incremental.stream"), include_str!("golden/incremental.dump")),
];

fn again(stream: &[u8]) -> Vec<u8> {
    let mut decoder = Decoder::new(stream);
    decoder.next_command().unwrap();
    let mut encoder = Encoder::new(Vec::new(), decoder.protocol()).unwrap();
    let mut decoder = Decoder::new(stream);
    while let Some(command) = decoder.next_command().unwrap() {
        encoder.put(&command).unwrap();
    }
    assert_eq!(encoder.offset(), stream.len() as u64);
    encoder.into_inner()
}

/// In UTC, and within 2026.
fn time((secs, _): Time) -> String {
    let out = sh("date", &["-u", "-d", &format!("@{secs}"), "+%FT%T%z"]);
    out.unwrap()
}

fn told(stream: &[u8]) -> String {
    let mut decoder = Decoder::new(stream);
    let mut dump = Dump::new(&time);
    let mut text = String::new();
    while let Some(command) = decoder.next_command().unwrap() {
        if let Some(line) = dump.line(&command) {
            text.push_str(&String::from_utf8(line).unwrap());
            text.push('\n');
        }
    }
    text
}

#[test]
fn golden_streams_pass_unchanged_and_are_told_as_btrfs_tells_them() {
    for (name, stream, dump) in GOLDEN {
        assert!(again(stream) == stream, "{name}");
        assert_eq!(told(stream), dump, "{name}");
    }
    let clones = |(_, _, dump): &(&str, &[u8], &str)| dump.lines().any(|l| l.starts_with("clone"));
    assert!(GOLDEN.iter().any(clones), "golden streams have clones");
}

fn fill(volume: &Path) {
    let script = "btrfs -q subvolume create v && cp -a /etc/passwd /bin/true v && mkdir -p v/d/e &&
        ln v/passwd v/d/hard && ln -s 'no where' 'v/so ft' && mkfifo v/fifo &&
        mknod v/null c 1 3 && printf 'tab\\t' > v/$(printf 'ta\\tb') &&
        setfattr -n user.a -v b v/true && cp --reflink=always v/true v/copy &&
        fallocate -l 300000 v/room && head -c 300000 /dev/zero > v/zeros &&
        btrfs -q subvolume snapshot -r v one && mv v/d/e v/e && mv v/d v/e/d && rm v/null &&
        truncate -s 99 v/true && btrfs -q subvolume snapshot -r v two";
    let done = Program::new("sh").args(["-ec", script]).current_dir(volume).status().unwrap();
    assert!(done.success());
}

#[test]
fn the_kernels_streams_of_now_pass_unchanged() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("send-codec").unwrap();
    let image = dir.join("volume.img");
    mkfs_btrfs(&image, 160 << 20, &[]).unwrap();
    let mount = KernelMount::new(&image, "compress=zstd").unwrap();
    fill(mount.path());
    let (one, two) = (mount.join("one"), mount.join("two"));
    let [one, two] = [&one, &two].map(|path| path.to_str().unwrap());
    let all: [&[&str]; 6] = [
        &[one],
        &["--proto", "2", "--compressed-data", one],
        &["-p", one, two],
        &["--no-data", two],
        &["-e", one, two],
        &[one, two],
    ];
    for words in all {
        let path = dir.join("stream");
        let front = ["send", "-q", "-f", path.to_str().unwrap()];
        sh("btrfs", &[&front[..], words].concat()).unwrap();
        let stream = fs::read(&path).unwrap();
        // Where several come without `-e`, a header comes with each; btrfs tells the first.
        let first = &stream[..first_stream(&stream)];
        assert!(again(first) == first, "{words:?}");
        assert!(told(&stream).starts_with(&told(first)));
        let theirs = Program::new("btrfs")
            .args(["receive", "--dump"])
            .env("TZ", "UTC")
            .stdin(Stdio::from(fs::File::open(&path).unwrap()))
            .output()
            .unwrap();
        assert!(told(first) == String::from_utf8(theirs.stdout).unwrap(), "{words:?}");
    }
    mount.unmount().unwrap();
}

/// The length of the first of several streams.
fn first_stream(all: &[u8]) -> usize {
    let magic = b"btrfs-stream\0";
    (1..all.len()).find(|at| all[*at..].starts_with(magic)).unwrap_or(all.len())
}
