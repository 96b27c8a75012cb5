//! `spinney cp` between this machine and a volume.

mod common;

use common::{Image, KernelMount, TempDir, assert_clean, at, failing, fine, without_stand_ins};
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
    fine(&["cp", "-a", &format!("{}/.", mount.path().display()), &target.at("/")]);
    mount.unmount().unwrap();
    assert_same(&of_image(&target.path), &expected, &rules());
    // Out again, onto a third volume by the kernel.
    let third = Image::new("tree-third");
    let mount = KernelMount::new(&third.path, "noatime").unwrap();
    let out = mount.join("out");
    fine(&["cp", "-a", &target.at("/"), &out.display().to_string()]);
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
    fine(&["cp", "-a", &source.at("/."), &target.at("/all")]);
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
fn plain_copies_are_new_and_archives_are_not() {
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
    fine(&["cp", "-r", &word, &image.at("/plain")]);
    fine(&["cp", "-a", &word, &image.at("/exact")]);
    let stat = |path: &str| common::json(&fine(&["stat", "--json", &image.at(path)]))[0].clone();
    assert_eq!(stat("/plain/one")["mode"], "0755", "without set-user-ID, less the umask");
    assert!(!stat("/plain/one")["mtime"].as_str().unwrap().starts_with("2001"));
    assert_eq!(stat("/exact/one")["mode"], "4777");
    assert!(stat("/exact/one")["mtime"].as_str().unwrap().starts_with("2001-01-01"));
    assert_eq!(stat("/exact/sub")["mode"], "2750");
    assert_eq!(stat("/exact/one")["ino"], stat("/exact/sub/hard")["ino"]);
    let out = host.join("out");
    fine(&["cp", "-r", &image.at("/exact"), &out.display().to_string()]);
    let meta = fs::metadata(out.join("one")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o755);
    assert!(meta.mtime() > 1_600_000_000);
    let exact = host.join("exact");
    fine(&["cp", "-a", &image.at("/exact"), &exact.display().to_string()]);
    let meta = fs::metadata(exact.join("one")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o4777, 2));
    assert_eq!(meta.mtime(), fs::metadata(tree.join("one")).unwrap().mtime());
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
    // A directory that does not fit leaves no image behind.
    let big = host.join("big");
    fs::write(tree.join("big"), vec![1; 200 << 20]).unwrap();
    let word = big.display().to_string();
    let (code, why) = failing(&["mkfs", "--size", "120M", "--rootdir", &from, &word]);
    assert!(code == 1 && why.contains("no space"), "{why}");
    assert!(!big.exists());
}
