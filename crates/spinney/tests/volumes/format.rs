//! Volumes as they are made by the library, with quotas from the start: what is counted in them
//! `btrfs check` counts, too.

use spinney::{FormatOptions, QgroupId};
use std::process::Command;
use testkit::oracle::{TempDir, assert_clean, newer_btrfs, newer_btrfs_check};

#[test]
fn quotas_are_there_from_the_start() {
    testkit::require!(btrfs_progs);
    let dir = TempDir::new("lib-format").unwrap();
    let image = dir.join("disk.img");
    let plain = FormatOptions::new().create(&image, 256 << 20).unwrap();
    assert!(plain.quota_status().unwrap().is_none());
    plain.close().unwrap();
    for (options, simple) in [
        (FormatOptions::new().quotas(), false),
        (FormatOptions::new().simple_quotas(), true),
        (FormatOptions::new().mixed().simple_quotas().quotas(), false),
    ] {
        let volume = options.create(&image, 256 << 20).unwrap();
        let status = volume.quota_status().unwrap().unwrap();
        assert_eq!((status.simple, status.inconsistent, status.rescan), (simple, false, None));
        let id = volume.create_subvolume("sub").unwrap();
        volume.write("sub/file", &vec![7; 3 << 20]).unwrap();
        volume.sync().unwrap();
        let groups = volume.qgroups().unwrap();
        let group = groups.iter().find(|group| group.id == QgroupId(id.0)).unwrap();
        assert!(group.referenced >= 3 << 20, "{group:?}");
        volume.close().unwrap();
        if !simple {
            assert_clean(&image);
            let mut check = Command::new("btrfs");
            let told = check.args(["check", "--qgroup-report"]).arg(&image).output().unwrap();
            let told = String::from_utf8_lossy(&told.stdout).into_owned();
            assert!(told.contains("Counts for qgroup id: 0/5 "), "{told}");
            assert!(!told.contains("are different") && !told.contains("diff:"), "{told}");
        }
        match newer_btrfs() {
            Ok(_) => newer_btrfs_check(&image).unwrap(),
            Err(why) => println!("SKIPPED: {why}"),
        }
    }
}
