//! `chattr +a` and `+i` on a mount, for root too: each command ends as it does on the
//! kernel's btrfs, and the kernel finds the same flags afterwards.

use std::path::Path;
use std::time::Duration;

use suites::{Volume, transports};
use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::run;
use testkit::skip;

/// What is there, and which flag it gets.
const BEFORE: &str = "
    mkdir dir dir/sub; echo old >dir/old; echo 1234567890 >file; echo other >other
    head -c 100000 /dev/zero >large; head -c 9000 /dev/zero >prog; chmod 6777 prog";

/// Commands that change `file`, `large` or `dir`, or try to.
const ATTEMPTS: &[&str] = &[
    "lsattr -d file large dir | cut -c 1-20",
    "echo more >>file",
    "echo less >file",
    "printf x | dd of=file bs=1 seek=3 conv=notrunc status=none",
    "truncate -s 3 file",
    "truncate -s 300 file",
    "fallocate -p -o 0 -l 4096 large",
    "chmod 600 file",
    "chown 5:6 file",
    "touch file",
    "touch -d 2001-01-01 file",
    "setfattr -n user.x -v y file",
    "setfacl -m u:5:r file",
    "ln file another",
    "mv file away",
    "mv other file",
    "rm -f file",
    "cat file",
    "setpriv --reuid 65534 --clear-groups chattr -ai file",
    "echo new >dir/new",
    "echo more >>dir/old",
    "mkdir dir/more",
    "ln other dir/linked",
    "mv other dir/moved",
    "mv dir/old dir/renamed",
    "rm -f dir/old",
    "rmdir dir/sub",
    "chmod 700 dir",
    "mv dir there",
    "ls dir",
    "cat dir/old",
    // What may only grow loses them to a change that may be an append.
    "case $(lsattr -d prog) in *a*' '*) exit;; esac; TRY fallocate -p -o 0 -l 4096 prog",
    "case $(lsattr -d prog) in *a*' '*) exit;; esac; TRY fallocate -z -o 0 -l 4096 prog",
    "case $(lsattr -d prog) in *a*' '*) exit;; esac; TRY fallocate -l 20000 prog",
    "case $(lsattr -d prog) in *a*' '*) exit;; esac; TRY 'echo more >>prog'",
    "TRY truncate -s 5 prog",
    "TRY 'cat file >prog'",
];

/// Somebody tries that; what is told is whether mode and change time are what they were.
const TRY: &str = r#"TRY() {
    before=$(stat -c %a:%z prog); setpriv --reuid 65534 --regid 65534 --clear-groups sh -c "$*"; ended=$?
    [ "$before" = "$(stat -c %a:%z prog)" ] && echo unchanged || echo changed to $(stat -c %a prog)
    return $ended; }"#;

/// How each command ended, and what it printed.
fn attempts(root: &Path, flag: &str) -> Vec<String> {
    let sh = |line: &str| {
        let script = format!("{TRY}; cd '{}' || exit 99; {line}", root.display());
        let report = run("bash", &["-c", &script]);
        format!("chattr +{flag}: {line}: {} {}", report.success(), report.stdout)
    };
    assert!(sh(&format!("set -e; mkdir {flag}; cd {flag}; {BEFORE}")).contains(": true"));
    let mut told = vec![sh(&format!("cd {flag}; chattr +{flag} file large dir prog"))];
    told.extend(ATTEMPTS.iter().map(|line| sh(&format!("cd {flag}; {line}"))));
    told
}

/// Both flags; `a`'s are taken off again, and then everything may change. `i`'s stay.
fn all_attempts(root: &Path) -> Vec<String> {
    let mut told = attempts(root, "a");
    told.extend(attempts(root, "i"));
    let script = format!(
        "cd '{}/a' && chattr -a file large dir && echo less >file && rm large && mv dir there
        chattr +a file",
        root.display()
    );
    told.push(format!("{:?}", run("bash", &["-c", &script]).output()));
    told
}

#[test]
fn append_only_and_immutable_hold_for_root_too() {
    for program in ["chattr", "setfacl", "setfattr", "setpriv"] {
        if !run("which", &[program]).success() {
            skip!("no {program}");
        }
    }
    for transport in transports() {
        let reference = Volume::new("flags-kernel", 512 << 20);
        let kernel = reference.mount_by_kernel();
        let expected = all_attempts(kernel.path());
        let tree = TreeSnapshot::of_dir(kernel.path()).unwrap();
        kernel.unmount().unwrap();
        let refused = expected.iter().filter(|line| line.contains(": false")).count();
        assert!(refused > 30, "the kernel refuses most: {expected:#?}");

        let volume = Volume::new("flags", 512 << 20);
        let mount = volume.mount(transport, Duration::from_secs(120));
        let told = all_attempts(mount.path());
        for (told, expected) in told.iter().zip(&expected) {
            assert_eq!(told, expected, "{transport}; the kernel's btrfs is on the right");
        }
        let seen = mount.unmount_with_tree();
        let rules = Rules { attributes: false, ..Rules::default() }.ignoring_clock();
        let differences = diff(&seen, &tree, &rules);
        assert!(differences.is_empty(), "{transport}: {differences:#?}");
        volume.judge(&seen);
    }
}
