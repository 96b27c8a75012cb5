//! Other people's tools, as their packages have them, with the program under the name `btrfs` and mounts of
//! ours: btrbk, btrfsmaintenance, libbtrfsutil, and programs that back up.
//!
//! What no file system in user space can be is said for it: the first two ask the machine whether a mount is of the
//! type `btrfs` (a `cat` of mountinfo, a `stat -f`), and hear that it is.

use crate::common;
use common::mount::Mount;
use common::streams::shell;
use common::{Image, KernelMount, PROGRAM, assert_clean, records, sh, text};
use std::path::Path;
use std::process::Command;
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

/// What libbtrfsutil does by control commands works; what it asks `statfs(2)` about before it begins it refuses
/// by name, and what needs a descriptor in a record FUSE cannot carry.
#[test]
fn libbtrfsutil_does_what_fuse_carries() {
    require!(kernel_btrfs);
    require!(fuse);
    let python = "/usr/bin/python3";
    let there = Command::new(python).args(["-c", "import btrfsutil"]).output();
    require!(there.is_ok_and(|o| o.status.success()), "python3-btrfsutil is not installed");
    let image = Image::new("btrfsutil");
    let mount = Mount::new(&image, "");
    let script = "
import btrfsutil, sys
top = sys.argv[1]
def told(call, *words):
    try: return call(*words)
    except btrfsutil.BtrfsUtilError as e: return e.strerror or str(e)
one = top + '/one'
print(told(btrfsutil.create_subvolume, one), told(btrfsutil.subvolume_id, one) >= 256)
print(told(btrfsutil.get_subvolume_read_only, one), told(btrfsutil.set_subvolume_read_only, one, True),
      told(btrfsutil.get_subvolume_read_only, one), told(btrfsutil.set_subvolume_read_only, one, False))
print(told(btrfsutil.get_default_subvolume, top), told(btrfsutil.set_default_subvolume, top, 5))
print(told(btrfsutil.sync, top), told(btrfsutil.start_sync, top) > 0, told(btrfsutil.deleted_subvolumes, top))
print(told(btrfsutil.delete_subvolume, one))
print(told(btrfsutil.is_subvolume, top))
print(told(btrfsutil.subvolume_info, top))
print(told(lambda: list(btrfsutil.SubvolumeIterator(top))))
print(told(btrfsutil.create_snapshot, top, top + '/two'))
";
    let output = Command::new(python).args(["-c", script, &mount.word()]).output().expect("python");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let works = ["None True", "False None True None", "5 None", "None True []", "None", "False"];
    assert_eq!(lines[..6], works, "{said}");
    for refused in &lines[6..8] {
        assert!(
            refused.contains("Not a Btrfs filesystem") || refused.contains("Invalid"),
            "{said}"
        );
    }
    assert!(lines[8].contains("Could not create") || lines[8].contains("Inappropriate"), "{said}");
    mount.umount();
    assert_clean(&image.path);
}

/// Programs that keep their store on a mount, and bring back from it what was in another.
#[test]
fn backup_programs_store_and_restore() {
    require!(kernel_btrfs);
    require!(fuse);
    let (source, target) = (Image::new("backed-up"), Image::new("store"));
    let (from, to) = (Mount::new(&source, "compress=zstd"), Mount::new(&target, ""));
    let (here, there) = (from.word(), to.word());
    shell(&format!(
        "cd {here}; mkdir d; head -c 9000000 /dev/urandom > d/noise; seq 300000 > d/text; cp d/text d/copy
        ln -s text d/link; ln d/text d/hard; truncate -s 3M d/hole; chmod 4750 d/copy; mkfifo d/pipe
        touch -d 2001-02-03T04:05:06.789 d/noise; setfattr -n user.x -v y d/copy; mkdir d/empty"
    ));
    // casync knows no hard links.
    let same = |program| if program == "casync" { "rsync -nacAXi" } else { "rsync -nacHAXi" };
    let programs = [
        ("casync", "casync make --store=$S/store $S/x.caidx d && casync extract --store=$S/store $S/x.caidx $O/d"),
        (
            "borg",
            "export BORG_BASE_DIR=$S/home BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
            borg init -e none $S/repo && borg create $S/repo::1 d && borg check --verify-data $S/repo &&
            cd $O && borg extract $S/repo::1",
        ),
        (
            "restic",
            "export RESTIC_PASSWORD=x; R=\"restic -q --no-cache -r $S/repo\"; $R init && $R backup d &&
            $R check --read-data && $R restore latest --target $O",
        ),
        ("rsync", "rsync -aHAXS d $S/ && rsync -aHAX $S/d $O/"),
    ];
    for (program, how) in programs {
        if !sh(&format!("command -v {program}")).status.success() {
            testkit::oracle::record_skip(program, "it is not installed");
            continue;
        }
        let said = shell(&format!(
            "S={there}/{program} O={here}/back-{program}; mkdir $S $O; cd {here}
            ({how}) >$S/said 2>&1 || {{ cat $S/said >&2; exit 1; }}
            {} --delete {here}/d/ $O/d/",
            same(program)
        ));
        assert_eq!(said, "", "{program}");
    }
    from.umount();
    to.umount();
    assert_clean(&source.path);
    assert_clean(&target.path);
}

fn fsid(image: &Image) -> String {
    let told = shell(&format!("btrfs inspect-internal dump-super {}", image.word()));
    let fsid = told.lines().find_map(|line| line.strip_prefix("fsid")).expect("an fsid");
    fsid.trim().to_owned()
}
