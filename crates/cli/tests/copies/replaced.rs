//! What takes the place of something: what it looks like when it is there, and what is left where it cannot be.

use crate::common;
use common::streams::shell;
use common::{Image, KernelMount, PROGRAM, TempDir, assert_clean, failing, fine, json, sh, text};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use testkit::require;

/// A volume that the kernel changed by `script`, in its top.
fn made(name: &str, script: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "").unwrap();
    shell(&format!("cd {}\n{script}", mount.path().display()));
    mount.unmount().unwrap();
    image
}

#[test]
fn another_name_of_what_could_not_be_put_in_place_is_copied_itself() {
    require!(kernel_btrfs);
    let source = made("replaced-links", "mkdir d; echo content > d/x; ln d/x d/y");
    let script = "mkdir d; echo old > d/x; ln d/x d/other; chattr +i d/x";
    let target = made("replaced-fixed", script);
    let (code, why) = failing(&["cp", "-a", &source.at("/d"), &target.at("/")]);
    assert!(code == 1 && why.contains("/d/x: operation not permitted"), "{why}");
    assert!(!why.contains("/d/y"), "{why}");
    assert_eq!(fine(&["cat", &target.at("/d/y")]), "content\n");
    assert_eq!(fine(&["cat", &target.at("/d/x")]), "old\n");
    assert_eq!(fine(&["ls", "-A", &target.at("/d")]), "other\nx\ny\n");
    assert_clean(&target.path);
}

#[test]
fn nothing_is_left_over_in_a_directory_that_only_grows() {
    require!(kernel_btrfs);
    let source = made("replaced-two", "mkdir d; echo content > d/x; ln d/x y");
    let script = "mkdir d; echo old > d/x; ln d/x d/other; echo z > z; chattr +a d";
    let target = made("replaced-grows", script);
    let archive = target.dir.join("d.tar").display().to_string();
    fine(&["tar", "-c", "-f", &archive, &source.at("/d")]);
    let (from, to, top) = (source.at("/d"), target.at("/d/x"), target.at("/"));
    for words in [
        vec!["cp", "-a", &from, &top],
        vec!["tar", "-x", "-f", &archive, &top],
        vec!["ln", "-sf", "somewhere", &to],
        vec!["ln", "-f", &target.at("/z"), &to],
    ] {
        let (code, why) = failing(&words);
        assert!(code == 1 && why.contains("not permitted"), "{words:?}: {why}");
        assert_eq!(fine(&["ls", "-A", &target.at("/d")]), "other\nx\n", "{words:?}");
        assert_eq!(fine(&["cat", &to]), "old\n", "{words:?}");
    }
    assert_clean(&target.path);
}

/// Names alone do not tell whose a file is.
#[test]
fn what_is_called_like_something_left_over_stays() {
    let image = Image::new("replaced-names");
    let (dir, archive) = (image.dir.join("d"), image.dir.join("a.tar"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(".spinney-1-2"), "user's").unwrap();
    fs::write(dir.join("a"), "new").unwrap();
    fine(&["cp", &dir.join(".spinney-1-2").display().to_string(), &image.at("/a")]);
    let (from, to) = (dir.display(), archive.display().to_string());
    shell(&format!("tar -C {from} -cf {to} .spinney-1-2 a"));
    fine(&["tar", "-x", "-f", &to, &image.at("/")]);
    assert_eq!(fine(&["ls", "-A", &image.at("/")]), ".spinney-1-2\na\n");
    assert_eq!(fine(&["cat", &image.at("/.spinney-1-2"), &image.at("/a")]), "user'snew");
    assert_clean(&image.path);
}

#[test]
fn what_is_replaced_has_the_ctime_that_a_new_copy_has() {
    require!(btrfs_progs);
    let (image, host) = (Image::new("replaced-ctime"), TempDir::new("replaced-times").unwrap());
    let top = host.path().display().to_string();
    shell(&format!("cd {top}; echo x > one; ln one two; ln -s one link; mkfifo fifo; sleep 1.1"));
    let ctimes = || {
        let ctime = |name: &str| {
            let told = json(&fine(&["stat", "--json", &image.at(&format!("/{name}"))]));
            told[0]["ctime"].as_str().unwrap().to_owned()
        };
        ["one", "two", "link", "fifo"].map(ctime)
    };
    let copy = || fine(&["cp", "-a", &format!("{top}/."), &image.at("/")]);
    copy();
    let first = ctimes();
    copy();
    assert_eq!(ctimes(), first);
    assert_clean(&image.path);
}

#[test]
fn the_top_of_a_new_volume_changed_when_its_directory_did() {
    require!(kernel_btrfs);
    let host = TempDir::new("replaced-top").unwrap();
    let (dir, image) = (host.join("dir"), host.join("disk.img"));
    let (word, from) = (image.display().to_string(), dir.display().to_string());
    shell(&format!("mkdir {from}; echo x > {from}/file; sleep 1.1"));
    let meta = fs::metadata(&dir).unwrap();
    for more in [&[][..], &["--owner", "5:6"], &["--mode", "2751"]] {
        let words = ["mkfs", "-f", "-q", "--size", "256M", "--rootdir", &from, &word];
        fine(&[&words, more].concat());
        let mount = KernelMount::new(&image, "ro").unwrap();
        let top = fs::metadata(mount.path()).unwrap();
        mount.unmount().unwrap();
        let times = |meta: &fs::Metadata| (meta.ctime(), meta.ctime_nsec());
        assert_eq!(times(&top), times(&meta), "{more:?}");
    }
}

#[test]
fn what_cannot_be_shared_takes_nothing_from_what_is_there() {
    require!(kernel_btrfs);
    let other = made("replaced-other", "echo other > f");
    let image = made(
        "replaced-shared",
        "echo tiny > tiny; yes small | head -c 5000 > small; yes old | head -c 20000 > f
        touch fixed; chattr +C fixed; yes fixed | head -c 20000 >> fixed",
    );
    let sums = |name: &str| fine(&["cat", &image.at(name)]);
    let (old, fixed) = (sums("/f"), sums("/fixed"));
    for (from, to) in [(other.at("/f"), "/f"), (image.at("/small"), "/fixed")] {
        failing(&["cp", "--reflink=always", &from, &image.at(to)]);
        assert!(sums("/f") == old && sums("/fixed") == fixed, "{from} {to}");
    }
    // Shorter, in the middle of a sector, over what is longer.
    for name in ["/small", "/tiny"] {
        fine(&["cp", "--reflink=always", &image.at(name), &image.at("/f")]);
        assert_eq!(sums("/f"), sums(name));
        fine(&["cp", &image.at(name), &image.at("/fixed")]);
        assert_eq!(sums("/fixed"), sums(name));
    }
    fine(&["cp", &other.at("/f"), &image.at("/f")]);
    assert_eq!(sums("/f"), "other\n");
    assert_clean(&image.path);
}

#[test]
fn an_image_is_not_copied_into_itself_from_standard_input() {
    require!(btrfs_progs);
    let image = Image::new("replaced-input");
    let told = sh(&format!("{PROGRAM} cp - {} < {}", image.at("/x"), image.word()));
    assert!(text(&told.stderr).contains("is the image"), "{}", text(&told.stderr));
    assert_eq!(fine(&["ls", "-A", &image.at("/")]), "");
    assert_clean(&image.path);
}

#[test]
fn where_nothing_can_be_replaced_nothing_is_left_over() {
    require!(root);
    require!(kernel_btrfs);
    let source = made("replaced-out", "mkdir d; echo content > d/x; ln d/x d/y");
    let host = made("replaced-out-host", "mkdir d; echo old > d/x; chattr +a d");
    let mount = KernelMount::new(&host.path, "").unwrap();
    let to: &Path = mount.path();
    let (_, why) = failing(&["cp", "-a", &source.at("/d"), &to.display().to_string()]);
    let left: Vec<String> = fs::read_dir(to.join("d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".spinney"))
        .collect();
    mount.unmount().unwrap();
    assert_eq!(left, [""; 0]);
    assert!(why.contains("d/x: operation not permitted"), "{why}");
}
