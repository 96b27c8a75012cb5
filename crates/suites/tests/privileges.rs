//! Which of the special mode bits a change takes away, by who makes it: as on the kernel's
//! btrfs, for each kind of caller, each mode and each kind of change.

use std::path::Path;
use std::time::Duration;

use suites::{Volume, transports};
use testkit::oracle::run;
use testkit::skip;

/// How the caller is made, and the file's group; its owner is 1000.
const CALLERS: &[(&str, &str, u32)] = &[
    ("owner in the group", "--reuid 1000 --regid 1000 --clear-groups", 1000),
    ("owner in the group too", "--reuid 1000 --regid 1000 --groups 5,2000", 2000),
    ("owner outside", "--reuid 1000 --regid 1000 --clear-groups", 2000),
    ("another outside", "--reuid 1001 --regid 1001 --clear-groups", 2000),
    ("another in the group", "--reuid 1001 --regid 2000 --clear-groups", 2000),
    ("root", "--reuid 0", 2000),
    ("root without CAP_FSETID", "--bounding-set=-fsetid --inh-caps=-fsetid", 2000),
    (
        "owner outside with CAP_FSETID",
        "--reuid 1000 --regid 1000 --clear-groups --inh-caps=+fsetid --ambient-caps=+fsetid",
        2000,
    ),
];

const MODES: &[&str] = &["2666", "2676", "4666", "4777", "6666", "6676", "6777", "4755", "6755"];

/// Changes of `$1`; `other` is 4096 bytes that the caller may read.
const CHANGES: &[(&str, &str)] = &[
    ("append", "printf more >>$1"),
    ("empty", ": >$1"),
    ("truncate", "truncate -s 3 $1"),
    ("grow", "truncate -s 9000 $1"),
    ("write", "dd if=other of=$1 bs=7 count=1 conv=notrunc status=none"),
    ("direct", "dd if=other of=$1 bs=4096 count=1 oflag=direct conv=notrunc status=none"),
    ("allocate", "fallocate -l 20000 $1"),
    ("punch", "fallocate -p -o 0 -l 4096 $1"),
    ("zero", "fallocate -z -o 0 -l 4096 $1"),
    ("copy", "cp other $1"),
    ("own", "chown 1000 $1"),
    // Of others the kernel's FUSE lets it pass; what counts is that nothing comes of it.
    ("own nothing", "chown '' $1; true"),
    ("group", "chgrp 1000 $1"),
    ("chmod", "chmod u+r $1"),
];

/// One line of each caller, mode and change: how it ended, and the mode behind it.
fn all_changes(root: &Path) -> Vec<String> {
    let mut told = Vec::new();
    for (who, credentials, group) in CALLERS {
        let mut script = format!(
            "cd '{}' || exit 99; rm -rf a; mkdir -m 777 a; cd a
            head -c 4096 /dev/zero >other; umask 0\n",
            root.display()
        );
        for (name, change) in CHANGES {
            for mode in MODES {
                script += &format!(
                    "printf 12345 >f; chown 1000:{group} f; chmod {mode} f; stat -c %a f >/dev/null
                    r=0; setpriv {credentials} sh -c '{change}' sh f 2>/dev/null || r=1
                    echo '{who}, {name} of {mode}:' $r $(stat -c %a:%u:%g f); rm f\n"
                );
            }
        }
        let report = run("bash", &["-c", &script]);
        assert!(report.success(), "{report:?}");
        told.extend(report.stdout.lines().map(str::to_string));
    }
    told
}

#[test]
fn special_bits_go_as_in_the_kernel() {
    for program in ["setpriv", "fallocate", "truncate"] {
        if !run("which", &[program]).success() {
            skip!("no {program}");
        }
    }
    for transport in transports() {
        let reference = Volume::new("privileges-kernel", 512 << 20);
        let kernel = reference.mount_by_kernel();
        let expected = all_changes(kernel.path());
        kernel.unmount().unwrap();
        assert_eq!(expected.len(), CALLERS.len() * MODES.len() * CHANGES.len());
        let dropped = expected.iter().filter(|line| line.contains(": 0 666:")).count();
        assert!(dropped > 50, "the kernel drops many: {expected:#?}");

        let volume = Volume::new("privileges", 512 << 20);
        let mount = volume.mount(transport, Duration::from_secs(120));
        let told = all_changes(mount.path());
        let differ: Vec<_> = told.iter().zip(&expected).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty(), "{transport}; the kernel's btrfs is on the right: {differ:#?}");
        volume.judge(&mount.unmount_with_tree());
    }
}
