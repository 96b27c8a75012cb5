//! Volumes whose features and UUIDs `btrfstune` changed after the kernel had filled them: checked, read, written,
//! balanced; and a seed, which is read alone.

use crate::common;
use common::alike::{assert_seen_alike, assert_sound, judge};
use common::mount::{Mount, lacks_fuse};
use common::streams::{ready, shell};
use common::{Image, KernelMount, MIB, failing, fine, mkfs_btrfs};
use testkit::compare::TreeSnapshot;
use testkit::oracle::TempDir;

/// Made without what btrfstune can bring.
const OLD: [&str; 2] = ["-O", "^no-holes,^extref,^skinny-metadata"];

fn filled(name: &str) -> Image {
    let dir = TempDir::new(name).expect("scratch directory");
    let path = dir.join("disk.img");
    mkfs_btrfs(&path, 400 * MIB, &OLD).expect("mkfs.btrfs");
    let mount = KernelMount::new(&path, "noatime").unwrap();
    shell(&format!(
        "cd {}; mkdir d e; for n in $(seq 200); do head -c $((n * 97)) /dev/urandom > d/file-$n; done
        head -c 5000000 /dev/urandom > large; ln large d/linked; ln -s large d/link
        truncate -s 9M sparse; echo in it | dd of=sparse bs=1 seek=5000000 conv=notrunc 2>/dev/null
        btrfs -q subvolume snapshot . snap; rm d/file-1*",
        mount.path().display()
    ));
    mount.unmount().unwrap();
    Image { dir, path }
}

#[test]
fn volumes_are_read_and_written_with_what_btrfstune_brought() {
    if !ready("btrfstune") || lacks_fuse("fuse") {
        return;
    }
    let image = filled("tuned");
    let kept = image.path.with_file_name("kept.img");
    std::fs::copy(&image.path, &kept).unwrap();
    for options in ["-r", "-x", "-n", "-f -u", "-f -m"] {
        std::fs::copy(&kept, &image.path).unwrap();
        shell(&format!("btrfstune {options} {}", image.word()));
        assert_sound(&image, options);
        let mount = Mount::new(&image, "");
        shell(&format!(
            "cd {}; cp large new; echo more >> large; mv d/file-2* e; truncate -s 12M sparse
            for n in $(seq 300); do ln new d/new-$n; done; rm -r snap/d; sync -f .",
            mount.word()
        ));
        let seen = TreeSnapshot::of_dir(&mount.join("")).unwrap();
        mount.umount();
        assert_seen_alike(&image, &seen, options);
        shell(&format!("{} balance start --full-balance {}", common::PROGRAM, image.word()));
        judge(&image, &seen, options);
    }
}

#[test]
fn a_seed_is_read_and_never_written() {
    if !ready("a seed") || lacks_fuse("fuse") {
        return;
    }
    let image = filled("seed");
    shell(&format!("btrfstune -f -S 1 {}", image.word()));
    let before = std::fs::read(&image.path).unwrap();
    assert_sound(&image, "a seed");
    let (_, said) = failing(&["rm", &image.at("/large")]);
    assert!(said.contains("a seed") && said.contains("btrfstune -S 0"), "{said}");
    for options in ["", "ro"] {
        let mount = Mount::new(&image, options);
        let seen = TreeSnapshot::of_dir(&mount.join("")).unwrap();
        let refused = std::fs::write(mount.join("new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        mount.umount();
        assert_seen_alike(&image, &seen, "a seed");
    }
    assert!(before == std::fs::read(&image.path).unwrap(), "it is as it was");
    shell(&format!("btrfstune -f -S 0 {}", image.word()));
    fine(&["rm", &image.at("/large")]);
    assert_sound(&image, "a seed of before");
}
