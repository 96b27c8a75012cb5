//! Root's mounts where the kernel does not do all that it takes to mount a subvolume beside the others: the subvolume
//! alone is mounted, as by anybody else, and what was mounted there before stays.

use crate::common;
use common::mount::{Mount, gone, mounted};
use common::{Image, PROGRAM, fine, sh, text};
use std::process::Command;
use testkit::require;

/// A profile that forbids one of the calls ended the mount, and took away what was mounted below it.
#[test]
fn a_mount_that_cannot_begin_in_the_volume_is_of_the_subvolume() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("begins");
    fine(&["subvolume", "create", &image.at("/@")]);
    for fault in ["way=error", "beneath=error", "beneath=error,place=error"] {
        let point = Mount::directory(&image).display().to_string();
        assert!(sh(&format!("mount -t tmpfs before {point}")).status.success());
        let _tidy = Mount { point: point.clone().into(), ready: String::new(), child: None };
        for number in 0..2 {
            let log = image.dir.join("log").display().to_string();
            let started = Command::new(PROGRAM)
                .env("SPINNEY_FAULT", fault)
                .args(["mount", "--log", &log, "-o", "subvol=@", &image.word(), &point])
                .output()
                .unwrap();
            assert!(started.status.success(), "{fault}: {}", text(&started.stderr));
            let file = format!("{point}/file");
            if number > 0 {
                assert_eq!(std::fs::read(&file).unwrap(), fault.as_bytes());
            }
            std::fs::write(&file, fault).unwrap();
            fine(&["umount", &point]);
            assert_eq!(mounted(point.as_ref()), Some(("tmpfs".into(), "before".into())), "{fault}");
            gone(&image);
        }
    }
}

/// To whom another user's directory on the way is closed.
#[test]
fn the_root_of_a_user_namespace_mounts_what_he_cannot_reach_from_the_top() {
    require!(fuse);
    require!(btrfs_progs);
    if !sh("unshare -Urm true").status.success() {
        testkit::skip!("no user namespaces here");
    }
    let image = Image::new("begins-closed");
    fine(&["mkdir", &image.at("/closed")]);
    fine(&["subvolume", "create", &image.at("/closed/@")]);
    fine(&["chown", "2000:2000", &image.at("/closed")]);
    fine(&["chmod", "700", &image.at("/closed")]);
    let point = Mount::directory(&image).display().to_string();
    let log = image.dir.join("log").display().to_string();
    let (image_word, file) = (image.word(), format!("{point}/file"));
    let script = format!(
        "{PROGRAM} mount --log {log} -o subvol=closed/@ {image_word} {point} && echo one > {file} && \
         cat {file} && {PROGRAM} umount {point}"
    );
    let mut command = Command::new("timeout");
    let output = command.args(["60", "unshare", "-Urm", "sh", "-c", &script]).output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success() && text(&output.stdout).contains("one\n"), "{told}");
    gone(&image);
    assert_eq!(fine(&["cat", &image.at("/closed/@/file")]), "one\n");
}
