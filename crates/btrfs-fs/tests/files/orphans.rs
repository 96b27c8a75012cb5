//! What lost its last name while the kernel had it open, and then the power went: directories as
//! well as files, in each subvolume. It is no damage, and a mount that may write erases it.

use crate::common;
use btrfs_check::{CheckOptions, Report};
use btrfs_fs::Options;
use btrfs_volume::{OpenOptions, Volume};
use common::kernel::{btrfs, kernel};
use common::{CX, Image};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::require;
use vfs::FileSystem;

fn checked(image: &Path) -> Report {
    let device = Arc::new(common::open_device(image, true));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(device, options).expect("volume opens"));
    let report = btrfs_check::check(volume, &CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    report
}

/// A directory with attributes, and a file with content, in each of `places`.
fn cut_off(image: &Image, places: &[&str], read_only: bool) -> PathBuf {
    kernel(&image.path, "noatime,commit=300", |mount| {
        btrfs(mount, &["subvolume", "create", "/sub"]);
        let mut held = Vec::new();
        for place in places {
            let (dir, file) = (mount.join(place).join("dir"), mount.join(place).join("file"));
            fs::create_dir(&dir).expect("mkdir");
            fs::write(&file, vec![7; 300_000]).expect("write");
            for path in [&dir, &file] {
                let path = path.display().to_string();
                testkit::oracle::sh("setfattr", &["-n", "user.a", "-v", "b", &path]).expect("set");
                held.push(File::open(path).expect("open"));
            }
            fs::remove_dir(&dir).expect("rmdir");
            fs::remove_file(&file).expect("unlink");
        }
        if read_only {
            let sub = mount.join("sub").display().to_string();
            testkit::oracle::sh("btrfs", &["property", "set", &sub, "ro", "true"]).expect("set");
        }
        let root = mount.path().display().to_string();
        testkit::oracle::sh("sync", &["-f", &root]).expect("sync");
        common::crashed(image, "crashed")
    })
}

fn erased(places: &[&str], read_only: bool) {
    let image = Image::new(256 << 20, &[]);
    let copy = cut_off(&image, places, read_only);
    assert_eq!(checked(&copy).totals.orphans, 2 * places.len() as u64);
    common::assert_sound(&copy);
    let options = Options { background: false, ..Options::default() };
    let fs = common::open_image(&copy, options);
    assert_eq!(fs.read_only_reason(), None);
    fs.destroy().expect("close");
    drop(fs);
    let report = checked(&copy);
    assert_eq!((report.totals.orphans, report.totals.data_bytes), (0, 0));
    common::assert_sound(&copy);
}

#[test]
fn a_mount_erases_files_and_directories() {
    require!(kernel_btrfs);
    erased(&[".", "sub"], false);
}

/// The kernel cleans a subvolume when somebody looks it up, whether it may be changed or not.
#[test]
fn read_only_subvolumes_are_cleaned_as_well() {
    require!(kernel_btrfs);
    erased(&["sub"], true);
}

/// Without names, in each state that a commit can meet them in: the copies of the volume behind
/// each commit know exactly those that had none then, and whoever mounts one erases them.
#[test]
fn each_commit_has_an_item_for_who_has_no_name() {
    require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let root = fs.root();
    let write = |ino| _ = fs.write(&CX, ino, 0, &[7; 10_000], Default::default()).expect("write");
    let new = || {
        let ino = fs.tmpfile(&CX, root, 0o600).expect("tmpfile").attr.ino;
        write(ino);
        ino
    };
    let link = |ino, name: &str| _ = fs.link(&CX, ino, root, name.as_bytes()).expect("link");
    let unlink = |name: &str| fs.unlink(&CX, root, name.as_bytes()).expect("unlink");
    let mut copies = Vec::new();
    let mut commit = |orphans: u64| {
        fs.sync().expect("commit");
        copies.push((common::crashed(&image, &format!("crashed-{}", copies.len())), orphans));
    };
    let (kept, named, gone) = (new(), new(), new());
    fs.forget(new(), 1);
    commit(3);
    // Named, and without a name again before the next commit; its item must not go.
    link(named, "named");
    unlink("named");
    fs.forget(gone, 1);
    commit(2);
    for round in 0..20 {
        // Many that come and go in one epoch, some of which stay.
        let many: Vec<_> = (0..100).map(|_| new()).collect();
        many.iter().skip(round).for_each(|ino| fs.forget(*ino, 1));
        commit(2 + round as u64);
        many.iter().take(round).for_each(|ino| fs.forget(*ino, 1));
    }
    // Once for what made it, once for its link.
    fs.forget(named, 2);
    commit(1);
    fs.forget(kept, 1);
    commit(0);
    common::close_and_judge(&image, fs);
    for (copy, orphans) in copies {
        assert_eq!(checked(&copy).totals.orphans, orphans, "{}", copy.display());
        common::assert_sound(&copy);
        let fs = common::open_image(&copy, Options { background: false, ..Options::default() });
        fs.destroy().expect("close");
        drop(fs);
        assert_eq!(checked(&copy).totals.orphans, 0, "{}", copy.display());
        common::assert_sound(&copy);
    }
}
