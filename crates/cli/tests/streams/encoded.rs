//! `receive` of a stream with compressed content (`send --compressed-data`): an image gets it as it is, so
//! that the copy takes what the source takes; the kernel's own receiver is the judge.

use crate::common;
use common::streams::{assert_same, ready, shell};
use common::{Image, KernelMount, SCRUB, TempDir, assert_clean, fine};
use std::path::Path;

/// What the kernel compressed, with `overwritten` also in parts of extents that it left behind.
fn source(image: &Image, overwritten: bool) {
    let mount = KernelMount::new(&image.path, "compress-force=zlib").unwrap();
    let top = mount.path().display();
    shell(&format!("btrfs -q subvolume create {top}/v"));
    for kind in ["zlib", "lzo", "zstd"] {
        shell(&format!(
            "mount -o remount,compress-force={kind} {top} && mkdir {top}/v/{kind} && cd {top}/v/{kind}
             seq 1 90000 >seq; seq 1 3000 >short; yes an item | head -c 1500 >item
             head -c 3000000 /dev/zero >zeros; head -c 300000 /dev/urandom >noise; sync -f ."
        ));
        if overwritten {
            shell(&format!(
                "cd {top}/v/{kind}
                 dd if=/dev/urandom of=seq bs=4096 seek=10 count=3 conv=notrunc status=none
                 cp --reflink=always seq shared; truncate -s 300001 seq
                 fallocate -p -o 131072 -l 40960 shared; sync -f ."
            ));
        }
    }
    shell(&format!("btrfs -q subvolume snapshot -r {top}/v {top}/s"));
    mount.unmount().unwrap();
}

fn kernels_stream(source: &Image, into: &Path) {
    let mount = KernelMount::new(&source.path, "ro").unwrap();
    let (top, into) = (mount.path().display(), into.display());
    shell(&format!("btrfs -q send --proto 2 --compressed-data -f {into} {top}/s"));
    mount.unmount().unwrap();
}

fn kernels_copy(stream: &Path) -> Image {
    let image = Image::new("encoded-kernels");
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!("btrfs -q receive -f {} {}", stream.display(), mount.path().display()));
    mount.unmount().unwrap();
    image
}

/// By kind. In how many pieces what is not compressed lies is up to who writes it.
fn sizes(image: &Image) -> String {
    let told = fine(&["compsize", "-b", &image.at("/s")]);
    told.lines().filter(|line| !line.starts_with("Processed")).collect::<Vec<_>>().join("\n")
}

/// What a stream of the copy says, but for times and names of subvolumes.
fn told(image: &Image, dir: &TempDir) -> Vec<String> {
    let path = dir.join("again").display().to_string();
    fine(&["send", "-q", "--proto", "2", "--compressed-data", "-f", &path, &image.at("/s")]);
    let dump = fine(&["receive", "--dump", "-f", &path]);
    std::fs::remove_file(path).unwrap();
    let moments = |line: &&str| ["subvol", "utimes", "mkfile"].iter().any(|w| line.starts_with(w));
    dump.lines().filter(|line| !moments(line)).map(String::from).collect()
}

#[test]
fn a_copy_takes_what_its_source_takes() {
    for overwritten in [false, true] {
        if !ready("encoded") {
            return;
        }
        let (from, dir) = (Image::new("encoded-source"), TempDir::new("encoded").unwrap());
        source(&from, overwritten);
        let stream = dir.join("stream");
        kernels_stream(&from, &stream);
        let (ours, theirs) = (Image::new("encoded-ours"), kernels_copy(&stream));
        let file = stream.display().to_string();
        fine(&["receive", "-q", "-f", &file, &ours.at("/")]);
        assert_clean(&ours.path);
        let found = sizes(&ours);
        println!("{found}");
        assert!(["zlib", "lzo", "zstd", "none"].iter().all(|kind| found.contains(kind)), "{found}");
        assert_eq!(found, sizes(&theirs), "the kernel's copy");
        assert!(overwritten || found == sizes(&from), "the source: {}", sizes(&from));
        let (our_dump, their_dump) = (told(&ours, &dir), told(&theirs, &dir));
        assert!(our_dump.iter().filter(|line| line.starts_with("encoded_write")).count() > 60);
        assert_eq!(our_dump, their_dump);
        let (left, right) = (
            KernelMount::new(&from.path, "ro").unwrap(),
            KernelMount::new(&ours.path, "noatime").unwrap(),
        );
        assert_same(&left.join("s"), &right.join("s"), "as it is");
        shell(&format!("{SCRUB} start -B -q {}", right.path().display()));
        left.unmount().unwrap();
        right.unmount().unwrap();
        // The volume's own rules.
        let plain = Image::new("encoded-plain");
        fine(&["receive", "-q", "--force-decompress", "-f", &file, &plain.at("/")]);
        assert!(!sizes(&plain).contains("zstd"), "{}", sizes(&plain));
    }
}
