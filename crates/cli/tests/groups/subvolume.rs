//! `spinney subvolume` and `spinney property`, in images and in mounts.
//!
//! Judge: the kernel's btrfs and `btrfs subvolume`. What Spinney tells of an image is what they
//! tell of it, and what Spinney made of one they take for what it should be.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse};
use common::{Image, KernelMount, assert_clean, failing, fine, json, sh, spinney, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use testkit::require;

/// Standard output of `btrfs`, which must succeed.
fn btrfs(words: &[&str]) -> String {
    let output = Command::new("btrfs").args(words).output().expect("btrfs-progs");
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Nested subvolumes, snapshots of both kinds, and content, by the kernel.
fn made_by_kernel(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let script = format!(
        "cd {} && btrfs -q subvolume create a && btrfs -q subvolume create a/b && \
         mkdir -p d/e && btrfs -q subvolume create d/e/c && echo one >a/file && \
         btrfs -q subvolume snapshot a s1 && btrfs -q subvolume snapshot -r a d/s2 && \
         btrfs -q subvolume snapshot s1 'a blank' && echo two >>a/file && sync -f .",
        mount.path().display()
    );
    let made = sh(&script);
    assert!(made.status.success(), "{}", text(&made.stderr));
    mount.unmount().unwrap();
    image
}

/// `show` without what btrfs-progs gets wrong: the time of what was never sent.
fn shown(text: &str) -> String {
    let told = |line: &&str| !line.contains("Send time") && !line.contains("Quota group");
    text.lines().filter(told).collect::<Vec<_>>().join("\n")
}

const LISTS: &[&str] = &[
    "",
    "-p",
    "-c",
    "-g",
    "-u",
    "-q",
    "-R",
    "-o",
    "-a",
    "-s",
    "-r",
    "-d",
    "-t",
    "-t -s -u",
    "-puqRcg",
    "--sort=-rootid",
    "--sort=path",
    "--sort=-ogen,+path",
    "-G +8",
    "-C 7",
    "-C -7",
];

#[test]
fn what_is_told_of_an_image_is_what_btrfs_tells() {
    require!(kernel_btrfs);
    let image = made_by_kernel("subvol-told");
    let mount = KernelMount::new(&image.path, "ro").unwrap();
    let mut expected = Vec::new();
    for list in LISTS {
        for at in ["", "a", "d/e"] {
            let place = mount.join(at).display().to_string();
            let words: Vec<&str> = ["subvolume", "list"]
                .into_iter()
                .chain(list.split(' ').filter(|word| !word.is_empty()))
                .chain([&*place])
                .collect();
            expected.push((*list, at, btrfs(&words)));
        }
    }
    let paths = ["", "a", "a/b", "d/s2", "s1"];
    let show =
        paths.map(|path| btrfs(&["subvolume", "show", &mount.join(path).display().to_string()]));
    let default = btrfs(&["subvolume", "get-default", &mount.path().display().to_string()]);
    mount.unmount().unwrap();

    for (list, at, told) in expected {
        let place = image.at(&format!("/{at}"));
        let words =
            ["subvolume", "list"].into_iter().chain(list.split(' ').filter(|w| !w.is_empty()));
        let words: Vec<&str> = words.chain([&*place]).collect();
        assert_eq!(fine(&words), told, "{words:?}");
    }
    for (path, told) in paths.iter().zip(&show) {
        let ours = fine(&["subvolume", "show", &image.at(&format!("/{path}"))]);
        assert_eq!(shown(&ours), shown(told), "{path}");
    }
    assert_eq!(fine(&["subvolume", "get-default", &image.word()]), default);
    assert_eq!(fine(&["sub", "get-default", &image.word()]), default, "cut as btrfs lets it");

    let all = json(&fine(&["subvolume", "list", "--json", &image.word()]));
    let paths: Vec<_> = all.as_array().unwrap().iter().map(|o| o["path"].clone()).collect();
    assert_eq!(paths, ["a", "a/b", "d/e/c", "s1", "d/s2", "a blank"]);
    assert_eq!(all[4]["readonly"], true);
    assert_eq!(all[4]["parent_uuid"], all[0]["uuid"]);
    let one = json(&fine(&["subvolume", "show", "--json", &image.at("/a")]));
    assert_eq!(one["snapshots"][1]["path"], "d/s2");
    assert_eq!(one["uuid"], all[0]["uuid"]);
    let uuid = one["uuid"].as_str().unwrap();
    let found = fine(&["subvolume", "show", "-u", uuid, &image.word()]);
    assert_eq!(found, fine(&["subvolume", "show", "-r", "256", &image.word()]));
}

#[test]
fn what_is_new_is_what_btrfs_finds() {
    require!(kernel_btrfs);
    let image = made_by_kernel("subvol-new");
    let mount = KernelMount::new(&image.path, "noatime,compress=zstd").unwrap();
    let a = mount.join("a").display().to_string();
    let script = format!(
        "cd {a} && mkdir -p x/y && yes | head -c 300000 >x/y/long && fallocate -l 1M room && \
         head -c 70000 /dev/urandom >noise && cp --reflink=always noise copy && \
         truncate -s 1M holes && sync -f ."
    );
    assert!(sh(&script).status.success());
    let expected =
        ["0", "8", "10", "1000"].map(|since| btrfs(&["subvolume", "find-new", &a, since]));
    mount.unmount().unwrap();
    for (since, told) in ["0", "8", "10", "1000"].iter().zip(&expected) {
        assert_eq!(fine(&["subvolume", "find-new", &image.at("/a"), since]), *told, "{since}");
    }
    assert!(expected[0].contains("COMPRESS") && expected[0].contains("PREALLOC"));
}

#[test]
fn what_is_made_in_an_image_the_kernel_takes() {
    require!(kernel_btrfs);
    let image = Image::new("subvol-made");
    let at = |path: &str| image.at(path);
    let told = fine(&["subvolume", "create", &at("/home"), &at("/srv")]);
    assert_eq!(
        told,
        format!("Create subvolume '{}'\nCreate subvolume '{}'\n", at("/home"), at("/srv"))
    );
    assert_eq!(fine(&["subvolume", "create", "-q", "-p", &at("/deep/er/one")]), "");
    fs::write(image.dir.join("file"), vec![7; 300_000]).unwrap();
    let file = image.dir.join("file").display().to_string();
    fine(&["cp", &file, &at("/home/file")]);
    assert_eq!(
        fine(&["subvolume", "snapshot", "-r", &at("/home"), &at("/home.old")]),
        format!("Create a readonly snapshot of '{}' in '{}'\n", at("/home"), at("/home.old"))
    );
    // Into a directory, with the name of the source.
    fine(&["subvolume", "snapshot", &at("/home"), &at("/deep")]);
    fine(&["truncate", "-s", "5", &at("/home/file")]);
    assert_eq!(fine(&["property", "get", &at("/home.old"), "ro"]), "ro=true\n");
    assert_eq!(fine(&["subvolume", "property", "get", &at("/home")]), "ro=false\n");
    fine(&["property", "set", &at("/srv"), "ro", "true"]);
    let (code, said) = failing(&["mkdir", &at("/srv/x")]);
    assert!(code == 1 && said.contains("read-only"), "{said}");
    fine(&["subvolume", "set-default", &at("/home")]);
    assert!(fine(&["subvolume", "get-default", &image.word()]).ends_with(" path home\n"));
    assert!(fine(&["ls", &at("/")]).starts_with("file"));
    fine(&["subvolume", "set-default", "5", &image.word()]);
    assert_eq!(fine(&["subvolume", "get-default", &image.word()]), "ID 5 (FS_TREE)\n");
    assert_clean(&image.path);

    let mount = KernelMount::new(&image.path, "").unwrap();
    let list = btrfs(&["subvolume", "list", &mount.path().display().to_string()]);
    let paths: Vec<&str> = list.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(paths, ["home", "srv", "deep/er/one", "home.old", "deep/home"]);
    assert_eq!(fs::read(mount.join("home.old/file")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::read(mount.join("deep/home/file")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::read(mount.join("home/file")).unwrap(), [7; 5]);
    assert!(fs::write(mount.join("home.old/new"), "").is_err(), "read-only");
    assert!(fs::write(mount.join("srv/new"), "").is_err(), "read-only");
    fs::write(mount.join("deep/home/new"), "by the kernel").unwrap();
    mount.unmount().unwrap();
    assert_eq!(fine(&["cat", &at("/deep/home/new")]), "by the kernel");
}

#[test]
fn what_is_deleted_in_an_image_is_gone() {
    require!(kernel_btrfs);
    let image = made_by_kernel("subvol-gone");
    let at = |path: &str| image.at(path);
    let (code, said) = failing(&["subvolume", "delete", &at("/a")]);
    assert!(code == 1 && said.contains("not empty"), "{said}");
    let (_, said) = failing(&["subvolume", "delete", &at("/d")]);
    assert!(said.contains("is not a subvolume"), "{said}");
    let (_, said) = failing(&["subvolume", "delete", &at("/none")]);
    assert!(said.contains("no such file"), "{said}");
    fine(&["subvolume", "set-default", &at("/s1")]);
    let (_, said) = failing(&["subvolume", "delete", "--subvol", "/", &at("/s1")]);
    assert!(said.contains("not permitted"), "{said}");
    fine(&["subvolume", "set-default", "5", &image.word()]);
    let told = fine(&["subvolume", "delete", "-c", &at("/d/s2"), &at("/s1")]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(lines[0].ends_with(&format!("(no-commit): '{}'", at("/d/s2"))), "{told}");
    assert!(lines[1].ends_with(&format!("(commit): '{}'", at("/s1"))), "{told}");
    // The subvolume inside first.
    let told = fine(&["subvolume", "delete", "-R", &at("/a")]);
    let inside = format!("'{}'", at("/a/b"));
    assert!(told.contains(&inside) && told.lines().count() == 2, "{told}");
    fine(&["subvolume", "delete", "-i", "258", &image.word()]);
    fine(&["subvolume", "sync", &image.word()]);
    assert_eq!(fine(&["subvolume", "list", "-d", &image.word()]), "");
    let left = fine(&["subvolume", "list", &image.word()]);
    assert!(left.ends_with("path a blank\n") && left.lines().count() == 1, "{left}");
    assert_clean(&image.path);
    let mount = KernelMount::new(&image.path, "").unwrap();
    assert!(!mount.join("a").exists() && !mount.join("s1").exists() && mount.join("d/e").exists());
    assert_eq!(fs::read_to_string(mount.join("a blank/file")).unwrap(), "one\n");
    mount.unmount().unwrap();
}

/// Its content went before that was known.
#[test]
fn what_lies_in_a_subvolume_that_cannot_be_deleted_stays() {
    require!(fuse);
    let image = Image::new("subvol-stays");
    let made = |place: &str| {
        for name in ["a", "a/b", "a/c"] {
            fine(&["subvolume", "create", &format!("{place}{name}")]);
        }
    };
    made(&image.at("/"));
    let left = |place: &str| {
        let all = json(&fine(&["subvolume", "list", "--json", place]));
        all.as_array().unwrap().iter().map(|one| one["id"].to_string()).collect::<Vec<_>>()
    };
    let stays = |place: &str, words: &[&str]| {
        let (code, said) = failing(&[&["subvolume", "delete", "-R"][..], words].concat());
        assert!(code == 1 && !said.contains("panicked"), "{words:?}: {said}");
        assert_eq!(left(place), ["256", "257", "258"], "{words:?}: {said}");
    };
    let (word, at) = (image.word(), |path: &str| image.at(path));
    stays(&word, &[&at("/")]);
    stays(&word, &[&at("/a/..")]);
    stays(&word, &["-i", "5", &word]);
    stays(&word, &["--subvol", "a", &at("/")]);
    for default in ["/a", "/a/c"] {
        fine(&["subvolume", "set-default", "--subvol", "/", &at(default)]);
        stays(&word, &["--subvol", "/", &at("/a")]);
        let mount = Mount::new(&image, "subvolid=5");
        stays(&mount.word(), &[&path(&mount, "a")]);
        fine(&["subvolume", "set-default", "5", &mount.word()]);
        mount.umount();
    }
    let mount = Mount::new(&image, "subvol=a");
    stays(&mount.word(), &[&mount.word()]);
    stays(&mount.word(), &["-i", "256", &mount.word()]);
    mount.umount();
    let mount = Mount::new(&image, "rw");
    stays(&mount.word(), &[&mount.word()]);
    stays(&mount.word(), &[&path(&mount, "a/..")]);
    stays(&mount.word(), &["-i", "5", &mount.word()]);
    // Links and dots lead to what has a name.
    let link = image.dir.join("link").display().to_string();
    std::os::unix::fs::symlink(mount.join("a"), &link).unwrap();
    fine(&["subvolume", "delete", "-R", &link]);
    assert_eq!(fine(&["subvolume", "list", &mount.word()]), "");
    made(&path(&mount, ""));
    let here = format!("cd {} && {} subvolume delete -R .", path(&mount, "a"), common::PROGRAM);
    assert!(sh(&here).status.success());
    assert_eq!(fine(&["subvolume", "list", &mount.word()]), "");
    mount.umount();
    assert_clean(&image.path);
}

/// Each was looked for anew to be committed.
#[test]
fn what_lay_in_what_is_deleted_is_committed_as_well() {
    require!(fuse);
    let image = Image::new("subvol-both");
    for name in ["/a", "/a/b"] {
        fine(&["subvolume", "create", &image.at(name)]);
    }
    let mount = Mount::new(&image, "rw");
    let words = ["subvolume", "delete", "-v", "-c", &path(&mount, "a/b"), &path(&mount, "a")];
    let output = spinney(&words);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(text(&output.stdout).ends_with("Transaction committed\n"));
    mount.umount();
    assert_eq!(fine(&["subvolume", "list", &image.word()]), "");
    assert_clean(&image.path);
}

/// As in a root directory of somebody's own, where nothing tells what is mounted.
#[test]
fn what_is_deleted_is_found_without_proc() {
    require!(fuse);
    if !sh("unshare -m true").status.success() {
        testkit::skip!("no mount namespaces here");
    }
    let image = Image::new("subvol-no-proc");
    for name in ["/a", "/a/b", "/c"] {
        fine(&["subvolume", "create", &image.at(name)]);
    }
    let mount = Mount::new(&image, "rw");
    let (c, a, program) = (path(&mount, "c"), path(&mount, "a"), common::PROGRAM);
    let delete = |words: &str| {
        let script = format!("mount -t tmpfs none /proc && {program} subvolume delete {words}");
        sh(&format!("unshare -m sh -c '{script}'"))
    };
    for words in [c, format!("-R {a}")] {
        let output = delete(&words);
        assert!(output.status.success(), "{words}: {}", text(&output.stderr));
    }
    assert_eq!(fine(&["subvolume", "list", &mount.word()]), "");
    mount.umount();
    assert_clean(&image.path);
}

/// Exchanges two names until one of them is gone.
const EXCHANGER: &str = "import ctypes, sys
exchange = ctypes.CDLL(None).renameat2
a, b = sys.argv[1].encode(), sys.argv[2].encode()
while exchange(-100, a, -100, b, 2) == 0: pass";

/// Root's deletion by a name that an ordinary user can change took the subvolume that had it at the last moment.
#[test]
fn names_that_are_exchanged_lead_to_no_other_subvolume() {
    require!(fuse);
    // Each question to the server comes late, so that the names are exchanged in front of it.
    let late = ["-qq", "-o", "/dev/null", "-e", "inject=ioctl:delay_enter=3000", common::PROGRAM];
    let told = Command::new("strace").args(late).arg("--version").output();
    require!(told.is_ok_and(|output| output.status.success()), "no strace");
    require!(Command::new("python3").arg("--version").output().is_ok(), "no python3");
    let image = Image::new("subvol-exchanged");
    let mount = Mount::new(&image, "rw");
    let (a, b) = (path(&mount, "a"), path(&mount, "b"));
    for _ in 0..20 {
        fine(&["subvolume", "create", &a]);
        fine(&["subvolume", "create", &b]);
        let mut exchanging =
            Command::new("python3").args(["-c", EXCHANGER, &a, &b]).spawn().unwrap();
        let told = loop {
            let mut command = Command::new("strace");
            let output = command.args(late).args(["subvolume", "delete", &a]).output().unwrap();
            match output.status.success() {
                true => break text(&output.stdout),
                // It had the name of another before anything was done.
                false => assert!(text(&output.stderr).contains("by now"), "{output:?}"),
            }
        };
        assert!(exchanging.wait().unwrap().success());
        let number = told.split(' ').nth(2).unwrap();
        let left = json(&fine(&["subvolume", "list", "--json", &mount.word()]));
        let left: Vec<_> =
            left.as_array().unwrap().iter().map(|one| one["id"].to_string()).collect();
        assert!(left.len() == 1 && left[0] != number, "{left:?} after: {told}");
        let rest = if Path::new(&a).exists() { &a } else { &b };
        fine(&["subvolume", "delete", rest]);
    }
    mount.umount();
    assert_clean(&image.path);
}

#[test]
fn mistakes_are_told() {
    let image = Image::new("subvol-mistakes");
    for (words, code, part) in [
        (vec!["subvolume"], 2, ""),
        (vec!["subvolume", "lst", "x"], 2, "did you mean `spinney subvolume list`"),
        (vec!["subvolume", "create"], 2, "the subvolume's name is missing"),
        (vec!["subvolume", "list", "--sort=size", "x"], 2, "gen, ogen, rootid or path"),
        (vec!["subvolume", "delete", "-i", "x", "y"], 2, "no number of a subvolume"),
        (vec!["property", "set", "x", "labels", "y"], 2, "there is no property labels"),
        (vec!["property", "set", "x", "ro", "maybe"], 2, "ro is true or false"),
        (vec!["subvolume", "list", "/"], 1, "not in a volume that Spinney has mounted"),
        (vec!["subvolume", "list", "/no/such"], 1, "no such file"),
        (vec!["subvolume", "delete", "-v", "-c", "/no/such"], 1, "no such file"),
        (vec!["subvolume", "delete", "-v", "-C", "/no/such"], 1, "no such file"),
    ] {
        let output = spinney(&words);
        assert!(!text(&output.stdout).contains("committed"), "{words:?}");
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(text(&output.stderr).contains(part), "{words:?}: {}", text(&output.stderr));
    }
    for (verb, more) in [("create", "x"), ("snapshot", "/")] {
        let (code, said) = failing(&["subvolume", verb, &image.at("/"), more]);
        assert!(code == 1 && !said.contains("panicked"), "{verb}: {said}");
    }
    let (_, said) = failing(&["subvolume", "show", "-r", "999", &image.word()]);
    assert!(said.contains("no such subvolume"), "{said}");
    assert_clean(&image.path);
}

fn path(mount: &Mount, name: &str) -> String {
    mount.join(name).display().to_string()
}

#[test]
fn a_mount_does_what_an_image_does() {
    require!(kernel_btrfs);
    require!(fuse);
    for transport in TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        let image = made_by_kernel(&format!("subvol-mount-{transport}"));
        let before = fine(&["subvolume", "list", "-puqRc", &image.word()]);
        let mount = Mount::new(&image, &format!("transport={transport}"));
        assert_eq!(fine(&["subvolume", "list", "-puqRc", &mount.word()]), before);
        let at = |name: &str| path(&mount, name);
        // The kernel remembers that there is none.
        assert!(!mount.join("new").exists() && !mount.join("snap").exists());
        fine(&["subvolume", "create", &at("new")]);
        assert!(mount.join("new").is_dir());
        fs::write(mount.join("new/file"), vec![9; 200_000]).unwrap();
        fine(&["subvolume", "snapshot", "-r", &at("new"), &at("snap")]);
        fs::write(mount.join("new/file"), "changed").unwrap();
        assert_eq!(fs::read(mount.join("snap/file")).unwrap(), vec![9; 200_000]);
        let refused = fs::write(mount.join("snap/more"), "").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
        assert_eq!(fine(&["property", "get", &at("snap"), "ro"]), "ro=true\n");
        fine(&["property", "set", &at("snap"), "ro", "false"]);
        fs::write(mount.join("snap/more"), "now").unwrap();
        let listed = fs::read_dir(&mount.point).unwrap().flatten();
        let names: Vec<_> = listed.map(|entry| entry.file_name()).collect();
        assert!(names.iter().any(|name| name == "snap"), "{names:?}");

        fine(&["subvolume", "set-default", &at("new")]);
        assert!(fine(&["subvolume", "get-default", &mount.word()]).ends_with("path new\n"));
        fine(&["subvolume", "set-default", "5", &mount.word()]);
        fine(&["subvolume", "delete", "-c", &at("s1")]);
        assert!(!mount.join("s1").exists());
        fine(&["subvolume", "delete", "-R", &at("a")]);
        assert!(!mount.join("a").exists());
        // A name is free for others.
        fs::create_dir(mount.join("a")).unwrap();
        fine(&["subvolume", "sync", "-s", "1", &mount.word()]);
        let (_, said) = failing(&["subvolume", "create", &at("a")]);
        assert!(said.contains("file exists"), "{said}");
        let found = fine(&["subvolume", "find-new", &at("new"), "0"]);
        assert!(found.contains("flags INLINE file\n"), "{found}");
        let told = fine(&["subvolume", "list", &mount.word()]);
        mount.umount();
        assert_clean(&image.path);
        assert_eq!(fine(&["subvolume", "list", &image.word()]), told);
        let kernel = KernelMount::new(&image.path, "").unwrap();
        assert_eq!(btrfs(&["subvolume", "list", &kernel.path().display().to_string()]), told);
        assert_eq!(fs::read(kernel.join("snap/file")).unwrap(), vec![9; 200_000]);
        assert_eq!(fs::read(kernel.join("snap/more")).unwrap(), b"now");
        assert_eq!(fs::read(kernel.join("new/file")).unwrap(), b"changed");
        kernel.unmount().unwrap();
    }
}

/// The program as an ordinary user runs it, from where everybody may.
struct Nobody(PathBuf);

impl Nobody {
    fn beside(image: &Image) -> Nobody {
        let copy = image.dir.join("spinney");
        fs::copy(common::PROGRAM, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        Nobody(copy)
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&self.0)
            .args(words)
            .env("LC_ALL", "C")
            .output()
            .expect("setpriv")
    }

    fn refused(&self, words: &[&str], part: &str) {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(part), "{words:?}: {}", text(&output.stderr));
    }

    fn allowed(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

fn open_up(path: &Path) {
    for dir in path.ancestors().skip(1).filter(|dir| dir.starts_with(std::env::temp_dir())) {
        let mode = fs::metadata(dir).unwrap().mode();
        let _ = fs::set_permissions(dir, fs::Permissions::from_mode(mode | 0o711));
    }
}

#[test]
fn who_may_is_as_with_the_kernel() {
    require!(kernel_btrfs);
    require!(fuse);
    if !sh("setpriv --help").status.success() {
        return testkit::oracle::record_skip("rights of ordinary users", "no setpriv here");
    }
    for options in ["", "user_subvol_rm_allowed"] {
        let image = made_by_kernel("subvol-who");
        let mount = Mount::new(&image, options);
        open_up(&mount.point);
        let nobody = Nobody::beside(&image);
        let at = |name: &str| path(&mount, name);
        fs::create_dir(mount.join("his")).unwrap();
        chown(mount.join("his"), Some(65534), Some(65534)).unwrap();

        nobody.refused(&["subvolume", "create", &at("x")], "permission denied");
        nobody.allowed(&["subvolume", "create", &at("his/sub")]);
        let meta = fs::metadata(mount.join("his/sub")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (65534, 65534));
        nobody.refused(&["subvolume", "snapshot", &at("a"), &at("his/stolen")], "not permitted");
        nobody.allowed(&["subvolume", "snapshot", &at("his/sub"), &at("his/own")]);
        nobody.refused(&["subvolume", "snapshot", &at("his/sub"), &at("x")], "permission denied");
        nobody.refused(&["property", "set", &at("a"), "ro", "true"], "not permitted");
        nobody.allowed(&["property", "set", &at("his/own"), "ro", "true"]);
        nobody.allowed(&["property", "set", &at("his/own"), "ro", "false"]);
        nobody.refused(&["subvolume", "set-default", &at("his/sub")], "not permitted");
        nobody.refused(&["subvolume", "list", &mount.word()], "only root");
        nobody.refused(&["subvolume", "delete", "-i", "256", &mount.word()], "not permitted");
        let shown = nobody.allowed(&["subvolume", "show", &at("his/sub")]);
        assert!(shown.starts_with("sub\n") && !shown.contains("Snapshot"), "{shown}");
        match options {
            "" => nobody.refused(&["subvolume", "delete", &at("his/own")], "not permitted"),
            _ => {
                nobody.allowed(&["subvolume", "delete", &at("his/own")]);
                nobody.refused(&["subvolume", "delete", &at("s1")], "permission denied");
                // The kernel holds an owner's own directory against him, too.
                fs::set_permissions(mount.join("his/sub"), fs::Permissions::from_mode(0o555))
                    .unwrap();
                nobody.refused(&["subvolume", "delete", &at("his/sub")], "permission denied");
            }
        }
        mount.umount();
        assert_clean(&image.path);
    }
}

#[test]
fn a_mount_whose_server_has_ended_says_so() {
    require!(kernel_btrfs);
    require!(fuse);
    let image = Image::new("subvol-stale");
    let mut mount = Mount::foreground(&image, "plain");
    common::mount::signal(mount.pid(), "KILL");
    mount.wait();
    let (code, said) = failing(&["subvolume", "list", &mount.word()]);
    assert!(code == 1 && said.contains("the server of this mount has ended"), "{said}");
}
