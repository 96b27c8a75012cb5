//! What is wrong with one thing, or with one subvolume, does not end the work on the others: it is told, and the exit
//! code is 1.

mod common;

use common::{Image, TempDir, assert_clean, failing, fine, json, sh, text};
use std::fs;
use testkit::require;

/// `/t` with a read-only subvolume `a` of two files, a file `b` and a directory `c` with a file.
fn with_a_read_only_one(name: &str) -> Image {
    let image = Image::new(name);
    for words in [
        "mkdir -p @:/t/c",
        "subvolume create @:/t/a",
        "touch @:/t/a/x @:/t/a/y @:/t/b @:/t/c/d",
        "property set @:/t/a ro true",
    ] {
        let words = words.replace('@', &image.word());
        fine(&words.split(' ').collect::<Vec<_>>());
    }
    image
}

fn owner_and_mode(image: &Image, path: &str) -> (u64, String) {
    let told = json(&fine(&["stat", "--json", &image.at(path)]));
    (told[0]["uid"].as_u64().unwrap(), told[0]["mode"].as_str().unwrap().to_owned())
}

/// How many things were told to have failed; each may have a line of advice.
fn messages(told: &str) -> usize {
    told.lines().filter(|line| line.starts_with("spinney: ")).count()
}

#[test]
fn a_read_only_snapshot_is_passed_over_once() {
    require!(btrfs_progs);
    let image = with_a_read_only_one("passes-changes");
    for words in [["chown", "-R", "7"], ["chmod", "-R", "700"]] {
        let (code, told) = failing(&[&words[..], &[&image.at("/t")]].concat());
        assert_eq!((code, messages(&told)), (1, 1), "{told}");
        assert!(told.contains("/t/a: read-only"), "{told}");
    }
    for path in ["/t/b", "/t/c", "/t/c/d"] {
        assert_eq!(owner_and_mode(&image, path), (7, "0700".to_owned()), "{path}");
    }
    assert_ne!(owner_and_mode(&image, "/t/a/x").0, 7);
    let (code, told) = failing(&["rm", "-r", &image.at("/t")]);
    assert_eq!((code, messages(&told)), (1, 1), "{told}");
    assert!(told.contains("/t/a/y: read-only") || told.contains("/t/a/x: read-only"), "{told}");
    assert_eq!(fine(&["ls", &image.at("/t")]), "a\n");
    assert_eq!(fine(&["ls", &image.at("/t/a")]), "x\ny\n");
    assert_clean(&image.path);
}

#[test]
fn a_tree_is_merged_beside_a_read_only_snapshot() {
    require!(btrfs_progs);
    let image = with_a_read_only_one("passes-merge");
    let dir = TempDir::new("passes-source").unwrap();
    let made = sh(&format!(
        "cd {} && mkdir -p t/a t/c && for f in t/a/x t/a/z t/b t/c/d t/e; do echo new > $f; done",
        dir.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let source = dir.join("t/.").display().to_string();
    let (code, told) = failing(&["cp", "-r", &source, &image.at("/t")]);
    assert_eq!((code, messages(&told)), (1, 1), "{told}");
    for path in ["/t/b", "/t/c/d", "/t/e"] {
        assert_eq!(fine(&["cat", &image.at(path)]), "new\n", "{path}");
    }
    // In a directory of the read-only one itself nothing else can be done.
    let (code, told) = failing(&["cp", "-r", &source, &image.at("/t/a")]);
    assert_eq!((code, messages(&told)), (1, 1), "{told}");
}

#[test]
fn a_tree_is_merged_beside_a_subvolume_at_its_limit() {
    require!(btrfs_progs);
    let image = Image::new("passes-limit");
    for words in
        ["mkdir -p @:/t", "subvolume create @:/t/a", "quota enable @", "qgroup limit 1M @:/t/a"]
    {
        let words = words.replace('@', &image.word());
        fine(&words.split(' ').collect::<Vec<_>>());
    }
    let dir = TempDir::new("passes-limit-source").unwrap();
    let made = sh(&format!(
        "cd {} && mkdir -p t/a && head -c 8M /dev/urandom > t/a/x && echo new > t/b",
        dir.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let source = dir.join("t/.").display().to_string();
    let (code, told) = failing(&["cp", "-r", &source, &image.at("/t")]);
    assert!(code == 1 && told.contains("/a/x: quota exceeded"), "{told}");
    assert_eq!(fine(&["cat", &image.at("/t/b")]), "new\n");
}

/// ext4 says ENOSPC of an attribute that does not fit into the one block that an inode has for them.
#[test]
fn an_attribute_too_long_for_the_target_is_one_files_own() {
    require!(root);
    require!(btrfs_progs);
    require!(sh("command -v mkfs.ext4").status.success(), "mkfs.ext4 is not installed");
    let image = Image::new("passes-xattr");
    for words in ["mkdir @:/t", "touch @:/t/one @:/t/two"] {
        let words = words.replace('@', &image.word());
        fine(&words.split(' ').collect::<Vec<_>>());
    }
    fine(&["xattr", "set", &image.at("/t/one"), "user.long", &"x".repeat(8000)]);
    let (other, point) = (image.dir.join("ext4.img"), image.dir.join("point"));
    fs::create_dir(&point).unwrap();
    let (other, point) = (other.display(), point.display());
    let mounted = sh(&format!(
        "truncate -s 64M {other} && mkfs.ext4 -q {other} && mount -o loop {other} {point}"
    ));
    assert!(mounted.status.success(), "{}", text(&mounted.stderr));
    let first = failing(&["cp", "-r", &image.at("/t"), &format!("{point}/new")]);
    // Also where it is merged, and the file is there.
    sh(&format!("mkdir {point}/there && touch {point}/there/one"));
    let second = failing(&["cp", "-r", &image.at("/t/."), &format!("{point}/there")]);
    let seen = sh(&format!("ls {point}/new {point}/there; umount {point}"));
    for (code, told) in [first, second] {
        assert!(code == 1 && told.contains("one: set xattr: no space"), "{told}");
    }
    assert_eq!(text(&seen.stdout).matches("two").count(), 2, "{}", text(&seen.stdout));
}
