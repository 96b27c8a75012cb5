//! The commands for files in a volume that is not mounted.
//!
//! Judge: coreutils. The same words run on a volume that the kernel has mounted and, by
//! Spinney, on an image; both trees, and the exit codes, must agree.

use crate::common;
use common::{Image, KernelMount, assert_clean, failing, fine, json, spinney, text};
use std::process::{Command, Stdio};
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::require;

/// `@/path` stands for the path in the volume.
fn words(line: &str, place: impl Fn(&str) -> String) -> Vec<String> {
    let word = |word: &str| match word.find("@/") {
        Some(at) if at == 0 || word[..at].ends_with('=') => {
            format!("{}{}", &word[..at], place(&word[at + 1..]))
        }
        _ => word.replace("_", " "),
    };
    line.split(' ').filter(|w| !w.is_empty()).map(word).collect()
}

/// A copy of a tree keeps everything unless told otherwise; that of coreutils does with -a.
fn in_our_words(line: &str) -> String {
    let line = line.replacen("cp -r ", "cp -r --no-preserve ", 1);
    line.replacen("cp -a ", "cp -r ", 1)
}

/// Runs each line both ways.
fn as_coreutils(name: &str, script: &[&str]) {
    let (ours, theirs) = (Image::new(name), Image::new(name));
    let mount = KernelMount::new(&theirs.path, "noatime").unwrap();
    for line in script {
        let host = words(line, |path| format!("{}{path}", mount.path().display()));
        let mut command = Command::new(&host[0]);
        command.args(&host[1..]).env("LC_ALL", "C").stdin(Stdio::null());
        let expected = command.output().unwrap();
        let got = spinney(&words(&in_our_words(line), |path| ours.at(path)));
        assert_eq!(
            got.status.success(),
            expected.status.success(),
            "{line}\ncoreutils: {}\nspinney: {}",
            text(&expected.stderr),
            text(&got.stderr)
        );
        assert_eq!(text(&got.stdout), text(&expected.stdout), "{line}");
    }
    let expected = TreeSnapshot::of_dir(mount.path()).unwrap();
    mount.unmount().unwrap();
    assert_clean(&ours.path);
    let mount = KernelMount::new(&ours.path, "ro").unwrap();
    let found = TreeSnapshot::of_dir(mount.path()).unwrap();
    let rules = Rules { root: false, ..Rules::default() }.ignoring_clock();
    let differences = diff(&found, &expected, &rules);
    mount.unmount().unwrap();
    assert!(differences.is_empty(), "spinney | coreutils: {differences:#?}");
}

#[test]
fn names_come_and_go_as_with_coreutils() {
    require!(kernel_btrfs);
    as_coreutils(
        "names",
        &[
            "mkdir @/a @/b",
            "mkdir @/a",
            "mkdir -p @/a/b/c @/b",
            "mkdir @/none/x",
            "mkdir -m 1750 @/sticky",
            "mkdir -p -m u=rwx,go=x @/p/q",
            "mkdir @/shared",
            "chmod 2775 @/shared",
            "mkdir -m 770 @/shared/number",
            "mkdir -m u=rwx,g=rx,o= @/shared/letters",
            "mkdir -m u=rwx,g=rx,g-s,o= @/shared/taken",
            "mkdir -p -m 700 @/shared/above/below",
            "touch @/a/file @/b/other @/top",
            "touch -c @/not-made",
            "ln @/a/file @/a/hard",
            "ln @/a/file @/b",
            "ln @/a/file @/a/hard",
            "ln -f @/b/other @/a/hard",
            "ln @/a @/dirlink",
            "ln -s ../a/file @/b/soft",
            "ln -s /a @/abs",
            "ln -s nowhere @/dangling",
            "ln -s x @/dangling",
            "ln -sf y @/dangling",
            "mv @/top @/renamed",
            "mv @/renamed @/a",
            "mv @/a/b @/b",
            "mv @/b @/b/b",
            "mv @/none @/a",
            "touch @/x @/y",
            "mv -n @/x @/y",
            "mv -T @/x @/p",
            "mv @/x @/y @/p",
            "mv @/p/x @/p/y @/sticky",
            // The second of two with one last name would destroy the first.
            "mkdir -p @/one/d @/two/d/below @/into",
            "touch @/one/x @/into/old @/one/old @/two/old @/two/z",
            "touch -d @7 @/two/x",
            "mv @/one/x @/two/x @/two/z @/into",
            "mv @/one/old @/two/old @/into/",
            "mv @/one/d @/two/d @/into",
            "touch @/one/n",
            "ln @/one/n @/two/n",
            "mv @/one/n @/two/n @/into",
            "ls @/one",
            "ls @/two",
            "ls @/into",
            "rm @/a",
            "rm -d @/a",
            "rm @/none",
            "rm -f @/none @/none/x",
            "rm @/abs",
            "rm -d @/p/q",
            "rm -r @/b",
            "ls -A1 @/a",
            "ls -1 @/sticky",
            "ls @/none",
        ],
    );
}

#[test]
fn attributes_change_as_with_coreutils() {
    require!(kernel_btrfs);
    as_coreutils(
        "attributes",
        &[
            "mkdir -p @/d/e/f",
            "touch @/d/one @/d/e/two",
            "ln -s one @/d/link",
            "chmod 4755 @/d/one",
            "chmod u-x,g+s @/d/e/two",
            "chmod -w @/d/one",
            "chmod +t @/d",
            "chmod -R a+X,o-r @/d/e",
            "chmod 600 @/d/link",
            "chmod 600 @/none",
            "chown 12:34 @/d/one",
            "chown :99 @/d/e",
            "chown -h 5:6 @/d/link",
            "chown -R 7 @/d/e",
            "chown root:root @/d/e/two",
            "touch -d 2001-02-03_04:05:06.789 @/d/one",
            "touch -d @1000000000 @/d/e/two",
            "touch -a -d 1999-01-01 @/d/e",
            "touch -m -d 1999-01-02T00:00Z @/d/e",
            "touch -h -d 2010-10-10 @/d/link",
            "touch -r @/d/one @/d/e/f",
            "truncate -s 10000 @/d/one",
            "touch -d 2001-02-03 @/d/one",
            "truncate -s +5K @/new",
            "truncate -s %4096 @/new",
            "truncate -s <6000 @/new",
            "truncate -s 1 @/d",
            "truncate -c -s 1 @/none",
            "cat @/new",
            "cat @/d",
        ],
    );
}

#[test]
fn copies_inside_are_as_with_coreutils() {
    require!(kernel_btrfs);
    as_coreutils(
        "copies",
        &[
            "cp /etc/services @/services",
            "cp /etc/services @/services",
            "mkdir -p @/tree/a/b",
            "cp /etc/passwd @/tree/a",
            "cp /etc/passwd /etc/group @/tree/a/b",
            "ln -s a/passwd @/tree/link",
            "ln @/tree/a/passwd @/tree/hard",
            "truncate -s 300000 @/tree/sparse",
            "chmod 4751 @/tree/a/passwd",
            "touch -d 2005-05-05 @/tree/a/passwd @/tree/a",
            "cp @/tree/a/passwd @/plain",
            "cp -p @/tree/a/passwd @/kept",
            "cp @/tree @/refused",
            "cp -r @/tree @/again",
            "cp -a @/tree @/exact",
            "cp -r @/tree @/again",
            "cp -r @/tree @/tree/inside",
            "cp -r @/tree/. @/merged",
            "mkdir @/into",
            "cp -a @/tree/. @/into",
            "cp @/tree/link @/followed",
            "cp -a @/tree/link @/into",
            "cp -r @/tree/a @/services",
            "cp @/services @/tree/a/b/group @/into",
            "cp -n @/services @/plain",
            "cp --reflink=always @/services @/clone",
            "cp --reflink=never @/services @/apart",
            "cp @/services @/services",
            "cp @/none @/x",
            "cp -T @/services @/into",
            "cat @/clone @/apart",
        ],
    );
}

/// Whatever is named is had, whatever the umask says, and the rest is as where nothing is named.
#[test]
fn new_directories_have_the_permissions_that_mkdir_gives_them() {
    require!(kernel_btrfs);
    let (ours, theirs) = (Image::new("mkdir-modes"), Image::new("mkdir-modes"));
    let above = ["plain", "shared", "acl", "both"];
    let modes = [
        "700",
        "2750",
        "4711",
        "00755",
        "1777",
        "g+w",
        "g-w",
        "+w",
        "-w",
        "=",
        "=rx",
        "a=rx",
        "g=",
        "go-rwx",
        "o+t",
        "g+s",
        "u+s,o-x",
        "g+s,o+w",
        "+t",
        "u=rwx,g=rx",
        "g=u",
        "o=g-w",
        "a-x+X",
        "=,u+rwx",
        "o-w,g-s",
    ];
    let umasks = ["022", "027", "077", "0", "0333"];
    for image in [&ours, &theirs] {
        let mount = KernelMount::new(&image.path, "noatime").unwrap();
        let script = "mkdir plain shared acl both && chmod 2775 shared both &&
             setfacl -d -m u::rwx,g::rx,o::-,u:7:rwx,m::rwx acl both";
        let done = common::sh(&format!("cd {} && {script}", mount.path().display()));
        assert!(done.status.success(), "{}", text(&done.stderr));
        mount.unmount().unwrap();
    }
    let mount = KernelMount::new(&theirs.path, "noatime").unwrap();
    let made = |program: &str, place: &dyn Fn(&str) -> String| {
        for umask in umasks {
            for mode in
                modes.map(|mode| format!("-m {mode}")).iter().map(String::as_str).chain([""])
            {
                let name = format!("{umask}-{mode}").replace(' ', "");
                let all = above.map(|dir| place(&format!("/{dir}/{name}"))).join(" ");
                let deep = above.map(|dir| place(&format!("/{dir}/p{name}/q/r"))).join(" ");
                let script = format!(
                    "umask {umask}; {program} mkdir {mode} {all} && {program} mkdir -p {mode} {deep}"
                );
                let done = common::sh(&script);
                assert!(done.status.success(), "{script}: {}", text(&done.stderr));
            }
        }
    };
    made("", &|path| format!("{}{path}", mount.path().display()));
    made(common::PROGRAM, &|path| ours.at(path));
    let expected = TreeSnapshot::of_dir(mount.path()).unwrap();
    mount.unmount().unwrap();
    assert_clean(&ours.path);
    let mount = KernelMount::new(&ours.path, "ro").unwrap();
    let found = TreeSnapshot::of_dir(mount.path()).unwrap();
    let rules = Rules { root: false, ..Rules::default() }.ignoring_clock();
    let differences = diff(&found, &expected, &rules);
    mount.unmount().unwrap();
    assert!(differences.is_empty(), "spinney | coreutils: {differences:#?}");
}

/// Names and values are bytes, and one may be called as another one's bytes.
#[test]
fn lists_of_attributes_have_all_of_them() {
    require!(kernel_btrfs);
    let image = Image::new("xattr-names");
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let script = "touch f && setfattr -n user.a -v 0xff f && setfattr -n user.a_hex -v text f &&
         setfattr -n $(printf 'user.\\377') -v one f && setfattr -n $(printf 'user.\\376') -v two f";
    let done = common::sh(&format!("cd {} && {script}", mount.path().display()));
    assert!(done.status.success(), "{}", text(&done.stderr));
    mount.unmount().unwrap();
    let all = json(&fine(&["xattr", "list", "--json", &image.at("/f")]));
    let expected = serde_json::json!([
        { "name": "user.a", "value": "\u{fffd}", "value_hex": "ff" },
        { "name": "user.a_hex", "value": "text" },
        { "name": "user.\u{fffd}", "name_hex": "757365722efe", "value": "two" },
        { "name": "user.\u{fffd}", "name_hex": "757365722eff", "value": "one" },
    ]);
    assert_eq!(all, expected);
    let one = json(&fine(&["xattr", "get", "--json", &image.at("/f"), "user.a"]));
    assert_eq!(one, expected[0]);
}

/// Of what was made before it something is there.
#[test]
fn who_is_refused_in_a_read_only_subvolume_is_not_told_that_nothing_was_written() {
    require!(btrfs_progs);
    let image = Image::new("some-written");
    fine(&["subvolume", "create", &image.at("/sub")]);
    fine(&["property", "set", &image.at("/sub"), "ro", "true"]);
    let (code, said) = failing(&["mkdir", &image.at("/new"), &image.at("/sub/new")]);
    assert!(code == 1 && said.contains("read-only"), "{said}");
    assert!(!said.contains("nothing was written"), "{said}");
    assert_eq!(fine(&["ls", &image.at("/")]), "new\nsub\n");
}

#[test]
fn xattrs_are_the_kernels() {
    require!(kernel_btrfs);
    let image = Image::new("xattrs");
    let file = image.at("/file");
    fine(&["touch", &file]);
    fine(&["xattr", "set", &file, "user.text", "some text"]);
    fine(&["xattr", "set", &file, "user.bytes", "0x00ff0a"]);
    fine(&["xattr", "set", &file, "trusted.x", ""]);
    fine(&["xattr", "set", &file, "user.gone", "x"]);
    fine(&["xattr", "rm", &file, "user.gone"]);
    assert_eq!(fine(&["xattr", "list", &file]), "trusted.x\nuser.bytes\nuser.text\n");
    assert_eq!(fine(&["xattr", "get", &file, "user.text"]), "some text\n");
    assert_eq!(fine(&["xattr", "get", "--hex", &file, "user.bytes"]), "0x00ff0a\n");
    let all = json(&fine(&["xattr", "list", "--json", &file]));
    assert_eq!(all[2]["name"], "user.text");
    assert_eq!((&all[2]["value"], &all[1]["value_hex"]), (&"some text".into(), &"00ff0a".into()));
    let (code, why) = failing(&["xattr", "get", &file, "user.gone"]);
    assert!(code == 1 && why.contains("user.gone"), "{why}");
    let (code, _) = failing(&["xattr", "set", &file, "nonsense", "x"]);
    assert_eq!(code, 1);
    assert_clean(&image.path);
    let mount = KernelMount::new(&image.path, "ro").unwrap();
    let tree = TreeSnapshot::of_dir(mount.path()).unwrap();
    mount.unmount().unwrap();
    let xattrs = &tree.node("file").expect("file").xattrs;
    assert_eq!(xattrs[&b"user.bytes"[..]], [0, 255, 10]);
    assert_eq!(xattrs.len(), 3, "{xattrs:?}");
}

#[test]
fn listings_tell_what_is_there() {
    require!(btrfs_progs);
    let image = Image::new("listings");
    fine(&["mkdir", &image.at("/d")]);
    fine(&["cp", "/etc/passwd", &image.at("/d/.hidden")]);
    fine(&["ln", "-s", "to here", &image.at("/d/link")]);
    fine(&["touch", &image.at("/d/b"), &image.at("/d/a\u{fc}")]);
    fine(&["chown", "4000000:5", &image.at("/d/b")]);
    fine(&["chmod", "4711", &image.at("/d/b")]);
    fine(&["touch", "-d", "2001-09-09 01:46", &image.at("/d/b")]);
    assert_eq!(fine(&["ls", &image.at("/d")]), "a\u{fc}\nb\nlink\n");
    assert_eq!(fine(&["ls", "-d", &image.at("/d")]), "/d\n");
    let long = fine(&["ls", "-ln", &image.at("/d")]);
    assert!(long.contains("-rws--x--x 1 4000000 5 0 2001-09-09 01:46 b\n"), "{long}");
    assert!(long.contains(" link -> to here\n"), "{long}");
    let listing = json(&fine(&["ls", "-A", "--json", &image.at("/d")]));
    let entry = |name: &str| {
        let all = listing.as_array().expect("array");
        all.iter().find(|e| e["name"] == name).unwrap_or_else(|| panic!("{name}: {listing}"))
    };
    assert_eq!(entry("b")["mode"], "4711");
    assert_eq!(entry("b")["uid"], 4_000_000);
    assert_eq!(entry("link")["target"], "to here");
    assert_eq!(entry(".hidden")["size"], std::fs::metadata("/etc/passwd").unwrap().len());
    let stat = json(&fine(&["stat", "--json", &image.at("/d/b")]));
    assert_eq!(stat[0]["path"], "/d/b");
    assert_eq!(stat[0]["ino"], entry("b")["ino"]);
    assert!(fine(&["stat", &image.at("/d/link")]).contains("/d/link -> to here"));
    assert_eq!(
        fine(&["cat", &image.at("/d/.hidden")]),
        text(&std::fs::read("/etc/passwd").unwrap())
    );
    let recursive = fine(&["ls", "-R", &image.at("/")]);
    assert_eq!(recursive, "/:\nd\n\n/d:\na\u{fc}\nb\nlink\n");
}

#[test]
fn one_command_is_one_commit() {
    require!(btrfs_progs);
    let image = Image::new("one-commit");
    let generation = || {
        let info = json(&fine(&["info", "--json", &image.word()]));
        info["generation"].as_u64().expect("generation")
    };
    let before = generation();
    let many: Vec<String> = (0..300).map(|i| image.at(&format!("/d{i}"))).collect();
    let mut words = vec!["mkdir".to_owned()];
    words.extend(many);
    fine(&words);
    assert_eq!(generation(), before + 1);
    fine(&["ls", "-R", &image.at("/")]);
    assert_eq!(generation(), before + 1, "looking changes nothing");
}

#[test]
fn what_succeeded_stays_when_something_fails() {
    require!(btrfs_progs);
    let image = Image::new("partly");
    let (code, why) = failing(&["mkdir", &image.at("/a"), &image.at("/no/b"), &image.at("/c")]);
    assert_eq!(code, 1);
    assert!(why.contains(&image.at("/no/b")) && why.lines().count() == 1, "{why}");
    assert_eq!(fine(&["ls", &image.at("/")]), "a\nc\n");
}

#[test]
fn wrong_words_end_with_2_and_change_nothing() {
    require!(btrfs_progs);
    let image = Image::new("words");
    let (dir, file) = (image.at("/d"), image.at("/f"));
    for words in [
        &["mkdir"][..],
        &["mkdir", "plain"],
        &["mkdir", "-Z", &dir],
        &["truncate", &file],
        &["touch", "-d", "someday", &file],
        &["xattr", "frob", &file],
        &["xattr", "get", &file],
        &["mv", &dir],
        &["ln", "-s", "x"],
        &["ls", "--subvolid", "x", &dir],
        &["frobnicate", &dir],
    ] {
        assert_eq!(failing(words).0, 2, "{words:?}");
    }
    let (code, why) = failing(&["cp", "/etc/passwd", "/tmp/spinney-not-this"]);
    assert!(code == 1 && why.contains("disk.img:/PATH"), "{why}");
    assert_eq!(fine(&["ls", &image.at("/")]), "");
}

#[test]
fn subvolumes_are_chosen_by_path_and_number() {
    require!(kernel_btrfs);
    let image = Image::new("subvol");
    let mount = KernelMount::new(&image.path, "").unwrap();
    let sub = mount.join("sub").display().to_string();
    testkit::oracle::sh("btrfs", &["subvolume", "create", &sub]).unwrap();
    std::fs::write(mount.join("sub/inside"), "x").unwrap();
    let id = testkit::oracle::sh("btrfs", &["inspect-internal", "rootid", &sub]).unwrap();
    mount.unmount().unwrap();
    assert_eq!(fine(&["ls", "--subvol", "/sub", &image.at("/")]), "inside\n");
    assert_eq!(fine(&["ls", "--subvolid", &id, &image.at("/")]), "inside\n");
    fine(&["cp", "--subvol", "sub", "/etc/passwd", &image.at("/")]);
    assert_eq!(fine(&["ls", "--subvolid", &id, &image.at("/")]), "inside\npasswd\n");
    assert_eq!(failing(&["ls", "--subvol", "none", &image.at("/")]).0, 1);
    assert_clean(&image.path);
}

#[test]
fn images_in_use_are_left_alone() {
    require!(kernel_btrfs);
    let image = Image::new("in-use");
    let lock = std::fs::File::open(&image.path).unwrap();
    lock.lock().unwrap();
    for words in [&["ls"][..], &["mkdir"]] {
        let (code, why) = failing(&[words[0], &image.at("/x")]);
        assert!(code == 1 && why.contains("in use") && why.contains("umount"), "{why}");
    }
    drop(lock);
    let mount = KernelMount::new(&image.path, "").unwrap();
    for words in [&["ls"][..], &["mkdir"]] {
        let (code, why) = failing(&[words[0], &image.at("/x")]);
        let point = mount.path().display().to_string();
        assert!(code == 1 && why.contains(&point), "{why}");
    }
    mount.unmount().unwrap();
    fine(&["mkdir", &image.at("/x")]);
}

#[test]
fn trim_makes_an_image_sparse() {
    use std::os::unix::fs::MetadataExt;
    testkit::require!(btrfs_progs);
    let image = Image::new("trim");
    let host = image.dir.join("host");
    std::fs::write(&host, vec![9; 30 << 20]).expect("write");
    for name in ["/kept", "/gone"] {
        fine(&["cp", host.to_str().unwrap(), &image.at(name)]);
    }
    fine(&["rm", &image.at("/gone")]);
    let blocks = || std::fs::metadata(&image.path).expect("image").blocks();
    let before = blocks();
    let told = fine(&["trim", &image.word()]);
    assert!(told.contains("given back"), "{told}");
    assert!(before - blocks() >= 30 << 11, "{before} blocks, then {}", blocks());
    assert_clean(&image.path);
    fine(&["cp", &image.at("/kept"), image.dir.join("back").to_str().unwrap()]);
    assert!(std::fs::read(image.dir.join("back")).expect("back") == vec![9; 30 << 20]);
    assert_eq!(failing(&["trim"]).0, 2);
    assert_eq!(failing(&["trim", host.to_str().unwrap()]).0, 1);
}
