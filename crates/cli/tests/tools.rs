//! Other people's tools, as their packages have them, with the program under the name `btrfs` and mounts of
//! ours: btrbk and btrfsmaintenance.
//!
//! What no file system in user space can be is said for it: both ask the machine whether a mount is of the
//! type `btrfs` (a `cat` of mountinfo, a `stat -f`), and hear that it is.

mod common;

use common::mount::Mount;
use common::streams::shell;
use common::{Image, KernelMount, PROGRAM, assert_clean, records, sh, text};
use std::path::Path;
use testkit::require;

/// `cat` and `stat` that call our mounts what the tools look for, and `btrfs`.
fn answers(dir: &Path) -> String {
    let bin = dir.join("bin").display().to_string();
    shell(&format!(
        r#"mkdir -p {bin}; ln -s {PROGRAM} {bin}/btrfs; cp "$(command -v stat)" {bin}/stat.real
cat > {bin}/cat <<'END'
#!/bin/sh
/bin/cat "$@" | sed 's/ - fuse[a-z]*\.spinney / - btrfs /'
END
cat > {bin}/stat <<'END'
#!/bin/sh
{bin}/stat.real "$@" | sed 's/^fuseblk$/btrfs/'
END
chmod +x {bin}/cat {bin}/stat"#
    ));
    bin
}

/// Snapshots, whole and incremental backups into another volume, and that old ones go.
#[test]
fn btrbk_backs_up_from_one_mount_to_another() {
    require!(kernel_btrfs);
    require!(fuse);
    require!(Path::new("/usr/bin/btrbk").exists(), "btrbk is not installed");
    let (source, target) = (Image::new("btrbk"), Image::new("btrbk-target"));
    let (from, to) = (Mount::new(&source, ""), Mount::new(&target, ""));
    let (bin, conf) = (answers(source.dir.path()), source.dir.join("btrbk.conf"));
    let (here, there) = (from.word(), to.word());
    let policy = ["snapshot", "target"]
        .map(|what| format!("{what}_preserve_min latest\n{what}_preserve no\n"))
        .concat();
    let volumes =
        format!("volume {here}\n snapshot_dir snaps\n target {there}/kept\n subvolume home\n");
    std::fs::write(&conf, format!("timestamp_format long-iso\n{policy}{volumes}")).unwrap();
    shell(&format!("mkdir {here}/snaps {there}/kept; {bin}/btrfs -q subvolume create {here}/home"));
    let btrbk =
        |words: &str| shell(&format!("PATH={bin}:$PATH btrbk -c {} {words} 2>&1", conf.display()));
    for round in 0..3 {
        shell(&format!(
            "cd {here}/home; head -c 3000000 /dev/urandom > f{round}; echo {round} >> log
            cp f0 copy{round}"
        ));
        let said = btrbk("run");
        let kind = if round == 0 { "*** " } else { ">>> " };
        assert!(said.contains(kind) && !said.contains("!!!"), "{said}");
        let list = btrbk("list all");
        assert_eq!(list.matches("/kept/home.").count(), 1, "the older one is gone: {list}");
        // Names of snapshots are of seconds.
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    assert!(btrbk("usage").contains(&format!("{there}/kept")));
    assert!(btrbk("stats").contains("correlated"));
    let last = shell(&format!("cd {there}/kept; ls -d home.*"));
    let last = last.trim();
    shell(&format!("diff -r {here}/home {there}/kept/{last}"));
    from.umount();
    to.umount();
    assert_clean(&source.path);
    assert_clean(&target.path);
    let one = KernelMount::new(&source.path, "ro").expect("mount");
    let other = KernelMount::new(&target.path, "ro").expect("mount");
    let kept = other.join("kept").join(last);
    shell(&format!("diff -r {} {}", one.join("home").display(), kept.display()));
    one.unmount().expect("unmount");
    other.unmount().expect("unmount");
}

/// Its scripts for balances, scrubs, trims and defragmentation, in a place where their configuration, `stat`
/// and `btrfs` are those of the test.
#[test]
fn btrfsmaintenance_keeps_a_mount_in_order() {
    require!(kernel_btrfs);
    require!(fuse);
    let scripts = Path::new("/usr/share/btrfsmaintenance");
    require!(scripts.exists(), "btrfsmaintenance is not installed");
    let image = Image::new("maintenance");
    let mount = Mount::new(&image, "");
    let (top, bin) = (mount.word(), answers(image.dir.path()));
    shell(&format!(
        "cd {top}; mkdir d; for i in $(seq 40); do head -c 300000 /dev/urandom > d/$i; done
        for i in $(seq 20); do echo $i >> d/log; sync -f d/log; done; rm d/1 d/2; sync -f ."
    ));
    let sums = || shell(&format!("cd {top}; find . -type f | sort | xargs sha256sum"));
    let before = sums();
    let conf = image.dir.join("conf");
    let settings = "BTRFS_LOG_OUTPUT=stdout\nBTRFS_DEFRAG_MIN_SIZE=+0\nBTRFS_SCRUB_PRIORITY=normal
        BTRFS_BALANCE_DUSAGE='5 90'\nBTRFS_BALANCE_MUSAGE=5";
    let places = ["BALANCE_MOUNTPOINTS", "SCRUB_MOUNTPOINTS", "TRIM_MOUNTPOINTS", "DEFRAG_PATHS"];
    let places = places.map(|name| format!("BTRFS_{name}={top}\n")).concat();
    std::fs::write(&conf, format!("{settings}\n{places}")).unwrap();
    for (script, says) in [
        ("balance", "Done, had to relocate"),
        ("scrub", "Error summary:    no errors found"),
        ("trim", "bytes) trimmed"),
        ("defrag", ""),
    ] {
        let output = sh(&format!(
            "unshare -m sh -ec 'mount --bind {} /etc/default/btrfsmaintenance
            mount --bind {bin}/stat $(command -v stat); mount --bind {PROGRAM} $(command -v btrfs)
            {}/btrfs-{script}.sh' 2>&1; code=$?; rm -f /run/btrfs-maintenance-running.{}; exit $code",
            conf.display(),
            scripts.display(),
            fsid(&image)
        ));
        let said = text(&output.stdout);
        assert!(output.status.success() && said.contains(says), "{script}: {said}");
        assert!(!said.contains("skipping") && !said.contains("rror:"), "{script}: {said}");
    }
    assert_eq!(sums(), before);
    assert!(records().read_dir().expect("records").next().is_some(), "the scrub is written down");
    mount.umount();
    assert_clean(&image.path);
}

fn fsid(image: &Image) -> String {
    let told = shell(&format!("btrfs inspect-internal dump-super {}", image.word()));
    let fsid = told.lines().find_map(|line| line.strip_prefix("fsid")).expect("an fsid");
    fsid.trim().to_owned()
}
