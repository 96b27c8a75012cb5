//! Volumes with a log, of a crash, that cannot be replayed, or that a rescuer does not want: what is said of it helps,
//! and nobody takes a copy without it for all that there was.

use crate::common;
use common::mount::Mount;
use common::streams::shell;
use common::{Image, KernelMount, copies, failing, fine, json, spinney, text};
use std::os::unix::fs::FileExt;
use testkit::require;

/// /old is committed, /new only in the log, as a power cut leaves it; where the log's root has its copies.
fn with_log(name: &str) -> (Image, Vec<u64>) {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime,commit=300").expect("mount");
    let logged = image.dir.join("logged.img");
    shell(&format!(
        "cd {}; echo old > old; sync -f .; echo new > new; sync new; cp --sparse=always {} {}",
        mount.path().display(),
        image.word(),
        logged.display()
    ));
    mount.unmount().expect("unmount");
    std::fs::rename(&logged, &image.path).expect("rename");
    let shown = common::sh(&format!("btrfs inspect-internal dump-super {}", image.word()));
    let shown = text(&shown.stdout);
    let told = |name: &str| {
        let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let words = lines.find(|words| words.first() == Some(&name)).expect("it is told");
        words[1].parse::<u64>().expect("an address")
    };
    // No extent item stands for the log, so it is looked up by a tree in the same chunk.
    let (root, log) = (told("root"), told("log_root"));
    let places = copies(&image.path, root).into_iter().map(|at| at + log - root);
    (image, places.collect())
}

fn with_damaged_log(name: &str) -> Image {
    let (image, places) = with_log(name);
    let device = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    places.iter().for_each(|at| device.write_all_at(&[0xff; 4096], *at).expect("written"));
    image
}

/// Commands between back quotes.
fn commands(said: &str) -> Vec<&str> {
    said.split('`').skip(1).step_by(2).collect()
}

#[test]
fn what_is_said_of_a_damaged_log_helps() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = with_damaged_log("damaged-log");
    let before = std::fs::read(&image.path).expect("read");
    let (word, root) = (image.word(), image.at("/"));
    let point = Mount::directory(&image).display().to_string();
    let (inside, copy) = (image.at("/x"), image.dir.join("copy").display().to_string());
    let openers: [&[&str]; 5] = [
        &["mkdir", &inside],
        &["ls", &root],
        &["cp", "-r", &root, &copy],
        &["mount", &word, &point],
        &["mount", "-o", "ro", &word, &point],
    ];
    for words in openers {
        let (_, said) = failing(words);
        assert!(said.contains("the log of fsyncs cannot be replayed"), "{words:?}: {said}");
        assert!(said.contains("`-o ro,nologreplay`"), "{words:?}: {said}");
        for useless in ["`-o ro`", "rescue=all", "--rescue all", "spinney check"] {
            assert!(!said.contains(useless), "{words:?}: {said}");
        }
        let copies = commands(&said).into_iter().find(|c| c.starts_with("spinney cp"));
        let line = copies.unwrap_or_else(|| panic!("{said}")).replace(" DIR", &format!(" {copy}"));
        let copied = spinney(&line.split(' ').skip(1).collect::<Vec<_>>());
        let told = text(&copied.stderr);
        assert!(copied.status.success() && told.contains("its log is not read"), "{line}: {told}");
        assert_eq!(std::fs::read(image.dir.join("copy/old")).expect("copied"), b"old\n");
        std::fs::remove_dir_all(&copy).expect("removed");
    }
    let mount = Mount::new(&image, "ro,nologreplay");
    assert_eq!(std::fs::read(mount.point.join("old")).expect("shown"), b"old\n");
    mount.umount();
    assert!(std::fs::read(&image.path).expect("read") == before, "nothing is written");
    // The same of `check`, and then all is well.
    let report = json(&text(&spinney(&["check", "--json", &word]).stdout));
    let remedy = report["findings"][0]["remedy"].as_str().expect("a remedy");
    let line = commands(remedy)[0].replace("IMAGE", &word);
    assert!(line.starts_with("spinney rescue zero-log"), "{report}");
    fine(&line.split(' ').skip(1).collect::<Vec<_>>());
    fine(&["check", &word]);
    let mount = KernelMount::new(&image.path, "noatime").expect("the kernel mounts it");
    assert_eq!(std::fs::read(mount.join("old")).expect("there"), b"old\n");
    mount.unmount().expect("unmount");
}

#[test]
fn a_log_that_is_left_out_is_told_of() {
    require!(kernel_btrfs);
    let (image, _) = with_log("log-left-out");
    let (root, tar) = (image.at("/"), image.dir.join("tar").display().to_string());
    let copy = image.dir.join("copy").display().to_string();
    for words in ["all", "nologreplay"] {
        let verbs: [&[&str]; 5] = [
            &["ls", &root],
            &["find", &root],
            &["du", &root],
            &["tar", "-c", "-f", &tar, &root],
            &["cp", "-r", &root, &copy],
        ];
        for verb in verbs {
            let output = spinney(&[verb, &["--rescue", words]].concat());
            let said = text(&output.stderr);
            assert!(output.status.success(), "{verb:?}: {said}");
            assert_eq!(said.matches("its log is not read").count(), 1, "{verb:?}: {said}");
        }
        assert!(!image.dir.join("copy/new").exists(), "it is in the log alone");
        std::fs::remove_dir_all(&copy).expect("removed");
    }
    assert!(fine(&["ls", &root]).contains("new"), "else it is shown, and nothing is said");
    assert!(fine(&["ls", "--rescue", "usebackuproot", &root]).contains("new"));
}
