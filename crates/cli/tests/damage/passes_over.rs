//! What is wrong with one thing, or with one subvolume, does not end the work on the others: it is told, and the exit
//! code is 1.

use crate::common;
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

/// A tree to be merged with that; its words say what is in it.
fn new_tree(dir: &TempDir) -> String {
    let made = sh(&format!(
        "cd {} && mkdir -p t/a t/c && for f in t/a/x t/a/z t/b t/c/d t/e; do echo new > $f; done",
        dir.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    dir.join("t/.").display().to_string()
}

fn changed(image: &Image, words: &[&str]) {
    for words in words {
        let words = words.replace('@', &image.word());
        fine(&words.split(' ').collect::<Vec<_>>());
    }
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
    let source = new_tree(&dir);
    let (code, told) = failing(&["cp", "-r", &source, &image.at("/t")]);
    assert_eq!((code, messages(&told)), (1, 1), "{told}");
    for path in ["/t/b", "/t/c/d", "/t/e"] {
        assert_eq!(fine(&["cat", &image.at(path)]), "new\n", "{path}");
    }
    // In a directory of the read-only one itself nothing else can be done.
    let (code, told) = failing(&["cp", "-r", &source, &image.at("/t/a")]);
    assert_eq!((code, messages(&told)), (1, 1), "{told}");
}

/// From another volume, and from the same.
#[test]
fn a_tree_of_a_volume_is_merged_beside_a_read_only_snapshot() {
    require!(btrfs_progs);
    let dir = TempDir::new("passes-volume-source").unwrap();
    let source = new_tree(&dir);
    let other = Image::new("passes-other");
    for within in [false, true] {
        let image = with_a_read_only_one("passes-volume");
        let from = if within { &image } else { &other };
        fine(&["mkdir", &from.at("/src")]);
        fine(&["cp", "-r", &source, &from.at("/src")]);
        for rule in ["-r", "--no-preserve"] {
            let words = ["cp", "-r", rule, &from.at("/src/."), &image.at("/t")];
            let (code, told) = failing(&words);
            assert_eq!((code, messages(&told)), (1, 1), "{told}");
            for path in ["/t/b", "/t/c/d", "/t/e"] {
                assert_eq!(fine(&["cat", &image.at(path)]), "new\n", "{path}");
            }
            changed(&image, &["rm -r @:/t/b @:/t/c @:/t/e"]);
        }
        assert_eq!(fine(&["cat", &image.at("/t/a/x")]), "");
        // In a directory of the read-only one itself nothing else can be done.
        let (code, told) = failing(&["cp", "-r", &from.at("/src/."), &image.at("/t/a")]);
        assert_eq!((code, messages(&told)), (1, 1), "{told}");
        assert_clean(&image.path);
    }
}

#[test]
fn a_tree_is_merged_beside_a_subvolume_at_its_limit() {
    require!(btrfs_progs);
    let image = Image::new("passes-limit");
    changed(
        &image,
        &["mkdir -p @:/t", "subvolume create @:/t/a", "quota enable @", "qgroup limit 1M @:/t/a"],
    );
    let dir = TempDir::new("passes-limit-source").unwrap();
    let made = sh(&format!(
        "cd {} && mkdir -p t/a && head -c 8M /dev/urandom > t/a/x && echo new > t/b",
        dir.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let source = dir.join("t/.").display().to_string();
    let other = Image::new("passes-limit-other");
    fine(&["mkdir", &other.at("/t")]);
    fine(&["cp", "-r", &source, &other.at("/t")]);
    for source in [source, other.at("/t/.")] {
        let (code, told) = failing(&["cp", "-r", &source, &image.at("/t")]);
        assert!(code == 1 && told.contains("/a/x: quota exceeded"), "{told}");
        assert_eq!(fine(&["cat", &image.at("/t/b")]), "new\n");
        fine(&["rm", &image.at("/t/b")]);
    }
}

/// Mode, and whether it is as old as its source.
fn given(image: &Image) -> [(String, bool); 3] {
    ["d", "d/e", "d/e/early"].map(|name| {
        let told = json(&fine(&["stat", "--json", &image.at(&format!("/to/a/{name}"))]));
        let is_old = told[0]["mtime"].as_str().unwrap().starts_with("2001-");
        (told[0]["mode"].as_str().unwrap().to_owned(), is_old)
    })
}

/// What a subvolume at its limit has no room for leaves directories behind, and files in front of it: with what they would
/// have if all had come, be it from this machine, from another volume or from the same.
#[test]
fn directories_of_a_copy_that_ends_are_given_what_they_are_due() {
    require!(btrfs_progs);
    let dir = TempDir::new("passes-dirs-source").unwrap();
    let made = sh(&format!(
        "cd {} && mkdir -p t/a/d/e && echo small > t/a/d/e/early && head -c 8M /dev/urandom > t/a/d/e/x
         chmod 4711 t/a/d/e/early; chmod 3771 t/a/d; chmod 2750 t/a/d/e; touch -d @1000000000 t/a/d/e t/a/d",
        dir.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let other = Image::new("passes-dirs-other");
    for (from, rule) in
        [0, 1, 2].into_iter().flat_map(|from| [(from, "-r"), (from, "--no-preserve")])
    {
        let image = Image::new("passes-dirs");
        let source = match from {
            0 => dir.join("t/.").display().to_string(),
            1 => other.at("/t/."),
            _ => image.at("/t/."),
        };
        if from > 0 {
            fine(&["rm", "-r", "-f", &source.replace("/t/.", "/t")]);
            let t = dir.join("t").display().to_string();
            fine(&["cp", "-r", &t, &source.replace("/t/.", "/t")]);
        }
        changed(
            &image,
            &[
                "mkdir @:/to",
                "subvolume create @:/to/a",
                "quota enable @",
                "qgroup limit 1M @:/to/a",
            ],
        );
        let (code, told) = failing(&["cp", "-r", rule, &source, &image.at("/to")]);
        assert!(code == 1 && told.contains("/d/e/x: quota exceeded"), "{told}");
        let expected = match rule {
            "-r" => [("3771", true), ("2750", true), ("4711", false)],
            _ => [("0751", false), ("0750", false), ("0711", false)],
        };
        let expected = expected.map(|(mode, is_old)| (mode.to_owned(), is_old));
        assert_eq!(given(&image), expected, "from {source} by {rule}");
        assert_clean(&image.path);
    }
}

/// Nodes of 16 KiB have no attribute that is longer.
#[test]
fn an_attribute_too_long_for_another_volume_is_one_files_own() {
    require!(btrfs_progs);
    let source = Image::with("passes-nodes", &["-n", "65536"]);
    changed(&source, &["mkdir @:/t", "touch @:/t/one @:/t/two", "chmod 751 @:/t/one"]);
    fine(&["touch", "-d", "@1000000000", &source.at("/t/one")]);
    changed(&source, &["xattr set @:/t/one user.a value", "xattr set @:/t/one user.z value"]);
    fine(&["xattr", "set", &source.at("/t/one"), "user.long", &"x".repeat(20_000)]);
    changed(&source, &["ln @:/t/one @:/t/zone"]);
    let image = Image::with("passes-nodes-target", &["-n", "16384"]);
    let told_of = |image: &Image, path: &str| {
        let told = json(&fine(&["stat", "--json", &image.at(path)]));
        (told[0]["mode"].clone(), told[0]["mtime"].clone())
    };
    for (from, target) in [("/t", "/new"), ("/t/.", "/there")] {
        let (code, told) = failing(&["cp", "-r", &source.at(from), &image.at(target)]);
        assert!(code == 1 && messages(&told) == 1, "{told}");
        assert!(told.contains(&format!("{target}/one: no space")), "{told}");
        let made = |name: &str| format!("{target}/{name}");
        assert_eq!(fine(&["ls", &image.at(target)]), "one\ntwo\nzone\n");
        let number = |name: &str| {
            json(&fine(&["stat", "--json", &image.at(&made(name))]))[0]["ino"].as_u64()
        };
        assert!(number("one").is_some() && number("one") == number("zone"), "it has two names");
        // All else that it has is there.
        assert_eq!(told_of(&image, &made("one")), told_of(&source, "/t/one"));
        for name in ["user.a", "user.z"] {
            let value = fine(&["xattr", "get", &image.at(&made("one")), name]);
            assert_eq!(value.trim_end(), "value");
        }
        // Also where it is merged, and the file is there.
        changed(&image, &["mkdir -p @:/there", "touch @:/there/one"]);
    }
    assert_clean(&image.path);
}

/// ext4 says ENOSPC of an attribute that does not fit into the one block that an inode has for them.
#[test]
fn an_attribute_too_long_for_the_target_is_one_files_own() {
    require!(root);
    require!(btrfs_progs);
    require!(sh("command -v mkfs.ext4").status.success(), "mkfs.ext4 is not installed");
    let image = Image::new("passes-xattr");
    changed(&image, &["mkdir @:/t", "touch @:/t/one @:/t/two", "chmod 4751 @:/t/one"]);
    fine(&["touch", "-d", "@1000000000", &image.at("/t/one")]);
    fine(&["xattr", "set", &image.at("/t/one"), "user.z", "value"]);
    fine(&["xattr", "set", &image.at("/t/one"), "user.long", &"x".repeat(8000)]);
    let (other, point) = (image.dir.join("ext4.img"), image.dir.join("point"));
    fs::create_dir(&point).unwrap();
    let (other, point) = (other.display(), point.display());
    let mounted = sh(&format!(
        "truncate -s 64M {other} && mkfs.ext4 -q {other} && mount -o loop {other} {point}"
    ));
    require!(mounted.status.success(), "no ext4 over a loop device: {}", text(&mounted.stderr));
    let first = failing(&["cp", "-r", &image.at("/t"), &format!("{point}/new")]);
    // Also where it is merged, and the file is there.
    sh(&format!("mkdir {point}/there && touch {point}/there/one"));
    let second = failing(&["cp", "-r", &image.at("/t/."), &format!("{point}/there")]);
    let seen = sh(&format!("ls {point}/new {point}/there"));
    // All else that it has is there.
    let kept = sh(&format!("stat -c '%a %Y' {point}/new/one {point}/there/one"));
    sh(&format!("umount {point}"));
    for (code, told) in [first, second] {
        assert!(code == 1 && told.contains("one: set xattr: no space"), "{told}");
    }
    assert_eq!(text(&seen.stdout).matches("two").count(), 2, "{}", text(&seen.stdout));
    assert_eq!(text(&kept.stdout), "4751 1000000000\n".repeat(2));
}

/// What a stranger's program was is nobody's right in the volume, also where the copy ends before its end.
#[test]
fn a_copy_that_ends_early_leaves_no_program_of_somebody_elses_as_its_own() {
    require!(btrfs_progs);
    let image = Image::with("passes-short", &["--byte-count", "128M"]);
    let dir = TempDir::new("passes-short-source").unwrap();
    let made = sh(&format!(
        "cd {} && mkdir tree && cd tree && mkdir a && echo '#!/bin/sh' > a/prog && cp a/prog b-prog && \
         chown 1000:1000 a/prog b-prog && chmod 6755 a/prog b-prog && head -c 140M /dev/urandom > c-large",
        dir.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let tree = dir.join("tree").display().to_string();
    for words in [vec![tree.clone(), image.at("/")], vec![format!("{tree}/."), image.at("/")]] {
        let copy = ["cp", "-r", "--no-preserve"].map(String::from);
        let (code, told) = failing(&[&copy[..], &words].concat());
        assert!(code == 1 && told.contains("no space"), "{told}");
        assert!(fine(&["find", &image.at("/"), "-name", "*prog"]).contains("prog"));
        assert_eq!(fine(&["find", &image.at("/"), "-perm", "/6000"]), "");
    }
    assert_clean(&image.path);
}
