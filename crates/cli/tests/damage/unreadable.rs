//! One thing that cannot be read: verbs that list tell of it, go on with the others, and exit with 1.
//!
//! It knows a leaf only so far as to find the one that has such items.

use crate::common;
use common::{failing, json, sh, spinney, text};
use std::path::Path;
use testkit::oracle::TempDir;

const NODE: usize = 4096;
const HEADER: usize = 101;
const ITEM: usize = 25;
const INODE_ITEM: u8 = 1;
const DIR_INDEX: u8 = 96;
const EXTENT_DATA: u8 = 108;

/// No leaf of the top level is whole that has items of this kind of an inode, but the one with itself.
fn lose(image: &Path, ino: &serde_json::Value, kind: u8) {
    let ino = ino.as_u64().expect("a number").to_le_bytes();
    let (mut disk, mut lost) = (std::fs::read(image).expect("read"), 0);
    for node in disk.chunks_exact_mut(NODE) {
        // Its tree, and how high it stands in it.
        if node[88..96] != 5u64.to_le_bytes() || node[100] != 0 {
            continue;
        }
        let items = u16::from_le_bytes([node[96], node[97]]).into();
        let has = |kind: u8| {
            (0..items)
                .map(|item| &node[HEADER + item * ITEM..])
                .any(|key| key[..8] == ino && key[8] == kind)
        };
        if has(kind) && !has(INODE_ITEM) {
            node[NODE - 1] ^= 1;
            lost += 1;
        }
    }
    assert!(lost > 0, "nothing to lose");
    std::fs::write(image, disk).expect("written");
}

/// A volume with a directory whose names cannot be read, a symbolic link that leads nobody knows where, and more in
/// front of and behind these.
fn volume(scratch: &TempDir) -> impl Fn(&str) -> String + use<> {
    let image = scratch.join("image");
    // The link's content has a leaf of its own.
    let done = sh(&format!(
        "cd {} && mkdir -p from/a from/b from/many from/y && : > from/a/empty && : > from/z &&
         ln -s $(printf %03900d 0) from/link &&
         for n in $(seq 500); do : > from/b/file-$n; : > from/many/file-$n; done && cd from &&
         {} mkfs -q -s 128M -n {NODE} --rootdir . {}",
        scratch.path().display(),
        common::PROGRAM,
        image.display(),
    ));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let word = image.display().to_string();
    let at = move |path: &str| format!("{word}:{path}");
    let ino = |path: &str| json(&common::fine(&["stat", "--json", &at(path)]))[0]["ino"].clone();
    lose(&image, &ino("/b"), DIR_INDEX);
    lose(&image, &ino("/link"), EXTENT_DATA);
    at
}

/// What is written, by a command that tells of `path` alone.
fn goes_on(words: &[&str], path: &str) -> String {
    let done = spinney(words);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{words:?}: {said}");
    let mut told = said.lines().filter(|line| line.starts_with("spinney: "));
    assert!(told.all(|line| line.contains(path)) && said.contains(path), "{words:?}: {said}");
    text(&done.stdout)
}

#[test]
fn find_goes_on_behind_what_it_cannot_judge() {
    let scratch = TempDir::new("find-unreadable").expect("scratch");
    let at = volume(&scratch);
    let top = at("/");
    let empty = goes_on(&["find", &top, "-maxdepth", "1", "-empty"], &at("/b"));
    let expected: Vec<String> = ["/y", "/z"].iter().map(|path| at(path)).collect();
    assert_eq!(empty.lines().collect::<Vec<_>>(), expected);
    // What passes by its name is found, whatever else cannot be told of it.
    let by_name = ["find", &top, "-maxdepth", "1", "-empty", "-o", "-name", "b"];
    let found = common::fine(&by_name);
    let expected: Vec<String> = ["/b", "/y", "/z"].iter().map(|path| at(path)).collect();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    let told = goes_on(&["find", &top, "-maxdepth", "1", "--json"], &at("/link"));
    let told: Vec<_> = told.lines().map(json).collect();
    let paths: Vec<_> = told.iter().map(|one| one["path"].as_str().expect("a path")).collect();
    assert_eq!(paths, ["/", "/a", "/b", "/link", "/many", "/y", "/z"]);
    assert_eq!((&told[3]["type"], told[3].get("target")), (&"symlink".into(), None));
}

#[test]
fn ls_goes_on_behind_a_link_that_it_cannot_read() {
    let scratch = TempDir::new("ls-unreadable").expect("scratch");
    let at = volume(&scratch);
    let (top, link) = (at("/"), at("/link"));
    let lines = goes_on(&["ls", "-l", &top], &link);
    let names: Vec<_> = lines.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(names, ["a", "b", "link", "many", "y", "z"], "{lines}");
    let told = json(&goes_on(&["ls", "--json", &top], &link));
    let told = told.as_array().expect("an array");
    assert_eq!((told.len(), told[2].get("target")), (6, None));
    // Where no directory is listed as well.
    assert!(goes_on(&["ls", "-l", &link], &link).trim_end().ends_with("/link"));
    assert!(failing(&["ls", "-l", &link, &at("/none")]).1.contains("/none"));
}

/// An array is written as it comes: what is told of one operand stands behind the objects of the one before.
#[test]
fn arrays_are_written_as_they_come() {
    let scratch = TempDir::new("rows-unreadable").expect("scratch");
    let at = volume(&scratch);
    for verb in ["ls -a --json", "du -a --json"] {
        let script = format!("{} {verb} {} {} 2>&1", common::PROGRAM, at("/many"), at("/b"));
        let told = text(&sh(&script).stdout);
        assert!(told.starts_with('['), "{verb} waits: {}", &told[..80]);
        let words: Vec<String> = verb.split(' ').map(str::to_owned).collect();
        let told = spinney(&[words, vec![at("/many"), at("/b")]].concat());
        assert_eq!(told.status.code(), Some(1));
        let count = if verb.starts_with("ls") { 2 * 2 + 500 } else { 2 + 500 };
        assert_eq!(json(&text(&told.stdout)).as_array().expect("an array").len(), count, "{verb}");
        let none = spinney(&[verb.split(' ').next().expect("a verb"), "--json", &at("/none")]);
        assert_eq!(text(&none.stdout), "[]\n");
    }
}
