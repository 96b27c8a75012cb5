//! Every verb that answers does so in JSON when asked; a new verb must be put on a list.

use crate::common;
use common::mount::Mount;
use common::{Image, fine, json, spinney, text};
use std::collections::BTreeSet;
use testkit::require;

/// Their work is what they are for; what some of them print (the server's place, names with
/// -v) is an aside. `cat` prints content, `completions` scripts, `receive --dump` the lines that
/// `btrfs` prints. None of them knows `--json`.
const ACT: &[&str] = &[
    "balance cancel",
    "balance pause",
    "balance resume",
    "balance start",
    "cat",
    "chmod",
    "chown",
    "completions",
    "cp",
    "filesystem defragment",
    "filesystem resize",
    "filesystem sync",
    "ln",
    "mkdir",
    "mount",
    "mv",
    "property set",
    "qgroup assign",
    "qgroup clear-stale",
    "qgroup create",
    "qgroup destroy",
    "qgroup limit",
    "qgroup remove",
    "quota disable",
    "quota enable",
    "quota rescan",
    "receive",
    "rm",
    "scrub cancel",
    "send",
    "subvolume create",
    "subvolume delete",
    "subvolume set-default",
    "subvolume snapshot",
    "subvolume sync",
    "tar",
    "touch",
    "truncate",
    "umount",
    "verity enable",
];

#[test]
fn verbs_that_answer_do_so_in_json() {
    require!(btrfs_progs);
    require!(fuse);
    let image = Image::new("answers");
    let (word, file) = (image.word(), image.at("/file"));
    fine(&["touch", &file]);
    fine(&["xattr", "set", &file, "user.a", "b"]);
    let fresh = image.dir.join("fresh.img").display().to_string();
    let at = image.at("/");
    let mut asked = BTreeSet::new();
    let mut ask = |words: &[&str]| {
        let text = fine(words);
        // Trees are told as one value a line.
        let lines: Vec<&str> =
            if words[0] == "dump-tree" { text.lines().collect() } else { vec![&text] };
        assert!(!lines.is_empty(), "{words:?}");
        let first = lines.iter().map(|line| json(line)).next().unwrap();
        asked.insert(words[0].to_owned());
        asked.insert(words[..2].join(" "));
        first
    };
    assert_eq!(ask(&["ls", "--json", &at])[0]["name"], "file");
    assert_eq!(ask(&["find", &file, "--json"])["path"], "/file");
    assert_eq!(ask(&["du", "--json", &at])[0]["path"], "/");
    assert_eq!(ask(&["stat", "--json", &file])[0]["type"], "file");
    assert_eq!(ask(&["xattr", "list", "--json", &file])[0]["value"], "b");
    assert_eq!(ask(&["xattr", "get", "--json", &file, "user.a"])["value"], "b");
    assert_eq!(ask(&["mkfs", "--json", "-s", "128M", &fresh])["image"], fresh);
    assert_eq!(ask(&["check", "--json", &word])["clean"], true);
    assert!(ask(&["subvolume", "list", "--json", &word]).is_array());
    assert_eq!(ask(&["subvolume", "show", "--json", &at])["id"], 5);
    assert_eq!(ask(&["subvolume", "get-default", "--json", &word])["id"], 5);
    assert!(ask(&["subvolume", "find-new", "--json", &at, "0"])["extents"].is_array());
    let large = image.dir.join("large").display().to_string();
    std::fs::write(&large, vec![7; 3_000_000]).unwrap();
    fine(&["cp", &large, &at]);
    let found = ask(&["subvolume", "find-new", "--json", &at, "0"]);
    let extents = found["extents"].as_array().unwrap().iter();
    let start = extents.filter_map(|extent| extent["disk_start"].as_u64()).max().unwrap();
    let start = start.to_string();
    let inspect = |verb: &'static str| ["inspect-internal", verb, "--json"];
    assert_eq!(ask(&[&inspect("rootid")[..], &[&at]].concat())["rootid"], 5);
    assert_eq!(ask(&[&inspect("subvolid-resolve")[..], &["5", &word]].concat())["path"], "");
    let paths = ask(&[&inspect("inode-resolve")[..], &["257", &at]].concat());
    assert_eq!(paths["paths"][0], file);
    let files = ask(&[&inspect("logical-resolve")[..], &[&start, &word]].concat());
    assert_eq!(files["files"][0]["paths"][0], "large");
    assert!(ask(&[&inspect("list-chunks")[..], &[&word]].concat())["chunks"].is_array());
    assert!(ask(&[&inspect("tree-stats")[..], &[&word]].concat())["trees"].is_array());
    assert!(ask(&[&inspect("min-dev-size")[..], &[&word]].concat())["bytes"].is_u64());
    assert_eq!(ask(&["compsize", "--json", &at])["files"], 2);
    assert!(ask(&["filesystem", "du", "--json", &at])[0]["total"].is_u64());
    assert!(ask(&["device", "stats", "--json", &word])["device-stats"].is_array());
    assert_eq!(ask(&["scrub", "start", "--json", &word])["uncorrectable_errors"], 0);
    assert_eq!(ask(&["property", "get", "--json", &at])["ro"], false);
    assert_eq!(ask(&["property", "list", "--json", &at])[1], "label");
    assert_eq!(ask(&["filesystem", "show", "--json", &word])[0]["mounted"], false);
    assert!(ask(&["filesystem", "df", "--json", &word])["filesystem-df"].is_array());
    assert!(ask(&["filesystem", "usage", "--json", &word])[0]["used"].is_u64());
    assert_eq!(ask(&["filesystem", "label", "--json", &word])["label"], "");
    assert_eq!(ask(&["quota", "status", "--json", &word])["enabled"], false);
    fine(&["quota", "enable", &word]);
    assert_eq!(ask(&["qgroup", "show", "--json", &word])["qgroup-show"][0]["qgroupid"], "0/5");
    fine(&["quota", "disable", &word]);
    assert_eq!(ask(&["balance", "status", "--json", &word])["state"], "none");
    fine(&["verity", "enable", &file]);
    let measured = &ask(&["verity", "measure", "--json", &file])["files"][0];
    assert!(measured["hash_alg"] == "sha256" && measured["digest"].is_string(), "{measured}");
    assert!(ask(&["info", "--json", &word])["uuid"].is_string());
    assert!(ask(&["df", "--json", &word])["free_bytes"].is_u64());
    assert!(ask(&["dump-super", "--json", &word])[0].is_object());
    assert!(ask(&["dump-tree", "--json", "-t", "root", &word]).is_object());
    assert!(ask(&["trim", "--json", &word])["trimmed_bytes"].as_u64() > Some(0));
    assert_eq!(ask(&["rescue", "zero-log", "--json", &word])["had_log"], false);
    assert_eq!(ask(&["version", "--json"])["name"], "spinney");
    assert!(ask(&["help", "--json", "ls"])[0]["options"].is_array());
    let mount = Mount::new(&image, "");
    let word = mount.word();
    assert!(ask(&["stats", "--json", &word]).is_object());
    assert_eq!(ask(&["scrub", "status", "--json", &word])["status"], "none");
    assert_eq!(ask(&["scrub", "limit", "--json", &word])["limit"], 0);
    assert!(ask(&["device", "usage", "--json", &word])[0]["groups"].is_array());
    fine(&["scrub", "start", "-q", "--limit", "10K", &word]);
    fine(&["scrub", "cancel", &word]);
    assert_eq!(ask(&["scrub", "resume", "--json", &word])["status"], "finished");
    mount.umount();
    let all = json(&fine(&["help", "--json"]));
    for command in all.as_array().unwrap() {
        let verb = command["name"].as_str().unwrap();
        let (acts, answers) = (ACT.contains(&verb), asked.contains(verb));
        assert!(acts != answers, "{verb}: acts {acts}, answers in JSON {answers}");
        let names = command["options"].as_array().unwrap().iter().flat_map(|one| {
            one["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap())
        });
        assert_eq!(names.into_iter().any(|name| name == "--json"), answers, "{verb}: its help");
    }
}

/// The array stayed open, and the paths behind the one that failed were left out.
#[test]
fn a_path_that_fails_does_not_take_others_along() {
    require!(btrfs_progs);
    let image = Image::new("answers-du");
    let words = [image.at("/"), image.at("/missing"), image.at("/")];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = spinney(&[&["filesystem", "du", "-s", "--json"], &words[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("missing"), "{}", text(&output.stderr));
    let told = json(&text(&output.stdout));
    assert_eq!(told.as_array().unwrap().len(), 2, "{told}");
}
