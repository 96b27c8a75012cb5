//! Mounts in containers: by who is root in a user namespace alone, and by a root that gets no loop devices;
//! and copies where there is no /proc, where system calls are refused, and of what others mount.

use crate::common;
use common::{Image, OpenToAll, PROGRAM, assert_clean, fine, sh, text};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use testkit::require;

/// An ordinary user; so is this one in a container of its own.
const USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

/// Works on the mount of `disk.img` on `mnt`, in the image's directory; answers what the mount said.
fn work(image: &Image, around: &str, before: &str, options: &str) -> String {
    let script = format!(
        "set -e; {before}
        {PROGRAM} mount {options} disk.img mnt
        cd mnt; echo written > file; mkdir d; ln -s file d/link; mv file d/moved; sync d/moved
        {PROGRAM} subvolume create s >/dev/null; {PROGRAM} subvolume snapshot s s2 >/dev/null
        cd ..; {PROGRAM} umount mnt"
    );
    let dir = image.dir.path().display();
    let output = sh(&format!("cd {dir}; mkdir -p mnt; chown 65534 mnt; {around} sh -c '{script}'"));
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_clean(&image.path);
    assert_eq!(fine(&["cat", &image.at("/d/moved")]), "written\n");
    assert_eq!(fine(&["subvolume", "list", &image.word()]).lines().count(), 2);
    said
}

#[test]
fn a_root_without_loop_devices_mounts_all_the_same() {
    require!(kernel_btrfs);
    require!(fuse);
    // None at all; and one that makes devices that nobody shows to us.
    for control in ["", "mknod /dev/loop-control c 10 237"] {
        let image = Image::new("no-loops");
        let before = format!(
            "mount --rbind /dev /mnt; mount -t tmpfs none /dev; mkdir /dev/shm
            mount --rbind /mnt/shm /dev/shm; mknod /dev/fuse c 10 229; mknod /dev/null c 1 3; {control}"
        );
        let said = work(&image, "unshare --mount --propagation private", &before, "");
        assert!(said.contains("no loop device for it here: `sync` does not reach it"), "{said}");
    }
}

#[test]
fn the_root_of_a_user_namespace_mounts() {
    require!(kernel_btrfs);
    require!(fuse);
    let enters = format!("{USER} unshare --user --map-root-user --mount");
    require!(
        sh(&format!("{enters} true")).status.success(),
        "ordinary users may not make user namespaces here"
    );
    let _open = OpenToAll::new();
    let image = Image::new("user-namespace");
    chown(&image.path, Some(65534), Some(65534)).unwrap();
    sh(&format!("chmod 755 {}; chown 65534 {0}", image.dir.path().display()));
    // Its files are of the user by the number outside, whom nobody has inside.
    fine(&["chown", "65534:65534", &image.at("/")]);
    let said = work(&image, &enters, "", "-o map-owner");
    assert!(
        said.contains("no loop device for it here") && !said.contains("-o map-owner"),
        "{said}"
    );
    let script = format!(
        "{PROGRAM} mount -o ro disk.img mnt; {PROGRAM} umount mnt; {PROGRAM} mount disk.img mnt"
    );
    let script = format!("{script}; mkdir mnt/refused && exit 1; {PROGRAM} umount mnt");
    let output = sh(&format!("cd {}; {enters} sh -c '{script}'", image.dir.path().display()));
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && said.contains("that of user 65534"), "{said}");
}

#[test]
fn directories_and_files_come_out_of_an_image_without_proc() {
    require!(kernel_btrfs);
    let image = Image::new("no-proc");
    let dir = image.dir.path().display();
    let made = sh(&format!(
        "set -e; cd {dir}; mkdir -p tree/sub; echo x > tree/sub/file; chmod 751 tree/sub; chmod 604 tree/sub/file
        {PROGRAM} cp -r tree disk.img:/"
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    for (option, modes) in [("", [0o751, 0o604]), ("--no-preserve", [0o750, 0o600])] {
        let output = sh(&format!(
            "cd {dir}; rm -rf out; umask 027; unshare --mount --propagation private sh -c '
            mount -t tmpfs none /proc; {PROGRAM} cp -r {option} disk.img:/tree out'"
        ));
        assert!(output.status.success(), "{option}: {}", text(&output.stderr));
        let mode = |path: &str| fs::metadata(image.dir.join(path)).unwrap().mode() & 0o7777;
        assert_eq!(["out/sub", "out/sub/file"].map(mode), modes, "{option}");
    }
}

/// In a user namespace too, whose root gives his capabilities away: so he is the ordinary user that he is outside.
#[test]
fn what_is_mounted_in_a_source_need_not_be_listed_to_be_left_out() {
    require!(root);
    let enters = format!("{USER} unshare --user --map-root-user --mount");
    require!(
        sh(&format!("{enters} true")).status.success(),
        "ordinary users may not make user namespaces here"
    );
    let _open = OpenToAll::new();
    let image = Image::new("not-to-be-listed");
    let dir = image.dir.path().display();
    sh(&format!("cd {dir}; mkdir -p src/m; echo x > src/f; chown -R 65534:65534 {dir}"));
    let copy = |options: &str| {
        let script = format!(
            "mount -t tmpfs -o mode=0 none src/m && exec setpriv --inh-caps=-all --bounding-set=-all \
             {PROGRAM} cp {options} --no-preserve src disk.img:/{options}"
        );
        let output = sh(&format!("cd {dir}; {enters} sh -c '{script}'"));
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(copy("-rx"), (Some(0), String::new()));
    assert_eq!(fine(&["ls", &image.at("/-rx")]), "f\nm\n");
    let (code, said) = copy("-r");
    assert!(code == Some(1) && said.contains("src/m"), "{code:?} {said}");
    assert_clean(&image.path);
}

#[test]
fn what_is_mounted_when_a_copy_enters_is_copied_and_not_for_the_sake_of_one_that_stays() {
    require!(root);
    require!(sh("python3 -V").status.success(), "python3 is not installed");
    let image = Image::new("automounts");
    let dir = image.dir.path().display();
    sh(&format!("cd {dir}; mkdir -p src/auto"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount/automount.py");
    // A whole tree first, then what merges with that.
    for (options, said) in [("-r", "mounted\n"), ("-r", "mounted\n"), ("-rx", ""), ("-rx", "")] {
        let output = sh(&format!(
            "cd {dir}; unshare --mount --propagation private timeout 60 \
             python3 {script} src/auto {PROGRAM} cp {options}T src disk.img:/{options}"
        ));
        require!(output.status.code() != Some(77), "no autofs: {}", text(&output.stderr));
        assert!(output.status.success(), "{options}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), said, "{options}");
    }
    assert_eq!(fine(&["cat", &image.at("/-r/auto/file")]), "below\n");
    assert_eq!(fine(&["ls", &image.at("/-rx/auto")]), "");
    assert_clean(&image.path);
}

/// Runs `script` in `dir`, with a mount namespace of its own.
fn mounting(dir: &Path, script: &str) {
    let enters = "unshare --mount --propagation private";
    let output = sh(&format!("cd {}; {enters} sh -ec '{script}'", dir.display()));
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
}

/// Each time into the top of a volume: that has nothing, a file, a directory with another mount point in it; and
/// again, where it has all the mount points.
#[test]
fn a_copy_that_stays_leaves_out_what_is_mounted_also_where_it_merges() {
    let mounts = sh("unshare --mount --propagation private mount -t tmpfs none /mnt");
    require!(mounts.status.success(), "no tmpfs: {}", text(&mounts.stderr));
    for (options, there) in [("-rx", ""), ("-rx", "a"), ("-rx --no-preserve", "d")] {
        let image = Image::new("stays");
        let dir = image.dir.path();
        mounting(dir, "mkdir -p src/d/mnt src/mnt old/d; echo a | tee src/a src/d/b old/a");
        if !there.is_empty() {
            mounting(dir, &format!("{PROGRAM} cp -r old/{there} disk.img:/"));
        }
        let tmpfs = "for at in src/mnt src/d/mnt; do mount -t tmpfs none $at; echo x > $at/f; done";
        for turn in 1..=2 {
            mounting(dir, &format!("{tmpfs}; {PROGRAM} cp {options} src/. disk.img:/"));
            let listed = |path: &str| fine(&["ls", "-A", &image.at(path)]);
            let found = ["/", "/d", "/mnt", "/d/mnt"].map(listed);
            assert_eq!(found, ["a\nd\nmnt\n", "b\nmnt\n", "", ""], "{options} {there} {turn}");
        }
        // What is named itself is copied, into what is there and to a new name; and all is without -x.
        for (command, to) in [
            ("cp -rx src/mnt disk.img:/", "/mnt/f"),
            ("cp -rxT src/mnt disk.img:/new", "/new/f"),
            ("cp -r src/. disk.img:/", "/d/mnt/f"),
        ] {
            mounting(dir, &format!("{tmpfs}; {PROGRAM} {command}"));
            assert_eq!(fine(&["cat", &image.at(to)]), "x\n", "{command}");
        }
        assert_clean(&image.path);
    }
}

/// What a profile of a container answers to a call, where its fifth argument is not 0 if that is said.
fn refuses(call: i64, with_flags: bool, errno: i32) -> BpfProgram {
    let has_flags = || {
        let flags = SeccompCondition::new(4, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0).unwrap();
        SeccompRule::new(vec![flags]).unwrap()
    };
    let rules = if with_flags { vec![has_flags()] } else { Vec::new() };
    let refused = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let rules = [(call, rules)].into_iter().collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    filter.try_into().unwrap()
}

/// As an ordinary user has it without /proc before Linux 6.10, who may link no descriptor; and as profiles
/// do that do not know statx.
#[test]
fn links_are_made_and_replaced_where_descriptors_have_no_names_and_statx_is_refused() {
    let image = Image::new("old-profile");
    let dir = image.dir.path().display().to_string();
    let made = sh(&format!(
        "set -e; cd {dir}; mkdir tree; echo x > tree/a; ln tree/a tree/b; ln -s a tree/l
        {PROGRAM} cp -r tree disk.img:/"
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    for errno in [libc::EPERM, libc::EINVAL] {
        let script = format!(
            "set -e; cd {dir}; rm -rf out; {PROGRAM} cp -rT disk.img:/tree out
            ln -sfn elsewhere out/l; {PROGRAM} cp -rT disk.img:/tree out"
        );
        // What a thread is refused, so is what it starts.
        let copied = std::thread::spawn(move || {
            for program in [
                refuses(libc::SYS_linkat, true, libc::ENOENT),
                refuses(libc::SYS_statx, false, errno),
            ] {
                seccompiler::apply_filter(&program).unwrap();
            }
            sh(&script)
        });
        let output = copied.join().unwrap();
        assert!(output.status.success(), "{errno}: {}", text(&output.stderr));
        let ino = |name: &str| fs::metadata(image.dir.join("out").join(name)).unwrap().ino();
        assert_eq!(ino("a"), ino("b"));
        assert_eq!(fs::read_link(image.dir.join("out/l")).unwrap().as_os_str(), "a");
    }
}
