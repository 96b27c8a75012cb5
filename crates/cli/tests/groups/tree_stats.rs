//! `inspect-internal tree-stats`, under either name.
//!
//! Judge: btrfs-progs 6.14 on the same image; but for the time that it took to read.

use crate::common;
use common::streams::shell;
use common::{Image, KernelMount, fine, text};
use std::process::Command;
use testkit::oracle::newer_btrfs;
use testkit::require;

/// Trees of several levels, written in several commits, with gaps.
fn scattered(options: &[&str]) -> Image {
    let image = Image::with("tree-stats", options);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    shell(&format!(
        "cd {}; for d in $(seq 8); do mkdir $d; for i in $(seq 200); do
        head -c $((i % 2 * 4000 + 700)) /dev/urandom > $d/a-longer-name-of-file-$i; done; sync -f .; done
        rm -r 3; rm 5/*7; rm 1/*2; sync -f .; btrfs -q subvolume create sub; cp -r 2 sub",
        mount.path().display()
    ));
    mount.unmount().expect("unmount");
    image
}

fn without_time(told: &str) -> Vec<String> {
    let timed = |line: &str| match line.strip_prefix("\tTotal read time: ") {
        Some(time) => {
            assert!(time.contains(" s ") && time.ends_with(" us"), "{time}");
            "time".to_owned()
        }
        None => line.to_owned(),
    };
    told.lines().map(timed).collect()
}

#[test]
fn it_is_counted_as_by_the_newer_one() {
    require!(kernel_btrfs);
    let newer = match newer_btrfs() {
        Ok(newer) => newer,
        Err(why) => testkit::skip!("{why}"),
    };
    for options in [&["-n", "4096"][..], &[]] {
        let image = scattered(options);
        for words in
            [&[][..], &["-b"], &["-t", "5"], &["-t", "256", "--si"], &["-t", "2", "--kbytes"]]
        {
            let line = [&["inspect-internal", "tree-stats"], words].concat();
            let output =
                Command::new(&newer).args(&line).arg(&image.path).output().expect("starts");
            assert!(output.status.success(), "{}", text(&output.stderr));
            let word = image.word();
            let ours = fine(&[&["btrfs"], &line[..], &[&word]].concat());
            assert_eq!(without_time(&ours), without_time(&text(&output.stdout)), "{words:?}");
            assert_eq!(without_time(&fine(&[&line[..], &[&word]].concat())), without_time(&ours));
        }
        let whole = fine(&["inspect-internal", "tree-stats", &image.word()]);
        if !options.is_empty() {
            assert!(whole.contains("Seek histogram") && whole.contains("On level 1"), "{whole}");
        }
    }
}
