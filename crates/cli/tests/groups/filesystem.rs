//! `spinney filesystem`, on images and on mounts.
//!
//! Judge: `btrfs filesystem` on the kernel's mount of the same image.

use crate::common;
use common::mount::Mount;
use common::{Image, KernelMount, failing, fine, json, sh, text};
use std::process::Command;
use testkit::require;

/// Standard output of `btrfs`, which must succeed.
fn btrfs(words: &[&str]) -> String {
    let output = Command::new("btrfs").args(words).output().expect("btrfs-progs");
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

const FORMS: &[&str] = &[
    "df",
    "df -b",
    "df --si",
    "df -k",
    "df -H --iec",
    "usage",
    "usage -b",
    "usage -T",
    "usage -T --mbytes",
    "show",
    "show --raw",
    "show --si --mbytes",
    "label",
];

/// What `btrfs` tells of the kernel's mount on `at`, whose device is called `device` from then on.
fn told_by_kernel(mount: &KernelMount, device: &str) -> Vec<String> {
    let at = mount.path().display().to_string();
    let source = btrfs(&["filesystem", "show", &at]);
    let source = source.split("path ").nth(1).unwrap().trim().to_owned();
    let ask = |form: &&str| {
        let words: Vec<&str> = ["filesystem"].into_iter().chain(form.split(' ')).collect();
        let told = btrfs(&[&words[..], &[&at]].concat());
        unaligned(&told.replace(&source, device))
    };
    FORMS.iter().map(ask).collect()
}

fn told_by_us(place: &str) -> Vec<String> {
    let ask = |form: &&str| {
        let words: Vec<&str> = ["filesystem"].into_iter().chain(form.split(' ')).collect();
        unaligned(&fine(&[&words[..], &[place]].concat()))
    };
    FORMS.iter().map(ask).collect()
}

/// A path of another length widens the columns of a table.
fn unaligned(told: &str) -> String {
    if !told.contains("Id Path") {
        return told.to_owned();
    }
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    told.lines().filter(|line| !line.starts_with("--")).map(words).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_told_of_a_volume_is_what_btrfs_tells() {
    require!(kernel_btrfs);
    let image = Image::with("filesystem-told", &["-L", "two words"]);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let at = mount.path().display().to_string();
    let filled =
        sh(&format!("head -c 3000000 /dev/urandom >{at}/file; btrfs filesystem sync {at}"));
    assert!(filled.status.success(), "{}", text(&filled.stderr));
    let told = told_by_kernel(&mount, &image.word());
    let as_json = btrfs(&["--format", "json", "filesystem", "df", &at]);
    mount.unmount().unwrap();

    assert_eq!(told_by_us(&image.word()), told);
    assert_eq!(fine(&["filesystem", "df", "--json", &image.word()]), as_json);
    let all = json(&fine(&["filesystem", "show", "--json", &image.word()]));
    assert_eq!(all[0]["label"], "two words");
    assert_eq!(all[0]["devices"][0]["size"], 512 << 20);
    let usage = json(&fine(&["filesystem", "usage", "--json", &image.word()]));
    assert_eq!(usage[0]["groups"][0]["type"], "Data");

    require!(fuse);
    let mount = Mount::new(&image, "transport=classic");
    let at = mount.word();
    let source = common::mount::mounted(&mount.point).unwrap().1;
    let ours: Vec<_> =
        told_by_us(&at).iter().map(|told| told.replace(&source, &image.word())).collect();
    assert_eq!(ours, told);
    assert!(fine(&["filesystem", "show", "-m"]).contains("two words"));
    assert_eq!(fine(&["filesystem", "show", "two words"]), told_by_us(&at)[9]);
}

#[test]
fn a_label_is_set_in_images_and_mounts() {
    let image = Image::new("filesystem-label");
    fine(&["filesystem", "label", &image.word(), "first one"]);
    assert_eq!(btrfs(&["filesystem", "label", &image.word()]), "first one\n");
    let long = "x".repeat(256);
    assert_eq!(failing(&["filesystem", "label", &image.word(), &long]).0, 1);
    assert_eq!(failing(&["filesystem", "label", "/", "x"]).0, 1);

    require!(fuse);
    let mount = Mount::new(&image, "transport=classic");
    let at = mount.word();
    fine(&["filesystem", "label", &at, ""]);
    assert_eq!(fine(&["filesystem", "label", &at]), "\n");
    std::fs::write(mount.join("file"), "content").unwrap();
    fine(&["filesystem", "sync", &at]);
    // The last commit has it.
    let copy = image.dir.join("copy.img");
    std::fs::copy(&image.path, &copy).unwrap();
    assert_eq!(fine(&["cat", &common::at(&copy, "/file")]), "content");
    assert_eq!(failing(&["filesystem", "sync", "/"]).0, 1);
}
