//! `spinney quota` and `spinney qgroup`, in images and in mounts.
//!
//! Judge: the kernel's btrfs, `btrfs qgroup show`, and a rescan by the kernel, which changes nothing.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, KernelMount, assert_clean, copies, failing, fine, json, sh, spinney, text};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use testkit::oracle::{newer_btrfs, newer_btrfs_check, run};
use testkit::require;

/// Standard output of `btrfs`, which must succeed.
fn btrfs(words: &[&str]) -> String {
    let output = Command::new("btrfs").args(words).output().expect("btrfs-progs");
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    // A NUL where a plural would have its letter is a slip of btrfs-progs.
    text(&output.stdout).replace('\0', "")
}

/// What the kernel shows, before and after it has counted all anew.
fn judged(image: &Image) -> String {
    assert_clean(&image.path);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let at = mount.path().display().to_string();
    let show = || btrfs(&["qgroup", "show", "-pcre", "--raw", "--sync", &at]);
    let before = show();
    btrfs(&["quota", "rescan", "-w", &at]);
    assert_eq!(show(), before, "a rescan was to change nothing");
    mount.unmount().unwrap();
    before
}

/// Subvolumes that share content, groups of three levels, limits, and a deleted one's group.
fn made_by_kernel(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let script = format!(
        "cd {} && btrfs quota enable . && btrfs -q subvolume create a && btrfs -q subvolume create b \
         && head -c 3000000 /dev/zero >b/x && btrfs -q subvolume snapshot b s && \
         for g in 1/1 1/2 2/1 2/5 3/1; do btrfs qgroup create $g .; done && \
         btrfs qgroup assign 0/256 1/1 . && btrfs qgroup assign 1/1 2/1 . && \
         btrfs qgroup assign 1/1 2/5 . && btrfs qgroup assign 1/1 3/1 . && \
         btrfs qgroup assign 2/1 3/1 . && btrfs qgroup assign 1/2 2/5 . && \
         btrfs qgroup limit 1234567890123456 a && btrfs qgroup limit -e 12345678901 a && \
         btrfs qgroup limit 5M 1/1 . && sync -f . && btrfs quota rescan -w .",
        mount.path().display()
    );
    let made = sh(&script);
    assert!(made.status.success(), "{}", text(&made.stderr));
    mount.unmount().unwrap();
    image
}

const SHOWS: &[&str] = &[
    "",
    "-p",
    "-c",
    "-pcre",
    "-re --raw",
    "-F",
    "-f",
    "-pF",
    "--si -r",
    "--kbytes",
    "--mbytes --si",
    "--gbytes",
    "--sort=-rfer",
    "--sort=max_rfer,-qgroupid",
    "--sort=excl,qgroupid -e",
];

#[test]
fn what_is_shown_of_groups_is_what_btrfs_shows() {
    require!(kernel_btrfs);
    let image = made_by_kernel("quota-shown");
    let mount = KernelMount::new(&image.path, "ro").unwrap();
    let mut expected = Vec::new();
    for show in SHOWS {
        let place = mount.join("a").display().to_string();
        let words = ["qgroup", "show"].into_iter().chain(show.split(' ').filter(|w| !w.is_empty()));
        expected.push((*show, btrfs(&words.chain([&*place]).collect::<Vec<_>>())));
    }
    mount.unmount().unwrap();
    for (show, told) in expected {
        let place = image.at("/a");
        let words = ["qgroup", "show"].into_iter().chain(show.split(' ').filter(|w| !w.is_empty()));
        assert_eq!(fine(&words.chain([&*place]).collect::<Vec<_>>()), told, "{show}");
    }
    let all = groups(&["--json", &image.word()]);
    assert_eq!(all[1]["qgroupid"], "0/256");
    assert_eq!(all[1]["parents"][0], "1/1");
    assert_eq!(all[1]["max_referenced"], 1_234_567_890_123_456_u64);
}

/// What `qgroup show` says in JSON with these words.
fn groups(words: &[&str]) -> serde_json::Value {
    let told = fine(&[&["qgroup", "show"], words].concat());
    let all = json(&told);
    assert_eq!(all["__header"]["version"], "1");
    all["qgroup-show"].clone()
}

/// All verbs, on an image and on mounts alike: `root` is the volume, `at` gives a word for a path in it.
fn all_verbs(root: &str, at: &dyn Fn(&str) -> String) {
    let (code, said) = failing(&["qgroup", "show", root]);
    assert!(code == 1 && said.contains("quotas are not enabled"), "{said}");
    for words in
        [&["qgroup", "create", "1/1"][..], &["quota", "rescan"], &["qgroup", "limit", "1M", "0/5"]]
    {
        let (code, said) = failing(&[words, &[root]].concat());
        assert!(code == 1 && said.contains("quotas are not enabled"), "{words:?}: {said}");
    }
    fine(&["quota", "disable", root]);
    assert_eq!(spinney(&["quota", "status", "--is-enabled", root]).status.code(), Some(1));
    fine(&["quota", "enable", root]);
    fine(&["quota", "rescan", "-W", root]);
    assert_eq!(fine(&["quota", "rescan", "-s", root]), "no rescan operation in progress\n");
    assert_eq!(spinney(&["quota", "status", "--is-enabled", root]).status.code(), Some(0));
    assert_eq!(fine(&["quota", "rescan", "-w", root]), "quota rescan started\n");

    for group in ["1/100", "1/200", "2/1"] {
        assert_eq!(fine(&["qgroup", "create", group, root]), "");
    }
    let group = |words: &[&str]| failing(&[&["qgroup"], words, &[root]].concat()).1;
    assert!(group(&["create", "1/100"]).contains("there already"));
    assert!(group(&["create", "0/999"]).contains("level does not fit"));
    assert_eq!(fine(&["qgroup", "assign", &at("b"), "1/100", root]), "");
    assert_eq!(fine(&["qgroup", "assign", "0/256", "1/100", root]), "");
    assert_eq!(fine(&["qgroup", "assign", "1/100", "2/1", root]), "");
    assert!(group(&["assign", "0/256", "1/100"]).contains("there already"));
    assert!(group(&["assign", "2/1", "1/100"]).contains("levels ascend"));
    assert!(group(&["assign", "0/256", "1/7"]).contains("no such group"));
    assert!(group(&["remove", "0/256", "2/1"]).contains("no such group"));
    assert!(group(&["destroy", "1/100"]).contains("has members"));
    assert!(group(&["destroy", "0/5"]).contains("that of a subvolume"));
    assert!(group(&["limit", "1M", "1/7"]).contains("no such group"));

    named_otherwise(root, at);
    fine(&["qgroup", "limit", "50M", &at("a")]);
    fine(&["qgroup", "limit", "-e", "60M", "1/100", root]);
    fine(&["subvolume", "create", "-q", "-i", "1/200", &at("c")]);
    fine(&["subvolume", "snapshot", "-q", "-i", "1/100", "-i", "1/200", &at("b"), &at("s")]);
    let (_, said) = failing(&["subvolume", "create", "-i", "3/1", &at("d")]);
    assert!(said.contains("no such quota group"), "{said}");
    // b and its snapshot share content: of what 1/100 has then no numbers tell.
    assert_eq!(
        fine(&["qgroup", "remove", &at("b"), "1/100", root]),
        "Quota data changed, rescan scheduled\n"
    );
    fine(&["quota", "rescan", "-W", root]);
    fine(&["subvolume", "delete", "-c", &at("c")]);
    fine(&["subvolume", "sync", root]);
    fine(&["qgroup", "clear-stale", root]);
    let all = groups(&["--sync", "--json", root]);
    let ids: Vec<_> = all.as_array().unwrap().iter().map(|o| o["qgroupid"].clone()).collect();
    assert_eq!(ids, ["0/5", "0/256", "0/257", "0/259", "1/100", "1/200", "2/1"]);
    assert_eq!(all[5]["children"].as_array().unwrap(), &["0/259"]);
    assert_eq!(
        (&all[1]["max_referenced"], &all[4]["max_exclusive"]),
        (&(50 << 20).into(), &(60 << 20).into())
    );
    let told = fine(&["quota", "status", root]);
    assert!(told.ends_with("Total count:             7\n  Level 0:                 4\n  Level 1:                 2\n  Level 2:                 1\n"), "{told}");
}

/// Groups by a number alone, or the path of a subvolume: they were refused.
fn named_otherwise(root: &str, at: &dyn Fn(&str) -> String) {
    let limit = |of: usize| groups(&["--json", root])[of]["max_referenced"].clone();
    for group in ["257", "0/257", &at("b")] {
        fine(&["qgroup", "limit", "70M", group, root]);
        assert_eq!(limit(2), 70 << 20, "{group}");
        fine(&["qgroup", "limit", "none", group, root]);
        assert_eq!(limit(2), "none", "{group}");
    }
    let refused = |words: &[&str]| failing(&[&["qgroup"], words, &[root]].concat());
    assert!(refused(&["destroy", &at("b")]).1.contains("that of a subvolume"));
    assert!(refused(&["destroy", "257"]).1.contains("that of a subvolume"));
    assert!(refused(&["assign", "1/200", &at("b")]).1.contains("levels ascend"));
    assert!(refused(&["limit", "1M", "999"]).1.contains("no such group"));
    for wrong in ["1/", "/", "x", "1/2/3", ""] {
        assert_ne!(refused(&["limit", "1M", wrong]).0, 0, "{wrong}");
    }
    fine(&["qgroup", "assign", "257", "1/200", root]);
    fine(&["qgroup", "remove", "257", "1/200", root]);
}

fn filled(name: &str) -> Image {
    let image = Image::new(name);
    fine(&["subvolume", "create", "-q", &image.at("/a"), &image.at("/b")]);
    fs::write(image.dir.join("file"), vec![7; 3_000_000]).unwrap();
    let file = image.dir.join("file").display().to_string();
    fine(&["cp", &file, &image.at("/b/x")]);
    image
}

#[test]
fn an_image_is_counted_right_and_the_kernel_takes_it() {
    require!(kernel_btrfs);
    let image = filled("quota-image");
    all_verbs(&image.word(), &|name| image.at(&format!("/{name}")));
    let told = judged(&image);
    assert_eq!(fine(&["qgroup", "show", "-pcre", "--raw", &image.word()]), told);
    fine(&["quota", "disable", &image.word()]);
    assert_clean(&image.path);
    let (_, said) = failing(&["qgroup", "show", &image.word()]);
    assert!(said.contains("not enabled"), "{said}");
}

#[test]
fn a_mount_does_what_an_image_does() {
    require!(kernel_btrfs);
    require!(fuse);
    for transport in TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        let image = filled(&format!("quota-mount-{transport}"));
        let mount = Mount::new(&image, &format!("transport={transport}"));
        all_verbs(&mount.word(), &|name| mount.join(name).display().to_string());
        // 50 MiB are the limit of a, 49 of them fit beside its nodes.
        fs::write(mount.join("a/fits"), vec![1; 49 << 20]).unwrap();
        let refused = fs::write(mount.join("a/more"), vec![1; 2 << 20]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EDQUOT), "{refused}");
        fs::remove_file(mount.join("a/fits")).unwrap();
        fs::write(mount.join("a/more"), vec![1; 20 << 20]).unwrap();
        let told = fine(&["qgroup", "show", "--sync", "-pcre", "--raw", &mount.word()]);
        mount.umount();
        assert_eq!(judged(&image), told);
    }
}

#[test]
fn others_may_not() {
    require!(fuse);
    if let Some(why) = common::no_ordinary_users() {
        println!("SKIPPED: {why}");
        return;
    }
    let image = filled("quota-others");
    let mount = Mount::new(&image, "allow_other");
    fine(&["quota", "enable", &mount.word()]);
    let copy = image.dir.join("spinney");
    fs::copy(common::PROGRAM, &copy).unwrap();
    let root = mount.word();
    for words in [
        &["quota", "disable"][..],
        &["quota", "rescan"],
        &["quota", "status"],
        &["qgroup", "show"],
        &["qgroup", "create", "1/1"],
        &["qgroup", "limit", "1M", "0/5"],
    ] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
        let output = command.args(words).arg(&root).output().expect("setpriv");
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("only root"), "{words:?}: {said}");
    }
    assert_eq!(spinney(&["quota", "status", "--is-enabled", &root]).status.code(), Some(0));
    mount.umount();
}

/// Simple quotas with every verb; `at` names a place in the volume.
fn simple_verbs(root: &str, at: &dyn Fn(&str) -> String) {
    assert_eq!(fine(&["quota", "enable", "--simple", root]), "");
    let told = fine(&["quota", "status", root]);
    assert!(told.contains("squota (simple accounting)") && told.contains("no\n"), "{told}");
    assert_eq!(json(&fine(&["quota", "status", "--json", root]))["mode"], "squota");
    let (_, said) = failing(&["quota", "rescan", root]);
    assert!(said.contains("cannot be counted anew"), "{said}");
    fine(&["qgroup", "create", "1/1", root]);
    fine(&["qgroup", "assign", &at("a"), "1/1", root]);
    fine(&["subvolume", "create", "-q", &at("a/in")]);
    fine(&["subvolume", "snapshot", "-q", &at("b"), &at("s")]);
}

fn numbers(root: &str) -> Vec<(String, u64)> {
    let all = groups(&["--sync", "--json", root]);
    let one = |group: &serde_json::Value| {
        (group["qgroupid"].as_str().unwrap().to_owned(), group["referenced"].as_u64().unwrap())
    };
    all.as_array().unwrap().iter().map(one).collect()
}

/// As a newer `btrfs` shows what the kernel has of it, line by line.
fn judged_simple(image: &Image, shown: &str) {
    newer_btrfs_check(&image.path).unwrap();
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let at = mount.path().display().to_string();
    let newer = newer_btrfs().unwrap().display().to_string();
    let report = run(&newer, &["qgroup", "show", "-pcre", "--raw", "--sync", &at]);
    // Members of groups it shows behind their path.
    let of_subvolumes = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("0/"));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(of_subvolumes(shown), of_subvolumes(&report.stdout), "{}", report.text());
    mount.unmount().unwrap();
}

#[test]
fn simple_quotas_of_an_image() {
    require!(kernel_btrfs);
    require!(newer_btrfs().is_ok(), "no newer btrfs-progs");
    let image = filled("quota-simple");
    let word = image.word();
    simple_verbs(&word, &|name| image.at(&format!("/{name}")));
    let file = image.dir.join("file").display().to_string();
    fine(&["cp", &file, &image.at("/a/in/x")]);
    fine(&["cp", "--reflink", &image.at("/a/in/x"), &image.at("/b/shared")]);
    fine(&["subvolume", "delete", "-c", &image.at("/a/in")]);
    fine(&["subvolume", "sync", &word]);
    let held = ("0/258".to_owned(), 3_002_368);
    assert!(numbers(&word).contains(&held), "{:?}", numbers(&word));
    fine(&["qgroup", "clear-stale", &word]);
    let (_, said) = failing(&["qgroup", "destroy", "0/258", &word]);
    assert!(said.contains("owns extents"), "{said}");
    let shown = fine(&["qgroup", "show", "-pcre", "--raw", &word]);
    assert!(shown.contains("<squota space holder>"), "{shown}");
    judged_simple(&image, &shown);
    fine(&["check", "--data", &word]);
    fine(&["rm", &image.at("/b/shared")]);
    assert!(numbers(&word).contains(&("0/258".to_owned(), 0)));
    fine(&["qgroup", "clear-stale", &word]);
    assert_eq!(numbers(&word).iter().filter(|(id, _)| id == "0/258").count(), 0);
    fine(&["quota", "disable", &word]);
    newer_btrfs_check(&image.path).unwrap();
}

/// Made with a directory's content; both words of each kind, and what is written behind takes no rescan.
#[test]
fn volumes_are_made_with_quotas() {
    require!(kernel_btrfs);
    require!(newer_btrfs().is_ok(), "no newer btrfs-progs");
    let image = Image::new("quota-made");
    let (word, from) = (image.word(), image.dir.join("from"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), vec![7; 1_000_000]).unwrap();
    let from = from.display().to_string();
    let (full, simple) = ("qgroup (full", "simple");
    for (features, mode) in [
        ("quota", full),
        ("quota,fst,bgt", full),
        ("squota", simple),
        ("quota,squota,bgt", simple),
        ("squota,^squota,quota", full),
    ] {
        fine(&["mkfs", "-f", "-O", features, "--rootdir", &from, &word]);
        let dump = fine(&["dump-super", &word]);
        assert_eq!(dump.contains("block_group_tree"), features.contains("bgt"), "{dump}");
        let status = fine(&["quota", "status", &word]);
        assert!(status.contains(mode), "{features}: {status}");
        let counted = numbers(&word);
        assert!(counted[0].0 == "0/5" && counted[0].1 > 1_000_000, "{features}: {counted:?}");
        fine(&["check", "--data", &word]);
        judged_simple(&image, &fine(&["qgroup", "show", "-pcre", "--raw", &word]));
    }
    fine(&["mkfs", "-f", "-O", "quota,^quota", &word]);
    assert!(failing(&["qgroup", "show", &word]).1.contains("quota"));
}

#[test]
fn simple_quotas_of_a_mount() {
    require!(kernel_btrfs);
    require!(fuse);
    require!(newer_btrfs().is_ok(), "no newer btrfs-progs");
    let image = filled("quota-simple-mount");
    let mount = Mount::new(&image, "");
    simple_verbs(&mount.word(), &|name| mount.join(name).display().to_string());
    // Where they are kept already nothing happens.
    fine(&["btrfs", "quota", "enable", "-s", &mount.word()]);
    fine(&["qgroup", "limit", "2M", &mount.join("a/in").display().to_string()]);
    let refused = fs::write(mount.join("a/in/large"), vec![1; 3_000_000]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EDQUOT), "{refused}");
    fs::remove_file(mount.join("a/in/large")).unwrap();
    fs::write(mount.join("a/in/small"), vec![1; 1 << 20]).unwrap();
    let shown = fine(&["qgroup", "show", "--sync", "-pcre", "--raw", &mount.word()]);
    mount.umount();
    judged_simple(&image, &shown);
}

/// Both volumes have a subvolume with that number, and a group of it.
#[test]
fn a_path_in_another_volume_names_no_group_of_this_one() {
    require!(fuse);
    let (one, other) = (filled("quota-one"), filled("quota-other"));
    let refused = |place: &str, path: &str| {
        let before = fine(&["qgroup", "show", "--json", "-pcre", place]);
        for words in [
            &["limit", "1M", path, place][..],
            &["assign", path, "1/7", place],
            &["remove", path, "1/7", place],
            &["destroy", path, place],
        ] {
            let (code, told) = failing(&[&["qgroup"][..], words].concat());
            assert!(code == 1 && told.contains("not in the volume of"), "{words:?}: {told}");
        }
        assert_eq!(fine(&["qgroup", "show", "--json", "-pcre", place]), before);
    };
    for image in [&one, &other] {
        fine(&["subvolume", "create", &image.at("/s")]);
        fine(&["quota", "enable", &image.word()]);
        fine(&["qgroup", "create", "1/7", &image.word()]);
    }
    refused(&one.at("/"), &other.at("/s"));
    let mounts = [Mount::new(&one, "rw"), Mount::new(&other, "rw")];
    let path = mounts[1].join("s").display().to_string();
    refused(&mounts[0].word(), &path);
    fine(&["qgroup", "limit", "1M", &path, &mounts[1].word()]);
    mounts.into_iter().for_each(Mount::umount);
    [one, other].iter().for_each(|image| assert_clean(&image.path));
}

/// A leaf of the extent tree is lost: nobody can count, and a script is told so.
#[test]
fn what_cannot_be_counted_is_told() {
    require!(kernel_btrfs);
    let image = Image::with("quota-lost", &["-n", "4096"]);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let script = "for i in $(seq 200); do head -c 5000 /dev/zero >f$i; done; sync -f .";
    assert!(sh(&format!("cd {} && {script}", mount.path().display())).status.success());
    mount.unmount().unwrap();
    let dump = sh(&format!("btrfs inspect-internal dump-tree -t extent {}", image.word()));
    let dump = text(&dump.stdout);
    let leaf = dump.lines().filter_map(|line| line.strip_prefix("leaf ")).nth(2).expect("a leaf");
    let logical = leaf.split(' ').next().unwrap().parse().expect("a number");
    let file = fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    let (copies, mut whole) = (copies(&image.path, logical), [0; 100]);
    let overwrite = |bytes: &[u8]| {
        copies.iter().for_each(|at| file.write_all_at(bytes, at + 1000).unwrap());
    };
    fs::File::open(&image.path).unwrap().read_exact_at(&mut whole, copies[0] + 1000).unwrap();
    overwrite(&[0x5a; 100]);
    for words in [["quota", "enable"], ["quota", "enable"], ["quota", "rescan"]] {
        let (code, said) = failing(&[words[0], words[1], &image.word()]);
        assert!(code == 1 && said.contains("could not be counted"), "{words:?}: {said}");
    }
    let inconsistent =
        || json(&fine(&["quota", "status", "--json", &image.word()]))["inconsistent"].clone();
    assert_eq!(inconsistent(), true);
    // Once it can be read, what was asked for is done.
    overwrite(&whole);
    fine(&["quota", "enable", &image.word()]);
    assert_eq!(inconsistent(), false);
    judged(&image);
}
