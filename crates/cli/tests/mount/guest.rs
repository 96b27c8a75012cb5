//! A mount is a guest on its machine: it changes nothing there that it was not told to.
//!
//! The machine's io_uring switch is not touched for that: the mount is made in a mount
//! namespace of its own where a file stands in the switch's place.

use crate::common;
use common::mount::Mount;
use common::{Image, PROGRAM, assert_clean, sh, text};
use std::fs;
use testkit::require;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What a mount left: the switch (off before), the kernel's limits of the mount, the
/// server's share of the processors, and what the command said.
#[derive(Debug)]
struct Left {
    switch: String,
    limits: String,
    share: String,
    said: String,
}

/// `None` where the kernel has no switch, hence nothing to be left alone.
fn mount(name: &str, options: &str) -> Option<Left> {
    if !std::path::Path::new(SWITCH).exists() {
        testkit::oracle::record_skip(name, "the kernel has no FUSE over io_uring");
        return None;
    }
    let image = Image::new(name);
    let (point, switch) = (image.dir.join("mnt"), image.dir.join("switch"));
    fs::create_dir(&point).unwrap();
    fs::write(&switch, "N\n").unwrap();
    let script = format!(
        "set -e
        mount --bind {switch} {SWITCH}
        {PROGRAM} mount --log {log} -o {options} {image} {point} > {dir}/said 2>&1
        number=$(mountpoint -d {point})
        for bdi in /sys/class/bdi/$number-fuseblk /sys/class/bdi/$number; do
            [ ! -d $bdi ] || break
        done
        (cd $bdi; cat read_ahead_kb max_ratio strict_limit) > {dir}/limits
        server=$(grep -lz {image} /proc/[0-9]*/cmdline | cut -d/ -f3 | while read -r pid; do
            [ \"$(readlink /proc/$pid/exe)\" != {PROGRAM} ] || echo $pid
        done | head -n 1)
        cat /proc/$server/autogroup > {dir}/share 2> /dev/null || true
        {PROGRAM} umount {point}",
        switch = switch.display(),
        log = image.dir.join("log").display(),
        image = image.word(),
        point = point.display(),
        dir = image.dir.join("").display(),
    );
    let output = sh(&format!("unshare --mount --propagation private sh -c '{script}'"));
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_clean(&image.path);
    let read = |name: &str| fs::read_to_string(image.dir.join(name)).unwrap();
    Some(Left {
        switch: read("switch").trim().to_owned(),
        limits: read("limits").split_whitespace().collect::<Vec<_>>().join(" "),
        share: read("share").trim().to_owned(),
        said: read("said"),
    })
}

/// As the kernel makes a FUSE mount: read-ahead in KiB, percent of unwritten pages, whether
/// that is strict.
const AS_MADE: &str = "128 1 1";

#[test]
fn a_mount_leaves_the_machine_as_it_was() {
    require!(fuse);
    require!(btrfs_progs);
    for transport in ["auto", "classic"] {
        let Some(left) = mount("guest", &format!("transport={transport},writeback")) else {
            return;
        };
        assert_eq!((left.switch.as_str(), left.limits.as_str()), ("N", AS_MADE), "{left:?}");
        assert!(left.said.contains("is mounted on"), "{left:?}");
        // Who asked for /dev/fuse by name knows.
        let helps = left.said.contains("it would be faster with");
        assert_eq!(helps, transport == "auto" && left.said.contains("(classic"), "{left:?}");
        let groups = std::path::Path::new("/proc/self/autogroup").exists();
        assert!(!groups || left.share.ends_with("nice 0"), "{left:?}");
    }
}

#[test]
fn what_is_named_is_set() {
    require!(fuse);
    require!(btrfs_progs);
    let limits = "read-ahead=512,max-ratio=50,strict-limit=0";
    let Some(left) = mount("named", &format!("transport=classic,{limits}")) else { return };
    assert_eq!((left.switch.as_str(), left.limits.as_str()), ("N", "512 50 0"), "{left:?}");
    // The switch that the program sees says no, and the kernel's own yes.
    require!(
        fs::read_to_string(SWITCH).is_ok_and(|switch| switch.trim() == "Y"),
        "FUSE over io_uring is off"
    );
    if let Some(left) = mount("asked", "transport=uring") {
        assert_eq!((left.switch.as_str(), left.limits.as_str()), ("Y", AS_MADE), "{left:?}");
    }
}

/// Of each thread's memory one page of 2 MiB for every size of what it needs.
#[test]
fn a_server_takes_no_huge_pages() {
    require!(fuse);
    require!(btrfs_progs);
    let setting = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
        line.map(|value| value.trim().to_owned())
    };
    require!(setting(std::process::id()).as_deref() == Some("1"), "there are no huge pages here");
    let image = Image::new("small-pages");
    let mount = Mount::foreground(&image, "rw");
    assert_eq!(setting(mount.pid()).as_deref(), Some("0"));
    mount.umount();
    assert_clean(&image.path);
}
