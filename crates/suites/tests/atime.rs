//! Access times of a mount, with each option that asks for them: whether a step changes one is
//! as on the kernel's btrfs with the same options.

use std::path::Path;
use std::time::Duration;

use suites::{Volume, shell, transports};
use testkit::oracle::KernelMount;

const OLD: &str = "touch -h -a -d '2 days ago'";

/// Each a program of its own. `OLD` makes an access time two days old.
const STEPS: &[&str] = &[
    "echo content >d/f; head -c 300000 /dev/zero >d/big; touch d/empty; ln -s f d/l",
    "cat d/f",
    "cat d/f",
    "echo more >>d/f",
    "cat d/f",
    "head -c 3 d/f",
    "chmod 600 d/f",
    "cat d/f",
    "OLD d/f",
    "cat d/f",
    "cat d/f",
    "mv d/f d/other; mv d/other d/f",
    "cat d/f",
    "ls d",
    "ls d",
    "touch d/new",
    "ls d",
    "OLD d",
    "ls d",
    "ls d",
    "readlink d/l",
    "readlink d/l",
    "OLD d/l",
    "cat d/l",
    "cat d/big",
    "cat d/big",
    "OLD d/big",
    "dd if=d/big of=/dev/null bs=4096 iflag=direct status=none",
    "dd if=d/big of=/dev/null bs=4096 iflag=direct status=none",
    "OLD d/big",
    "dd if=d/big of=/dev/null iflag=noatime status=none",
    "true <d/big",
    "stat d/big",
    "dd if=/dev/zero of=d/big bs=4096 count=1 conv=notrunc status=none",
    "touch d/f; cat d/f",
    "chattr +A d/f; OLD d/f",
    "cat d/f",
    "chattr -A d/f",
    "cat d/f",
    "find . -name f",
    "touch d/late; truncate -s 100 d/f",
    "cat d/f d/big",
    "rm d/new",
    "ls -l d",
    "chattr +i d/f; OLD d/big",
    "cat d/f",
    "chattr -i d/f",
];

/// Of each step, whose access time it changed.
fn changes(root: &Path) -> Vec<String> {
    shell(60, root, "mkdir d");
    let names = ["d", "d/f", "d/big", "d/l"];
    let stat = || shell(60, root, "stat -c '%n %x' d d/f d/big d/l 2>/dev/null || true");
    let mut before = stat();
    let mut told = Vec::new();
    for (n, step) in STEPS.iter().enumerate() {
        shell(60, root, &format!("{} >/dev/null; sleep 0.03", step.replace("OLD", OLD)));
        let after = stat();
        let of = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.split(' ').next() == Some(name));
            line.map(str::to_owned)
        };
        let changed = names.iter().filter(|name| of(&before, name) != of(&after, name));
        let changed = changed.copied().collect::<Vec<_>>().join(" ");
        told.push(format!("{n} {step}: {changed}"));
        before = after;
    }
    told
}

/// Another program of the machine may list a directory of a mount while this looks at it: what differs is what
/// differs each time.
const LOOKS: usize = 3;

fn as_the_kernel(ours: &str, kernels: &str) {
    let first = changes_by_kernel(kernels);
    for transport in transports() {
        let options = [transport, ours].join(",");
        let options = options.trim_end_matches(',');
        let mut differ = differences(&changes_by_us(options), &first);
        for _ in 1..LOOKS {
            if differ.is_empty() {
                break;
            }
            let again = differences(&changes_by_us(options), &changes_by_kernel(kernels));
            differ.retain(|difference| again.contains(difference));
        }
        assert!(differ.is_empty(), "{options}; the kernel's btrfs is on the right: {differ:#?}");
    }
}

fn differences(ours: &[String], kernels: &[String]) -> Vec<(String, String)> {
    let pairs = ours.iter().cloned().zip(kernels.iter().cloned());
    pairs.filter(|(ours, kernels)| ours != kernels).collect()
}

fn changes_by_kernel(options: &str) -> Vec<String> {
    let volume = Volume::new("atime-kernel", 512 << 20);
    let mount = KernelMount::new(&volume.image(), options).unwrap();
    let told = changes(mount.path());
    mount.unmount().unwrap();
    told
}

fn changes_by_us(options: &str) -> Vec<String> {
    let volume = Volume::new("atime", 512 << 20);
    let mount = volume.mount(options, Duration::from_secs(180));
    let told = changes(mount.path());
    mount.unmount();
    suites::assert_sound(&volume.image());
    told
}

#[test]
fn by_default_reading_changes_none() {
    as_the_kernel("", "noatime");
}

#[test]
fn relatime() {
    as_the_kernel("relatime", "relatime");
}

#[test]
fn relatime_without_directories() {
    as_the_kernel("relatime,nodiratime", "relatime,nodiratime");
}

#[test]
fn strictatime() {
    as_the_kernel("strictatime", "strictatime");
}

#[test]
fn writeback_too() {
    as_the_kernel("relatime,writeback", "relatime");
}
