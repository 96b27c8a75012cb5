//! What GNU tools refuse of paths with a `/` behind, of two names of one file, and of links that
//! lead nowhere, is refused in images, too; and devices that take no writes are told by name.

use crate::common;
use common::{Image, PROGRAM, assert_clean, failing, fine, sh, spinney, text};
use std::process::Command;
use testkit::require;

#[test]
fn a_slash_behind_stands_for_a_directory() {
    require!(btrfs_progs);
    let image = Image::new("slashes");
    let at = |name: &str| image.at(name);
    fine(&["mkdir", &at("/d")]);
    for name in ["/f", "/g"] {
        fine(&["touch", &at(name)]);
    }
    fine(&["ln", "-s", "d", &at("/l")]);
    let host = image.dir.join("host").display().to_string();
    std::fs::write(&host, "x").unwrap();
    for words in [
        vec!["mv", "/f", "/new/"],
        vec!["mv", "/f/", "/new"],
        vec!["mv", "/l/", "/new"],
        vec!["mv", "/f", "/g/"],
        vec!["cp", "/f", "/new/"],
        vec!["cp", "/f", "/g/"],
        vec!["cp", "HOST", "/new/"],
        vec!["cp", "HOST", "/g/"],
        vec!["ln", "/f", "/new/"],
        vec!["touch", "/new/"],
        vec!["truncate", "-s1", "/new/"],
        vec!["rm", "/f/"],
    ] {
        let word = |word: &&str| match word.strip_prefix('/') {
            Some(_) => at(word),
            None => word.replace("HOST", &host),
        };
        let all: Vec<String> = words.iter().map(word).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let (code, told) = failing(&all);
        assert!(code == 1 && told.contains("not a directory"), "{words:?}: {told}");
    }
    assert_eq!(failing(&["ln", "-s", "x", &at("/new/")]).0, 1);
    // Directories are meant.
    fine(&["mv", &at("/d/"), &at("/e/")]);
    fine(&["mkdir", &at("/h/")]);
    fine(&["cp", "-r", &at("/e"), &at("/copy/")]);
    fine(&["mv", &at("/f"), &at("/h/")]);
    assert_eq!(fine(&["ls", &at("/")]), "copy\ne\ng\nh\nl\n");
    assert_eq!(fine(&["ls", &at("/h")]), "f\n");
    assert_clean(&image.path);
}

#[test]
fn two_names_of_one_file() {
    require!(btrfs_progs);
    let image = Image::new("one-file");
    let at = |name: &str| image.at(name);
    fine(&["touch", &at("/f"), &at("/other")]);
    fine(&["ln", &at("/f"), &at("/g")]);
    let (code, told) = failing(&["mv", &at("/f"), &at("/f")]);
    assert!(code == 1 && told.contains("is the same file"), "{told}");
    assert_eq!(failing(&["ln", &at("/f"), &at("/g")]).0, 1);
    assert_eq!(failing(&["ln", "-f", &at("/f"), &at("/f")]).0, 1);
    fine(&["ln", "-f", &at("/f"), &at("/g")]);
    fine(&["mv", "-n", &at("/f"), &at("/g")]);
    assert_eq!(fine(&["ls", &at("/")]), "f\ng\nother\n");
    // As mv(1): one is left, although rename(2) would leave both.
    fine(&["mv", &at("/f"), &at("/g")]);
    assert_eq!(fine(&["ls", &at("/")]), "g\nother\n");
    // Nothing is made where a link leads nowhere, and it is said what it is.
    fine(&["ln", "-s", "nowhere", &at("/l")]);
    let (code, told) = failing(&["touch", &at("/l")]);
    assert!(code == 1 && told.contains("a symbolic link that leads nowhere"), "{told}");
    fine(&["touch", "-h", "-d", "@7", &at("/l")]);
    // The kernel would not read it.
    let (code, told) = failing(&["xattr", "set", "-h", &at("/l"), "user.x", "1"]);
    assert!(code == 1 && told.contains("only files and directories"), "{told}");
    fine(&["xattr", "set", "-h", &at("/l"), "trusted.x", "1"]);
    fine(&["xattr", "set", &at("/g"), "user.x", "1"]);
    assert_clean(&image.path);
}

/// Such a device can be opened to be written; the first write failed, deep in a commit.
#[test]
fn devices_that_take_no_writes() {
    require!(btrfs_progs);
    require!(root);
    let image = Image::new("read-only-device");
    fine(&["touch", &image.at("/f")]);
    let device = text(&sh(&format!("losetup -r -f --show {}", image.word())).stdout);
    let device = device.trim();
    if device.is_empty() {
        testkit::skip!("no loop device here");
    }
    let before = std::fs::read(&image.path).unwrap();
    let point = image.dir.join("mnt");
    std::fs::create_dir(&point).unwrap();
    let (there, point) = (format!("{device}:/d"), point.display().to_string());
    let told = [
        vec!["mkdir", &there],
        vec!["subvolume", "create", &there],
        vec!["scrub", "start", device],
        vec!["mkfs", "-f", device],
        vec!["mount", device, &point],
    ]
    .map(|words| (spinney(&words), words.join(" ")));
    let listed = fine(&["ls", &format!("{device}:/")]);
    let looked = spinney(&["scrub", "start", "-r", device]);
    assert!(sh(&format!("losetup -d {device}")).status.success());
    for (output, words) in told {
        let told = text(&output.stderr);
        let wanted = format!("spinney: {device}: the device is read-only");
        assert!(output.status.code() == Some(1) && told.contains(&wanted), "{words}: {told}");
    }
    assert!(listed == "f\n" && looked.status.success());
    assert!(std::fs::read(&image.path).unwrap() == before, "the image changed");
}

/// What cannot be done is told in words of the thing itself.
#[test]
fn what_is_told_names_the_thing() {
    require!(btrfs_progs);
    let image = Image::new("named");
    let new = image.dir.join("new.img").display().to_string();
    let (code, told) = failing(&["mkfs", "--size", "18446744073709551615", &new]);
    assert_eq!((code, told), (1, format!("spinney: {new}: file too large\n")));
    assert!(!std::path::Path::new(&new).exists(), "a file is left");
    let (code, told) = failing(&["send", "-f", "/dev/null", &image.at("/")]);
    assert!(code == 1 && told.contains("the top level is not read-only"), "{told}");
}

/// Words that name nothing are no wrong command line: GNU tools end with 1, and so do these. Who is no longer
/// read from ends as if by SIGPIPE.
#[test]
fn modes_and_users_that_are_none_and_readers_that_leave() {
    require!(btrfs_progs);
    let image = Image::new("none");
    let file = image.at("/f");
    fine(&["touch", &file]);
    for words in [
        ["chmod", "zz", &file],
        ["chmod", "9", &file],
        ["chown", "nobody_such", &file],
        ["chown", "0:nobody_such", &file],
        ["chown", "4000000001:", &file],
    ] {
        assert_eq!(failing(&words).0, 1, "{words:?}");
    }
    for words in [["chmod", "600"], ["chown", "0"]] {
        assert_eq!(failing(&words).0, 2, "{words:?}: there is no file");
    }
    fine(&["truncate", "-s", "10M", &file]);
    let (cat, cp) = (format!("cat {file}"), format!("cp {file} -"));
    assert_eq!((ended(&cat, "head -c 1"), ended(&cp, "head -c 1")), ("141".into(), "141".into()));
    assert_eq!((ended(&cat, "cat"), ended(&cp, "cat")), ("0".into(), "0".into()));
}

/// How the program ended whose output went to `reader`.
fn ended(words: &str, reader: &str) -> String {
    let line = format!("{{ timeout 60 {PROGRAM} {words}; echo $? >&3; }} | {reader} >/dev/null");
    let output = Command::new("bash").args(["-c", &format!("{{ {line}; }} 3>&1")]).output();
    let output = output.unwrap();
    assert_eq!(text(&output.stderr), "", "{words}");
    text(&output.stdout).trim().to_owned()
}

/// Streams that have no end, or one that nobody would live to see, end with their reader.
#[test]
fn streams_without_end_end_with_their_reader() {
    require!(btrfs_progs);
    let image = Image::new("endless");
    let file = image.at("/f");
    fine(&["touch", &file]);
    fine(&["truncate", "-s", "8070450532247928832", &file]);
    // Of which the dump tells a line for each.
    let stream = image.dir.join("stream").display().to_string();
    for words in ["subvolume create @:/s", "touch @:/s/f", "property set @:/s ro true"] {
        let words = words.replace('@', &image.word());
        fine(&words.split(' ').collect::<Vec<_>>());
    }
    fine(&["send", "-q", "-e", "-f", &stream, &image.at("/s")]);
    for words in [
        format!("cat {file}"),
        format!("cp {file} -"),
        "cat - < <(yes)".into(),
        format!("cat {file} - < <(yes)"),
        format!("receive --dump < <(while cat {stream}; do :; done 2> /dev/null)"),
    ] {
        assert_eq!(ended(&words, "head -c 1"), "141", "{words}");
    }
}

/// Whoever names a device of several hears which one it is, and who takes what is left of them.
#[test]
fn one_of_several_devices_is_told_by_name() {
    require!(btrfs_progs);
    let image = Image::new("several");
    let second = image.dir.join("second");
    let make = format!(
        "truncate -s 512M {0} && mkfs.btrfs -q -f -m raid1 -d raid1 {1} {0}",
        second.display(),
        image.word()
    );
    assert!(sh(&make).status.success());
    for (path, number) in [(&image.path, 1), (&second, 2)] {
        let name = path.display().to_string();
        let words = ["mount", "-o", "ro,degraded", &name, "/mnt"];
        for words in [&words[..], &["ls", &format!("{name}:/")], &["check", &name]] {
            let (code, said) = failing(words);
            let which = format!("number {number}");
            assert!(code == 1 && said.contains(&name) && said.contains(&which), "{said}");
            assert!(said.contains("degraded") && !said.contains("damaged"), "{said}");
        }
    }
}
