//! `spinney cp` between this machine and a volume.

use crate::common;
use common::{
    Image, KernelMount, TempDir, assert_clean, at, failing, fine, text, without_stand_ins,
};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::kernel_populate;
use testkit::require;

fn of_image(image: &Path) -> TreeSnapshot {
    assert_clean(image);
    let mount = KernelMount::new(image, "ro").unwrap();
    let tree = TreeSnapshot::of_dir(mount.path()).unwrap();
    mount.unmount().unwrap();
    tree
}

fn assert_same(found: &TreeSnapshot, expected: &TreeSnapshot, rules: &Rules) {
    let differences = diff(&without_stand_ins(found), &without_stand_ins(expected), rules);
    assert!(differences.is_empty(), "{differences:#?}");
}

/// What copies do not carry: `chattr` flags.
fn rules() -> Rules {
    Rules { flags: false, attributes: false, ..Rules::default() }
}

#[test]
fn whole_trees_go_in_and_come_out() {
    require!(kernel_btrfs);
    let source = Image::new("tree-source");
    let mount = KernelMount::new(&source.path, "noatime").unwrap();
    kernel_populate(mount.path(), 7).unwrap();
    let expected = TreeSnapshot::of_dir(mount.path()).unwrap();
    let target = Image::new("tree-target");
    fine(&["cp", "-r", &format!("{}/.", mount.path().display()), &target.at("/")]);
    mount.unmount().unwrap();
    assert_same(&of_image(&target.path), &expected, &rules());
    // Out again, onto a third volume by the kernel.
    let third = Image::new("tree-third");
    let mount = KernelMount::new(&third.path, "noatime").unwrap();
    let out = mount.join("out");
    fine(&["cp", "-r", &target.at("/"), &out.display().to_string()]);
    let found = TreeSnapshot::of_dir(&out).unwrap();
    mount.unmount().unwrap();
    assert_same(&found, &expected, &rules());
}

#[test]
fn trees_go_from_volume_to_volume() {
    require!(kernel_btrfs);
    let source = Image::new("vv-source");
    let mount = KernelMount::new(&source.path, "noatime").unwrap();
    kernel_populate(mount.path(), 11).unwrap();
    let expected = TreeSnapshot::of_dir(mount.path()).unwrap();
    mount.unmount().unwrap();
    let target = Image::new("vv-target");
    fine(&["cp", "-r", &source.at("/."), &target.at("/all")]);
    fine(&["cp", "-a", &target.at("/all"), &target.at("/copy")]);
    assert_clean(&target.path);
    let mount = KernelMount::new(&target.path, "ro").unwrap();
    let found = ["all", "copy"].map(|name| TreeSnapshot::of_dir(&mount.join(name)).unwrap());
    mount.unmount().unwrap();
    found.iter().for_each(|found| assert_same(found, &expected, &rules()));
}

/// A small tree of this machine.
fn small(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("one"), "1").unwrap();
    fs::write(dir.join("sub/two"), vec![7; 100_000]).unwrap();
    fs::hard_link(dir.join("one"), dir.join("sub/hard")).unwrap();
    std::os::unix::fs::symlink("../one", dir.join("sub/link")).unwrap();
}

#[test]
fn copies_merge_into_what_is_there() {
    require!(btrfs_progs);
    let image = Image::new("merge");
    let host = TempDir::new("merge-host").unwrap();
    let tree = host.join("tree");
    small(&tree);
    let word = tree.display().to_string();
    fine(&["cp", "-r", &word, &image.at("/")]);
    fs::write(tree.join("one"), "changed").unwrap();
    fs::write(tree.join("three"), "3").unwrap();
    fine(&["mkdir", &image.at("/tree/mine")]);
    fine(&["cp", "-r", &word, &image.at("/")]);
    assert_eq!(fine(&["cat", &image.at("/tree/one")]), "changed");
    assert_eq!(fine(&["ls", &image.at("/tree")]), "mine\none\nsub\nthree\n");
    fine(&["cp", "-rn", &image.at("/tree/three"), &image.at("/tree/one")]);
    assert_eq!(fine(&["cat", &image.at("/tree/one")]), "changed");
    // And out, onto what is there.
    fs::write(tree.join("one"), "old").unwrap();
    fine(&["cp", "-r", &image.at("/tree"), &host.path().display().to_string()]);
    assert_eq!(fs::read_to_string(tree.join("one")).unwrap(), "changed");
    assert!(tree.join("mine").is_dir());
    assert_eq!(fs::read_link(tree.join("sub/link")).unwrap(), Path::new("../one"));
    // Kinds do not replace each other.
    let (code, why) = failing(&["cp", "-r", &word, &image.at("/tree/one")]);
    assert!(code == 1 && why.contains("is no directory"), "{why}");
    assert_clean(&image.path);
}

#[test]
fn copies_of_trees_are_the_same_unless_told_otherwise() {
    require!(btrfs_progs);
    let image = Image::new("new");
    let host = TempDir::new("new-host").unwrap();
    let tree = host.join("tree");
    small(&tree);
    let set = common::sh(&format!(
        "cd {} && chmod 4777 one && touch -d 2001-01-01 one sub && chmod 2750 sub",
        tree.display()
    ));
    assert!(set.status.success());
    let word = tree.display().to_string();
    let stat = |path: &str| common::json(&fine(&["stat", "--json", &image.at(path)]))[0].clone();
    fine(&["cp", "-r", "--no-preserve", &word, &image.at("/plain")]);
    fine(&["cp", "-r", &word, &image.at("/exact")]);
    // Single files are new without -p.
    fine(&["cp", &format!("{word}/one"), &image.at("/one")]);
    assert_eq!(stat("/one")["mode"], "0755");
    fine(&["cp", "-p", &format!("{word}/one"), &image.at("/one")]);
    assert_eq!(stat("/one")["mode"], "4777");
    assert_eq!(stat("/plain/one")["mode"], "0755", "without set-user-ID, less the umask");
    assert!(!stat("/plain/one")["mtime"].as_str().unwrap().starts_with("2001"));
    assert_eq!(stat("/exact/one")["mode"], "4777");
    assert!(stat("/exact/one")["mtime"].as_str().unwrap().starts_with("2001-01-01"));
    assert_eq!(stat("/exact/sub")["mode"], "2750");
    assert_eq!(stat("/exact/one")["ino"], stat("/exact/sub/hard")["ino"]);
    let out = host.join("out");
    fine(&["cp", "--no-preserve", "-r", &image.at("/exact"), &out.display().to_string()]);
    let meta = fs::metadata(out.join("one")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o755);
    assert!(meta.mtime() > 1_600_000_000);
    let exact = host.join("exact");
    fine(&["cp", "-r", &image.at("/exact"), &exact.display().to_string()]);
    let meta = fs::metadata(exact.join("one")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o4777, 2));
    assert_eq!(meta.mtime(), fs::metadata(tree.join("one")).unwrap().mtime());
}

/// Data of three places in a large file; what is between them is a hole.
const PLACES: [u64; 3] = [0, 12 << 20, (40 << 20) + 4096];
const EACH: usize = 64 << 10;

#[test]
fn holes_stay_holes() {
    require!(kernel_btrfs);
    let image = Image::new("holes");
    let host = TempDir::new("holes-host").unwrap();
    let tree = host.join("tree");
    fs::create_dir(&tree).unwrap();
    let file = fs::File::create(tree.join("sparse")).unwrap();
    file.set_len(64 << 20).unwrap();
    for at in PLACES {
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; EACH], at).unwrap();
    }
    fs::File::create(tree.join("nothing")).unwrap().set_len((8 << 20) + 1).unwrap();
    let data = (PLACES.len() * EACH) as u64;
    fine(&["cp", "-r", &tree.display().to_string(), &image.at("/")]);
    fine(&["cp", "-r", "--reflink=never", &image.at("/tree"), &image.at("/again")]);
    let out = host.join("out");
    fine(&["cp", "-r", &image.at("/tree"), &out.display().to_string()]);
    fine(&["cp", "-r", &image.at("/tree"), &out.display().to_string()]);
    assert_clean(&image.path);
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    let content = fs::read(tree.join("sparse")).unwrap();
    for dir in [kernel.join("tree"), kernel.join("again"), out.clone(), out.join("tree")] {
        let taken = |name: &str| fs::metadata(dir.join(name)).unwrap().blocks() * 512;
        // In a volume not one block more; this machine's file system may count its own.
        let more = if dir.starts_with(&out) { 16 << 10 } else { 0 };
        assert!((data..=data + more).contains(&taken("sparse")), "{dir:?}: {}", taken("sparse"));
        assert!(taken("nothing") <= more, "{dir:?}: {}", taken("nothing"));
        assert_eq!(fs::metadata(dir.join("nothing")).unwrap().len(), (8 << 20) + 1);
        assert!(fs::read(dir.join("sparse")).unwrap() == content, "{dir:?}");
    }
    kernel.unmount().unwrap();
}

#[test]
fn what_is_overwritten_becomes_the_same_too() {
    require!(kernel_btrfs);
    let (image, other) = (Image::new("over"), Image::new("over-host"));
    let host = KernelMount::new(&other.path, "noatime").unwrap();
    let make = |dir: &Path| {
        let set = common::sh(&format!(
            "set -e; mkdir {0}; cd {0}; mkdir sub; echo new > one; echo n > sub/two
            chown 12:34 one; chmod 4751 one; chmod 2710 sub; chown :7 sub
            setfattr -n user.a -v here one; setfattr -n user.b -v there sub
            setfacl -m u:77:r sub/two; mkfifo pipe; ln -s one link
            ln one sub/hard; ln one zzz
            touch -d 2001-01-01T01:01:01.123456789 one sub/two; touch -d 2002-02-02 sub .",
            dir.display()
        ));
        assert!(set.status.success(), "{}", text(&set.stderr));
    };
    make(&host.join("tree"));
    let word = host.join("tree").display().to_string();
    let expected = TreeSnapshot::of_dir(&host.join("tree")).unwrap();
    // Older things of the same names, files where a pipe and a link will be among them.
    let old = |dir: &Path| {
        fs::create_dir_all(dir.join("sub")).unwrap();
        for name in ["one", "sub/hard", "pipe", "link"] {
            fs::write(dir.join(name), "old and longer").unwrap();
        }
        // The same file here, and not there.
        fs::hard_link(dir.join("one"), dir.join("sub/two")).unwrap();
    };
    old(&host.join("old"));
    fine(&["cp", "-r", &host.join("old").display().to_string(), &image.at("/tree")]);
    fine(&["cp", "-r", &word, &image.at("/")]);
    fine(&["cp", "-r", &word, &image.at("/")]);
    old(&host.join("out/tree"));
    fine(&["cp", "-r", &image.at("/tree"), &host.join("out").display().to_string()]);
    fine(&["cp", "-r", &image.at("/tree"), &host.join("out").display().to_string()]);
    let found = TreeSnapshot::of_dir(&host.join("out/tree")).unwrap();
    assert_same(&found, &expected, &rules());
    host.unmount().unwrap();
    assert_clean(&image.path);
    let mount = KernelMount::new(&image.path, "ro").unwrap();
    let found = TreeSnapshot::of_dir(&mount.join("tree")).unwrap();
    mount.unmount().unwrap();
    assert_same(&found, &expected, &rules());
}

/// Hard links between what several sources name; one of the first names is replaced before
/// the second comes.
#[test]
fn links_between_sources() {
    require!(btrfs_progs);
    let image = Image::new("links");
    let set = common::sh(&format!(
        "cd {} && mkdir a b && echo shared >a/x && ln a/x b/y && echo gone >a/one &&
        ln a/one b/two && echo else >b/one",
        image.dir.path().display()
    ));
    assert!(set.status.success(), "{}", text(&set.stderr));
    let word = |name: &str| image.dir.join(name).display().to_string();
    fine(&["mkdir", &image.at("/in")]);
    fine(&["cp", "-r", &word("a/."), &word("b/."), &image.at("/in")]);
    fine(&["mkdir", &image.at("/a"), &image.at("/b")]);
    fine(&["cp", "-r", &word("a"), &word("b"), &image.at("/")]);
    let ino = |path: &str| {
        let stat = common::json(&fine(&["stat", "--json", &image.at(path)]))[0].clone();
        (stat["ino"].as_u64().unwrap(), stat["nlink"].as_u64().unwrap())
    };
    assert_eq!((ino("/in/x"), ino("/in/x").1), (ino("/in/y"), 2));
    assert_eq!((ino("/a/x"), ino("/a/one")), (ino("/b/y"), ino("/b/two")));
    links_between_sources_of_a_volume(&image);
    fs::create_dir(image.dir.join("out")).unwrap();
    fine(&["cp", "-r", &image.at("/a/."), &image.at("/b/."), &word("out")]);
    let host = |name: &str| {
        let meta = fs::metadata(image.dir.join("out").join(name)).unwrap();
        (meta.ino(), meta.nlink())
    };
    assert_eq!((host("x"), host("x").1), (host("y"), 2));
    for (name, content) in [("one", "else\n"), ("two", "gone\n"), ("x", "shared\n")] {
        assert_eq!(fine(&["cat", &image.at(&format!("/in/{name}"))]), content);
        assert_eq!(fs::read_to_string(image.dir.join("out").join(name)).unwrap(), content);
    }
    assert_clean(&image.path);
}

/// `/a` and `/b` of an image, within it and into another one.
fn links_between_sources_of_a_volume(image: &Image) {
    let other = Image::new("links-other");
    for to in [image, &other] {
        fine(&["mkdir", &to.at("/merged"), &to.at("/beside")]);
        fine(&["cp", "-r", &image.at("/a/."), &image.at("/b/."), &to.at("/merged")]);
        fine(&["cp", "-r", &image.at("/a"), &image.at("/b"), &to.at("/beside")]);
        let ino = |path: &str| {
            let stat = common::json(&fine(&["stat", "--json", &to.at(path)]))[0].clone();
            (stat["ino"].as_u64().unwrap(), stat["nlink"].as_u64().unwrap())
        };
        assert_eq!((ino("/merged/x"), ino("/merged/x").1), (ino("/merged/y"), 2));
        assert_eq!((ino("/beside/a/x"), ino("/beside/a/x").1), (ino("/beside/b/y"), 2));
        for (name, content) in [("one", "else\n"), ("two", "gone\n"), ("x", "shared\n")] {
            assert_eq!(fine(&["cat", &to.at(&format!("/merged/{name}"))]), content);
        }
        assert_clean(&to.path);
    }
}

/// Runs a shell script as nobody, in a directory of its own with the program and an image.
fn as_nobody(image: &Image, script: &str) -> String {
    let dir = image.dir.path().display();
    let done = common::sh(&format!(
        "cp {} {dir}/spinney && chown -R 65534:65534 {dir} && cd {dir} &&
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '{script}'",
        common::PROGRAM
    ));
    let shown = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{shown}");
    shown
}

#[test]
fn ordinary_users_own_what_they_copy_out() {
    require!(btrfs_progs);
    if !common::sh("setpriv --help").status.success() {
        testkit::skip!("no setpriv here");
    }
    let image = Image::new("ordinary");
    let set = common::sh(&format!(
        "cd {} && mkdir tree && echo x > tree/theirs && echo y > tree/mine && mkdir tree/sub &&
        chown 12:34 tree/theirs && chown 65534:65534 tree/mine && chmod 6755 tree/* &&
        touch -d @978307200 tree/*",
        image.dir.path().display()
    ));
    assert!(set.status.success());
    fine(&["cp", "-r", &image.dir.join("tree").display().to_string(), &image.at("/")]);
    // Out: nothing fails, and nobody gets a program that runs as the caller by accident.
    let shown = as_nobody(
        &image,
        "./spinney cp -r disk.img:/tree out; cd out; stat -c \"%n %u:%g %a %Y\" theirs mine sub",
    );
    let since = "978307200";
    for line in [
        format!("theirs 65534:65534 755 {since}"),
        format!("mine 65534:65534 6755 {since}"),
        format!("sub 65534:65534 755 {since}"),
    ] {
        assert!(shown.contains(&line), "{line}: {shown}");
    }
    // Over what is there, and in again: owners as they are on this machine.
    as_nobody(&image, "./spinney cp -r disk.img:/tree/. out; ./spinney cp -r out disk.img:/");
    let stat = common::json(&fine(&["stat", "--json", &image.at("/out/mine")]))[0].clone();
    assert_eq!((&stat["uid"], &stat["mode"]), (&65534.into(), &"6755".into()), "{stat}");
    let stat = common::json(&fine(&["stat", "--json", &image.at("/tree/theirs")]))[0].clone();
    assert_eq!((&stat["uid"], &stat["mode"]), (&12.into(), &"6755".into()), "{stat}");
    assert_clean(&image.path);
}

#[test]
fn pipes_and_sparse_files_go_in() {
    require!(btrfs_progs);
    let image = Image::new("pipes");
    let script = format!("seq 100000 | {} cp /dev/stdin {}", common::PROGRAM, image.at("/numbers"));
    let done = common::sh(&script);
    assert!(done.status.success(), "{}", common::text(&done.stderr));
    let expected: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert!(fine(&["cat", &image.at("/numbers")]) == expected);
    // Out through a pipe, and to where a link leads; the link stays.
    let script = format!("{} cp {} /dev/stdout | cat", common::PROGRAM, image.at("/numbers"));
    let done = common::sh(&script);
    assert!(text(&done.stdout) == expected && done.stderr.is_empty(), "{}", text(&done.stderr));
    for (name, to) in [("to-file", "file"), ("to-device", "/dev/null")] {
        let link = image.dir.join(name);
        fs::write(image.dir.join("file"), "old").unwrap();
        std::os::unix::fs::symlink(to, &link).unwrap();
        fine(&["cp", &image.at("/numbers"), &link.display().to_string()]);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(to));
    }
    assert_eq!(fs::read_to_string(image.dir.join("file")).unwrap(), "old");
    fine(&["cp", &image.at("/numbers"), &image.dir.join("to-file").display().to_string()]);
    assert!(fs::read_to_string(image.dir.join("file")).unwrap() == expected);
    let host = TempDir::new("pipes-host").unwrap();
    let sparse = host.join("sparse");
    let file = fs::File::create(&sparse).unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 1 << 39).unwrap();
    fine(&["cp", &sparse.display().to_string(), &image.at("/sparse")]);
    let stat = common::json(&fine(&["stat", "--json", &image.at("/sparse")]))[0].clone();
    assert_eq!(stat["size"], 1u64 << 40);
    assert!(stat["blocks"].as_u64().unwrap() < 100, "{stat}");
    let back = host.join("back");
    fine(&["cp", &image.at("/sparse"), &back.display().to_string()]);
    let meta = fs::metadata(&back).unwrap();
    assert!(meta.len() == 1 << 40 && meta.blocks() < 1000, "{meta:?}");
    assert_clean(&image.path);
}

#[test]
fn new_volumes_are_filled_from_a_directory() {
    require!(kernel_btrfs);
    let host = TempDir::new("rootdir").unwrap();
    let tree = host.join("tree");
    small(&tree);
    let image = host.join("disk.img");
    let (word, from) = (image.display().to_string(), tree.display().to_string());
    let made = common::spinney(&["mkfs", "--size", "256M", "--rootdir", &from, &word]);
    assert!(made.status.success(), "{}", common::text(&made.stderr));
    let expected = TreeSnapshot::of_dir(&tree).unwrap();
    let found = of_image(&image);
    assert_same(&found, &expected, &Rules { dir_size: false, blocks: false, ..rules() });
    assert_eq!(fine(&["cat", &at(&image, "/sub/link")]), "1");
    // The top is that of the directory, where nothing else is asked for; and that is what is told.
    let owner = |told: &[u8]| {
        let told = common::text(told);
        let line = told.lines().find(|line| line.starts_with("owner")).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    let top = || common::json(&fine(&["stat", "--json", &at(&image, "/")]))[0].clone();
    let theirs = fs::metadata(&tree).unwrap();
    assert_eq!(owner(&made.stdout), format!("{}:{}", theirs.uid(), theirs.gid()));
    let words = ["mkfs", "-f", "--rootdir", &from, "--owner", "5:6", "--mode", "2751", &word];
    let made = common::spinney(&words);
    assert_eq!(owner(&made.stdout), "5:6");
    assert_eq!((top()["uid"].as_u64(), top()["gid"].as_u64()), (Some(5), Some(6)));
    assert_eq!(top()["mode"], "2751");
    assert_clean(&image);
    // A directory that does not fit leaves no image behind.
    let big = host.join("big");
    fs::write(tree.join("big"), vec![1; 200 << 20]).unwrap();
    let word = big.display().to_string();
    let (code, why) = failing(&["mkfs", "--size", "120M", "--rootdir", &from, &word]);
    assert!(code == 1 && why.contains("no space"), "{why}");
    assert!(!big.exists());
}

/// As `cp -a`: what fails of one file is told, the rest is copied, and the code is 1.
#[test]
fn what_fails_of_one_file_keeps_no_other_back() {
    require!(btrfs_progs);
    if !common::sh("setpriv --help").status.success() {
        testkit::skip!("no setpriv here");
    }
    let image = Image::with("failing-files", &["-n", "4096"]);
    let there = |names: &[&str]| {
        for name in names {
            assert_eq!(fine(&["cat", &image.at(name)]), "x\n", "{name}");
        }
    };
    let told = as_nobody(
        &image,
        "mkdir -p in/b/deep in/closed; for f in a b/a b/z b/deep/x z; do echo x >in/$f; done
        echo x >in/b/closed; chmod 0 in/b/closed in/closed; touch -d @5 in/closed in/b
        ln -s $(seq -s0 0 1300 | head -c 4000) in/b/long
        cp -a in gnu 2>/dev/null && exit 7; find gnu ! -name long | sort >gnu.list
        for to in new merged; do
            [ $to = new ] || ./spinney mkdir -p disk.img:/merged/b
            ./spinney cp -r in/. disk.img:/$to && exit 8
        done
        ./spinney cp -r --no-preserve in disk.img:/plain && exit 9; true",
    );
    for to in ["new", "merged", "plain"] {
        let names = ["a", "b/a", "b/z", "b/deep/x", "z"].map(|name| format!("/{to}/{name}"));
        there(&names.each_ref().map(String::as_str));
        // What could not be read is not there, or empty, as cp(1) leaves it.
        assert_eq!(fine(&["ls", "-A", &image.at(&format!("/{to}/closed"))]), "");
    }
    for (what, times) in [("/b/closed: open", 3), ("/closed: read dir", 3), ("b/long: name", 3)] {
        let lines = told.lines().filter(|line| line.contains("spinney: ") && line.contains(what));
        assert_eq!(lines.count(), times, "{what}: {told}");
    }
    let stat = common::json(&fine(&["stat", "--json", &image.at("/new/closed")]))[0].clone();
    assert_eq!(stat["mode"], "0000", "{stat}");
    assert!(stat["mtime"].as_str().unwrap().starts_with("1970-01-01T00:00:05"), "{stat}");
    // Out, by somebody who may make no devices; and from a volume into another.
    let made = common::sh(&format!(
        "cd {} && mkdir dev && mknod dev/m c 1 3 && echo x >dev/a && echo x >dev/z && mkdir dev/d &&
        echo x >dev/d/x && ln -s $(seq -s0 0 1300 | head -c 4000) dev/long",
        image.dir.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let other = Image::with("failing-files-16k", &[]);
    fine(&["cp", "-r", &image.dir.join("dev").display().to_string(), &other.at("/")]);
    let (code, told) = common::failing(&["cp", "-r", &other.at("/dev"), &image.at("/")]);
    assert!(code == 1 && told.contains("/dev/long: name too long"), "{told}");
    there(&["/dev/a", "/dev/z", "/dev/d/x"]);
    let told = as_nobody(
        &image,
        "./spinney cp -r disk.img:/dev out && exit 7; mkdir over; mkdir over/d
        ./spinney cp -r disk.img:/dev/. over && exit 8; cat out/a out/z out/d/x over/a over/z over/d/x",
    );
    assert_eq!(told.matches("x\n").count(), 6, "{told}");
    assert_eq!(told.matches("dev/m: ").count() + told.matches("/m: ").count(), 2, "{told}");
    assert_clean(&image.path);
}

/// What thousands of files may have is told once, or it would hide what is lost.
#[test]
fn an_attribute_that_the_target_does_not_know_is_told_once() {
    let image = Image::with("told-once", &[]);
    for n in 0..3 {
        let (from, to) = (image.dir.join("x"), image.at(&format!("/f{n}")));
        fs::write(&from, b"content").unwrap();
        fine(&["cp", &from.display().to_string(), &to]);
        fine(&["xattr", "set", &to, "btrfs.compression", "zstd"]);
    }
    let out = image.dir.join("out").display().to_string();
    let copied = common::spinney(&["cp", "-r", &image.at("/"), &out]);
    let told = text(&copied.stderr);
    assert!(copied.status.success(), "{told}");
    assert_eq!(told.matches("btrfs.compression is left out").count(), 1, "{told}");
}

/// It looked whole, with a part of what was to be in it.
#[test]
fn an_image_that_was_being_filled_when_it_was_killed_is_none() {
    let host = TempDir::new("half-made").unwrap();
    let (from, image) = (host.join("from"), host.join("disk.img"));
    fs::create_dir_all(&from).unwrap();
    let (root, word) = (from.display().to_string(), image.display().to_string());
    let line = ["mkfs", "-q", "--size", "512M", "--rootdir", &root, &word];
    let is_killed_amid = |files: usize| {
        let _ = fs::remove_file(&image);
        for n in 0..files {
            fs::write(from.join(format!("{n}")), "content").unwrap();
        }
        let mut child = std::process::Command::new(common::PROGRAM).args(line).spawn().unwrap();
        common::eventually("it is begun", || image.exists());
        std::thread::sleep(std::time::Duration::from_millis(50));
        let amid = child.try_wait().unwrap().is_none();
        let _ = child.kill();
        child.wait().unwrap();
        amid
    };
    let files = [20_000, 80_000].into_iter().find(|files| is_killed_amid(*files));
    let files = files.expect("it is not done when it is killed");
    let (code, said) = failing(&["info", &word]);
    assert!(code == 1 && said.contains("not a btrfs volume"), "{said}");
    // Nothing on it is in the way of another try.
    fine(&line);
    assert_eq!(fine(&["ls", &at(&image, "/")]).lines().count(), files);
    common::assert_clean(&image);
}

/// Each is refused alone, and the image stays whole.
#[test]
fn nothing_is_copied_over_an_image_in_use() {
    require!(kernel_btrfs);
    let image = Image::new("over-itself");
    let host = TempDir::new("over-itself-host").unwrap();
    let tree = host.join("tree");
    for dir in ["linked", "twice"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for name in ["disk.img", "other", "twice/disk.img"] {
        fs::write(tree.join(name), name).unwrap();
    }
    fs::hard_link(tree.join("twice/disk.img"), tree.join("twice/again")).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("linked/disk.img")).unwrap();
    fine(&["cp", "-r", &format!("{}/.", tree.display()), &image.at("/")]);
    let (itself, dir) = (image.word(), image.dir.path().display().to_string());
    let before = fs::metadata(&image.path).unwrap();
    let refused = |words: &[&str]| {
        let (code, said) = failing(&[&["cp"], words].concat());
        assert!(code == 1 && said.contains("in use"), "{words:?}: {said}");
        let now = fs::metadata(&image.path).unwrap();
        assert_eq!((now.ino(), now.len()), (before.ino(), before.len()), "{words:?}");
    };
    refused(&[&image.at("/disk.img"), &itself]);
    refused(&["-r", &image.at("/."), &dir]);
    assert_eq!(fs::read_to_string(image.dir.join("other")).unwrap(), "other");
    // These would take its name.
    refused(&["-r", &image.at("/linked/disk.img"), &dir]);
    refused(&["-r", &image.at("/twice/disk.img"), &dir]);
    assert_clean(&image.path);
    let attached = common::sh(&format!("losetup -f --show {itself}"));
    let device = text(&attached.stdout).trim().to_owned();
    refused(&[&format!("{device}:/disk.img"), &device]);
    common::sh(&format!("losetup -d {device}"));
    assert_clean(&image.path);
    // Somebody else has it.
    let other = Image::new("over-another");
    let mount = KernelMount::new(&other.path, "ro").unwrap();
    refused(&[&image.at("/disk.img"), &other.word()]);
    mount.unmount().unwrap();
    let reader = fs::File::open(&other.path).unwrap();
    reader.lock_shared().unwrap();
    refused(&[&image.at("/disk.img"), &other.word()]);
    assert_clean(&other.path);
    drop(reader);
    fine(&["cp", &image.at("/disk.img"), &other.word()]);
    assert_eq!(fs::read_to_string(&other.path).unwrap(), "disk.img");
}
